"""A world without machines: sessions and results made by hand."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from optuna.samplers import RandomSampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial

from autotune.answers import Answers
from autotune.concluding import contenders
from autotune.config import StudyConfig
from autotune.definition_files import ServiceSection, StudySection
from autotune.driver import Driver, Nothing
from autotune.endings import reconcile
from autotune.measurement import (
    CodingResult,
    Ending,
    Evidence,
    FailureRecord,
    StartRecord,
)
from autotune.objective_file import CodingSection, LosslessSection, MeasureSection, ScoreSection
from autotune.raw_store import RawStore
from autotune.repository import Repository, Role, StoredStudy, StoredTrial
from autotune.session import HostSession
from autotune.space import Values
from autotune.spool import Spool
from autotune.storage import connect, open_optuna
from autotune.study import TrialStudy
from autotune.supervisors.base import Lease
from autotune.testing.simulated_runner import SimulatedSession
from autotune.trial import TrialSpec
from tests.builders import a_bucket
from tests.databases import copied
from tests.scripted import (
    OWNER,
    WORKLOAD,
    Clock,
    a_plan,
    a_recipe,
    a_space,
    some_answers,
)

NAME = "made-up"


SPEED = {"a": 100.0, "b": 250.0}
"""Throughput of the deployed point in every bucket, by host: hosts differ."""


def a_config(
    *,
    trials: int | None = 4,
    hosts: tuple[str, ...] = ("a",),
    enqueue: tuple[Values, ...] = (),
    score: Mapping[str, Any] | None = None,
    **study: Any,
) -> StudyConfig:
    sections: dict[str, Any] = {"finalists": 0, "final_rounds": 0, "reference_every": 99}
    return StudyConfig(
        name=NAME,
        path=Path("made-up.toml"),
        objective_path=Path("made-up.toml"),
        study=StudySection(objective="made-up", trials=trials, **{**sections, **study}),
        service=ServiceSection(
            supervisor="process",
            hosts=hosts,
            base_url="http://127.0.0.1:30000",
            command="serve",
        ),
        space=a_space(),
        workload=WORKLOAD,
        score=ScoreSection(**(score or {})),
        coding=CodingSection(samples=0),
        suite=None,
        lossless=LosslessSection(prompts=0),
        measure=MeasureSection(),
        enqueue=enqueue,
        definition={},
    )


def points(count: int) -> tuple[Values, ...]:
    """Different points, none the deployed one; the first is the slowest."""
    budgets = [9, 10, 11, 12, 13, 14, 15, 16, 17, 18][:count]
    return tuple({"budget": budget, "topk": 4, "window": None} for budget in budgets)


def speed(host: str, values: Values) -> float:
    """The deployed budget 8 is the slowest, each node more gives 2 %."""
    budget = values["budget"]
    assert isinstance(budget, int)
    return SPEED[host] * (1 + 0.02 * (budget - 8))


def good(
    spec: TrialSpec, *, factor: float = 1.0, coding: CodingResult | None = None
) -> StartRecord:
    """A measured start, as fast as `speed` says."""
    values = {intent.name: intent.value for intent in spec.intents}
    rate = speed(spec.plan.host, values) * factor
    return StartRecord(
        Ending.COMPLETE,
        proof=(Evidence("argv", "x", "x", ok=True, at_s=1.0),),
        buckets=tuple(
            a_bucket(b.context_tokens, b.concurrency, rate, weight=b.weight) for b in spec.buckets
        ),
        coding=coding,
        texts={"greedy/0": f"text of {spec.plan.host}"},
        ended_at_s=2.0,
    )


def bad(
    ending: Ending, kind: str = "NotReady", *, link: str = "", message: str = "why"
) -> StartRecord:
    return StartRecord(ending, failure=FailureRecord(kind, message, link), ended_at_s=2.0)


class World:
    """One database; a new driver on it is what a new process would be."""

    def __init__(self, url: str, config: StudyConfig) -> None:
        self.config = config
        self.engine = connect(url)
        self.repository = Repository(self.engine)
        self.repository.open_study(NAME, definition={}, fingerprint="f", provenance={})
        self.optuna: RDBStorage = open_optuna(url)
        self.pids = itertools.count(5000)
        self.sessions: dict[str, SimulatedSession] = {}
        self.study = self._study()

    def close(self) -> None:
        self.engine.dispose()
        self.optuna.engine.dispose()

    def _study(self) -> TrialStudy:
        study = TrialStudy(NAME, self.optuna, space=self.config.space)
        study.use(RandomSampler(seed=3))
        return study

    def driver(
        self,
        *,
        repository: Repository | None = None,
        study: TrialStudy | None = None,
        reconciling: bool = True,
        clock: Clock | None = None,
        spool: Spool | None = None,
        raw: RawStore | None = None,
        answers: Answers | None = None,
    ) -> Driver:
        """A new process: new owner, new sessions, what was left behind repaired."""
        self.study = self._study()
        if reconciling:
            reconcile(self.study, self.repository, self.stored, lives=lambda start: False)
        owner = replace(OWNER, pid=next(self.pids))
        recipe = a_recipe()
        self.sessions = {
            host: SimulatedSession(a_plan(host), Lease("l" * 32, host, owner, 300.0), recipe)
            for host in self.config.service.hosts
        }
        return Driver(
            self.config,
            study=study or self.study,
            repository=repository or self.repository,
            sessions=cast(Mapping[str, HostSession], self.sessions),
            owner=owner,
            answers=answers or _no_answers(),
            finalists=lambda stored: contenders(self.config, stored),
            clock=clock or time.monotonic,
            spool=spool,
            raw=raw,
        )

    @property
    def stored(self) -> StoredStudy:
        return self.repository.load(NAME)

    def trial(self, number: int) -> StoredTrial:
        return next(t for t in self.stored.trials if t.number == number)

    def frozen(self, number: int) -> FrozenTrial:
        return next(t for t in self.study.trials() if t.number == number)


def _no_answers() -> Answers:
    return some_answers(greedy={}, reference={})


@dataclass
class Worlds:
    """Makes worlds and closes them."""

    empty: Path
    folder: Path
    made: list[World] = field(default_factory=list)

    def __call__(self, **config: Any) -> World:
        folder = self.folder / str(len(self.made))
        folder.mkdir()
        world = World(copied(self.empty, folder), a_config(**config))
        self.made.append(world)
        return world


Result = Callable[[TrialSpec], StartRecord]


def step(driver: Driver, host: str) -> TrialSpec:
    spec = driver.next(host)
    assert isinstance(spec, TrialSpec), spec
    return spec


def once(driver: Driver, host: str = "a", result: Result = good) -> TrialSpec:
    """One start from beginning to end."""
    spec = step(driver, host)
    driver.finish(spec.claim_id, result(spec))
    return spec


def serial(driver: Driver, result: Result = good, *, most: int = 200) -> list[TrialSpec]:
    """The plain executor."""
    done: list[TrialSpec] = []
    while isinstance(spec := driver.take(), TrialSpec):
        for bucket in result(spec).buckets:
            driver.bucket(spec.claim_id, bucket)
        driver.finish(spec.claim_id, result(spec))
        done.append(spec)
        assert len(done) < most, "the study does not end"
    assert spec is Nothing.DONE
    return done


def parallel(driver: Driver, result: Result = good, *, most: int = 200) -> list[TrialSpec]:
    """Every free host gets a start, the oldest ends first."""
    done: list[TrialSpec] = []
    flying: list[TrialSpec] = []
    while True:
        while isinstance(spec := driver.take(), TrialSpec):
            flying.append(spec)
        if not flying:
            assert spec is Nothing.DONE
            return done
        assert spec is Nothing.WAIT
        ended = flying.pop(0)
        driver.finish(ended.claim_id, result(ended))
        done.append(ended)
        assert len(done) < most, "the study does not end"


def values_of(spec: TrialSpec) -> dict[str, Any]:
    return {intent.name: intent.value for intent in spec.intents}


def under_way(world: World) -> tuple[Driver, TrialSpec]:
    """A driver after its reference, and the search start that is under way."""
    driver = world.driver()
    once(driver)
    return driver, step(driver, "a")


def search_start(world: World, result: StartRecord | None = None) -> tuple[Driver, TrialSpec]:
    """A driver after its reference and one search start with this result."""
    driver, spec = under_way(world)
    driver.finish(spec.claim_id, result or good(spec))
    return driver, spec


KILL_CONFIG: dict[str, Any] = {
    "trials": 4,
    "enqueue": points(3),
    "reference_every": 2,
    "finalists": 1,
    "final_rounds": 1,
}


def first_fails(spec: TrialSpec) -> StartRecord:
    """The first attempt at budget 10 fails, budget 11 never runs, everything else is measured."""
    budget = values_of(spec)["budget"]
    if budget == 10 and spec.number == 2:
        return bad(Ending.FAILED)
    if budget == 11:
        return bad(Ending.INFEASIBLE, "ServerStartError")
    return good(spec)


def point_key(values: Values) -> str:
    return a_space().key(values)


def scored_points(world: World) -> Counter[str]:
    """How often each point of the search got a score that counts."""
    return Counter(
        point_key(trial.parameters)
        for trial in world.stored.trials
        for start in trial.starts
        if start.role is Role.SEARCH and start.score is not None and trial.state == "complete"
    )
