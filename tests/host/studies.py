"""A small study of the real unit on a test host, run by the real command line."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

from autotune.reading import load_stored
from autotune.views import trial_views
from tests.testhost import UNIT, SystemdHost, install_unit

__all__ = [
    "ANSWERS",
    "LAUNCHER",
    "LOAD_S",
    "PORT",
    "Found",
    "Process",
    "StudyOnHost",
    "active_trial",
    "deploy",
    "argv",
    "found",
    "install",
    "is_back",
    "journal",
    "listeners",
    "require_as_found",
    "require_proof",
    "restoring",
    "serves",
    "show",
    "traces",
    "until",
]

ROOT = Path(__file__).parents[2]
ANSWERS = ROOT / "objectives" / "coding"
PORT = 30000
LOAD_S = float(os.environ.get("AUTOTUNE_TEST_LOAD_S", "2"))
"""Load of the study that shows the whole job; 20 is the load of a small real model."""

PATIENCE_S = 60.0 + 3 * LOAD_S
RUN_MOST_S = 240.0 + 40 * LOAD_S

LAUNCHER = "/srv/sglang-launcher"
"""A program of the user that starts the server, and gives it a fault for some of its flags."""

_LAUNCHER_TEXT = """\
#!{python}
import os, runpy, sys
line = " ".join(sys.argv[1:])
for words, variable, value in {faults!r}:
    if words in line:
        os.environ[variable] = value
sys.argv[0] = "sglang_server"
runpy.run_module("autotune.testing.sglang_server", run_name="__main__", alter_sys=True)
"""

_OBJECTIVE = """\
[[buckets]]
context_tokens = 60
concurrency = 1
output_tokens = 64
weight = 0.5
[[buckets]]
context_tokens = 60
concurrency = {concurrency}
output_tokens = 64
weight = 0.5

[coding]
samples = {samples}
concurrency = 8
sandbox = "weak"

[lossless]
prompts = 1
max_tokens = 16

[measure]
target_half_width = {half_width}
least_windows = 4
most_windows = {windows}
window_s = 0.1
warm_up_most_s = 3
client_cpu_most = 1.0
# What is measured here is a simulation on a busy machine: only the walk matters.
loop_lag_most_ms = 5000
request_timeout_s = 60
"""

_T = TypeVar("_T")


def until(
    probe: Callable[[], _T], what: str, *, timeout_s: float = PATIENCE_S, every_s: float = 0.05
) -> _T:
    """Ask until the answer is true, and return it."""
    ends_at = time.monotonic() + timeout_s
    while not (answer := probe()):
        assert time.monotonic() < ends_at, f"{what}: not within {timeout_s:.0f} s"
        Event().wait(every_s)
    return answer


# -- the host --------------------------------------------------------------------------------------
def install(
    host: SystemdHost,
    *,
    load_s: float = 0.0,
    faults: str = "",
    variables: Mapping[str, str] | None = None,
    launcher: tuple[tuple[str, str, str], ...] = (),
    start: bool = True,
) -> None:
    """Install the unit as its user has it, and wait until it serves.

    Args:
        faults: Faults of every start.
        launcher: Part of the command line, variable, value: faults of some starts.
    """
    host.run("rm -rf /run/autotune")
    environment = {
        "AUTOTUNE_SIM_FAULT": faults,
        "AUTOTUNE_SIM_TIME_SCALE": "8",
        "AUTOTUNE_SIM_WATCH_S": "0.2",
        "AUTOTUNE_SIM_ANSWERS": str(ANSWERS),
        "AUTOTUNE_SIM_SEED": "1",
        **(variables or {}),
    }
    if launcher:
        text = _LAUNCHER_TEXT.format(python=sys.executable, faults=launcher)
        host.write(LAUNCHER, text, mode=0o755)
        install_unit(host, load_s=load_s, environment=environment, command=(LAUNCHER,))
    else:
        install_unit(host, load_s=load_s, environment=environment)
    if start:
        host.run(f"systemctl start {UNIT}")
        until(lambda: serves(host), "the deployed server serves")


def show(host: SystemdHost, name: str) -> str:
    """One property of the unit."""
    return host.run(f"systemctl show --property={name} --value '{UNIT}'").stdout.strip()


def listeners(host: SystemdHost) -> str:
    """Process ids that listen on the service's port, as the kernel knows them."""
    lines = host.run(f"ss -ltnpH 'sport = :{PORT}'", check=False).stdout
    return " ".join(re.findall(r"pid=(\d+)", lines))


