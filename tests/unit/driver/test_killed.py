"""A driver that dies between any two writes loses and repeats nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from autotune.endings import reconcile
from autotune.repository import Repository, Role
from autotune.study import TrialStudy
from tests.unit.driver.world import (
    KILL_CONFIG,
    World,
    Worlds,
    first_fails,
    point_key,
    points,
    scored_points,
    serial,
)


class Killed(BaseException):
    """Stands for kill -9: nobody may catch it."""


class Dying:
    """Stands in front of repository or study; the process ends before a chosen call."""

    def __init__(self, subject: object, fuse: Fuse, methods: frozenset[str]) -> None:
        self._subject = subject
        self._fuse = fuse
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._subject, name)
        if name not in self._methods:
            return found

        def burning(*arguments: Any, **named: Any) -> Any:
            self._fuse.burn(name)
            return found(*arguments, **named)

        return burning


@dataclass
class Fuse:
    """Counts writes; the one numbered `at` is never made."""

    at: int | None = None
    made: list[str] = field(default_factory=list)

    def burn(self, name: str) -> None:
        if self.at is not None and len(self.made) == self.at:
            raise Killed(name)
        self.made.append(name)


REPOSITORY_WRITES = frozenset(
    {"begin_trial", "begin_start", "add_bucket", "end_start", "end_trial"}
)


STUDY_WRITES = frozenset(
    {
        *("ask", "add_reference", "enqueue_once", "queue_again", "note"),
        *("tell_complete", "tell_infeasible", "tell_failed", "tell_pruned"),
    }
)


def run_until_killed(world: World, at: int | None) -> Fuse:
    """One process that dies before its write number `at`."""
    fuse = Fuse(at)
    driver = world.driver(
        repository=cast(Repository, Dying(world.repository, fuse, REPOSITORY_WRITES)),
        study=cast(TrialStudy, Dying(world._study(), fuse, STUDY_WRITES)),
    )
    if at is None:
        serial(driver, first_fails)
        return fuse
    with pytest.raises(Killed):
        serial(driver, first_fails)
    return fuse


def _search(*told: str, buckets: int = 2) -> tuple[str, ...]:
    begun = ("enqueue_once", "ask", "begin_trial", "begin_start", *(("add_bucket",) * buckets))
    return (*begun, "end_start", "note", *told, "end_trial")


REPEAT = ("begin_start", "add_bucket", "add_bucket", "end_start")


WRITES = (
    *("add_reference", "begin_trial", "begin_start", "add_bucket", "add_bucket", "end_start"),
    *("note", "tell_complete", "end_trial"),
    *_search("tell_complete"),
    *_search("tell_failed", "queue_again", buckets=0),
    *REPEAT,  # the reference again
    *_search("tell_infeasible", buckets=0),
    *_search("tell_complete"),  # the failed point again
    *(REPEAT * 2),  # the final round
    *REPEAT,  # the reference, last
)
"""Every write of `KILL_CONFIG`, in order."""


def assert_whole(world: World) -> None:
    """The study came to its end: nothing lost, nothing twice, both sides of the database agree."""
    assert world.study.ended() == 4
    assert world.study.running() == ()
    told = {"complete": "COMPLETE", "infeasible": "COMPLETE", "failed": "FAIL", "pruned": "PRUNED"}
    for trial in world.stored.trials:
        assert trial.told, trial.number
        assert told[trial.state] == world.frozen(trial.number).state.name, trial.number
    known = {trial.number for trial in world.stored.trials}
    for frozen in world.study.trials():
        assert frozen.state.name in ("FAIL", "COMPLETE", "PRUNED"), frozen.number
        assert frozen.number in known or frozen.state.name == "FAIL", frozen.number
    assert scored_points(world) == Counter(point_key(p) for p in points(2))
    assert finals_played(world) == Counter({"reference": 1, point_key(points(2)[1]): 1})


def finals_played(world: World) -> Counter[str]:
    return Counter(
        "reference" if trial.reference else point_key(trial.parameters)
        for trial in world.stored.trials
        for start in trial.starts
        if start.role is Role.FINAL and start.score is not None
    )


def test_a_study_without_a_kill_is_whole(make: Worlds) -> None:
    world = make(**KILL_CONFIG)
    fuse = run_until_killed(world, None)
    assert tuple(fuse.made) == WRITES
    assert_whole(world)


# Every search trial begins alike, the last one ends like the first, and one repeat like another.
ALIKE = {14, *range(19, 23), 29, 30, *range(32, 36), *range(40, 50), 51, 52, *range(54, 58), 59, 60}


KILL_POINTS = [
    pytest.param(at, id=f"{at}-{name}") for at, name in enumerate(WRITES) if at not in ALIKE
]


@pytest.mark.parametrize("at", KILL_POINTS)
def test_nothing_is_lost_or_repeated_after_a_kill(make: Worlds, at: int) -> None:
    world = make(**KILL_CONFIG)
    fuse = run_until_killed(world, at)
    assert tuple(fuse.made) == WRITES[:at]
    serial(world.driver(), first_fails)
    assert_whole(world)


def test_a_kill_within_the_repair_loses_nothing(make: Worlds) -> None:
    world = make(**KILL_CONFIG)
    run_until_killed(world, WRITES.index("ask") + 3)
    dying = cast(TrialStudy, Dying(world.study, Fuse(0), frozenset({"queue_again"})))
    with pytest.raises(Killed):
        reconcile(dying, world.repository, world.stored, lives=lambda start: False)
    serial(world.driver(), first_fails)
    assert_whole(world)
