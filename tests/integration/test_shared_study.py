"""Several drivers on one study in PostgreSQL: exact totals, a death, an outage of the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa

from autotune.concluding import contenders
from autotune.driver import REVIEW_S, Driver, Nothing
from autotune.measurement import Ending
from autotune.roster import Roster
from autotune.session import HostSession
from autotune.spool import Spool
from autotune.storage import open_engine, storage_url
from autotune.supervisors.base import Lease, Owner
from autotune.testing.simulated_runner import SimulatedSession
from autotune.trial import TrialSpec
from tests.databases import emptied, postgres
from tests.scripted import OWNER, Clock, a_plan, a_recipe, some_answers
from tests.unit.driver.world import NAME, World, a_config, good, points, step


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    yield from postgres()


@pytest.fixture
def url(server: Any) -> str:
    found: str = storage_url(server.get_uri())
    emptied(found)
    open_engine(found, create=True).dispose()
    return found


@dataclass
class Around:
    """No host comes or goes; who lives is set by hand."""

    dead: set[str] = field(default_factory=set)

    def step(self, busy: frozenset[str]) -> None:
        return

    def expecting(self) -> bool:
        return False

    def living(self) -> Callable[[Owner], bool]:
        return lambda owner: owner.machine not in self.dead


class Team:
    """Drivers of one study on machines of their own, one host each."""

    def __init__(self, url: str, **config: Any) -> None:
        self.world = World(url, a_config(**config))
        self.around = Around()
        self.clock = Clock()

    def driver(self, machine: str, host: str, *, spool: Spool | None = None) -> Driver:
        owner = replace(OWNER, machine=machine)
        session = SimulatedSession(a_plan(host), Lease("l" * 32, host, owner, 300.0), a_recipe())
        return Driver(
            self.world.config,
            study=self.world._study(),
            repository=self.world.repository,
            sessions=cast(Mapping[str, HostSession], {host: session}),
            owner=owner,
            answers=some_answers(),
            finalists=lambda stored: contenders(self.world.config, stored),
            surroundings=self.around,
            spool=spool,
            clock=self.clock,
        )

    def numbers(self) -> Counter[str]:
        return Counter(trial.state for trial in self.world.stored.trials)


@pytest.fixture
def make(url: str) -> Iterator[Callable[..., Team]]:
    teams: list[Team] = []

    def made(**config: Any) -> Team:
        teams.append(Team(url, **config))
        return teams[-1]

    yield made
    for team in teams:
        team.world.close()


def finish(driver: Driver) -> TrialSpec | Nothing:
    """One start to its end, where there is one."""
    spec = driver.take()
    if isinstance(spec, TrialSpec):
        driver.finish(spec.claim_id, good(spec))
    return spec


def test_two_drivers_share_a_budget_exactly_and_one_concludes(make: Callable[..., Team]) -> None:
    team = make(trials=9, enqueue=points(4), finalists=1, final_rounds=1)
    drivers = [team.driver("one", "a"), team.driver("two", "b")]
    steps: list[TrialSpec | Nothing] = [Nothing.WAIT]
    while any(step is not Nothing.DONE for step in steps):
        steps = [finish(driver) for driver in drivers]
    assert team.numbers() == {"complete": 9}
    assert team.world.study.ended() == 9
    assert [driver.concludes for driver in drivers].count(True) == 1
    owners = {start.owner.machine for t in team.world.stored.trials for start in t.starts}
    assert owners == {"one", "two"}


def test_trials_of_a_dead_driver_are_freed_once_and_what_comes_late_is_kept(
    make: Callable[..., Team],
) -> None:
    team = make(trials=5, enqueue=points(3))
    one, two = team.driver("one", "a"), team.driver("two", "b")
    finish(one)
    finish(two)
    flying = step(two, "b")
    team.clock.wait(REVIEW_S + 1)
    assert isinstance(finish(one), TrialSpec)
    assert team.world.trial(flying.number).told is False
    team.around.dead.add("two")
    for _ in range(3):
        team.clock.wait(REVIEW_S + 1)
        one.take()
        one.abandon("only looking")
    freed = team.world.trial(flying.number)
    assert (freed.state, freed.told) == ("failed", True)
    again = [t for t in team.world.study.trials() if t.user_attrs.get("retry_of") == flying.number]
    assert len(again) == 1
    before = team.world.study.ended()
    two.finish(flying.claim_id, good(flying))
    (late,) = team.world.trial(flying.number).starts
    assert late.record is not None
    assert late.record.ending is Ending.COMPLETE
    assert late.score is not None
    # Optuna's failed trial stays; the sampler learns what was measured from one of its own.
    assert team.world.trial(flying.number).state == "complete"
    assert team.world.study.ended() == before + 1


def test_a_database_that_goes_away_loses_nothing(
    make: Callable[..., Team], server: Any, tmp_path: Path
) -> None:
    team = make(trials=4, enqueue=points(2))
    spool = Spool(tmp_path / "spool")
    driver = team.driver("one", "a", spool=spool)
    finish(driver)
    spec = step(driver, "a")
    record = good(spec)
    driver.bucket(spec.claim_id, record.buckets[0])
    server.stop()
    try:
        driver.bucket(spec.claim_id, record.buckets[1])
        _, score = driver.finish(spec.claim_id, record)
        assert score is not None
        assert [entry.claim_id for entry in spool.waiting()] == [spec.claim_id]
        team.clock.wait(600)
        assert driver.take() is Nothing.WAIT
    finally:
        server.start()
    while isinstance(finish(driver), TrialSpec):
        pass
    assert list(spool.waiting()) == []
    assert team.numbers() == {"complete": 4}
    (start,) = team.world.trial(spec.number).starts
    assert len(start.buckets) == len(record.buckets)
    with team.world.engine.connect() as connection:
        rows = connection.scalar(sa.text("SELECT count(*) FROM autotune_bucket"))
    assert rows == sum(len(s.buckets) for t in team.world.stored.trials for s in t.starts)


def test_the_turn_belongs_to_one_driver_at_a_time(make: Callable[..., Team]) -> None:
    team = make()
    roster = Roster(team.world.repository, NAME)
    assert roster.shared
    with roster.turn(), team.world.engine.connect() as other:
        free = other.scalar(
            sa.text(
                "SELECT pg_try_advisory_lock(classid::int, objid::int) FROM pg_locks "
                "WHERE locktype = 'advisory'"
            )
        )
    assert free is False
