"""One run of a study: open, search, decide, restore."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from autotune import __version__
from autotune.answers import require_sandbox, study_answers
from autotune.audience import Audience
from autotune.concluding import Conclusion, conclude, contenders, enough, spent
from autotune.config import StudyConfig
from autotune.driver import Driver
from autotune.endings import reconcile
from autotune.errors import ConfigError, StorageError, StudyError
from autotune.fleet import Fleet
from autotune.metrics import Figures
from autotune.mirror import Mirror
from autotune.open_files import allow_streams
from autotune.opening import data_root, service_folder
from autotune.outbox import replay
from autotune.presence import Presence
from autotune.raw_store import MB, RawStore, raw_folder
from autotune.reading import load_shown
from autotune.repository import Repository, StoredStudy
from autotune.roster import Roster
from autotune.runners.base import Runner
from autotune.runners.serial import SerialRunner
from autotune.search import sampler_of
from autotune.sglang.masking import masked
from autotune.spool import Spool, spool_folder
from autotune.stopping import Stop
from autotune.storage import open_engine, open_optuna, storage_url
from autotune.study import TrialStudy
from autotune.supervisors.owner import owner_here
from autotune.threads import Threads
from autotune.warming import fitting, warm

__all__ = ["run_study"]

log = logging.getLogger(__name__)


def run_study(
    config: StudyConfig,
    *,
    storage: str | None,
    executor: str,
    ray_address: str,
    live: Audience,
    stop: Stop | None = None,
    watch: Callable[[Callable[[], Figures]], None] = lambda look: None,
    earlier: str = "",
) -> None:
    """Run a study until its budget is spent and say what it found.

    Args:
        stop: How a signal ends the run; by default at once.
        watch: Told where one look at the run can be had.
        earlier: Name of a stored study whose trials the search begins with.

    Raises:
        ConfigError: Before anything is contacted.
        StudyError, StorageError, TargetError: After every host was restored.
        RestoreFailed: One could not be, however the run ended, by an interrupt too.
    """
    stop = stop or Stop(finish=())
    answers = study_answers(config)
    require_sandbox(answers)
    allow_streams(config.workload.largest_concurrency)
    url = storage_url(storage)
    repository = Repository(open_engine(url, create=True))
    before = repository.load(earlier) if earlier else None
    if before is not None:  # a mistake must leave nothing behind, also no study of this name
        fitting(config.space, before)
    _open(config, repository)
    owner = owner_here(config.name)
    roster = Roster(repository, config.name)
    threads = Threads(stop.at_once)
    presence = Presence(roster, owner, grace_s=config.study.driver_grace_s, threads=threads)
    fleet = Fleet(config, owner=owner, roster=roster, presence=presence, threads=threads)
    with fleet.accounted(), threads.heeded(), ExitStack() as here:
        here.enter_context(stop.heeded())
        here.enter_context(presence.here())
        study = TrialStudy(config.name, open_optuna(url), space=config.space)
        study.use(sampler_of(config, seed=_sampler_seed(config, study)))
        spool = Spool(spool_folder(service_folder(config, ".spool"), url))
        if kept := replay(spool, repository):
            log.warning("%d results of an earlier run were kept on this machine and saved", kept)
        mirror = Mirror(repository, config.name)
        again = _repair(study, repository, mirror, roster, presence)
        if before is not None:
            live.warmed(earlier, warm(study, before))
        live.opened(config, mirror.refresh(), again=again, storage=url)
        if over := spent(config, mirror.refresh(), left=study.waiting()):
            live.over(over)
            return
        with ExitStack() as afterwards, fleet.open() as sessions:
            driver = Driver(
                config,
                study=study,
                repository=repository,
                sessions=sessions,
                owner=owner,
                answers=answers,
                finalists=lambda stored: contenders(config, stored),
                mirror=mirror,
                surroundings=fleet,
                spool=spool,
                raw=_raw_store(config, url),
                enough=lambda stored: enough(config, stored),
            )
            # When every host is back, and not before: the database may hang.
            afterwards.callback(driver.abandon, "the study was stopped")
            presence.watch(study, driver.flying)
            stop.tell(driver.stop)
            watch(driver.figures)
            try:
                runner = _runner(executor, ray_address, len(sessions), threads)
                runner.run(driver, live.watcher(config))
            finally:
                live.restoring(tuple(sessions))
        verdict = None
        if driver.concludes:
            verdict = conclude(config, repository.load(config.name, evidence=False))
            repository.set_verdict(config.name, asdict(verdict))
        here.close()
        if verdict is not None:
            _report(config, load_shown(repository, config.name), verdict, live)
        else:
            live.left(config.name, stopped=driver.stopped)


def _raw_store(config: StudyConfig, url: str) -> RawStore:
    folder = raw_folder(url, config.name, data=data_root())
    return RawStore(folder, most_bytes=config.study.raw_records_mb * MB)


def _repair(
    study: TrialStudy,
    repository: Repository,
    mirror: Mirror,
    roster: Roster,
    presence: Presence,
) -> int:
    """Tell and free what dead drivers left; returns how many trials are queued again."""
    with roster.turn():
        stored = mirror.refresh()
        _require_both_halves(study, stored)
        alive = presence.living()
        return reconcile(study, repository, stored, lives=lambda start: alive(start.owner))


def _report(config: StudyConfig, stored: StoredStudy, verdict: Conclusion, live: Audience) -> None:
    report = Path(f"{config.name}-report.html")
    live.concluded(stored, verdict, report=report)
    from autotune.report.page import write_report

    try:
        write_report(stored, report)
    except ConfigError as error:
        raise StorageError(f"the study is done, but its report is not: {error.message}") from error


def _sampler_seed(config: StudyConfig, study: TrialStudy) -> int:
    """Optuna's samplers draw from a stream that begins anew with each run: a resumed study would
    get the same suggestions again.  The others depend on the trials alone."""
    from_trials = config.study.sampler in ("auto", "grid", "qmc")
    return config.study.seed + (0 if from_trials else len(study.trials()))


def _require_both_halves(study: TrialStudy, stored: StoredStudy) -> None:
    """Optuna's rows may have been deleted in its dashboard while ours stayed.

    Raises:
        StudyError: They were; the study can be read and reported, but not go on.
    """
    last = max((trial.number for trial in stored.trials), default=-1)
    if last >= 0 and not study.knows(last):
        raise StudyError(
            f"Optuna's trials of study {stored.name!r} were deleted, so it cannot go on",
            hint="its measurements are kept; copy the definition under another name to start anew",
        )


def _open(config: StudyConfig, repository: Repository) -> None:
    repository.open_study(
        config.name,
        definition=masked(config.definition),
        fingerprint=config.fingerprint(),
        provenance={
            "autotune": __version__,
            "python": platform.python_version(),
            "search_space": str(config.path.resolve()),
            "objective": str(config.objective_path.resolve()),
        },
    )


def _runner(executor: str, ray_address: str, hosts: int, threads: Threads) -> Runner:
    if executor == "ray" or (executor == "auto" and (hosts > 1 or ray_address)):
        from autotune.runners.ray import RayRunner

        return RayRunner(ray_address, threads)
    return SerialRunner()
