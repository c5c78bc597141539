"""One run of a study: open, search, decide, restore."""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autotune import __version__
from autotune.answers import require_sandbox, study_answers
from autotune.audience import Audience
from autotune.concluding import conclude, contenders
from autotune.config import StudyConfig
from autotune.driver import Driver
from autotune.endings import reconcile
from autotune.errors import ConfigError, StorageError, StudyError
from autotune.interrupts import terminable, undisturbed
from autotune.opening import open_sessions
from autotune.repository import Repository, StoredStudy
from autotune.runners.base import Runner
from autotune.runners.serial import SerialRunner
from autotune.search import make_sampler
from autotune.sglang.masking import masked
from autotune.storage import open_engine, open_optuna, storage_url
from autotune.study import TrialStudy
from autotune.supervisors.owner import owner_here, owner_lives

__all__ = ["run_study"]

log = logging.getLogger(__name__)


def run_study(
    config: StudyConfig,
    *,
    storage: str | None,
    executor: str,
    ray_address: str,
    live: Audience,
) -> None:
    """Run a study until its budget is spent and say what it found.

    Raises:
        ConfigError: Before anything is contacted.
        StudyError, StorageError, TargetError: After every host was restored.
    """
    answers = study_answers(config)
    require_sandbox(answers)
    url = storage_url(storage)
    repository = Repository(open_engine(url, create=True))
    _open(config, repository)
    owner = owner_here(config.name)
    with _only_driver(repository, config.name, owner), terminable():
        study = TrialStudy(config.name, open_optuna(url), space=config.space)
        study.use(
            make_sampler(
                config.study.sampler,
                space=config.space,
                seed=_sampler_seed(config, study),
                workload=config.workload,
                aggregate=config.score.aggregate,
            )
        )
        _require_both_halves(study, repository.load(config.name))
        again = reconcile(study, repository, config.name, alive=owner_lives)
        live.opened(config, repository.load(config.name), again=again, storage=url)
        with open_sessions(config, owner=owner, repository=repository) as sessions:
            driver = Driver(
                config,
                study=study,
                repository=repository,
                sessions=sessions,
                owner=owner,
                answers=answers,
                finalists=lambda stored: contenders(config, stored),
            )
            try:
                _runner(executor, ray_address, len(sessions)).run(driver, live.watcher(config))
            finally:
                with undisturbed(tuple(sessions), timers=config.service.supervisor == "systemd"):
                    driver.abandon("the study was stopped")
                live.restoring(tuple(sessions))
        verdict = conclude(config, repository.load(config.name))
        repository.set_verdict(config.name, asdict(verdict))
    stored = repository.load(config.name)
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
    if last >= len(study.trials()):
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


@contextmanager
def _only_driver(repository: Repository, name: str, owner: Any) -> Iterator[None]:
    """One driver at a time for a study, as far as this machine can know.

    Raises:
        StudyError: Another living process runs the study.
    """
    other = repository.load(name).driver
    if other is not None and other.pid != owner.pid and owner_lives(other):
        raise StudyError(
            f"study {name!r} is being run by process {other.pid} on {other.machine}",
            hint="watch it with `autotune status`, or end it first",
        )
    repository.set_driver(name, owner)
    try:
        yield
    finally:
        try:
            repository.set_driver(name, None)
        except StorageError as error:  # must not hide why the run ends
            log.warning("the end of this run could not be saved: %s", error)


def _runner(executor: str, ray_address: str, hosts: int) -> Runner:
    if executor == "ray" or (executor == "auto" and (hosts > 1 or ray_address)):
        from autotune.runners.ray import RayRunner

        return RayRunner(ray_address)
    return SerialRunner()
