"""Who watches a run: what the driver process tells them as it happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.concluding import Conclusion
from autotune.config import StudyConfig
from autotune.measurement import BucketMeasurement, StartRecord
from autotune.objective import Score
from autotune.stored import StoredStudy
from autotune.trial import Phase, TrialSpec
from autotune.warming import Warmed

__all__ = ["Audience", "Watcher"]


@dataclass(frozen=True, slots=True)
class Watcher:
    """What happens to starts; called in the driver process."""

    started: Callable[[TrialSpec], None] = lambda spec: None
    phase: Callable[[TrialSpec, Phase], None] = lambda spec, phase: None
    bucket: Callable[[TrialSpec, BucketMeasurement], None] = lambda spec, bucket: None
    ended: Callable[[TrialSpec, StartRecord, Score | None], None] = lambda spec, record, score: None


class Audience(Protocol):
    """Takes the events of a whole run."""

    def opened(self, config: StudyConfig, stored: StoredStudy, *, again: int, storage: str) -> None:
        """The study is open; `again` unfinished trials of a killed run are queued again."""

    def watcher(self, config: StudyConfig) -> Watcher:
        """Who is told of each start."""
        ...

    def restoring(self, hosts: tuple[str, ...]) -> None:
        """The search is over, however it ended: these hosts are being put back."""

    def warmed(self, earlier: str, taken: Warmed) -> None:
        """Trials of an earlier study were taken over."""

    def over(self, reason: str) -> None:
        """There is nothing to do; no host was touched."""

    def concluded(self, stored: StoredStudy, verdict: Conclusion, *, report: Path) -> None:
        """The study has its verdict."""

    def left(self, study: str, *, stopped: bool) -> None:
        """This run is over without a verdict: it was stopped, or another run measures the rest."""
