"""How long after the engine's ready line, and after its exit, the tuner knows.

    python -m benchmarks.readiness_latency [--starts 20] [--most-s 1.0]

Boots a test host (needs root, see `scripts/test`), installs the simulated server as a unit, and
makes `--starts` starts over ssh that become ready and as many that run out of memory in the load.
Both ends are wall clocks of this machine: journald's time of the line, and ours when `Watch`
returns or raises.  Ends with 1 when any start took longer than `--most-s`.
"""

from __future__ import annotations

import argparse
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.table import Table

from autotune.errors import TrialError
from autotune.readiness import Watch
from autotune.remote.ssh import SshConnector
from autotune.remote.ssh_config import SshOptions
from autotune.supervisors.base import Launch
from autotune.supervisors.log_lines import LogFollower, LogLine, LogSource
from autotune.supervisors.process_lease import owner_here
from autotune.supervisors.systemd import SystemdSupervisor
from tests.host.services import install
from tests.testhost import UNIT, boot, unavailable

PORT = 30000
LOAD_TIMEOUT_S = 120.0


class Timed:
    """A follower that remembers when the newest line of each source was logged."""

    def __init__(self, inner: LogFollower) -> None:
        self._inner = inner
        self.ready_at_s = self.ended_at_s = 0.0

    def read(self, timeout_s: float) -> LogLine | None:
        line = self._inner.read(timeout_s)
        if line is not None and "fired up and ready to roll" in line.text:
            self.ready_at_s = line.at_s
        if (
            line is not None
            and line.source is LogSource.MANAGER
            and "Main process exited" in line.text
        ):
            self.ended_at_s = line.at_s
        return line

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inner.__exit__(kind, error, traceback)


def latency_s(supervisor: SystemdSupervisor, launch: Launch) -> tuple[float, str]:
    """Make one start; seconds from the deciding line to the verdict, and the verdict."""
    supervisor.apply(launch)
    supervisor.stop(timeout_s=60)
    start = supervisor.start()
    with Timed(supervisor.follow(start)) as follower:
        watch = Watch(supervisor, start, follower, tuned_flags=())
        try:
            watch.wait_ready(timeout_s=LOAD_TIMEOUT_S, progress=lambda phase, share: None)
        except TrialError as error:
            return time.time() - follower.ended_at_s, type(error).__name__
        return time.time() - follower.ready_at_s, "ready"


def measured(starts: int) -> dict[str, list[float]]:
    """Latencies by verdict, seconds."""
    found: dict[str, list[float]] = {}
    with boot("gpu-ready") as host:
        install(host, load_s=1.0)
        options = SshOptions(config=str(host.ssh_config))
        connector = SshConnector(host.name, options)
        with SystemdSupervisor(host.name, connector, unit=UNIT, port=PORT) as supervisor:
            original = supervisor.original()
            lease = supervisor.take_lease(owner_here("latency"), original, restore_after_s=300)
            try:
                with supervisor.claim(lease, "latency"):
                    for number in range(2 * starts):
                        supervisor.beat(lease)
                        fault = {"AUTOTUNE_SIM_FAULT": "oom-load"} if number % 2 else {}
                        took, verdict = latency_s(supervisor, Launch(original.launch.argv, fault))
                        found.setdefault(verdict, []).append(took)
            finally:
                supervisor.restore(lease)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--most-s", type=float, default=1.0)
    options = parser.parse_args()
    if reason := unavailable():
        print(reason)
        return 1
    found = measured(options.starts)
    table = Table("verdict", "starts", "median s", "most s", f"within {options.most_s:g} s")
    for verdict, values in sorted(found.items()):
        within = sum(value <= options.most_s for value in values)
        middle = sorted(values)[len(values) // 2]
        table.add_row(
            verdict,
            str(len(values)),
            f"{middle:.2f}",
            f"{max(values):.2f}",
            f"{within} of {len(values)}",
        )
    Console().print(table)
    complete = {name: len(values) for name, values in found.items()} == {
        "ready": options.starts,
        "ServerStartError": options.starts,
    }
    met = complete and all(v <= options.most_s for values in found.values() for v in values)
    print("met" if met else "missed")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
