"""Ray Tune carries starts to hosts: our own Searcher round the driver.

Ray is stateless here: the storage is the only truth, nothing is restored from Ray's files, and no
retry is left to it.  The driver names the host of each start and gives none while no host is free;
that no two workers change one host is enforced on the host itself, by lease and claim.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
from typing import Any

import psutil

from autotune.audience import Watcher
from autotune.driver import Driver
from autotune.errors import StudyError
from autotune.runners.scratch import scratch_folder
from autotune.threads import Threads

__all__ = ["RayRunner"]

# How often the daemons of a private instance are looked at.
WATCH_S = 2.0

ROOM = 16
"""Starts beside those of the hosts that are there at the beginning."""

SHARE = 0.001
"""Part of a processor that a worker is booked with: it waits for a server nearly all the time."""

ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    "TUNE_RESULT_BUFFER_LENGTH": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_V2_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # A worker that does not register in time is killed and started anew, for ever and without a
    # word: on a busy machine the 60 s of the default are not enough for its imports.
    "RAY_worker_register_timeout_seconds": "600",
}

# A private instance is for this machine alone.  Ray binds all addresses wherever clusters are
# enabled, which they are on Linux; it reads this when it is imported.
LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


class RayRunner:
    """Runs starts on as many hosts at once as the study has.

    Args:
        address: Cluster to join; empty for a private local instance.
        threads: End the run when a daemon of the private instance dies.
    """

    def __init__(self, address: str, threads: Threads) -> None:
        self._address = address
        self._threads = threads

    def run(self, driver: Driver, watcher: Watcher) -> None:
        os.environ.update(ENVIRONMENT if self._address else ENVIRONMENT | LOOPBACK_ONLY)
        import ray
        from ray import tune

        from autotune.runners.ray_search import DriverSearch, carry

        # Ray's own words (token authentication, a missing result.json) are not about the study.
        for name in ("ray", "ray.tune"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        # Hosts may be added while it runs; what bounds the starts is that each has its host.
        slots = len(driver.sessions) + ROOM
        # Ray opens the mode of its folder, and starts with their keys lie in it: the outer folder
        # keeps others out.  Socket paths are limited to 107 bytes, so both names are short.
        outer = scratch_folder()
        folder = os.path.join(outer, "ray")
        private: dict[str, Any] = {"address": "local", "_temp_dir": folder, "num_cpus": 1}
        there: dict[str, Any] = {"address": self._address} if self._address else private
        on_terminate = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(
                **there,
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
        watch = _Watch(() if self._address else _own_daemons(), self._threads)
        # Ray replaces the handler by one that prints a stack and dies without the way back.
        signal.signal(signal.SIGTERM, on_terminate)
        try:
            search = DriverSearch(driver, watcher)
            tuner = tune.Tuner(
                tune.with_resources(carry, {"cpu": SHARE}),
                tune_config=tune.TuneConfig(
                    num_samples=-1,
                    search_alg=search,
                    max_concurrent_trials=slots,
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
            with watch:
                tuner.fit()
            if search.failure is not None:
                raise search.failure
        finally:
            ray.shutdown()
            shutil.rmtree(outer, ignore_errors=True)


def _own_daemons() -> tuple[psutil.Process, ...]:
    """The processes of our private instance without which Tune waits for ever."""
    return tuple(
        child
        for child in psutil.Process().children(recursive=True)
        if child.name() in ("raylet", "gcs_server")
    )


class _Watch:
    """Ends the run when a daemon of Ray dies: Tune itself would wait for ever, or end this process
    without the way back."""

    def __init__(self, daemons: tuple[psutil.Process, ...], threads: Threads) -> None:
        self._daemons = daemons
        self._threads = threads
        self._done = threading.Event()
        self._thread = threads.make("ray-watch", self._look)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(WATCH_S):
            for daemon in self._daemons:
                if _dead(daemon):
                    self._threads.fail(StudyError(f"Ray's process {daemon.pid} has died"))
                    return


def _dead(daemon: psutil.Process) -> bool:
    try:
        return not daemon.is_running() or bool(daemon.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # it went between the two questions
        return True
