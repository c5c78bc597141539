"""Every command: help with an example that can be typed, and bad input that says what is wrong."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from autotune import __version__
from autotune.cli.options import rounded
from autotune.json_outputs import OUTPUTS, SHAPES
from autotune.repository import Repository
from autotune.storage import open_engine
from tests.command_line import called, command_tree
from tests.databases import template
from tests.examples import words_of

COMMANDS = sorted(command_tree())
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_it_does_and_has_an_example(command: str, tmp_path: Path) -> None:
    ended = called(*command.split(), "--help", folder=tmp_path)
    assert ended.code == 0
    assert "Example: autotune" in ended.out
    for parameter in command_tree()[command].params:
        assert parameter.help, f"{command}: {parameter.name} has no help"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_example_can_be_typed(command: str) -> None:
    words = list(words_of(command))
    assert words[: len(command.split())] == command.split()
    command_tree()[command].make_context(command, words[len(command.split()) :])


@pytest.mark.parametrize("command", COMMANDS)
def test_the_readme_names_it(command: str) -> None:
    assert f"`autotune {command}" in (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option_is_refused(command: str, tmp_path: Path) -> None:
    ended = called(*command.split(), "--no-such-option", folder=tmp_path)
    assert ended.code == 2
    assert "--no-such-option" in ended.err
    assert list(tmp_path.iterdir()) == []


NO_STUDY = "no study 'nope'"
NO_DATABASE = "there is no database {folder}/autotune.db"


MISTAKES: tuple[tuple[str, int, str], ...] = (
    ("bench", 2, "give either --study or --url"),
    ("bench --study nope", 2, NO_STUDY),
    ("bench --study demo --url http://a:1", 2, "give either --study or --url"),
    ("bench --study demo --model m", 2, "--model, --api-key-env and --completions"),
    ("bench --study demo --objective nope", 2, "no objective 'nope'"),
    ("bench --study demo", 2, "runs only while it is tuned"),
    ("bench --url http://a:1", 2, "say what to measure"),
    ("bench --url http://a:1 --host b --bucket 1x1x1", 2, "--host belongs to --study"),
    ("bench --url a:1 --bucket 1x1x1", 2, "--url a:1 is no http address"),
    ("bench --url http://a:99999 --bucket 1x1x1", 2, "is no http address"),
    ("bench --url http://a:1 --bucket 8x1", 2, "--bucket 8x1 is not CONTEXTxCONC"),
    ("bench --url http://a:1 --bucket 0x1x1", 2, "--bucket 0x1x1 is not CONTEXTxCONC"),
    ("bench --url http://a:1 --bucket 1x1x1 --api-key-env NO_SUCH", 2, "NO_SUCH"),
    ("bench --url http://a:1 --bucket 1x1x1 --seed x", 2, "--seed"),
    ("rescore", 2, "--study"),
    ("rescore --study demo", 1, NO_DATABASE),
    ("rescore --study demo --objective nope", 2, "no objective 'nope'"),
    ("rescore --study demo --storage nonsense", 2, "is not a database URL"),
    ("hosts", 2, "Missing command"),
    ("hosts list", 2, "--study"),
    ("hosts list --study demo", 1, NO_DATABASE),
    ("hosts drain --study demo", 2, "host"),
    ("hosts drain gpu-a --study demo", 1, NO_DATABASE),
    ("hosts add gpu-a", 2, "--study"),
    ("hosts add gpu-a --study demo", 1, NO_DATABASE),
    ("init", 2, "--host"),
    ("init --host= --unit x", 2, "host '' is no [user@]host[:port]"),
    ("init --host gpu-a --unit x.socket", 2, "--unit x.socket is no service"),
    ("init --host gpu-a --unit x --name a/b", 2, "--name 'a/b' is no name"),
    ("init --host gpu-a --unit x --api-key-env NO_SUCH", 2, "NO_SUCH"),
    ("init --host gpu-a --unit x --engine nope", 2, "no installed package gives the engine 'nope'"),
    ("check --study nope", 2, NO_STUDY),
    ("run", 2, "--study"),
    ("run --study nope", 2, NO_STUDY),
    ("run --study demo --trials 0", 2, "--trials"),
    ("run --study demo --executor none", 2, "--executor"),
    ("run --study demo --host a --host a --dry-run", 2, "--host names a twice"),
    ("run --study demo --from nope --dry-run", 1, NO_DATABASE),
    ("run --study demo --metrics-port 99999", 2, "--metrics-port"),
    ("status", 1, NO_DATABASE),
    ("status --study demo", 1, NO_DATABASE),
    ("status --study demo --storage nonsense", 2, "is not a database URL"),
    ("trials", 2, "--study"),
    ("trials --study demo", 1, NO_DATABASE),
    ("verify --study nope", 2, NO_STUDY),
    ("verify --study demo", 1, "is a process of the tuner"),
    ("report --study demo", 1, NO_DATABASE),
    ("report --study demo --tables-format xml", 2, "'xml' is not one of 'csv', 'parquet'"),
    ("export --study demo", 1, NO_DATABASE),
    ("export --study demo --format xml", 2, "--format"),
    ("revert", 2, "say what to restore"),
    ("revert --study nope", 2, NO_STUDY),
    ("prune", 2, "--study"),
    ("prune --study demo", 1, NO_DATABASE),
    ("prune --study demo --keep-mb -1", 2, "--keep-mb"),
    ("prune --study demo --keep-mb nan", 2, "--keep-mb"),
    ("prune --study demo --keep-mb inf", 2, "--keep-mb inf: give a finite number of mb"),
    ("prune --study demo --older-than-days x", 2, "--older-than-days"),
    ("dashboard --port 99999", 2, "--port"),
    ("dashboard", 1, NO_DATABASE),
    ("db upgrade", 1, NO_DATABASE),
    ("db upgrade --storage nonsense", 2, "is not a database URL"),
    ("nonsense", 2, "nonsense"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_there_is_a_mistake_of_every_command(command: str) -> None:
    """One that is not of the command line library alone: the command itself is asked."""
    lines = [line for line, _, _ in MISTAKES if f"{line} ".startswith(f"{command} ")]
    assert lines, f"{command}: add bad input to MISTAKES"


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_printed_as_json_has_a_schema(command: str) -> None:
    options = {option for one in command_tree()[command].params for option in one.opts}
    printed = OUTPUTS.get(command, ())
    assert bool(printed) == ("--json" in options or command == "export")
    assert set(printed) <= set(SHAPES)


def test_every_schema_is_of_a_command() -> None:
    assert {name for names in OUTPUTS.values() for name in names} == set(SHAPES)
    assert set(OUTPUTS) <= set(COMMANDS)


@pytest.mark.parametrize(("line", "code", "said"), MISTAKES)
def test_bad_input_is_told_in_one_place(line: str, code: int, said: str, tmp_path: Path) -> None:
    ended = called(*line.split(), folder=tmp_path)
    assert ended.code == code, ended.err
    assert said.format(folder=tmp_path.resolve()) in ended.err
    first, *more = ended.err.splitlines()
    assert first.startswith("autotune: ")
    assert len(more) == 1  # what would be right, or what to do
    for word in ("Traceback", "Value error", "Usage:"):
        assert word not in ended.err
    assert list(tmp_path.iterdir()) == []


def test_a_host_that_a_study_does_not_have_changes_nothing(tmp_path: Path) -> None:
    template(tmp_path).rename(tmp_path / "autotune.db")
    engine = open_engine(f"sqlite:///{tmp_path}/autotune.db", create=False)
    Repository(engine).open_study("mine", definition={}, fingerprint="f", provenance={})
    engine.dispose()
    before = called("hosts", "list", "--study", "mine", "--json", folder=tmp_path)
    ended = called("hosts", "drain", "gpu-z", "--study", "mine", folder=tmp_path)
    assert ended.code == 2
    assert ended.err.splitlines() == [
        "autotune: study 'mine' has no host 'gpu-z'",
        "          it has: none yet",
    ]
    after = called("hosts", "list", "--study", "mine", "--json", folder=tmp_path)
    assert (after.code, after.out) == (0, before.out)


def test_a_host_that_was_added_by_mistake_can_be_taken_back(tmp_path: Path) -> None:
    template(tmp_path).rename(tmp_path / "autotune.db")
    engine = open_engine(f"sqlite:///{tmp_path}/autotune.db", create=False)
    Repository(engine).open_study("mine", definition={}, fingerprint="f", provenance={})
    engine.dispose()
    assert called("hosts", "add", "gpu-z", "--study", "mine", folder=tmp_path).code == 0
    assert "gpu-z: never used yet" in called("status", "--study", "mine", folder=tmp_path).out
    ended = called("hosts", "drain", "gpu-z", "--study", "mine", folder=tmp_path)
    assert (ended.code, ended.out) == (0, "gpu-z was never used and will not be\n")
    assert "gpu-z: drained" in called("status", "--study", "mine", folder=tmp_path).out


def test_nothing_typed_shows_what_there_is(tmp_path: Path) -> None:
    ended = called(folder=tmp_path)
    assert ended.code == 2
    assert all(command.split()[0] in ended.err for command in COMMANDS)
    assert not ended.err.startswith("autotune:")


def test_the_version(tmp_path: Path) -> None:
    assert called("--version", folder=tmp_path).out == f"autotune {__version__}\n"


def test_status_without_a_study_lists_them(tmp_path: Path) -> None:
    template(tmp_path).rename(tmp_path / "autotune.db")
    assert "no study yet" in called("status", folder=tmp_path).out
    engine = open_engine(f"sqlite:///{tmp_path}/autotune.db", create=False)
    for name in ("one", "two"):
        Repository(engine).open_study(name, definition={}, fingerprint="f", provenance={})
    engine.dispose()
    listed = json.loads(called("status", "--json", folder=tmp_path).out)
    assert [study["study"] for study in listed] == ["one", "two"]
    assert "study two: no trial yet; no verdict yet" in called("status", folder=tmp_path).out


def test_a_stored_study_is_found_by_its_name_and_says_when_its_file_is_gone(
    tmp_path: Path,
) -> None:
    template(tmp_path).rename(tmp_path / "autotune.db")
    engine = open_engine(f"sqlite:///{tmp_path}/autotune.db", create=False)
    file = tmp_path / "elsewhere" / "mine.toml"
    where = {"search_space": str(file)}
    Repository(engine).open_study("mine", definition={}, fingerprint="f", provenance=where)
    engine.dispose()
    gone = called("export", "--study", "mine", folder=tmp_path)
    assert gone.code == 2
    assert f"its definition {file} is gone" in gone.err
    file.parent.mkdir()
    file.write_text((ROOT / "search_spaces" / "demo.toml").read_text("utf-8"), encoding="utf-8")
    for command in ("export", "run"):
        found = called(command, "--study", "mine", folder=tmp_path)
        assert found.code == 1, found.err
        assert "'mine'" in found.err


def test_printed_numbers_have_six_digits_and_times_their_tenths() -> None:
    value = {"a": [6203.123456789, float("inf")], "b": 1_767_225_600.123, "c": 1, "d": True}
    assert rounded(value) == {"a": [6203.12, None], "b": 1_767_225_600.1, "c": 1, "d": True}


def piped(words: str, shell: str) -> tuple[int, str]:
    """Exit code and error output of `autotune WORDS` with its output as the shell says."""
    line = f"{shlex.quote(sys.executable)} -m autotune {words} {shell}"
    ended = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    return ended.returncode, ended.stderr


def test_a_full_disk_is_told_and_a_reader_who_leaves_is_no_failure(tmp_path: Path) -> None:
    code, said = piped("db upgrade --help", ">/dev/full")
    assert code == 1
    assert said == "autotune: the output cannot be written: No space left on device\n"
    code, said = piped("--help", "| true; echo ${PIPESTATUS[0]} >&2")
    assert said == "0\n"


def test_completion_is_offered(tmp_path: Path) -> None:
    ended: Any = called("--help", folder=tmp_path)
    assert "--install-completion" in ended.out


_HELP = """
import contextlib, io, sys
from autotune.cli import main
sys.argv = ["autotune", "--help"]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as said:
    main()
assert "COMMAND" in said.getvalue()
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_help_waits_for_nothing_heavy() -> None:
    """Of what the product requires, only what draws the help is loaded for it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {canonical(one) for one in project["dependencies"]}
    packages = {
        package
        for package, owners in packages_distributions().items()
        if required & {canonical(owner) for owner in owners}
    }
    assert packages > {"numpy", "optuna", "pydantic", "ray", "sqlalchemy"}
    ended = subprocess.run([sys.executable, "-c", _HELP], capture_output=True, text=True)
    assert ended.stderr == ""
    assert packages & set(ended.stdout.split()) <= {"rich", "typer"}


def canonical(requirement: str) -> str:
    """The name of a distribution as indexes write it."""
    name = re.match(r"[\w.-]+", requirement)
    assert name
    return re.sub(r"[-_.]+", "-", name[0]).lower()
