"""A small study of the real unit on a test host, run by the real command line."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from autotune.reading import load_stored
from autotune.views import trial_views
from tests.host.services import LOAD_S, ROOT, until
from tests.testhost import SystemdHost

__all__ = ["Process", "StudyOnHost", "active_trial", "deploy", "environment", "require_proof"]

RUN_MOST_S = 240.0 + 40 * LOAD_S

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
final_samples = 0
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
drift_most = 1
request_timeout_s = 60
"""

_T = TypeVar("_T")


class Process:
    """`autotune run` in the background."""

    def __init__(
        self, process: subprocess.Popen[str], out: Path, err: Path, *, most_s: float = RUN_MOST_S
    ) -> None:
        self._process = process
        self._most_s = most_s
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
        return self._process.wait(self._most_s)

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
    run_most_s = RUN_MOST_S

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
            "gpus_per_host": f'gpus_per_host = 8\nssh_config = "{self.ssh_config()}"',
            "load_timeout_s": "load_timeout_s = 60",
            "stop_timeout_s": "stop_timeout_s = 30",
            **(lines or {}),
        }
        for key, line in changes.items():
            becomes = f"{line}\n".replace("\\", r"\\") if line else ""
            text, changed = re.subn(rf"(?m)^{re.escape(key)}\b.*\n", becomes, text, count=1)
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
        """One command of the command line, to its end; what it printed stays in the folder."""
        ended = subprocess.run(
            self.command(command, *words),
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=self.run_most_s,
        )
        with (self.folder / "transcript").open("a") as transcript:
            print("$ autotune", command, *words, file=transcript)
            print(ended.stdout, ended.stderr, f"exit {ended.returncode}", sep="", file=transcript)
        return ended

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
                env=environment(),
                stdout=stdout,
                stderr=stderr,
                text=True,
            ) as process,
        ):
            try:
                yield Process(process, out, err, most_s=self.run_most_s)
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


def environment() -> dict[str, str]:
    """What a user's shell has, without what would lead to another storage or terminal."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AUTOTUNE_", "PYTEST_"))}
    return {**kept, "COLUMNS": "200", "LC_ALL": "C.UTF-8"}
