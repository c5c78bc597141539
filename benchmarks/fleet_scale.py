"""What the driver itself costs as a fleet grows: simulated hosts, scaled clock, real storage.

    python -m benchmarks.fleet_scale [--hosts 10 50 100 200] [--per-host 3] [--storage URL]

Hosts are those of the process supervisor; only the walk of a start is replaced by the simulated
server's surface, on a virtual clock.  Driver, sampler, Optuna's storage and ours are the real ones.
Each size runs in a process of its own.  `overhead` is the CPU time of the driver in `take`,
`bucket` and `finish` without the sampler's suggestion, per start; `suggestion` is the wall time of
one `ask`; memory is the peak of the process.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from autotune.answers import Answers
from autotune.audience import Watcher
from autotune.concluding import contenders
from autotune.config import load_study
from autotune.driver import Driver, Nothing
from autotune.measurement import BucketMeasurement, StartRecord
from autotune.objective import Score
from autotune.repository import Repository
from autotune.search import sampler_of
from autotune.session import HostSession
from autotune.storage import open_engine, open_optuna, storage_url
from autotune.study import Asked, TrialStudy
from autotune.supervisors.owner import owner_here
from autotune.testing.simulated_runner import SimulatedRunner, SimulatedSession
from autotune.trial import TrialSpec

CPU_MOST_MS, SUGGESTION_MOST_S, MEMORY_MOST_MIB = 50.0, 1.0, 1000.0


class TimedStudy(TrialStudy):
    """Notes what each suggestion takes."""

    cpu_s = 0.0

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.walls_s: list[float] = []

    def ask(self) -> Asked:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        try:
            return super().ask()
        finally:
            self.walls_s.append(time.perf_counter() - wall_s)
            self.cpu_s += time.process_time() - cpu_s


class TimedDriver(Driver):
    """Notes the CPU time of everything that a runner asks of it."""

    cpu_s = 0.0

    def take(self) -> TrialSpec | Nothing:
        began_s = time.process_time()
        try:
            return super().take()
        finally:
            self.cpu_s += time.process_time() - began_s

    def bucket(self, claim_id: str, bucket: BucketMeasurement) -> None:
        began_s = time.process_time()
        super().bucket(claim_id, bucket)
        self.cpu_s += time.process_time() - began_s

    def finish(
        self, claim_id: str, record: StartRecord, *, stopping: bool = False
    ) -> tuple[StartRecord, Score | None]:
        began_s = time.process_time()
        try:
            return super().finish(claim_id, record, stopping=stopping)
        finally:
            self.cpu_s += time.process_time() - began_s


def measure(hosts: int, trials: int, url: str, sampler: str) -> dict[str, float]:
    """One study of so many hosts, to the end of its search."""
    logging.disable(logging.WARNING)
    config = load_study("demo").replace_budget(
        trials=trials, hours=None, hosts=tuple(f"sim-{n:03d}" for n in range(hosts))
    )
    changes = {"finalists": 0, "final_rounds": 0, "reference_every": 1000, "sampler": sampler}
    object.__setattr__(config, "study", config.study.model_copy(update=changes))
    repository = Repository(open_engine(url, create=True))
    repository.open_study(config.name, definition={}, fingerprint="", provenance={})
    study = TimedStudy(config.name, open_optuna(url), space=config.space)
    study.use(sampler_of(config, seed=1))
    owner = owner_here(config.name)
    sessions = {
        host: SimulatedSession.open(config, host, owner=owner) for host in config.service.hosts
    }
    driver = TimedDriver(
        config,
        study=study,
        repository=repository,
        sessions=cast(Mapping[str, HostSession], sessions),
        owner=owner,
        answers=Answers({}, 0, {}, (), 0, 1, 1.0, allow_weak=True),
        finalists=lambda stored: contenders(config, stored),
    )
    runner = SimulatedRunner("demo", seed=1)
    began_s = time.monotonic()
    runner.run(driver, Watcher())
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    walls_s = sorted(study.walls_s)
    return {
        "hosts": hosts,
        "starts": runner.starts,
        "overhead_ms": 1000 * (driver.cpu_s - study.cpu_s) / runner.starts,
        "ask_cpu_ms": 1000 * study.cpu_s / max(1, len(walls_s)),
        "ask_median_s": walls_s[len(walls_s) // 2],
        "ask_most_s": walls_s[-1],
        "peak_mib": peak_mib,
        "wall_s": time.monotonic() - began_s,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[10, 50, 100, 200])
    parser.add_argument("--per-host", type=int, default=3, help="starts for each host")
    parser.add_argument("--sampler", default="auto")
    parser.add_argument("--storage", default="", help="an empty database; else new SQLite files")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        (hosts,) = options.hosts
        result = measure(hosts, hosts * options.per_host, options.storage, options.sampler)
        print(json.dumps(result))
        return 0
    print("hosts starts  overhead ms CPU  suggestion s (median / most)  peak MiB  wall s")
    missed = False
    for hosts in options.hosts:
        with tempfile.TemporaryDirectory() as name:
            url = storage_url(options.storage or f"sqlite:///{Path(name) / 'fleet.db'}")
            words = ["--one", "--hosts", str(hosts), "--per-host", str(options.per_host)]
            ended = subprocess.run(
                [
                    *(sys.executable, "-m", "benchmarks.fleet_scale", *words),
                    *("--storage", url, "--sampler", options.sampler),
                ],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
        one = json.loads(ended.stdout.splitlines()[-1])
        print(
            f"{one['hosts']:5d} {one['starts']:6d}  {one['overhead_ms']:15.1f}"
            f"  {one['ask_median_s']:12.3f} / {one['ask_most_s']:.3f}"
            f"{one['peak_mib']:18.0f} {one['wall_s']:7.1f}",
            flush=True,
        )
        for value, most, what in (
            (one["overhead_ms"], CPU_MOST_MS, "overhead, ms CPU for a start"),
            (one["ask_median_s"], SUGGESTION_MOST_S, "suggestion, s"),
            (one["peak_mib"], MEMORY_MOST_MIB, "memory, MiB"),
        ):
            if value >= most:
                missed = True
                print(f"      MISSED: {what}: {value:.1f}, wanted below {most:g}")
    print("missed" if missed else "all limits are kept")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
