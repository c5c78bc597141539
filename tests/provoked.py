"""Mistakes that people make, provoked; `python -m tests.provoked` prints docs/errors.md from them.

Every case runs the real command line in a folder of its own.  What it prints stands in the page,
with the folder as `.`.
"""

from __future__ import annotations

import inspect
import shlex
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autotune import errors
from autotune.repository import Repository
from autotune.storage import open_engine
from tests.builders import a_definition
from tests.command_line import called
from tests.databases import template

__all__ = ["CASES", "Case", "page", "provoked"]

STUDY = """\
[study]
objective = "mine"
trials = 4
constraints = ["topk-within-budget"]

[service]
supervisor = "systemd"
unit = "llm.service"
hosts = ["gpu-a"]
base_url = "http://{host}:30000"

[parameters.budget]
kind = "int"
low = 1
high = 64
flag = "--speculative-ddtree-budget"
deployed = 8
why = "nodes of the tree"

[parameters.topk]
kind = "int"
low = 1
high = 16
flag = "--speculative-ddtree-topk-cap"
deployed = 4
why = "ranks of a position"
"""
OBJECTIVE = """\
[[buckets]]
context_tokens = 60
concurrency = 1
output_tokens = 64
weight = 1.0
"""
Prepare = Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class Case:
    """One mistake.

    Attributes:
        mistake: In the words of the one who makes it.
        line: What is typed after `autotune`.
        prepare: Makes the folder as it is then.
    """

    mistake: str
    line: str
    code: int
    prepare: Prepare


def _study(*changes: tuple[str, str], objective: tuple[tuple[str, str], ...] = ()) -> Prepare:
    """Two definition files with some text replaced."""

    def prepare(folder: Path) -> None:
        for name, text, pairs in (
            ("search_spaces", STUDY, changes),
            ("objectives", OBJECTIVE, objective),
        ):
            for before, after in pairs:
                assert before in text, before
                text = text.replace(before, after, 1)
            (folder / name).mkdir()
            (folder / name / "mine.toml").write_text(text, encoding="utf-8")

    return prepare


def _nothing(folder: Path) -> None:
    """An empty folder."""


def _database(folder: Path) -> None:
    template(folder).rename(folder / "autotune.db")


def _stored(folder: Path) -> None:
    """A study that has begun with another definition."""
    _study()(folder)
    _database(folder)
    engine = open_engine(f"sqlite:///{folder}/autotune.db", create=False)
    Repository(engine).open_study("mine", definition=a_definition(), fingerprint="f", provenance={})
    engine.dispose()


def _not_a_database(folder: Path) -> None:
    (folder / "autotune.db").write_text("hello\n" * 200)


def _ssh(text: str) -> Prepare:
    def prepare(folder: Path) -> None:
        (folder / "ssh_config").write_text(text)

    return prepare


CHECK = "check --study mine"
INIT = "init --unit llm.service --ssh-config ssh_config --host gpu-a"

