"""Ray Tune carries starts to hosts: our own Searcher round the driver.

Ray is stateless here: the storage is the only truth, nothing is restored from Ray's files, and no
retry is left to it.  The driver names the host of each start, so `gpu_host` only bounds how many
run at once; that no two workers change one host is enforced on the host itself, by lease and claim.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
from typing import Any

from autotune.driver import Driver
from autotune.errors import StudyError
from autotune.runners.base import Watcher

__all__ = ["RayRunner"]

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

        from autotune.runners.ray_search import DriverSearch, carry

        # Ray's own words (token authentication, a missing result.json) are not about the study.
        for name in ("ray", "ray.tune"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        hosts = len(driver.sessions)
        # Ray opens the mode of its folder, and starts with their keys lie in it: the outer folder
        # keeps others out.  Socket paths are limited to 107 bytes, so both names are short.
        outer = tempfile.mkdtemp(prefix="autotune-")
        folder = os.path.join(outer, "ray")
        private: dict[str, Any] = {
            "address": "local",
            "_temp_dir": folder,
            "num_cpus": hosts,
            "resources": {"gpu_host": hosts},
        }
        on_terminate = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(
                **({"address": self._address} if self._address else private),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            shutil.rmtree(outer, ignore_errors=True)
            where = self._address or "on this machine"
            raise StudyError(
                f"Ray does not start ({where}): {error}", hint="--executor serial needs no Ray"
            ) from error
        # Ray replaces the handler by one that prints a stack and dies without the way back.
        signal.signal(signal.SIGTERM, on_terminate)
        try:
            search = DriverSearch(driver, watcher)
            tuner = tune.Tuner(
                tune.with_resources(carry, {"cpu": 0, "gpu_host": 1}),
                tune_config=tune.TuneConfig(
                    num_samples=-1,
                    search_alg=search,
                    max_concurrent_trials=hosts,
                    # A worker process goes on to the next start: a new one costs seconds.
                    reuse_actors=True,
                    trial_name_creator=lambda trial: trial.trial_id,
                    trial_dirname_creator=lambda trial: trial.trial_id,
                ),
                run_config=tune.RunConfig(
                    name="starts",
                    storage_path=folder,
                    verbose=0,
                    failure_config=tune.FailureConfig(max_failures=0),
                ),
            )
            tuner.fit()
            if search.failure is not None:
                raise search.failure
        finally:
            ray.shutdown()
            shutil.rmtree(outer, ignore_errors=True)
