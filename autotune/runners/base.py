"""Who carries starts to hosts.  A runner pulls from the driver and pushes back what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from autotune.driver import Driver
from autotune.measurement import BucketMeasurement, StartRecord
from autotune.objective import Score
from autotune.trial import Phase, TrialSpec

__all__ = ["Runner", "Watcher"]


@dataclass(frozen=True, slots=True)
class Watcher:
    """What the live view is told; called in the driver process."""

    started: Callable[[TrialSpec], None] = lambda spec: None
    phase: Callable[[TrialSpec, Phase], None] = lambda spec, phase: None
    bucket: Callable[[TrialSpec, BucketMeasurement], None] = lambda spec, bucket: None
    ended: Callable[[TrialSpec, StartRecord, Score | None], None] = lambda spec, record, score: None


class Runner(Protocol):
    """Runs a study to its end."""

    def run(self, driver: Driver, watcher: Watcher) -> None:
        """Return when the driver has nothing left.

        Raises:
            StudyError: The study cannot go on; nothing is in flight any more.
        """
