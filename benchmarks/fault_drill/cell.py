"""One cell: a run that meets a fault, and everything that must hold afterwards."""

from __future__ import annotations

import fcntl
import os
import re
import select
import shutil
import subprocess
import sys
import time
import traceback
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fault_drill.cells import Cell
from benchmarks.fault_drill.faults import Fault, disk_of_its_own, heal, strike
from benchmarks.fault_drill.points import Point
from tests.host.services import (
    ROOT,
    Found,
    found,
    install,
    not_back,
    require_as_found,
    until,
)
from tests.host.studies import StudyOnHost, require_proof
from tests.testhost import UNIT, SystemdHost

__all__ = ["Outcome", "Timing", "deploy_service", "run_cell"]

SEED_POINT, CELL_POINT = [12, 6, 512], [16, 4, 2048]
CELL_TRIAL = 2
DISK_MB = 32

# Two buckets, one programming task, no pruning: every phase has something to be disturbed in.
_LINES = {
    "trials": "trials = 3",
    "enqueue": f"enqueue = {[SEED_POINT, CELL_POINT]}",
    "finalists": "finalists = 0",
    "sampler": 'sampler = "random"',
}


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things take in a drill, seconds.

    Attributes:
        load_s: The simulated load of the server.
        timer_s: The dead man's timer.
        patience_s: What a busy machine may add before a cell counts as lost.
    """

    load_s: float = 5.0
    timer_s: float = 15.0
    patience_s: float = 60.0

    @property
    def back_s(self) -> float:
        """From the last heartbeat until the original serves, at most."""
        return self.timer_s + 2 * self.load_s + self.patience_s

    @property
    def run_s(self) -> float:
        """A whole run of a cell, at most."""
        return 4 * self.load_s + self.timer_s + 3 * self.patience_s


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a cell.

    Attributes:
        lost: What did not hold; empty when all did.
        exits: Exit status of each `autotune run`, -9 for a killed one.
        back_s: From the fault until the host was seen to be as it was found.
        wall_s: The whole cell.
    """

    key: str
    lost: str
    exits: tuple[int, ...]
    back_s: float
    wall_s: float

    @property
    def held(self) -> bool:
        return not self.lost


class _Study(StudyOnHost):
    """A small study of one cell, in a folder that has a disk of its own."""

    def __init__(self, host: SystemdHost, folder: Path, *, timing: Timing, name: str) -> None:
        self.name = name
        super().__init__(host, folder)
        times = f"restore_after_s = {timing.timer_s:g}\ncommand_timeout_s = 10"
        self.define(lines={**_LINES, "restore_after_s": times}, samples=1, windows=4)
        objective = folder / "tiny.toml"
        text = objective.read_text().replace("request_timeout_s = 60", "request_timeout_s = 10")
        text = text.replace("window_s = 0.1", "window_s = 0.05")
        objective.write_text(text + '\n[score]\naggregate = "geometric"\n')

    @contextmanager
    def held_at(self, point: Point) -> Iterator[_Held]:
        """`autotune run`, held at a point; killed at the end when it still runs."""
        (reached, says), (waits, go) = os.pipe(), os.pipe()
        words = [sys.executable, "-m", "benchmarks.fault_drill.gated", point, str(says), str(waits)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("AUTOTUNE_")}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
        with (self.folder.parent / "held.log").open("a") as log:
            process = subprocess.Popen(
                [*words, "run", "--study", str(self.file)],
                cwd=self.folder,
                env=environment | {"COLUMNS": "200", "LC_ALL": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(says, waits),
                start_new_session=True,
            )
        os.close(says)
        os.close(waits)
        held = _Held(process, reached, go)
        try:
            yield held
        finally:
            held.kill()
            os.close(reached)

    def said(self) -> str:
        """What the held run has printed."""
        return (self.folder.parent / "held.log").read_text()

    def scored(self) -> dict[str, tuple[int, float]]:
        """Invocation of every scored start: its trial and score."""
        query = (
            "SELECT s.invocation_id, t.number, s.score FROM autotune_start s "
            "JOIN autotune_trial t ON t.id = s.trial_id WHERE s.score IS NOT NULL"
        )
        return {invocation: (number, score) for invocation, number, score in self.rows(query)}


class _Held:
    """A run that stands at its point."""

    def __init__(self, process: subprocess.Popen[bytes], reached: int, go: int) -> None:
        self._process, self._reached, self._go = process, reached, go
        self.session = process.pid

    def reach(self, *, within_s: float) -> None:
        """Wait until the point is reached."""
        ready = select.select([self._reached], [], [], within_s)[0]
        said = os.read(self._reached, 1) if ready else b""
        assert said, f"the point was not reached (exit {self._process.poll()})"

    def go(self) -> None:
        if self._go >= 0:
            os.close(self._go)
            self._go = -1

    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self, *, within_s: float) -> int:
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run did not end within {within_s:.0f} s") from None

    def kill(self) -> int:
        self._process.kill()
        status = self._process.wait()
        self.go()
        return status


