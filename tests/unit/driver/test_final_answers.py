"""The coding answers of the final rounds: what is asked, who is refused, what the verdict says."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from autotune.answers import Answers, sample_key
from autotune.coding.suite import load_suite, task_samples
from autotune.concluding import Conclusion, conclude
from autotune.measurement import CodingResult, StartRecord
from autotune.repository import Role
from autotune.starting import last_reference
from autotune.trial import TrialSpec
from autotune.verdict import VerdictKind
from tests.scripted import DEPLOYED, some_answers
from tests.unit.driver.world import Worlds, a_config, good, once, points, serial, step, values_of

SUITE = Path(__file__).parents[3] / "objectives" / "coding"


def asking(count: int, *, sets: int = 3) -> Answers:
    """A study that asks `count` coding samples, and others in each of `sets` final rounds."""
    samples = task_samples(load_suite(SUITE), count=count * (1 + sets))
    cut = [samples[first : first + count] for first in range(0, len(samples), count)]
    return replace(some_answers(greedy={}, reference={}), samples=cut[0], more=tuple(cut[1:]))


def answering(spec: TrialSpec, *, failing: int, factor: float = 1.0) -> StartRecord:
    """As `good`; every `failing`-th of all samples fails, 0 is none."""
    outcomes = {
        sample_key(one): "wrong" if failing and n % failing == 0 else "passed"
        for n, one in enumerate(spec.answers.samples)
    }
    failed = sum(outcome == "wrong" for outcome in outcomes.values())
    passed = len(outcomes) - failed
    coding = CodingResult(outcomes, passed, failed, {"passed": passed, "wrong": failed})
    return good(spec, factor=factor, coding=coding)


def concluded(
    make: Worlds, failing: Mapping[int, int], *, samples: int, **score: Any
) -> Conclusion:
    """Three trials, the later ones faster, two finalists, three rounds.

    Args:
        failing: By budget: every how manieth of its answers fails.
    """
    world = make(trials=4, enqueue=points(3), finalists=2, final_rounds=3, score=score)
    noise = itertools.cycle([1.0, 1.002, 0.999, 1.001])

    def result(spec: TrialSpec) -> StartRecord:
        budget = cast(int, values_of(spec)["budget"])
        return answering(spec, failing=failing.get(budget, 0), factor=next(noise))

    serial(world.driver(answers=asking(samples)), result)
    return conclude(world.config, world.stored)


def test_a_sixth_of_the_answers_lost_does_not_win_with_few_samples(make: Worlds) -> None:
    """Three new failures of 18 are chance in one start (p = 1/8), nine of 54 are not."""
    conclusion = concluded(make, {11: 6}, samples=18)
    assert conclusion.kind is VerdictKind.BETTER
    assert (conclusion.trial, conclusion.parameters["budget"]) == (2, 10), "the next one is named"
    assert (
        "trial 3 is out: of 54 coding answers of the final rounds 9 failed here alone and 0 with "
        "the deployed configuration alone (p = 0.002, level 0.01)"
    ) in conclusion.sentence
    fastest, second = conclusion.finalists
    assert (fastest["trial"], fastest["coding"]["refused"]) == (3, True)
    assert (second["trial"], second["coding"]["refused"]) == (2, False)
    assert second["coding"]["asked"] == 54


def test_when_every_finalist_is_refused_the_deployed_configuration_stays(make: Worlds) -> None:
    conclusion = concluded(make, {10: 6, 11: 6}, samples=18)
    assert conclusion.kind is VerdictKind.NO_SIGNIFICANT_DIFFERENCE
    assert (conclusion.trial, dict(conclusion.parameters)) == (0, DEPLOYED)
    assert conclusion.sentence.startswith("no significant difference: no finalist may win; trial 2")
    assert conclusion.ratio is None
    assert [one["coding"]["refused"] for one in conclusion.finalists] == [True, True]


def test_without_a_penalty_nobody_is_refused_and_the_verdict_says_it(make: Worlds) -> None:
    conclusion = concluded(make, {11: 6}, samples=18, penalty=0.0)
    assert conclusion.trial == 3
    assert "the gate is off (penalty 0), but of 54 coding answers" in conclusion.sentence
    assert [one["coding"]["refused"] for one in conclusion.finalists] == [False, False]


def test_a_winner_whose_answers_could_not_show_much_says_so(make: Worlds) -> None:
    conclusion = concluded(make, {}, samples=5)
    assert conclusion.kind is VerdictKind.BETTER
    assert (
        "of its 15 coding answers in the final rounds fewer than 6 new failures are not told "
        "from chance"
    ) in conclusion.sentence
    assert "from chance" not in concluded(make, {}, samples=30).sentence


def test_every_contender_of_a_round_is_asked_the_same_and_each_round_others(make: Worlds) -> None:
    world = make(trials=2, enqueue=points(1), finalists=1, final_rounds=3)
    serial(world.driver(answers=asking(18)), lambda spec: answering(spec, failing=0))
    asked: dict[int, set[frozenset[str]]] = {}
    search: set[str] = set()
    for trial in world.stored.trials:
        for start in trial.starts:
            assert start.record is not None
            assert start.record.coding is not None
            keys = frozenset(start.record.coding.samples)
            if start.role is Role.FINAL:
                asked.setdefault(start.round, set()).add(keys)
            else:
                search |= keys
    assert [len(sets) for sets in asked.values()] == [1, 1, 1]
    rounds = [keys for sets in asked.values() for keys in sets]
    assert len(frozenset.union(*rounds) | search) == 4 * 18, "no sample is asked twice"


def test_a_search_that_goes_on_after_final_rounds_keeps_its_gate(make: Worlds) -> None:
    """The reference of the final rounds was asked other samples than a search start is."""
    world = make(trials=2, enqueue=points(1), finalists=1, final_rounds=1)
    answers = asking(18)
    driver = world.driver(answers=answers)
    for _ in range(2):
        once(driver, result=lambda spec: answering(spec, failing=0))
    final = once(driver, result=lambda spec: answering(spec, failing=0))
    assert (final.number, final.answers.samples) == (0, answers.more[0])
    reference = last_reference(world.stored, "a")
    assert reference is not None
    assert set(reference.samples) == {sample_key(one) for one in answers.samples}


def test_what_a_final_round_measured_prunes_nothing(make: Worlds) -> None:
    """It is not gated by itself: a fast and corrupted finalist must not stop good points."""
    world = make(trials=2, enqueue=points(1), finalists=1, final_rounds=1)
    driver = world.driver()
    for _ in range(2):
        once(driver)
    serial(driver, lambda spec: good(spec, factor=1.5 if spec.role == Role.FINAL else 1.0))
    world.config = a_config(trials=4, enqueue=points(3), finalists=1, final_rounds=1)
    again = world.driver()
    assert once(again).role == "reference"
    spec = step(again, "a")
    assert spec.prune is not None
    assert spec.prune.incumbent == pytest.approx(102.0), "of the search, not 153 of the finals"
