"""What is in flight when a study is stopped."""

from __future__ import annotations

from collections import Counter

from autotune.measurement import Ending
from tests.unit.driver.world import (
    Worlds,
    bad,
    once,
    parallel,
    point_key,
    points,
    scored_points,
    search_start,
    step,
    values_of,
)


def test_abandon_ends_everything_in_flight_and_queues_it_again(make: Worlds) -> None:
    world = make(trials=6, hosts=("a", "b"), enqueue=points(4))
    driver = world.driver()
    once(driver, "a")
    once(driver, "b")
    flying = [step(driver, "a"), step(driver, "b")]
    driver.abandon("the study was stopped")
    assert world.study.running() == ()
    assert [world.trial(s.number).state for s in flying] == ["failed", "failed"]
    parallel(world.driver())
    assert world.study.ended() == 6
    assert scored_points(world) == Counter(point_key(p) for p in points(4))


def test_abandon_of_nothing_is_nothing(make: Worlds) -> None:
    world = make()
    world.driver().abandon("the study was stopped")
    assert world.study.trials() == []


def test_abandon_does_not_judge(make: Worlds) -> None:
    world = make(hosts=("a", "b"), same_failure_most=1, enqueue=points(2))
    driver = world.driver()
    once(driver, "a")
    once(driver, "b")
    step(driver, "a")
    step(driver, "b")
    driver.abandon("the study was stopped")
    assert world.study.running() == ()


def test_an_abandoned_retry_is_queued_again_too(make: Worlds) -> None:
    world = make(trials=3, enqueue=points(1))
    driver, first = search_start(world, bad(Ending.FAILED))
    retry = step(driver, "a")
    assert values_of(retry) == values_of(first)
    driver.abandon("the study was stopped")
    driver = world.driver()
    once(driver)  # a fresh reference
    assert values_of(step(driver, "a")) == values_of(first)
