"""The coding answers of all final rounds, judged once and together."""

from __future__ import annotations

import random

import pytest

from autotune.coding.pooling import Pairs, judge_pooled, pool


def samples(passed: int, failed: int, *, of: str = "t") -> dict[str, str]:
    """The first ones pass, the rest is wrong."""
    return {f"{of}/{n}": "passed" if n < passed else "wrong" for n in range(passed + failed)}


def test_rounds_with_different_samples_add_up() -> None:
    rounds = [(samples(20, 0, of=f"round-{n}"), samples(17, 3, of=f"round-{n}")) for n in range(3)]
    assert pool(rounds[:1]).p_value == 1 / 8, "one start alone is chance"
    assert pool(rounds) == Pairs(asked=60, only_finalist_failed=9, only_reference_failed=0)
    assert judge_pooled({"one": pool(rounds)})["one"].refused


def test_the_same_sample_asked_in_every_round_is_one_pair() -> None:
    same = (samples(20, 0), samples(17, 3))
    assert pool([same] * 3) == pool([same])
    flips = [(samples(20, 0), samples(19, 1)), (samples(19, 1), samples(20, 0))]
    assert pool(flips) == Pairs(20, 0, 0), "failed once on each side"


def test_samples_that_one_side_was_not_asked_are_left_out() -> None:
    assert pool([(samples(5, 0, of="a"), samples(0, 5, of="b"))]) == Pairs(0, 0, 0)
    assert judge_pooled({"one": Pairs(0, 0, 0)}) == {}


def test_the_level_is_shared_among_the_finalists() -> None:
    six = Pairs(200, 6, 0)  # p = 1/64
    assert judge_pooled({"a": six})["a"].refused
    two = judge_pooled({"a": six, "b": Pairs(200, 3, 3)})
    assert not two["a"].refused
    assert (two["a"].level, two["b"].level) == (0.01, 0.02)
    worse = judge_pooled({"a": six, "b": Pairs(200, 30, 0)})
    assert worse["a"].refused, "once the worst one is refused, the next has the whole level"
    assert worse["b"].refused


def test_nothing_is_refused_after_the_first_that_is_not() -> None:
    found = judge_pooled({"a": Pairs(9, 6, 0), "b": Pairs(9, 6, 0), "c": Pairs(9, 6, 0)})
    assert [one.refused for one in found.values()] == [False] * 3
    assert [one.level for one in found.values()] == pytest.approx([0.02 / 3, 0.01, 0.02])


def test_counts_are_said_in_words() -> None:
    one = judge_pooled({"a": Pairs(60, 10, 1)})["a"]
    assert one.sentence() == (
        "of 60 coding answers of the final rounds 10 failed here alone and 1 with the deployed "
        "configuration alone (p = 0.0059, level 0.02)"
    )
    assert one.least_found == 6


def test_good_finalists_are_rarely_refused() -> None:
    """2000 studies of two good finalists and three rounds of 60 answers, 10 % fail by chance."""
    rng = random.Random(3)
    refused = 0
    for _ in range(2000):

        def answers(turn: int) -> dict[str, str]:
            return {f"{turn}/{n}": "passed" if rng.random() > 0.1 else "wrong" for n in range(60)}

        reference = [answers(turn) for turn in range(3)]
        pairs = {
            key: pool((own, answers(turn)) for turn, own in enumerate(reference)) for key in "ab"
        }
        refused += any(one.refused for one in judge_pooled(pairs).values())
    assert refused / 2000 <= 0.02
