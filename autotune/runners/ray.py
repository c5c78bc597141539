"""Ray Tune carries starts to hosts: our own Searcher round the driver.

Ray is stateless here: the storage is the only truth, nothing is restored from Ray's files, and no
retry is left to it.  The driver names the host of each start, so `gpu_host` only bounds how many
run at once; that no two workers change one host is enforced on the host itself, by lease and claim.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from typing import Any

from autotune.driver import Driver, Nothing
from autotune.errors import AutotuneError, StudyError
from autotune.measurement import BucketMeasurement, StartRecord
from autotune.runners.base import Watcher
from autotune.trial import Notes, Phase, TrialSpec

__all__ = ["RayRunner"]

log = logging.getLogger(__name__)

# Result key under which one event of a start travels; Tune wants a metric in every report.
EVENT = "event"
METRIC = "order"

ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    "TUNE_RESULT_BUFFER_LENGTH": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_V2_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class RayRunner:
    """Runs starts on as many hosts at once as the study has.

    Args:
        address: Cluster to join; empty for a private local instance.
    """

    def __init__(self, address: str = "") -> None:
        self._address = address

    def run(self, driver: Driver, watcher: Watcher) -> None:
        os.environ.update(ENVIRONMENT)
        import ray
        from ray import tune

        hosts = len(driver.sessions)
        # Ray's socket paths are limited to 107 bytes, so the folder is right below the temp dir.
        folder = tempfile.mkdtemp(prefix="autotune-ray-")
        private: dict[str, Any] = {
            "address": "local",
            "_temp_dir": folder,
            "num_cpus": hosts,
            "resources": {"gpu_host": hosts},
        }
        ray.init(
            **({"address": self._address} if self._address else private),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
        try:
            search = _search(driver, watcher)
            tuner = tune.Tuner(
                tune.with_resources(_carry, {"cpu": 0, "gpu_host": 1}),
                tune_config=tune.TuneConfig(
                    num_samples=-1,
                    search_alg=search,
                    max_concurrent_trials=hosts,
                    trial_name_creator=lambda trial: trial.trial_id,
                    trial_dirname_creator=lambda trial: trial.trial_id,
                ),
                run_config=tune.RunConfig(
                    name="starts",
                    storage_path=folder,
                    verbose=0,
                    failure_config=tune.FailureConfig(max_failures=0),
                    stop=search.stopped,
                    callbacks=[search.events],
                ),
            )
            tuner.fit()
            if search.failure is not None:
                raise search.failure
        finally:
            ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def _carry(config: dict[str, Any]) -> None:
    """The trainable: runs in a worker process, reports each event as it happens."""
    from ray import tune

    from autotune.runners.work import work

    spec: TrialSpec = config["start"]
    sent = 0

    def send(event: object) -> None:
        nonlocal sent
        sent += 1
        tune.report({METRIC: sent, EVENT: _Parcel(event)})

    record = work(spec, Notes(on_phase=send, on_bucket=send))
    send(record)


class _Parcel:
    """Keeps a value in one piece: Tune flattens dictionaries in results."""

    def __init__(self, content: object) -> None:
        self.content = content

    def __repr__(self) -> str:
        return type(self.content).__name__


def _search(driver: Driver, watcher: Watcher) -> Any:
    """A Searcher whose suggestions are the driver's starts."""
    from ray.tune import Callback
    from ray.tune.search import Searcher

    class DriverSearch(Searcher):
        """Suggests nothing while no host is free; takes every event back to the driver."""

        def __init__(self) -> None:
            super().__init__(metric=METRIC, mode="max")
            self.flying: dict[str, TrialSpec] = {}
            self.failure: AutotuneError | None = None
            self.events = Events()

        def set_search_properties(self, metric: Any, mode: Any, config: Any, **_: Any) -> bool:
            return True

        def suggest(self, trial_id: str) -> Any:
            if self.failure is not None:
                return None if self.flying else Searcher.FINISHED
            try:
                step = driver.take()
            except StudyError as error:
                self.failure = error
                return None if self.flying else Searcher.FINISHED
            if isinstance(step, Nothing):
                return Searcher.FINISHED if step is Nothing.DONE else None
            self.flying[trial_id] = step
            watcher.started(step)
            return {"start": step}

        def take_back(self, trial_id: str, event: object) -> None:
            spec = self.flying.get(trial_id)
            if spec is None:
                return
            if isinstance(event, Phase):
                watcher.phase(spec, event)
            elif isinstance(event, BucketMeasurement):
                driver.bucket(spec.claim_id, event)
                watcher.bucket(spec, event)
            elif isinstance(event, StartRecord):
                del self.flying[trial_id]
                try:
                    score = driver.finish(spec.claim_id, event)
                except StudyError as error:
                    self.failure, score = error, None
                watcher.ended(spec, event, score)

        def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
            if EVENT in result:
                self.take_back(trial_id, result[EVENT].content)

        def on_trial_complete(
            self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
        ) -> None:
            spec = self.flying.pop(trial_id, None)
            if spec is None:
                return
            log.warning("the worker of trial %d on %s died", spec.number, spec.plan.host)
            try:
                driver.lost(spec.claim_id, "the worker process died")
            except StudyError as stop:
                self.failure = stop

        def stopped(self, trial_id: str, result: dict[str, Any]) -> bool:
            return False

        def save(self, checkpoint_path: str) -> None:
            """Nothing: the storage is the only state."""

        def restore(self, checkpoint_path: str) -> None:
            """Nothing: a new run starts from the storage."""

    class Events(Callback):
        """Present so that Tune adds no logger of its own."""

    return DriverSearch()
