"""The two ends of a start under Ray Tune: the Searcher in the driver, the trainable in a worker.

Imported only when Ray is used: `ray.tune` takes more than a second.
"""

from __future__ import annotations

import logging
from typing import Any

from ray import tune
from ray.tune.search import Searcher

from autotune.audience import Watcher
from autotune.driver import Driver, Nothing
from autotune.errors import AutotuneError
from autotune.measurement import BucketMeasurement, StartRecord
from autotune.raw import RawRequests
from autotune.runners.work import work
from autotune.trial import Notes, Phase, TrialSpec

__all__ = ["DriverSearch", "Parcel", "carry"]

log = logging.getLogger(__name__)

# Result key under which one event of a start travels; Tune wants a metric in every report.
EVENT = "event"
METRIC = "order"


class Parcel:
    """Keeps a value in one piece: Tune flattens dictionaries in results."""

    def __init__(self, content: object) -> None:
        self.content = content

    def __repr__(self) -> str:
        return type(self.content).__name__


def carry(config: dict[str, Any]) -> None:
    """The trainable: makes one start in a worker process, reports each event as it happens."""
    spec: TrialSpec = config["start"]
    sent = 0

    def send(event: object) -> None:
        nonlocal sent
        sent += 1
        tune.report({METRIC: sent, EVENT: Parcel(event)})

    send(work(spec, Notes(on_phase=send, on_bucket=send, on_requests=send)))


class DriverSearch(Searcher):
    """Suggests the driver's starts, nothing while no host is free; takes every event back."""

    def __init__(self, driver: Driver, watcher: Watcher) -> None:
        super().__init__(metric=METRIC, mode="max")
        self.failure: AutotuneError | None = None
        self._driver = driver
        self._watcher = watcher
        self._flying: dict[str, TrialSpec] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles the Searcher for a restore that never happens: nothing goes into it."""
        return {}

    def set_search_properties(self, metric: Any, mode: Any, config: Any, **_: Any) -> bool:
        return True

    def suggest(self, trial_id: str) -> Any:
        if self.failure is None:
            try:
                step = self._driver.take()
            except AutotuneError as error:
                self.failure = error
            else:
                return self._given(trial_id, step)
        return None if self._flying else Searcher.FINISHED

    def _given(self, trial_id: str, step: TrialSpec | Nothing) -> Any:
        if isinstance(step, Nothing):
            return Searcher.FINISHED if step is Nothing.DONE else None
        self._flying[trial_id] = step
        self._watcher.started(step)
        return {"start": step}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if EVENT in result and trial_id in self._flying:
            self._take_back(trial_id, result[EVENT].content)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        if result is not None and not error:
            self.on_trial_result(trial_id, result)
        spec = self._flying.pop(trial_id, None)
        if spec is None:
            return
        log.warning("the worker of trial %d on %s died", spec.number, spec.plan.host)
        try:
            self._driver.lost(spec.claim_id, "the worker process died")
        except AutotuneError as stop:
            self.failure = stop

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the storage is the only state."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: a new run starts from the storage."""

    def _take_back(self, trial_id: str, event: object) -> None:
        spec = self._flying[trial_id]
        if isinstance(event, Phase):
            self._driver.heard(spec.claim_id)
            self._watcher.phase(spec, event)
        elif isinstance(event, BucketMeasurement):
            try:
                self._driver.bucket(spec.claim_id, event)
            except AutotuneError as error:
                self.failure = error
            self._watcher.bucket(spec, event)
        elif isinstance(event, RawRequests):
            self._driver.requests(spec.claim_id, event)
        elif isinstance(event, StartRecord):
            del self._flying[trial_id]
            record, score = event, None
            try:
                record, score = self._driver.finish(spec.claim_id, event)
            except AutotuneError as error:
                self.failure = error
            self._watcher.ended(spec, record, score)
