"""What another run left behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from optuna.trial import FrozenTrial

from autotune.driver import Nothing
from autotune.endings import reconcile
from autotune.judging import silent_most_s
from autotune.measurement import (
    Ending,
    StartRecord,
)
from autotune.repository import Role
from autotune.search.history import History
from autotune.supervisors.base import Owner
from autotune.trial import TrialSpec
from tests.scripted import (
    DEPLOYED,
    Clock,
)
from tests.unit.driver.world import (
    KILL_CONFIG,
    World,
    Worlds,
    bad,
    first_fails,
    good,
    once,
    points,
    serial,
    step,
    under_way,
    values_of,
)


def left_behind(world: World, record: StartRecord | None) -> TrialSpec:
    """A search trial whose driver died: after its result was saved, or before there was one."""
    _, spec = under_way(world)
    if record is not None:
        world.repository.end_start(spec.claim_id, record, None)
    return spec


def repaired(world: World, alive: Callable[[Owner], bool] = lambda owner: False) -> int:
    return reconcile(
        world.study, world.repository, world.stored, lives=lambda start: alive(start.owner)
    )


def late_ones(world: World, number: int) -> list[FrozenTrial]:
    return [t for t in world.study.trials() if t.user_attrs.get("late_of") == number]


def test_what_comes_after_a_trial_was_given_up_is_told_once(make: Worlds) -> None:
    world = make(trials=9, enqueue=points(1))
    driver, spec = under_way(world)
    assert repaired(world) == 1
    assert (world.trial(spec.number).state, late_ones(world, spec.number)) == ("failed", [])
    record, score = driver.finish(spec.claim_id, good(spec))
    assert score is not None
    trial = world.trial(spec.number)
    assert (trial.state, trial.starts[0].score and trial.starts[0].score.ratio) == (
        "complete",
        score.ratio,
    )
    for _ in range(2):
        repaired(world)
    (late,) = late_ones(world, spec.number)
    assert late.state.name == "COMPLETE"
    assert late.value == pytest.approx(1.02)
    assert late.params == world.frozen(spec.number).params
    assert world.frozen(spec.number).state.name == "FAIL"
    assert late.user_attrs["host"] == "a"
    assert set(late.user_attrs["buckets"]) == {b.key for b in record.buckets}
    history = History.of(world.study.trials(), world.config.space)
    assert [o.score for o in history.outcomes] == pytest.approx([1.0, 1.02])


@pytest.mark.parametrize(
    ("ending", "told"), [(Ending.INFEASIBLE, "COMPLETE"), (Ending.PRUNED, "PRUNED")]
)
def test_a_late_verdict_without_a_score_is_told_too(
    make: Worlds, ending: Ending, told: str
) -> None:
    world = make(trials=9, enqueue=points(1))
    driver, spec = under_way(world)
    repaired(world)
    driver.finish(spec.claim_id, bad(ending))
    (late,) = late_ones(world, spec.number)
    violated = ending is Ending.INFEASIBLE
    assert late.state.name == told
    assert (late.constraints["infeasible"] > 0) is violated
    assert world.trial(spec.number).state == ending


def test_a_late_failure_changes_nothing(make: Worlds) -> None:
    world = make(trials=9, enqueue=points(1))
    driver, spec = under_way(world)
    repaired(world)
    known = len(world.study.trials())
    driver.finish(spec.claim_id, bad(Ending.FAILED))
    assert len(world.study.trials()) == known
    assert world.trial(spec.number).state == "failed"


def test_a_late_result_that_waited_on_the_disk_is_told_by_the_next_run(make: Worlds) -> None:
    world = make(trials=9, enqueue=points(1))
    driver, spec = under_way(world)
    repaired(world)
    record = good(spec)
    score = driver._score(record, "a", role=Role.SEARCH, reference=False)
    world.repository.end_start(spec.claim_id, record, score)
    assert world.trial(spec.number).state == "failed"
    repaired(world)
    assert world.trial(spec.number).state == "complete"
    assert len(late_ones(world, spec.number)) == 1


def test_the_end_of_a_worker_that_was_silent_is_scored_and_told(make: Worlds) -> None:
    clock = Clock()
    world = make(trials=9, enqueue=points(1))
    driver = world.driver(clock=clock)
    once(driver)
    spec = step(driver, "a")
    clock.wait(silent_most_s(world.config) + 1)
    again = driver.take()
    assert isinstance(again, TrialSpec)
    assert world.trial(again.number).retry_of == spec.number
    _, score = driver.finish(spec.claim_id, good(spec))
    assert score is not None
    assert world.trial(spec.number).state == "complete"
    assert len(late_ones(world, spec.number)) == 1
    assert driver.flying() == (again.number,)


def test_an_end_that_is_saved_as_another_driver_gives_the_trial_up_is_told(make: Worlds) -> None:
    world = make(trials=9, enqueue=points(1))
    driver, spec = under_way(world)
    world.study.tell_failed(spec.number)  # the other has come so far
    driver.finish(spec.claim_id, good(spec))
    assert world.trial(spec.number).state == "complete"
    assert [t.value for t in late_ones(world, spec.number)] == [pytest.approx(1.02)]


@pytest.mark.parametrize(
    ("ending", "state", "again"),
    [
        (Ending.INFEASIBLE, "COMPLETE", 0),
        (Ending.PRUNED, "PRUNED", 0),
        (Ending.FAILED, "FAIL", 1),
    ],
)
def test_a_saved_ending_is_told_as_it_would_have_been(
    make: Worlds, ending: Ending, state: str, again: int
) -> None:
    world = make(enqueue=points(1))
    spec = left_behind(world, bad(ending))
    assert repaired(world) == again
    trial = world.trial(spec.number)
    assert (trial.state, trial.told) == (str(ending), True)
    assert world.frozen(spec.number).state.name == state
    assert repaired(world) == 0


def test_a_saved_score_is_told(make: Worlds) -> None:
    world = make(enqueue=points(1))
    driver, spec = under_way(world)
    record = good(spec)
    score = driver._score(record, "a", role=Role.SEARCH, reference=False)
    world.repository.end_start(spec.claim_id, record, score)
    assert repaired(world) == 0
    frozen = world.frozen(spec.number)
    assert frozen.state.name == "COMPLETE"
    assert frozen.value == pytest.approx(1.02)
    assert frozen.user_attrs["host"] == "a"
    assert set(frozen.user_attrs["buckets"]) == {"1024x8", "60x1"}


def test_a_saved_pruned_trial_keeps_its_buckets_for_the_sampler(make: Worlds) -> None:
    world = make(enqueue=points(1))
    _, spec = under_way(world)
    record = replace(good(spec), ending=Ending.PRUNED, buckets=good(spec).buckets[:1])
    world.repository.end_start(spec.claim_id, record, None)
    repaired(world)
    assert "1024x8" in world.frozen(spec.number).user_attrs.get("buckets", {})


def test_what_was_not_measured_to_its_end_is_made_again(make: Worlds) -> None:
    world = make(enqueue=points(1))
    spec = left_behind(world, None)
    assert repaired(world) == 1
    assert world.trial(spec.number).state == "failed"
    driver = world.driver()
    once(driver)  # the reference, since hours may lie between the runs
    again = step(driver, "a")
    assert (values_of(again), world.trial(again.number).retry_of) == (
        values_of(spec),
        spec.number,
    )


def test_a_resumed_study_measures_a_fresh_reference_first(make: Worlds) -> None:
    world = make(enqueue=points(2))
    left_behind(world, None)
    repaired(world)
    driver = world.driver()
    first = once(driver)
    assert (first.role, values_of(first)) == ("reference", DEPLOYED)
    assert values_of(step(driver, "a")) != DEPLOYED


def test_a_living_owner_keeps_its_trial(make: Worlds) -> None:
    world = make(enqueue=points(1))
    spec = left_behind(world, None)
    assert repaired(world, alive=lambda owner: owner.pid == 5000) == 0
    assert world.study.running() == (spec.number,)
    assert world.trial(spec.number).state == "running"


def test_a_reference_left_behind_is_made_anew_and_not_queued(make: Worlds) -> None:
    world = make(trials=2, enqueue=points(1))
    driver = world.driver()
    step(driver, "a")
    assert repaired(world) == 0
    assert not any(t.state.name == "WAITING" for t in world.study.trials())
    done = serial(world.driver())
    assert [values_of(spec) for spec in done] == [DEPLOYED, points(1)[0], DEPLOYED]
    assert world.study.ended() == 2


def test_a_study_that_is_done_starts_nothing_more(make: Worlds) -> None:
    world = make(**KILL_CONFIG)
    serial(world.driver(), first_fails)
    before = world.stored.trials
    assert world.driver().take() is Nothing.DONE
    assert world.stored.trials == before


def test_a_larger_budget_goes_on_where_it_ended(make: Worlds) -> None:
    world = make(trials=3, enqueue=points(2))
    serial(world.driver())
    world.config = world.config.replace_budget(trials=5, hours=None, hosts=())
    done = serial(world.driver())
    assert world.study.ended() == 5
    assert min(spec.number for spec in done if spec.number) == 3
