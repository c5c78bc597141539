"""A small study of the simulated server, run by the real command line in a folder of its own."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil

from autotune.reading import load_stored
from autotune.repository import StoredStart, StoredStudy
from autotune.views import trial_views
from tests.waiting import PATIENCE_S, until

__all__ = ["ROOT", "Run", "SmallStudy", "assert_total", "until"]

ROOT = Path(__file__).parents[2]
MARK = "AUTOTUNE_TEST_MARK"

_OBJECTIVE = """\
[[buckets]]
context_tokens = 60
concurrency = 1
output_tokens = 40
weight = 0.5
[[buckets]]
context_tokens = 60
concurrency = 4
output_tokens = 40
weight = 0.5

[coding]
samples = 2
final_samples = 0
concurrency = 2
sandbox = "weak"

[lossless]
prompts = 1
max_tokens = 16

[measure]
target_half_width = 0.5
least_windows = {windows}
most_windows = {windows}
window_s = 0.1
warm_up_most_s = 3
client_cpu_most = 1.0
# What is measured here is a simulation on a busy machine: only the walk matters.
loop_lag_most_ms = 5000
drift_most = 1
request_timeout_s = 60
"""


class Run:
    """`autotune run` in the background."""

    def __init__(self, process: subprocess.Popen[str], out: Path, err: Path) -> None:
        self._process = process
        self._out, self._err = out, err
        self.pid = process.pid

    @property
    def said(self) -> str:
        return self._out.read_text("utf-8") + self._err.read_text("utf-8")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, *, timeout_s: float = PATIENCE_S) -> int:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"does not end:\n{self.said}") from None

    @property
    def alive(self) -> bool:
        return self._process.poll() is None


class SmallStudy:
    """Definitions, database and processes of one study.

    Args:
        folder: Empty; working directory of every command.
        windows: Of 100 ms for each bucket; many of them keep a start in its bucket.
        changes: Text of `search_spaces/demo.toml` and what stands in its place.
    """

    def __init__(
        self, folder: Path, *, windows: int = 8, changes: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.path = folder / "search_spaces" / "small.toml"
        self.url = f"sqlite:///{folder / 'small.db'}"
        self._mark = uuid.uuid4().hex
        self._runs = 0
        self.define(
            {
                'objective = "demo"': 'objective = "small"',
                "\ntrials = 16\n": "\ntrials = 3\n",
                "\nfinalists = 2\n": "\nfinalists = 1\n",
                'LOAD_S = "1"': 'LOAD_S = "0", AUTOTUNE_SIM_SHARED_SD = "0"',
                'TIME_SCALE = "12"': 'TIME_SCALE = "4"',
                **(changes or {}),
            },
            windows=windows,
        )

    def define(self, changes: Mapping[str, str], *, windows: int) -> None:
        text = (ROOT / "search_spaces" / "demo.toml").read_text("utf-8")
        for old, new in changes.items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        objective = self.folder / "objectives" / "small.toml"
        for path, content in (
            (self.path, text),
            (objective, _OBJECTIVE.format(windows=windows)),
        ):
            path.parent.mkdir(exist_ok=True)
            path.write_text(content, "utf-8")

    # -- commands ---------------------------------------------------------------------------------
    def autotune(
        self, *words: str, env: Mapping[str, str] | None = None, most_s: float = PATIENCE_S
    ) -> subprocess.CompletedProcess[str]:
        """One command to its end."""
        return subprocess.run(
            self._command(*words),
            cwd=self.folder,
            env=self._environment(env),
            capture_output=True,
            text=True,
            timeout=most_s,
            check=False,
        )

    @contextmanager
    def running(
        self, *words: str, env: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL
    ) -> Iterator[Run]:
        """`autotune run` in the background; whatever it left is killed on the way out."""
        self._runs += 1
        out, err = self.folder / f"{self._runs}.out", self.folder / f"{self._runs}.err"
        with out.open("w") as stdout, err.open("w") as stderr:
            process = subprocess.Popen(
                self._command("run", "--study", str(self.path), *words),
                cwd=self.folder,
                env=self._environment(env),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        try:
            yield Run(process, out, err)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            self.kill_all()

    @staticmethod
    def _command(*words: str) -> list[str]:
        return [sys.executable, "-m", "autotune", *words]

    def _environment(self, more: Mapping[str, str] | None) -> dict[str, str]:
        own = {"AUTOTUNE_STORAGE": self.url, MARK: self._mark}
        return {**os.environ, **own, **(more or {})}

    # -- what is there ----------------------------------------------------------------------------
    @property
    def stored(self) -> StoredStudy:
        return load_stored(str(self.path), self.url)

    def trials(self) -> list[dict[str, Any]]:
        return trial_views(self.stored)

    def starts(self) -> list[StoredStart]:
        """Every start, oldest first."""
        found = [start for trial in self.stored.trials for start in trial.starts]
        return sorted(found, key=lambda start: start.started_at_s)

    def begun_buckets(self) -> int:
        """Buckets saved so far, also before the tables are there."""
        path = self.folder / "small.db"
        if not path.is_file():
            return 0
        try:
            with closing(sqlite3.connect(path, timeout=30)) as connection:
                (count,) = connection.execute("SELECT count(*) FROM autotune_bucket").fetchone()
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            return 0
        return int(count)

    def processes(self, *, holding: str = "") -> list[psutil.Process]:
        """Living processes that a command of this study started, by a word of their command line.

        Ray gives its processes other names, which stand in the command line too.
        """
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get(MARK) == self._mark
                alive = ours and process.status() != psutil.STATUS_ZOMBIE
                if alive and any(holding in word for word in process.cmdline()):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def servers(self) -> list[psutil.Process]:
        return self.processes(holding="autotune.testing.sglang_server")

    def kill_all(self) -> None:
        for process in self.processes():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue


def assert_total(study: SmallStudy, total: int) -> None:
    """Exactly so many trials with a verdict, each made once."""
    trials = study.trials()
    states = Counter(trial["state"] for trial in trials)
    assert states["running"] == 0, states
    assert states["complete"] + states["infeasible"] + states["pruned"] == total, states
    points = [
        tuple(t["parameters"].values())
        for t in trials
        if t["state"] == "complete" and not t["reference"]
    ]
    assert len(points) == len(set(points)), points
