"""The final rounds and what they conclude."""

from __future__ import annotations

import itertools

import pytest

from autotune.concluding import conclude
from autotune.driver import Nothing
from autotune.measurement import (
    CodingResult,
    Ending,
    StartRecord,
)
from autotune.repository import Role
from autotune.trial import TrialSpec
from autotune.verdict import VerdictKind
from tests.scripted import DEPLOYED
from tests.unit.driver.world import (
    SPEED,
    World,
    Worlds,
    bad,
    good,
    once,
    parallel,
    points,
    serial,
    speed,
    step,
    values_of,
)


def roles(world: World) -> list[Role]:
    return [start.role for trial in world.stored.trials for start in trial.starts]


def finals(world: World) -> list[tuple[int, int, str]]:
    """(round, trial, host) of the final starts in the order in which they were made."""
    starts = [
        (start.started_at_s, start.round, trial.number, start.host)
        for trial in world.stored.trials
        for start in trial.starts
        if start.role is Role.FINAL
    ]
    return [entry[1:] for entry in sorted(starts)]


def test_finals_alternate_and_conclude_names_the_winner(make: Worlds) -> None:
    world = make(trials=4, enqueue=points(3), finalists=2, final_rounds=3)
    noise = itertools.cycle([1.0, 1.002, 0.999, 1.001])
    serial(world.driver(), lambda s: good(s, factor=next(noise)))
    assert finals(world) == [
        *((0, 0, "a"), (0, 3, "a"), (0, 2, "a")),
        *((1, 2, "a"), (1, 3, "a"), (1, 0, "a")),
        *((2, 0, "a"), (2, 3, "a"), (2, 2, "a")),
    ]
    conclusion = conclude(world.config, world.stored)
    assert conclusion.kind is VerdictKind.BETTER
    assert (conclusion.trial, conclusion.parameters["budget"]) == (3, 11)
    assert conclusion.ratio == pytest.approx(1.06, abs=0.01)
    assert conclusion.score == pytest.approx(106.0, abs=0.5)
    assert conclusion.reference_score == pytest.approx(100.0, abs=0.5)
    assert conclusion.interval is not None
    assert conclusion.interval.low < 106.0 < conclusion.interval.high
    assert [entry["trial"] for entry in conclusion.finalists] == [3, 2]


def test_no_difference_keeps_the_deployed_configuration(make: Worlds) -> None:
    world = make(trials=3, enqueue=points(2), finalists=2, final_rounds=2)
    noise = itertools.cycle([1.02, 0.98])

    def same(spec: TrialSpec) -> StartRecord:
        return good(spec, factor=SPEED["a"] / speed("a", values_of(spec)) * next(noise))

    serial(world.driver(), same)
    conclusion = conclude(world.config, world.stored)
    assert conclusion.kind is VerdictKind.NO_SIGNIFICANT_DIFFERENCE
    assert (conclusion.trial, dict(conclusion.parameters)) == (0, DEPLOYED)
    assert conclusion.interval is None


def test_without_finals_there_is_no_winner(make: Worlds) -> None:
    world = make(trials=3, enqueue=points(2))
    serial(world.driver())
    conclusion = conclude(world.config, world.stored)
    assert conclusion.kind is VerdictKind.NOT_ENOUGH_DATA
    assert (conclusion.trial, dict(conclusion.parameters)) == (0, DEPLOYED)


def test_a_stop_in_the_final_rounds_names_no_winner_and_the_next_run_goes_on(make: Worlds) -> None:
    world = make(trials=2, enqueue=points(1), finalists=1, final_rounds=3)
    driver = world.driver()
    for _ in range(3):
        once(driver)
    driver.stop()
    assert driver.take() is Nothing.DONE
    assert not driver.concludes
    again = world.driver()
    serial(again)
    assert again.concludes
    assert len(finals(world)) == 1 + 3 * 2, "whole rounds, whatever was cut"
    again.stop()
    assert again.take() is Nothing.DONE
    assert again.concludes, "it was done before it was stopped"


