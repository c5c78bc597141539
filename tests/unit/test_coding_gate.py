"""The exact paired test and the factor that follows from it."""

from __future__ import annotations

import random

import pytest
from scipy.stats import binomtest

from autotune.coding.gate import ALPHA, excess_failures, gate_factor, paired_p_value


@pytest.mark.parametrize(
    ("b", "c", "p"), [(0, 0, 1.0), (1, 0, 0.5), (6, 0, 1 / 64), (3, 3, 42 / 64), (0, 4, 1.0)]
)
def test_p_value_by_hand(b: int, c: int, p: float) -> None:
    assert paired_p_value(b, c) == pytest.approx(p, rel=1e-12)


@pytest.mark.parametrize(("b", "c"), [(5, 1), (12, 4), (40, 22), (200, 150)])
def test_p_value_is_the_one_sided_binomial_test(b: int, c: int) -> None:
    wanted = binomtest(b, b + c, 0.5, alternative="greater").pvalue
    assert paired_p_value(b, c) == pytest.approx(float(wanted), rel=1e-9)


def test_negative_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="counts"):
        paired_p_value(-1, 2)


def test_equal_runs_cost_nothing() -> None:
    run = [True] * 190 + [False] * 10
    excess = excess_failures(run, run)
    assert (excess.failures, excess.reference_failures) == (10, 10)
    assert (excess.p_value, excess.penalised, excess.samples) == (1.0, 0, 200)


def test_five_new_failures_are_chance_and_six_are_not() -> None:
    reference = [True] * 200
    five = excess_failures(reference, [False] * 5 + [True] * 195)
    six = excess_failures(reference, [False] * 6 + [True] * 194)
    assert five.p_value > ALPHA
    assert five.penalised == 0
    assert six.p_value == 1 / 64
    assert six.penalised == 6


def test_only_the_excess_counts_and_failures_of_both_do_not_matter() -> None:
    reference = [False] * 20 + [True] * 180
    trial = [False] * 19 + [True] + [False] * 12 + [True] * 168
    excess = excess_failures(reference, trial)
    assert (excess.only_trial_failed, excess.only_reference_failed) == (12, 1)
    assert excess.penalised == 31 - 20


def test_a_better_trial_is_not_rewarded() -> None:
    excess = excess_failures([False] * 50 + [True] * 150, [True] * 200)
    assert excess.p_value == 1.0
    assert excess.penalised == 0
    assert gate_factor(excess, penalty=5) == 1.0


def test_different_or_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="same samples"):
        excess_failures([True], [True, True])
    with pytest.raises(ValueError, match="same samples"):
        excess_failures([], [])


@pytest.mark.parametrize("alpha", [0.0, 1.0, -1.0])
def test_alpha_is_a_probability(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        excess_failures([True], [True], alpha=alpha)


def test_factor_falls_linearly_and_stops_at_nothing() -> None:
    excess = excess_failures([True] * 200, [False] * 20 + [True] * 180)
    assert gate_factor(excess, penalty=2) == pytest.approx(0.8)
    assert gate_factor(excess, penalty=10) == 0.0
    with pytest.raises(ValueError, match="penalty"):
        gate_factor(excess, penalty=-1)


def test_false_alarms_and_power_at_200_samples() -> None:
    chance = random.Random(7)

    def alarms(corrupted: int, runs: int) -> float:
        found = 0
        for _ in range(runs):
            reference = [chance.random() >= 0.03 for _ in range(200)]
            trial = [n >= corrupted and chance.random() >= 0.03 for n in range(200)]
            found += excess_failures(reference, trial).penalised > 0
        return found / runs

    assert alarms(0, 400) <= 0.02
    assert alarms(20, 400) >= 0.95