def deploy_service(host: SystemdHost, timing: Timing) -> None:
    """The service as its user has it: enabled, running, warm."""
    install(host, load_s=timing.load_s)
    host.run(f"systemctl enable {UNIT}")


def run_cell(
    cell: Cell, host: SystemdHost, folder: Path, *, seeds: Path, timing: Timing
) -> Outcome:
    """Run one cell on a host with the service deployed.

    Args:
        folder: Of this cell; holds its database and logs afterwards.
        seeds: Keeps a database with a measured reference and one measured trial.
    """
    began = time.monotonic()
    exits: list[int] = []
    back: list[float] = []
    shutil.rmtree(folder, ignore_errors=True)
    disk = folder / "disk"
    with disk_of_its_own(disk, megabytes=DISK_MB):
        study = _Study(host, disk, timing=timing, name="small")
        try:
            shutil.copy(_seed(host, seeds, timing), study.database)
            _drill(cell, study, timing, exits=exits, back=back)
            lost = ""
        except (AssertionError, subprocess.SubprocessError) as error:
            # A host that cannot even be asked is no host that came back.
            lost = str(error).strip() or _where(error)
            journal = host.run("journalctl --no-pager -o short-monotonic", check=False).stdout
            (folder / "journal").write_text(journal)
        finally:
            with suppress(subprocess.SubprocessError):
                heal(cell.fault, host, folder=disk)
            for path in disk.iterdir():
                if path.is_file() and path.suffix != ".html":
                    shutil.copy(path, folder)
    wall_s = time.monotonic() - began
    return Outcome(cell.key, lost, tuple(exits), back[0] if back else 0.0, wall_s)


def _where(error: Exception) -> str:
    """The line that did not hold, where it says nothing itself."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.line} ({last.name})"


def _drill(
    cell: Cell, study: _Study, timing: Timing, *, exits: list[int], back: list[float]
) -> None:
    host, fault = study.host, cell.fault
    before = found(host)
    with study.held_at(cell.point) as run:
        run.reach(within_s=timing.run_s)
        kept = study.scored()
        saved = CELL_TRIAL in {number for number, _ in kept.values()}
        assert saved == (cell.point in (Point.TELL, Point.RESTORE)), kept
        struck = time.monotonic()
        strike(fault, host, folder=study.folder)
        if fault is Fault.SECOND:
            _require_refused(study, timing)
        if fault.kills:
            exits.append(run.kill())
        run.go()
        if fault is Fault.HERE_FULL:
            until(
                lambda: run.ended() or "trying again" in study.said(),
                "the run ends, or waits for its disk",
                timeout_s=timing.run_s,
            )
            heal(fault, host, folder=study.folder)
        if fault is Fault.READ_ONLY:
            until(
                lambda: run.ended() or _restore_failed(host),
                "the run or the way back ends under a read-only /run",
                timeout_s=timing.run_s,
            )
            heal(fault, host, folder=study.folder)
        if not (fault.alone or fault.kills):
            exits.append(run.wait(within_s=timing.run_s))
        # A tuner that could not even take its agent away has said so, and does when it is back.
        tidy = fault is not Fault.READ_ONLY or exits[-1] == 0
        if fault in (Fault.READ_ONLY, Fault.HOST_FULL) or fault.alone:
            _until_back(host, before, timing, tidy=tidy)
        if fault is not Fault.BACK:
            if tidy:
                require_as_found(host, before)
            back.append(time.monotonic() - struck)
        if fault.alone and not fault.kills:
            exits.append(run.wait(within_s=timing.run_s))
    heal(fault, host, folder=study.folder)
    if fault.kills or exits[-1] != 0:
        again = study.run("run")
        exits.append(again.returncode)
        assert again.returncode == 0, f"run again: {again.stderr or again.stdout}"
    require_as_found(host, before)
    back.append(time.monotonic() - struck)
    _require_nothing_left(host, run.session)
    _require_all_kept(study, kept)


def _until_back(host: SystemdHost, before: Found, timing: Timing, *, tidy: bool) -> None:
    def missing() -> str:
        return not_back(host, before, tidy=tidy)

    try:
        until(lambda: missing() == "", "the host is back", timeout_s=timing.back_s)
    except AssertionError as error:
        raise AssertionError(f"{error}: {missing()}") from None


def _restore_failed(host: SystemdHost) -> bool:
    """Whether the host's way back has failed at least once."""
    shown = host.run("systemctl show -p NRestarts --value 'autotune-restore@*.service'").stdout
    return any(line.strip() not in ("", "0") for line in shown.splitlines())