def serves(host: SystemdHost) -> bool:
    """Whether a process of the unit answers and is warm."""
    asked = f'curl -s -m 2 -o /dev/null -w "%{{http_code}}" http://127.0.0.1:{PORT}/health'
    answer = host.run(asked, check=False).stdout
    return answer == "200" and show(host, "MainPID") in listeners(host).split()


def argv(host: SystemdHost) -> tuple[str, ...]:
    """Command line of the unit's main process; empty while it has none."""
    pid = show(host, "MainPID")
    return tuple(host.run(f"cat /proc/{pid}/cmdline", check=False).stdout.split("\0")[:-1])


def traces(host: SystemdHost) -> str:
    """Everything on the host that is ours; a look at it takes no lock and leaves nothing."""
    found = host.run(
        "find /run /etc/systemd -name '*autotune*' 2>/dev/null;"
        "systemctl list-units --all --plain --no-legend '*autotune*';"
        f"ls -d /run/systemd/system/{UNIT}.d 2>/dev/null",
        check=False,
    )
    return found.stdout


def journal(host: SystemdHost, *matches: str) -> str:
    """What the journal holds about this, as text."""
    return host.run(" ".join(["journalctl --no-pager -o cat", *matches])).stdout


@dataclass(frozen=True)
class Found:
    """The service as its user has it."""

    cat: str
    invocation_id: str
    argv: tuple[str, ...]


def found(host: SystemdHost) -> Found:
    cat = host.run(f"systemctl cat {UNIT}").stdout
    return Found(cat, show(host, "InvocationID"), argv(host))


def require_as_found(host: SystemdHost, before: Found, *, untouched: bool = False) -> None:
    """The host is as it was found.

    Args:
        untouched: The service was not even restarted.
    """
    assert traces(host) == ""
    after = found(host)
    assert after.cat == before.cat
    assert after.argv == before.argv
    assert show(host, "ActiveState") == "active"
    assert show(host, "MainPID") in listeners(host).split()
    if untouched:
        assert after.invocation_id == before.invocation_id


def is_back(host: SystemdHost, before: Found) -> bool:
    """Whether the host has restored itself."""
    return traces(host) == "" and argv(host) == before.argv and serves(host)


def restoring(host: SystemdHost) -> bool:
    """Whether the way back has begun and is not at its end."""
    return host.run("ls -d /run/autotune/*/lease/restoring", check=False).returncode == 0


# -- the study -------------------------------------------------------------------------------------
class Process:
    """`autotune run` in the background."""

    def __init__(self, process: subprocess.Popen[str], out: Path, err: Path) -> None:
        self._process = process
        self._out, self._err = out, err
        self.pid = process.pid

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """`kill -9`, and gone."""
        self._process.kill()
        self._process.wait()

    def wait(self) -> int:
        return self._process.wait(RUN_MOST_S)

    def until(self, probe: Callable[[], _T], what: str) -> _T:
        """Wait for a condition while the process runs."""

        def alive() -> _T:
            answer = probe()
            if not answer:
                assert self._process.poll() is None, f"{what}: it ended\n{self.stdout}{self.stderr}"
            return answer

        return until(alive, what)


