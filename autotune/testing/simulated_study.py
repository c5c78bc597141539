"""A whole study on a simulated surface: driver, sampler, storage and verdict are the real ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

from sqlalchemy import event
from sqlalchemy.engine import Engine

from autotune.answers import study_answers
from autotune.audience import Watcher
from autotune.concluding import Conclusion, conclude, contenders
from autotune.config import StudyConfig
from autotune.driver import Driver
from autotune.repository import Repository, StoredStudy
from autotune.search import sampler_of
from autotune.session import HostSession
from autotune.storage import connect, open_optuna
from autotune.study import TrialStudy
from autotune.supervisors.owner import owner_here
from autotune.testing.simulated_runner import SimulatedFault, SimulatedRunner, SimulatedSession

__all__ = ["SimulatedStudy"]


def _hasty(engine: Engine) -> Engine:
    """Wait for no disk: a study writes a thousand times."""

    def unsynchronised(connection: Any, _: object) -> None:
        connection.execute("PRAGMA synchronous = OFF")

    engine.dispose()
    event.listen(engine, "connect", unsynchronised)
    return engine


class SimulatedStudy:
    """One study in one database; `run` may be called again, as a new process would go on.

    Args:
        url: A database with our tables.
        surface: Name of the surface that is searched.
        speeds: See `SimulatedRunner`.
    """

    def __init__(
        self, config: StudyConfig, url: str, *, surface: str, speeds: Mapping[str, float]
    ) -> None:
        self._surface, self._speeds = surface, speeds
        self.config = config
        self._engine = _hasty(connect(url))
        self._optuna = open_optuna(url)
        _hasty(self._optuna.engine)
        self.repository = Repository(self._engine)
        self.repository.open_study(
            config.name,
            definition=config.definition,
            fingerprint=config.fingerprint(),
            provenance={},
        )
        self.study = TrialStudy(config.name, self._optuna, space=config.space)
        self.starts = 0

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()
        self._optuna.engine.dispose()

    @property
    def stored(self) -> StoredStudy:
        return self.repository.load(self.config.name)

    def run(self, faults: Mapping[int, SimulatedFault] | None = None) -> Conclusion:
        """Run the study until its budget is spent, and store its verdict."""
        config = self.config
        self.study.use(sampler_of(config, seed=config.study.seed))
        owner = owner_here(config.name)
        sessions = {
            host: SimulatedSession.open(config, host, owner=owner) for host in config.service.hosts
        }
        driver = Driver(
            config,
            study=self.study,
            repository=self.repository,
            sessions=cast(Mapping[str, HostSession], sessions),
            owner=owner,
            answers=study_answers(config),
            finalists=lambda stored: contenders(config, stored),
        )
        runner = SimulatedRunner(
            self._surface, seed=config.study.seed, speeds=self._speeds, faults=faults
        )
        try:
            runner.run(driver, Watcher())
        finally:
            self.starts += runner.starts
        verdict = conclude(config, self.stored)
        self.repository.set_verdict(config.name, asdict(verdict))
        return verdict