def _require_refused(study: _Study, timing: Timing) -> None:
    """Another tuner, with a database of its own, is refused and told why."""
    folder = study.folder / "second"
    folder.mkdir()
    second = _Study(study.host, folder, timing=timing, name="second")
    ended = second.run("run")
    assert ended.returncode == 1, f"a second tuner was let in: {ended.stdout}{ended.stderr}"
    assert "is held by study 'small'" in ended.stderr, ended.stderr
    shutil.rmtree(folder)


def _others(host: SystemdHost) -> set[str]:
    """What a tuner runs on the host: its agent, and what that has started.

    An sshd session whose client is gone without a word is none of it: how long the host keeps one
    is set by its own ClientAliveInterval and TCP keep-alive.
    """
    shown = host.run("ps -eo args --no-headers").stdout.splitlines()
    wanted = ("/run/autotune", "journalctl", "sudo ")
    return {line for line in shown if any(word in line for word in wanted)}


def _require_nothing_left(host: SystemdHost, session: int) -> None:
    """No process of a run is left, here or there."""
    with suppress(AssertionError):
        until(lambda: not _others(host), "no process of a tuner", timeout_s=20.0)
    left = _others(host)
    assert not left, f"processes left on the host: {left}"
    here = [line for line in _here() if line.split()[0] == str(session)]
    assert not here, f"processes left here: {here}"


def _here() -> list[str]:
    done = subprocess.run(["ps", "-eo", "sid,args", "--no-headers"], capture_output=True, text=True)
    return done.stdout.splitlines()


def _require_all_kept(study: _Study, kept: dict[str, tuple[int, float]]) -> None:
    """Every score is there once, proven and told; every point has its verdict."""
    scored = study.scored()
    assert scored.items() >= kept.items(), f"lost: {kept.items() - scored.items()}"
    require_proof(study)
    states, values = study.optuna_states(), study.optuna_values()
    assert "RUNNING" not in states.values(), states
    assert "WAITING" not in states.values(), states
    verdicts: dict[str, list[str]] = {}
    for trial in study.trials():
        point = str(list(trial["parameters"].values()))
        if trial["state"] in ("complete", "infeasible"):
            verdicts.setdefault(point, []).append(trial["state"])
            assert states[trial["number"]] == "COMPLETE", (trial["number"], states)
            assert trial["number"] in values, trial["number"]
        else:
            assert states[trial["number"]] == "FAIL", (trial["number"], trial["state"], states)
    assert verdicts[str(SEED_POINT)] == ["complete"], verdicts
    assert verdicts.get(str(CELL_POINT)) == ["complete"], verdicts


def _seed(host: SystemdHost, seeds: Path, timing: Timing) -> Path:
    """A database with the host's reference and one trial, measured once and copied by each cell.

    The hosts of a drill are alike and have one name, so one database serves all.
    """
    seeds.mkdir(parents=True, exist_ok=True)
    with (seeds / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = seeds / "study"
        folder.mkdir(exist_ok=True)
        study = _Study(host, folder, timing=timing, name="small")
        text = re.sub(r"(?m)^ssh_config = .*$", "", study.file.read_text())
        text += (folder / "tiny.toml").read_text()
        version = zlib.crc32(text.encode())
        for source in ("autotune", "storage", "objectives"):  # a database is of one version only
            for path in sorted((ROOT / source).rglob("*")):
                if path.suffix in (".py", ".sh", ".toml"):
                    version = zlib.crc32(path.read_bytes(), version)
        kept = seeds / f"{version:08x}.db"
        if not kept.exists():
            study.database.unlink(missing_ok=True)
            ended = study.run("run", "--trials", "2")
            assert ended.returncode == 0, f"the seed study failed: {ended.stderr}"
            shutil.copy(study.database, kept)
        return kept