class StudyOnHost:
    """One study of one host, with its definition and its database in a folder of its own."""

    name = "small"

    def __init__(self, host: SystemdHost, folder: Path) -> None:
        self.host = host
        self.folder = folder
        self.file = folder / f"{self.name}.toml"
        self.database = folder / "autotune.db"

    def define(
        self,
        *,
        lines: Mapping[str, str | None] | None = None,
        samples: int = 0,
        windows: int = 6,
        half_width: float = 0.2,
        concurrency: int = 8,
    ) -> None:
        """Write the definition: the real one with a small objective.

        Args:
            lines: Key of a line and the line it becomes, None to leave it out.
        """
        objective = _OBJECTIVE.format(
            samples=samples, windows=windows, concurrency=concurrency, half_width=half_width
        )
        (self.folder / "tiny.toml").write_text(objective)
        text = (ROOT / "search_spaces" / "kimi-k26.toml").read_text()
        changes: dict[str, str | None] = {
            "objective": 'objective = "tiny"',
            "trials": "trials = 3",
            "enqueue": "enqueue = [[16, 4, 2048], [12, 6, 512]]",
            "finalists": "finalists = 0",
            "hosts": f'hosts = ["{self.host.name}"]',
            "api_key_env": f'ssh_config = "{self.ssh_config()}"',
            "load_timeout_s": "load_timeout_s = 60",
            "stop_timeout_s": "stop_timeout_s = 30",
            **(lines or {}),
        }
        for key, line in changes.items():
            text, changed = re.subn(
                rf"(?m)^{re.escape(key)}\b.*\n",
                lambda _, line=line: f"{line}\n" if line else "",
                text,
                count=1,
            )
            assert changed, f"the definition has no line {key}"
        self.file.write_text(text)

    def ssh_config(self, **options: str) -> Path:
        """How the user reaches the host: as a user who may use sudo, not as root."""
        text = self.host.ssh_config.read_text()
        for key, value in {"User": self.host.sudo_user, **options}.items():
            text = re.sub(rf"(?m)^  {key} .*$", f"  {key} {value}", text)
        path = self.folder / "ssh_config"
        path.write_text(text)
        return path

    def command(self, command: str, *words: str) -> list[str]:
        known = () if command == "dashboard" else ("--study", str(self.file))
        return [sys.executable, "-m", "autotune", command, *known, *words]

    def run(self, command: str, *words: str) -> subprocess.CompletedProcess[str]:
        """One command of the command line, to its end."""
        return subprocess.run(
            self.command(command, *words),
            cwd=self.folder,
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=RUN_MOST_S,
        )

    @contextmanager
    def start(self, *words: str, name: str = "run") -> Iterator[Process]:
        """`autotune run` in the background; killed at the end when it still runs."""
        out, err = self.folder / f"{name}.out", self.folder / f"{name}.err"
        with (
            out.open("w") as stdout,
            err.open("w") as stderr,
            subprocess.Popen(
                self.command("run", *words),
                cwd=self.folder,
                env=_environment(),
                stdout=stdout,
                stderr=stderr,
                text=True,
            ) as process,
        ):
            try:
                yield Process(process, out, err)
            finally:
                process.kill()

    def trials(self) -> list[dict[str, Any]]:
        """What `autotune trials --json` prints."""
        return trial_views(load_stored(str(self.file), f"sqlite:///{self.database}"))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Rows of the database; none while it is being made."""
        if not self.database.exists():
            return []
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as connection:
            try:
                return connection.execute(query).fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):
                    return []
                raise

    def optuna_states(self) -> dict[int, str]:
        """Trial number and state in Optuna's own tables."""
        return dict(self.rows("SELECT number, state FROM trials ORDER BY number"))

    def optuna_values(self) -> dict[int, float]:
        """Trial number and the value that was told, of the trials that have one."""
        query = "SELECT number, value FROM trials JOIN trial_values USING (trial_id)"
        return dict(self.rows(query))

    def evidence(self) -> list[tuple[int, str, str, bool]]:
        """Start, ending, link and whether it held, of every start."""
        query = (
            "SELECT s.id, s.ending, e.link, e.ok FROM autotune_start s "
            "LEFT JOIN autotune_evidence e ON e.start_id = s.id ORDER BY e.id"
        )
        return [(start, ending, link, bool(ok)) for start, ending, link, ok in self.rows(query)]


def deploy(host: SystemdHost, folder: Path, **define: Any) -> StudyOnHost:
    """A defined study on a host."""
    study = StudyOnHost(host, folder)
    study.define(**define)
    return study


def active_trial(study: StudyOnHost, *, role: str = "search") -> int | None:
    """Number of the trial whose start of this role runs now."""
    rows = study.rows(
        "SELECT t.number FROM autotune_start s JOIN autotune_trial t ON t.id = s.trial_id "
        f"WHERE s.ending IS NULL AND s.role = '{role}'"
    )
    return rows[-1][0] if rows else None


_ENGINE_LINKS = {
    "invocation",
    "process",
    "argv",
    "listener",
    "bound",
    "nonce",
    "generation",
    "budget: server_args",
    "topk: server_args",
    "window: server_args",
    "window: log",
    "budget: log",
    "topk: log",
    "budget: server_info",
    "topk: server_info",
    "window: server_info",
}


def require_proof(study: StudyOnHost) -> None:
    """Every scored start, repeats too, has every link, and all of them hold."""
    links: dict[int, list[tuple[str, bool]]] = {}
    for start, ending, link, ok in study.evidence():
        if ending == "complete":
            links.setdefault(start, []).append((link, ok))
    assert links
    buckets = len(study.rows("SELECT DISTINCT context_tokens, concurrency FROM autotune_bucket"))
    for start, own in links.items():
        names = [link for link, _ in own]
        assert {link for link, ok in own if not ok} == set(), start
        assert set(names) == _ENGINE_LINKS, start
        assert names.count("generation") == 1 + buckets, start


def _environment() -> dict[str, str]:
    """What a user's shell has, without what would lead to another storage or terminal."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AUTOTUNE_", "PYTEST_"))}
    return {**kept, "COLUMNS": "200", "LC_ALL": "C.UTF-8"}
