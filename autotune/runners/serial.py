"""One start at a time, in this process: enough for one host."""

from __future__ import annotations

import time

from autotune.audience import Watcher
from autotune.driver import Driver, Nothing
from autotune.measurement import BucketMeasurement
from autotune.runners.work import work
from autotune.trial import Notes, Phase, TrialSpec

__all__ = ["SerialRunner"]

WAIT_S = 1.0


class SerialRunner:
    """The plain executor."""

    def run(self, driver: Driver, watcher: Watcher) -> None:
        while (spec := driver.take()) is not Nothing.DONE:
            if isinstance(spec, Nothing):  # a host may come back, another run may leave work
                time.sleep(WAIT_S)
                continue
            watcher.started(spec)
            record = work(spec, _notes(driver, watcher, spec))
            record, score = driver.finish(spec.claim_id, record)
            watcher.ended(spec, record, score)


def _notes(driver: Driver, watcher: Watcher, spec: TrialSpec) -> Notes:
    def phase(phase: Phase) -> None:
        driver.heard(spec.claim_id)
        watcher.phase(spec, phase)

    def bucket(measured: BucketMeasurement) -> None:
        driver.bucket(spec.claim_id, measured)
        watcher.bucket(spec, measured)

    return Notes(
        on_phase=phase,
        on_bucket=bucket,
        on_requests=lambda requests: driver.requests(spec.claim_id, requests),
    )
