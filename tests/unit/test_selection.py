"""The gain that is reported of a winner: the luck of having been named taken off."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

from autotune.selection import unselected
from autotune.verdict import dunnett_critical

FREEDOM = 4
CRITICAL = dunnett_critical(FREEDOM, np.full(2, math.sqrt(0.5)))
NOISE = 0.03  # of ln score, between starts


def reported(
    measured: float, *, critical: float = CRITICAL, freedom: int = FREEDOM, noise: float = NOISE
) -> float:
    """In standard errors, of three rounds."""
    error = noise * math.sqrt(2 / 3)
    return unselected(measured * error, error, critical, noise=noise, freedom=freedom) / error


def test_a_clear_gain_stays_as_measured() -> None:
    assert reported(40.0) == pytest.approx(40.0, rel=1e-3)
    assert unselected(0.30, 0.0, CRITICAL, noise=0.01, freedom=FREEDOM) == 0.30


@pytest.mark.parametrize("freedom", [2, 4, 8, 40])
@pytest.mark.parametrize("noise", [0.005, 0.03, 0.12])
def test_a_gain_by_a_hair_stays_well_inside_its_interval(freedom: int, noise: float) -> None:
    critical = dunnett_critical(freedom, np.full(2, math.sqrt(0.5)))
    for above in (1e-9, 0.1, 0.5, 2.0):
        measured = critical + above
        gain = reported(measured, critical=critical, freedom=freedom, noise=noise)
        assert 0.15 < (gain - above) / (2 * critical) < 0.5


def test_more_measured_is_more_reported() -> None:
    measured = [CRITICAL + above for above in np.linspace(0.0, 12.0, 25)]
    gains = [reported(one) for one in measured]
    assert all(low < high for low, high in itertools.pairwise(gains))
    assert all(gain < one for gain, one in zip(gains, measured, strict=True))


@pytest.mark.parametrize("above", [0.05, 1.0, 3.0])
def test_it_is_the_mean_of_the_likelihood_given_the_naming(above: float) -> None:
    """The same integral on a plain grid, with scipy's non-central t for the naming.

    The noise that was seen is that of the prior, which then is four degrees of freedom more.
    """
    measured = CRITICAL + above
    theta = np.linspace(measured - CRITICAL, measured + CRITICAL, 301)[:, None]
    w = np.linspace(0.02, 3.2, 160)[None, :]
    named = stats.nct.sf(CRITICAL, FREEDOM, theta * w)
    density = w * stats.norm.pdf(w * (measured - theta)) / named
    more = FREEDOM + 4
    density = (density * stats.chi2.pdf(more * w**2, more) * w).sum(1)
    expected = float(density @ theta[:, 0] / density.sum())
    assert reported(measured) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("freedom", "noise", "above"),
    [(4, 0.03, 0.05), (2, 0.03, 1.0), (12, 0.01, 0.5), (4, 0.09, 2.0)],
)
def test_the_noise_that_was_seen_is_weighed_against_what_is_known(
    freedom: int, noise: float, above: float
) -> None:
    """The prior of the docstring in its own words: four degrees of freedom with a noise of 3 %."""
    critical = dunnett_critical(freedom, np.full(2, math.sqrt(0.5)))
    measured = critical + above
    theta = np.linspace(measured - critical, measured + critical, 321)
    w = np.linspace(0.01, 8.0 if noise > 0.03 else 5.0, 600)
    named = stats.nct.sf(critical, freedom, theta[:, None] * w)
    likelihood = w * stats.norm.pdf(w * (measured - theta[:, None])) / named
    of_w = 2 * freedom * w * stats.chi2.pdf(freedom * w**2, freedom)  # the density of w, times
    # that of the true noise, noise / w: 4 * 0.03^2 over its square is chi-square with 4
    prior = w**4 * np.exp(-4 * 0.03**2 / (2 * (noise / w) ** 2))
    density = integrate.trapezoid(likelihood * of_w * prior, w, axis=1)
    expected = integrate.trapezoid(density * theta, theta) / integrate.trapezoid(density, theta)
    gain = reported(measured, critical=critical, freedom=freedom, noise=noise)
    assert gain == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("noise", [0.012, 0.03, 0.047])
@pytest.mark.parametrize("gain", [0.03, 0.08, 0.2])
def test_winners_are_reported_nearer_to_the_truth_than_measured(gain: float, noise: float) -> None:
    """One finalist, three rounds; the goal of one point where a gain is found more often than not,
    and less than was measured where it takes luck."""
    rng = np.random.default_rng(11)
    freedom, k = 4, math.sqrt(2 / 3)
    critical = float(stats.t.ppf(0.975, freedom))
    error = noise * k * np.sqrt(rng.chisquare(freedom, 4000) / freedom)
    measured = math.log1p(gain) + rng.normal(0, noise * k, 4000)
    won = np.flatnonzero(measured > critical * error)
    claimed = np.array(
        [
            math.expm1(unselected(effect, off, critical, noise=off / k, freedom=freedom))
            for effect, off in zip(measured[won[:250]], error[won[:250]], strict=True)
        ]
    )
    off = 100 * (claimed - gain)
    before = 100 * (np.expm1(measured[won[:250]]) - gain)
    if len(won) > 0.5 * 4000:
        assert abs(off.mean()) < 1.0
        assert np.abs(off).mean() < 1.25 * np.abs(before).mean()
    else:
        assert off.mean() < 0.85 * before.mean()
        assert np.abs(off).mean() < np.abs(before).mean()