def test_a_finalist_that_was_hardly_measured_is_out_and_the_others_are_judged(make: Worlds) -> None:
    world = make(trials=4, enqueue=points(3), finalists=2, final_rounds=3)
    noise = itertools.cycle([1.0, 1.002, 0.999, 1.001])
    starts: dict[str, int] = {}

    def often_fails(spec: TrialSpec) -> StartRecord:
        starts.setdefault(spec.claim_id, spec.number)
        own = [claim for claim, number in starts.items() if number == 2]
        if spec.claim_id in own[2:]:  # all but its search start and one final
            return bad(Ending.FAILED)
        return good(spec, factor=next(noise))

    serial(world.driver(), often_fails)
    conclusion = conclude(world.config, world.stored)
    assert conclusion.kind is VerdictKind.BETTER
    assert conclusion.trial == 3
    assert "trial 2 is out: it was measured again 1 time, 2 are needed" in conclusion.sentence


def test_finals_do_not_change_what_was_told(make: Worlds) -> None:
    world = make(trials=3, enqueue=points(2), finalists=1, final_rounds=2)
    driver = world.driver()
    for _ in range(3):
        once(driver)
    before = [(t.number, t.value) for t in world.study.trials()]
    serial(driver, lambda s: good(s, factor=1.5))
    assert [(t.number, t.value) for t in world.study.trials()] == before


def test_conclude_survives_a_final_score_of_zero(make: Worlds) -> None:
    world = make(trials=2, enqueue=points(1), finalists=1, final_rounds=2)
    passed = CodingResult({f"t/{n}": "passed" for n in range(100)}, 100, 0, {"passed": 100})
    wrong = CodingResult({f"t/{n}": "wrong" for n in range(100)}, 0, 100, {"wrong": 100})
    driver = world.driver()
    once(driver, result=lambda s: good(s, coding=passed))
    once(driver, result=lambda s: good(s, coding=passed))
    serial(driver, lambda s: good(s, coding=passed if s.number == 0 else wrong))
    assert conclude(world.config, world.stored).trial == 0


def test_finals_on_two_hosts_play_whole_rounds(make: Worlds) -> None:
    world = make(trials=6, hosts=("a", "b"), enqueue=points(4), finalists=2, final_rounds=4)
    parallel(world.driver())
    rounds: dict[int, list[tuple[int, str]]] = {}
    for round_, number, host in finals(world):
        rounds.setdefault(round_, []).append((number, host))
    assert sorted(rounds) == [0, 1, 2, 3]
    for played in rounds.values():
        assert len({host for _, host in played}) == 1
        references = [n for n, _ in played if world.trial(n).reference]
        assert (len(played), len(references)) == (3, 1)
    assert conclude(world.config, world.stored).kind is VerdictKind.BETTER


def test_a_final_start_is_compared_with_its_own_hosts_reference(make: Worlds) -> None:
    world = make(trials=3, hosts=("a", "b"), enqueue=points(1), finalists=1, final_rounds=2)
    driver = world.driver()
    once(driver, "a")
    once(driver, "b")
    once(driver, "a")
    assert step(driver, "a").number == 0  # round 0 begins with the reference
    first_b = step(driver, "b")  # round 1 begins with the finalist, on the other host
    assert first_b.number == 2
    (running_a,) = [c for c in driver._flying if c != first_b.claim_id]
    driver.finish(running_a, good(driver._flying[running_a].spec))
    second_a = step(driver, "a")
    assert second_a.number == 2
    driver.finish(first_b.claim_id, good(first_b))
    (start,) = [s for s in world.trial(2).starts if s.claim_id == first_b.claim_id]
    assert start.score is not None
    assert start.score.ratio == pytest.approx(1.02)


def test_a_lost_hosts_round_begins_again(make: Worlds) -> None:
    world = make(trials=4, hosts=("a", "b"), enqueue=points(2), finalists=1, final_rounds=2)
    driver = world.driver()
    while not any(role is Role.FINAL for role in roles(world)):
        for host in driver.free_hosts():
            spec = driver.next(host)
            if not isinstance(spec, TrialSpec):
                continue
            is_final = roles(world).count(Role.FINAL) > 0
            record = bad(Ending.FAILED, "ConnectError") if is_final else good(spec)
            driver.finish(spec.claim_id, record)
            if is_final:
                break
    assert [h for h, s in world.sessions.items() if s.usable] == ["b"]
    parallel(driver)
    complete = {
        round_
        for round_, played in itertools.groupby(sorted(finals(world)), key=lambda entry: entry[0])
        if len([p for p in played if p[2] == "b"]) == 2
    }
    assert complete == {0, 1}