CASES: tuple[Case, ...] = (
    Case("a command that does not exist", "tune", 2, _nothing),
    Case("an option that does not exist", "run --studdy mine", 2, _nothing),
    Case("no study named", "run", 2, _nothing),
    Case("a budget of nothing", "run --study mine --trials 0", 2, _study()),
    Case("a host named twice", "check --study mine --host a --host a", 2, _study()),
    Case("a study that does not exist", "check --study mime", 2, _nothing),
    Case("a path that does not exist", "check --study ./mime.toml", 2, _nothing),
    Case("a file that is no TOML", CHECK, 2, _study(("[study]", "[study"))),
    Case("a misspelt key", CHECK, 2, _study(("trials =", "trails ="))),
    Case("a key of another table", CHECK, 2, _study(("kind =", 'unit = "x"\nkind ='))),
    Case("no budget", CHECK, 2, _study(("trials = 4\n", ""))),
    Case("a number in quotes", CHECK, 2, _study(("trials = 4", 'trials = "four"'))),
    Case("no unit", CHECK, 2, _study(('unit = "llm.service"\n', ""))),
    Case("a unit that is no service", CHECK, 2, _study(("llm.service", "llm.socket"))),
    Case("an address without a port", CHECK, 2, _study((":30000", ""), ("{host}", "127.0.0.1"))),
    Case("an address without http", CHECK, 2, _study(("http://", ""))),
    Case("a range upside down", CHECK, 2, _study(("low = 1\nhigh = 64", "low = 65\nhigh = 64"))),
    Case("deployed outside the range", CHECK, 2, _study(("deployed = 8", "deployed = 80"))),
    Case("deployed points that break a rule", CHECK, 2, _study(("deployed = 8", "deployed = 2"))),
    Case("a sampler nobody gives", CHECK, 2, _study(("= 4\n", '= 4\nsampler = "best"\n'))),
    Case("an engine nobody gives", CHECK, 2, _study(("unit =", 'engine = "vllm"\nunit ='))),
    Case("a rule that does not exist", CHECK, 2, _study(("topk-within", "top-k-within"))),
    Case(
        "a point to measure with too few values",
        CHECK,
        2,
        _study(("trials = 4", "trials = 4\nenqueue = [[8]]")),
    ),
    Case("no reason for a parameter", CHECK, 2, _study(('why = "nodes of the tree"\n', ""))),
    Case(
        "a flag and a variable for one parameter",
        CHECK,
        2,
        _study(("deployed = 8", 'deployed = 8\nenv = "BUDGET"')),
    ),
    Case("an objective that does not exist", CHECK, 2, _study(('"mine"', '"./yours.toml"'))),
    Case("all weights 0", CHECK, 2, _study(objective=(("weight = 1.0", "weight = 0"),))),
    Case("no request at once", CHECK, 2, _study(objective=(("currency = 1", "currency = 0"),))),
    Case(
        "a variable of a key that is not set",
        CHECK,
        2,
        _study(('unit = "llm', 'api_key_env = "NO_SUCH_KEY"\nunit = "llm')),
    ),
    Case("no database yet", "trials --study mine", 1, _nothing),
    Case("a file that is no database", "status", 1, _not_a_database),
    Case("a storage that is no URL", "status --storage autotune.db", 2, _nothing),
    Case("a storage that keeps nothing", "status --storage sqlite://", 2, _nothing),
    Case("a database without studies", "report --study mine", 2, _database),
    Case("an export before the verdict", "export --study mine", 1, _stored),
    Case("an export in place that is not applied", "export --study mine --in-place", 2, _study()),
    Case("revert without a host", "revert", 2, _nothing),
    Case("revert of a unit without a host", "revert --unit llm.service", 2, _nothing),
    Case(
        "a host that refuses connections",
        INIT,
        1,
        _ssh("Host gpu-a\n  HostName 127.0.0.1\n  Port 1\n"),
    ),
    Case("a definition that is there already", "init --host a --unit mine", 2, _study()),
    Case("a socket instead of a service", "init --host a --unit llm.socket", 2, _nothing),
)


@dataclass(frozen=True, slots=True)
class Provoked:
    """What a case printed, paths of this machine left out."""

    code: int
    said: str


def provoked(case: Case) -> Provoked:
    """Make the mistake."""
    with tempfile.TemporaryDirectory(prefix="autotune-") as name:
        folder = Path(name).resolve()
        case.prepare(folder)
        ended = called(*shlex.split(case.line), folder=folder)
        said = ended.err.replace(f"{folder}/", "./").replace(str(folder), ".")
        return Provoked(ended.code, said.rstrip())


def page() -> str:
    """docs/errors.md."""
    lines = [
        "# Errors",
        "",
        "Every message says what is wrong and where; the line below it says what would be right or",
        "what to do. `python -m tests.provoked > docs/errors.md` makes this page from the code",
        "and from mistakes that are really made, and a test keeps it current.",
        "",
        "## Whose fault",
        "",
        "| error | meaning | exit code |",
        "|---|---|---|",
    ]
    for error in _in_tree(errors.AutotuneError):
        first = (inspect.getdoc(error) or "").split("\n\n")[0].replace("\n", " ")
        lines.append(f"| `{error.__name__}` | {first} | {_code(error)} |")
    lines += [
        "",
        "Within a run, errors of a trial end that trial only: the parameters' fault makes it",
        "infeasible, the machine's or nobody's makes it failed and queues it again once.",
        "",
        f"## {len(CASES)} mistakes",
        "",
    ]
    for case in CASES:
        told = provoked(case)
        lines += [
            f"### {case.mistake[0].upper()}{case.mistake[1:]}",
            "",
            f"    $ autotune {case.line}",
            *(f"    {line}".rstrip() for line in told.said.splitlines()),
            f"    (exit code {told.code})",
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


def _in_tree(error: type[errors.AutotuneError]) -> list[type[errors.AutotuneError]]:
    found = [error]
    for below in error.__subclasses__():
        if below.__module__ == errors.__name__:
            found += _in_tree(below)
    return found


def _code(error: type[errors.AutotuneError]) -> str:
    return "2" if issubclass(error, errors.ConfigError) else "1"


if __name__ == "__main__":
    print(page(), end="")
