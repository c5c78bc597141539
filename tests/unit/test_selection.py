"""The gain that is reported of a winner: the luck of having been named taken off."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from autotune.selection import unselected
from autotune.verdict import dunnett_critical

FREEDOM = 4
CRITICAL = dunnett_critical(FREEDOM, np.full(2, math.sqrt(0.5)))


def test_a_clear_gain_stays_as_measured() -> None:
    assert unselected(0.30, 0.01, CRITICAL, FREEDOM) == pytest.approx(0.30, rel=1e-3)
    assert unselected(0.30, 0.0, CRITICAL, FREEDOM) == 0.30


@pytest.mark.parametrize("freedom", [2, 4, 8, 40])
def test_a_gain_by_a_hair_stays_well_inside_its_interval(freedom: int) -> None:
    critical = dunnett_critical(freedom, np.full(2, math.sqrt(0.5)))
    for above in (1e-9, 0.1, 0.5, 2.0):
        measured = critical + above
        up = (unselected(measured, 1.0, critical, freedom) - above) / (2 * critical)
        assert 0.2 < up < 0.5


def test_more_measured_is_more_reported_in_any_unit() -> None:
    measured = [CRITICAL + above for above in np.linspace(0.0, 12.0, 25)]
    reported = [unselected(one, 1.0, CRITICAL, FREEDOM) for one in measured]
    assert all(low < high for low, high in itertools.pairwise(reported))
    assert all(one < seen for one, seen in zip(reported, measured, strict=True))
    small = [unselected(0.02 * one, 0.02, CRITICAL, FREEDOM) for one in measured]
    assert small == pytest.approx([0.02 * one for one in reported])


@pytest.mark.parametrize("above", [0.05, 1.0, 3.0])
def test_it_is_the_mean_of_the_likelihood_given_the_naming(above: float) -> None:
    """The same integral on a plain grid, with scipy's non-central t for the naming."""
    measured = CRITICAL + above
    theta = np.linspace(measured - CRITICAL, measured + CRITICAL, 301)[:, None]
    w = np.linspace(0.02, 3.2, 160)[None, :]
    named = stats.nct.sf(CRITICAL, FREEDOM, theta * w)
    density = w * stats.norm.pdf(w * (measured - theta)) / named
    density = (density * stats.chi2.pdf(FREEDOM * w**2, FREEDOM) * w).sum(1)
    expected = float(density @ theta[:, 0] / density.sum())
    assert unselected(measured, 1.0, CRITICAL, FREEDOM) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("gain", "bias_most"), [(2.0, 1.2), (3.0, 0.4), (5.0, 0.5), (8.0, 0.5)])
def test_winners_are_reported_nearer_to_the_truth_than_measured(
    gain: float, bias_most: float
) -> None:
    """In standard errors, one comparison: the goal of one point is 0.4 of them at 3 % of noise."""
    rng = np.random.default_rng(11)
    critical = float(stats.t.ppf(0.975, FREEDOM))
    error = np.sqrt(rng.chisquare(FREEDOM, 3000) / FREEDOM)
    measured = gain + rng.normal(size=3000)
    won = measured > critical * error
    grid = critical + np.concatenate([np.linspace(0, 4, 17), np.linspace(5, 60, 12)])
    table = [unselected(t, 1.0, critical, FREEDOM) for t in grid]
    reported = error[won] * np.interp(measured[won] / error[won], grid, table)
    assert abs(float(np.mean(reported)) - gain) < bias_most
    if gain < 4:  # where being named takes luck
        assert abs(reported.mean() - gain) < 0.6 * abs(measured[won].mean() - gain)
        assert np.abs(reported - gain).mean() < np.abs(measured[won] - gain).mean()
