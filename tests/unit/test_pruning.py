"""When the rest of the matrix is not worth its time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measurement import BucketMeasurement
from autotune.pruning import HEADROOM, PruneRule
from tests.builders import a_bucket

RULE = PruneRule({"60x1": 0.25, "1024x8": 0.75}, {"60x1": 100.0, "1024x8": 400.0}, incumbent=300.0)


def measured(*rates: float, half_width: float = 0.0) -> tuple[BucketMeasurement, ...]:
    cells = ((60, 1), (1024, 8))
    return tuple(
        a_bucket(*cell, rate, relative_half_width=half_width)
        for cell, rate in zip(cells, rates, strict=False)
    )


def test_unmeasured_buckets_are_allowed_more_than_anyone_has_shown() -> None:
    assert RULE.optimistic(()) == pytest.approx(HEADROOM * (0.25 * 100 + 0.75 * 400))
    assert RULE.optimistic(measured(10.0)) == pytest.approx(0.25 * 10 + 0.75 * 400 * HEADROOM)


def test_the_optimistic_end_of_the_interval_counts() -> None:
    assert RULE.optimistic(measured(100.0, 300.0, half_width=0.1)) == pytest.approx(
        0.25 * 110 + 0.75 * 330
    )


@pytest.mark.parametrize(
    ("large", "hopeless"),
    [(0.0, True), (357.0, True), (358.4, False), (400.0, False)],
)
def test_hopeless_is_below_the_incumbent_at_the_best(large: float, hopeless: bool) -> None:
    """The largest bucket alone: 0.75 T + 0.25 * 125 = 300 at T = 358.33."""
    rule = replace(RULE, weights={"1024x8": 0.75, "60x1": 0.25})
    only = (a_bucket(1024, 8, large, relative_half_width=0.0),)
    assert rule.hopeless(only) is hopeless


def test_who_can_just_reach_the_incumbent_goes_on() -> None:
    rule = PruneRule({"60x1": 0.5, "1024x8": 0.5}, {"1024x8": 400.0}, incumbent=300.0)
    assert rule.optimistic(measured(100.0)) == 300.0
    assert not rule.hopeless(measured(100.0))
    assert replace(rule, incumbent=300.001).hopeless(measured(100.0))


def test_a_bucket_that_nobody_has_measured_may_hold_anything() -> None:
    assert not replace(RULE, best={"60x1": 100.0}).hopeless(measured(1.0))


def test_without_an_incumbent_nothing_is_hopeless() -> None:
    assert not replace(RULE, incumbent=0.0).hopeless(measured(0.001, 0.001))


rates = st.floats(0.1, 1000.0)


@given(rates, rates, st.floats(0.0, 0.3))
def test_nothing_is_pruned_that_reaches_the_incumbent(
    small: float, large: float, half_width: float
) -> None:
    """Within the headroom, a start that would end at or above the incumbent is never stopped."""
    small, large = min(small, 125.0), min(large, 500.0)
    whole = measured(small, large, half_width=half_width)
    if 0.25 * small + 0.75 * large >= RULE.incumbent * (1 + 1e-9):
        for count in range(3):
            assert not RULE.hopeless(whole[:count])


@given(rates, rates)
def test_once_hopeless_always_hopeless(small: float, large: float) -> None:
    whole = measured(small, min(large, HEADROOM * 400.0))
    if RULE.hopeless(whole[:1]):
        assert RULE.hopeless(whole)
