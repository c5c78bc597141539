"""The statistics against scipy and against their formulas (one piece: one module's formulas)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune import stats

WINDOWS = st.lists(st.floats(1, 1e5), min_size=2, max_size=40)


def autoregression(rng: np.random.Generator, n: int, *, rho: float, noise: float) -> list[float]:
    """n windows with mean 100, relative standard deviation `noise`, lag-1 autocorrelation `rho`."""
    x = np.empty(n)
    x[0] = rng.normal()
    for i in range(1, n):
        x[i] = rho * x[i - 1] + math.sqrt(1 - rho**2) * rng.normal()
    return [float(v) for v in 100 * (1 + noise * x)]


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [([1.0, 2.0, 3.0, 4.0], 50, 2.5), ([5.0], 99, 5.0), ([0.0, 10.0], 25, 2.5)],
)
def test_percentile_interpolates(values: list[float], q: float, expected: float) -> None:
    assert stats.percentile(values, q) == pytest.approx(expected)


def test_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^no percentile of an empty sample$"):
        stats.percentile([], 50)


def test_equal_windows_are_luck_and_not_certainty() -> None:
    few, many = ([7.0] * n for n in (3, 40))
    assert 0.002 < stats.relative_half_width(many) < 0.005
    assert 0.01 < stats.relative_half_width(few) < 0.04


def test_no_tokens_at_all_is_no_rate() -> None:
    interval = stats.mean_interval([0.0, 0.0])
    assert (interval.low, interval.high) == (0.0, 0.0)


def test_one_window_has_no_interval() -> None:
    with pytest.raises(ValueError, match=r"^an interval needs at least two windows$"):
        stats.mean_interval([7.0])
    assert stats.relative_half_width([7.0]) == math.inf


@given(WINDOWS)
def test_the_interval_is_laid_round_the_mean(windows: list[float]) -> None:
    interval = stats.mean_interval(windows)
    assert (interval.low + interval.high) / 2 == pytest.approx(float(np.mean(windows)))


@given(WINDOWS, st.floats(0.01, 100))
def test_the_interval_scales_with_the_unit(windows: list[float], factor: float) -> None:
    scaled = stats.mean_interval([factor * window for window in windows])
    half_width = stats.mean_interval(windows).half_width
    assert scaled.half_width == pytest.approx(factor * half_width, rel=1e-6, abs=1e-6)


def test_the_interval_of_independent_windows_is_at_least_students() -> None:
    # x = -2..2, n = 5: t(0.975, 4) * sqrt(2.5 / 5) = 1.963.
    windows = [100.0, 98.0, 102.0, 99.0, 101.0]
    assert stats.mean_interval(windows).half_width >= 1.963 * 0.9


def credible_half_width(windows: list[float], confidence: float) -> float:
    """h / mean from the model's own words: windows with the covariance v rho^|i-j|, flat priors for
    mean and rho in 0, 0.1 .. 0.8, v scaled inverse chi-square with 3 degrees of freedom, 1.7 %."""
    n = len(windows)
    x = np.array(windows) / np.mean(windows)
    ones = np.ones(n)
    freedom = n - 1 + 3
    centres, scales, logs = [], [], []
    for rho in np.arange(9) / 10:
        correlation = rho ** np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
        inverse = np.linalg.inv(correlation)
        precision = ones @ inverse @ ones
        centre = ones @ inverse @ x / precision
        squares = (x - centre) @ inverse @ (x - centre) + 3 * 0.017**2
        centres.append(centre - 1)
        scales.append(math.sqrt(squares / freedom / precision))
        # the likelihood of rho, mean and v integrated out
        determinant = np.linalg.slogdet(correlation)[1]
        logs.append(-(determinant + math.log(precision) + freedom * math.log(squares)) / 2)
    weights = np.exp(np.array(logs) - max(logs))
    weights /= weights.sum()

    def outside(h: float) -> float:
        upper = scipy.stats.t.sf(h, freedom, loc=centres, scale=scales)
        lower = scipy.stats.t.cdf(-h, freedom, loc=centres, scale=scales)
        return float(weights @ (upper + lower)) - (1 - confidence)

    return float(scipy.optimize.brentq(outside, 1e-9, 10.0))


@given(st.integers(2, 24), st.integers(0, 2**32 - 1), st.sampled_from([0.5, 0.8, 0.95, 0.99]))
@settings(deadline=None, max_examples=40)
def test_the_interval_is_that_of_the_model(n: int, seed: int, confidence: float) -> None:
    rng = np.random.default_rng(seed)
    windows = autoregression(rng, n, rho=rng.uniform(0, 0.8), noise=rng.uniform(0.002, 0.1))
    half_width = stats.mean_interval(windows, confidence=confidence).half_width
    expected = credible_half_width(windows, confidence) * float(np.mean(windows))
    assert half_width == pytest.approx(expected, rel=1e-4)


def test_an_interval_is_of_95_percent_unless_asked() -> None:
    windows = [100.0, 98.0, 102.0, 99.0, 101.0]
    assert stats.mean_interval(windows) == stats.mean_interval(windows, confidence=0.95)
    assert stats.relative_half_width(windows) == pytest.approx(
        stats.mean_interval(windows).half_width / 100
    )


def test_two_windows_have_an_interval_and_falling_rates_one_of_positive_width() -> None:
    assert stats.mean_interval([90.0, 110.0]).half_width > 0
    assert stats.relative_half_width([90.0, 110.0]) < math.inf
    assert stats.relative_half_width([0.0, 0.0]) == math.inf
    below = stats.mean_interval([-90.0, -110.0])
    assert below.low < -100 < below.high


def test_correlated_windows_get_a_wider_interval_than_the_same_ones_shuffled() -> None:
    rng = np.random.default_rng(5)
    in_order = mixed = 0.0
    for _ in range(50):
        windows = autoregression(rng, 30, rho=0.7, noise=0.02)
        in_order += stats.mean_interval(windows).half_width
        mixed += stats.mean_interval([float(v) for v in rng.permutation(windows)]).half_width
    assert in_order > 1.3 * mixed


def test_coverage_under_sequential_stopping() -> None:
    """The claim of `mean_interval`: nominal over rho in 0..0.7 although the stop is sequential."""
    rng = np.random.default_rng(11)
    held = 0
    buckets = 200
    for _ in range(buckets):
        windows = autoregression(rng, 40, rho=rng.uniform(0, 0.7), noise=rng.uniform(0.005, 0.05))
        n = next(
            n
            for n in range(8, 41)
            if stats.enough(windows[:n], target_relative_half_width=0.02, least=8, most=40)
        )
        interval = stats.mean_interval(windows[:n])
        held += interval.low <= 100 <= interval.high
    assert 0.93 <= held / buckets <= 0.99


def test_enough_is_enough_at_the_bound_itself() -> None:
    windows = [100.0, 101.0, 99.0, 100.0]
    bound = stats.relative_half_width(windows)
    for target, stop in ((bound, True), (bound * (1 - 1e-9), False)):
        assert stats.enough(windows, target_relative_half_width=target, least=4, most=9) is stop
    assert stats.enough(windows, target_relative_half_width=0.0, least=4, most=4)
    assert not stats.enough(windows, target_relative_half_width=1.0, least=5, most=9)


def test_enough_waits_for_the_least_and_stops_at_the_most() -> None:
    flat, wild = [100.0, 100.1] * 10, [50.0, 150.0] * 10

    def enough(windows: list[float]) -> bool:
        return stats.enough(windows, target_relative_half_width=0.02, least=8, most=20)

    assert not enough(flat[:7])
    assert enough(flat[:8])
    assert not enough(wild[:19])
    assert enough(wild)


@pytest.mark.parametrize(
    ("windows", "steady"),
    [
        ([100.0, 101.0, 99.0, 100.0, 101.0, 99.0], True),
        ([100.0, 100.0, 100.0, 100.0, 100.0, 100.0], True),
        ([100.0, 101.0, 99.0, 100.0, 101.0], False),
        ([10.0, 40.0, 70.0, 90.0, 100.0, 100.0], False),
        ([100.0, 101.0, 99.0, 111.0, 112.0, 110.0], False),
        # As noisy as you like, but a fifth less in the second half.
        ([60.0, 140.0, 100.0, 40.0, 110.0, 90.0], False),
        ([0.0] * 6, False),
        # An old drift is forgotten.
        ([1.0] * 20 + [100.0, 101.0, 99.0, 100.0, 101.0, 99.0] * 2, True),
    ],
)
def test_is_steady(windows: list[float], steady: bool) -> None:
    assert stats.is_steady(windows) is steady


def test_steady_is_asked_of_the_last_windows_only() -> None:
    flat, step = [100.0, 101.0, 99.0], [50.0, 51.0, 49.0]
    assert not stats.is_steady([*step, *flat, *flat, *flat])  # 12 windows: both levels are seen
    assert stats.is_steady([*step, *flat, *flat, *flat, *flat])  # the last 12
    assert stats.is_steady([*step, *flat, *flat], least=3)  # the last 6
    assert not stats.is_steady([*step, *flat], least=3)
    assert stats.is_steady([1.0, 100.0, 101.0, 100.0, 101.0], least=2)
    assert not stats.is_steady([100.0], least=2)


def test_halves_that_differ_by_a_tenth_of_the_mean_are_the_last_to_be_called_equal() -> None:
    # wide enough for the noise to allow it; means of the halves 95 and 105, 94 and 106
    assert stats.is_steady([45.0, 95.0, 145.0, 55.0, 105.0, 155.0])
    assert not stats.is_steady([44.0, 94.0, 144.0, 56.0, 106.0, 156.0])
    assert stats.halves_agree([45.0, 95.0, 145.0, 55.0, 105.0, 155.0])
    assert not stats.halves_agree([44.0, 94.0, 144.0, 56.0, 106.0, 156.0])


def test_halves_are_equal_within_their_standard_error() -> None:
    # Both halves have the variance 1 (n = 3), so the standard error is sqrt(2 / 3) = 0.8165 and the
    # bound 1.96 of it, 1.6003.
    def steps(difference: float) -> list[float]:
        return [99.0, 100.0, 101.0, *(value + difference for value in (99.0, 100.0, 101.0))]

    assert stats.is_steady(steps(1.60))
    assert not stats.is_steady(steps(1.601))
    assert stats.is_steady(steps(-1.60))
    assert not stats.is_steady(steps(-1.601))


def test_a_thousandth_is_the_clocks() -> None:
    def levels(first: float, second: float) -> list[float]:
        return [first] * 3 + [second] * 3

    # No noise at all; the mean is 1000, so a difference of 1 is a thousandth.
    assert stats.is_steady(levels(999.5, 1000.5))
    assert not stats.is_steady(levels(999.4, 1000.6))


def test_the_middle_window_of_an_odd_number_is_in_no_half() -> None:
    for middle in (0.0, 600.0):
        windows = [100.0, 101.0, 99.0, middle, 100.0, 101.0, 99.0]
        assert stats.is_steady(windows)
        assert stats.halves_agree(windows)


def test_two_halves_may_differ_by_twice_their_interval() -> None:
    half = [99.0, 100.0, 101.0, 100.0] * 5
    judged = set()
    for tenths in range(0, 100, 3):
        windows = [*half, *(value + tenths / 10 for value in half)]
        bound = 2 * stats.mean_interval(windows).half_width
        assert bound < 0.1 * 100
        assert stats.halves_agree(windows) is (tenths / 10 <= bound)
        judged.add(tenths / 10 <= bound)
    assert judged == {True, False}


def test_a_rate_may_be_small() -> None:
    assert stats.is_steady([0.5, 0.51, 0.49, 0.5, 0.51, 0.49])
    assert stats.halves_agree([0.5, 0.51, 0.49, 0.5])
    assert not stats.halves_agree([0.5, 0.51, 0.5])
    assert stats.relative_half_width([0.5, 0.51, 0.49]) == pytest.approx(
        stats.relative_half_width([50.0, 51.0, 49.0])
    )


def test_thousands_of_windows_leave_the_clocks_thousandth() -> None:
    """Their interval is narrower than that by far, and the weights of rho stay numbers."""

    def levels(difference: float) -> list[float]:
        return [1000.0] * 2000 + [1000.0 + difference] * 2000

    assert 0 < stats.mean_interval(levels(0.9)).half_width < 0.1
    assert stats.halves_agree(levels(0.9))
    assert not stats.halves_agree(levels(1.1))


@pytest.mark.parametrize(
    ("windows", "agree"),
    [
        ([100.0, 101.0, 99.0, 100.0, 101.0, 99.0], True),
        ([100.0] * 8, True),
        ([100.0, 101.0, 102.0], False),
        ([80.0, 80.0, 81.0, 80.0, 100.0, 100.0, 101.0, 100.0], False),
        ([0.0] * 8, False),
    ],
)
def test_halves_agree(windows: list[float], agree: bool) -> None:
    assert stats.halves_agree(windows) is agree


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=50), st.floats(0, 100))
def test_without_unfinished_waits_it_is_the_percentile(values: list[float], q: float) -> None:
    value, at_least = stats.percentile_at_least(values, [], q)
    assert value == pytest.approx(stats.percentile(values, q), rel=1e-9, abs=1e-9)
    assert not at_least


@given(
    st.lists(st.floats(0, 1e4), min_size=1, max_size=30),
    st.lists(st.floats(0, 1e4), min_size=1, max_size=30),
    st.floats(0, 100),
)
def test_unfinished_waits_count_as_longer_than_what_is_known_of_them(
    seen: list[float], unfinished: list[float], q: float
) -> None:
    value, _ = stats.percentile_at_least(seen, unfinished, q)
    # At its bound each would be shorter than it may be; never ended it would be longer.
    assert value >= stats.percentile(seen + unfinished, q) - 1e-6
    assert value <= max(seen + unfinished)


@given(
    st.sampled_from([2, 3, 5, 11, 21, 26]),  # one less divides 100: no interpolation
    st.integers(0, 2**32 - 1),
    st.integers(1, 30),
)
def test_the_estimate_is_kaplan_and_meiers(n: int, seed: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    waits = rng.integers(1, 1 + levels, n).astype(float)
    broken_off = rng.random(n) < 0.4
    sample = scipy.stats.CensoredData(waits[~broken_off], right=waits[broken_off])
    estimate = scipy.stats.ecdf(sample).cdf
    for k in range(n):
        level = (k + 0.5) / n
        reached = estimate.probabilities >= level - 1e-12
        value, at_least = stats.percentile_at_least(
            list(waits[~broken_off]), list(waits[broken_off]), 100 * k / (n - 1)
        )
        if np.abs(estimate.probabilities - level).min(initial=1.0) < 1e-9:
            continue  # either neighbour is the percentile
        assert at_least is not bool(reached.any())
        if reached.any():
            assert value == estimate.quantiles[reached][0]


def test_weight_of_an_unfinished_wait_goes_to_what_is_longer() -> None:
    # By hand: 1/4 each; the 2 that was broken off gives 1/8 to 3 and to 4.
    for q, expected in ((0, 1.0), (30, 2.8), (50, 3.0), (100, 4.0)):
        value, at_least = stats.percentile_at_least([1.0, 3.0, 4.0], [2.0], q)
        assert value == pytest.approx(expected)
        assert not at_least


@pytest.mark.parametrize(
    ("seen", "unfinished", "q", "expected"),
    [
        ([1.0, 2.0], [9.0], 99, (8.86, True)),
        ([1.0, 2.0], [9.0], 50, (2.0, False)),
        ([], [5.0], 50, (5.0, True)),
        ([1.0] * 99, [1.0], 99, (1.0, True)),
        ([1.0, 2.0], [8.0, 9.0], 200 / 3, (8.0, True)),  # the third of four
    ],
)
def test_what_nothing_outlasted_is_a_lower_bound(
    seen: list[float], unfinished: list[float], q: float, expected: tuple[float, bool]
) -> None:
    value, at_least = stats.percentile_at_least(seen, unfinished, q)
    assert (round(value, 9), at_least) == expected


@pytest.mark.parametrize("q", [0, 20, 50, 90, 100])
def test_waits_of_which_none_ended_give_the_percentile_of_what_they_lasted(q: float) -> None:
    lasted = [float(n) for n in range(1, 12)]
    value, at_least = stats.percentile_at_least([], lasted, q)
    assert value == pytest.approx(stats.percentile(lasted, q))
    assert at_least


def test_percentiles_of_waits_that_were_cut_at_random_are_right() -> None:
    rng = np.random.default_rng(7)
    found = []
    for _ in range(200):
        waits, ends = rng.gamma(4.0, 0.25, 400), rng.uniform(0.0, 6.0, 400)
        seen = [float(w) for w, e in zip(waits, ends, strict=True) if w <= e]
        unfinished = [float(e) for w, e in zip(waits, ends, strict=True) if w > e]
        found.append(stats.percentile_at_least(seen, unfinished, 90)[0])
    true = 1.6702  # of a gamma distribution with shape 4 and scale 1/4
    assert float(np.mean(found)) == pytest.approx(true, rel=0.01)


def test_waits_that_were_under_way_count_from_the_length_they_had() -> None:
    # By hand: 3 is alone with 4 (2 came to be seen at 3.5 only): 1/2 each, then 1/2 to 5 of (4, 5).
    value, at_least = stats.percentile_at_least([3.0, 4.0, 5.0], [], 100, since=[0.0, 0.0, 3.5])
    assert (value, at_least) == (5.0, False)
    weights = stats._product_limit([(3.0, False, 0.0), (4.0, False, 0.0), (5.0, False, 3.5)])
    assert weights == pytest.approx([1 / 2, 1 / 4, 1 / 4])
    # What came to be seen as the wait ended was not beside it; what began with it was.
    for since in (3.0, 3.5):
        late = [(3.0, False, 0.0), (4.0, False, 0.0), (5.0, False, since)]
        assert stats._product_limit(late) == pytest.approx([1 / 2, 1 / 4, 1 / 4])
    at_once = [(0.0, False, 0.0), (4.0, False, 0.0), (5.0, False, 1.0)]
    assert stats._product_limit(at_once) == pytest.approx([1 / 2, 1 / 4, 1 / 4])


def test_where_nothing_is_left_beside_a_wait_longer_ones_are_not_lost() -> None:
    # 10 ends alone: 12 came to be seen at 11.
    value, _ = stats.percentile_at_least([10.0, 12.0], [], 50, since=[9.0, 11.0])
    assert value == 11.0


def test_percentiles_of_streams_seen_through_a_window_are_right() -> None:
    """32 streams of waits in a row, seen from 60 to 80: the long ones are there more often."""
    rng = np.random.default_rng(11)
    found, ended_only = [], []
    for _ in range(150):
        seen: list[float] = []
        seen_since: list[float] = []
        unfinished: list[float] = []
        unfinished_since: list[float] = []
        for _ in range(32):
            at = -rng.uniform(0.0, 10.0)
            while at < 80.0:
                wait = float(rng.gamma(4.0, 2.5))
                if at + wait > 80.0:
                    unfinished.append(80.0 - at)
                    unfinished_since.append(max(0.0, 60.0 - at))
                elif at + wait > 60.0:
                    seen.append(wait)
                    seen_since.append(max(0.0, 60.0 - at))
                at += wait
        since = [*seen_since, *unfinished_since]
        found.append(stats.percentile_at_least(seen, unfinished, 90, since=since)[0])
        ended_only.append(stats.percentile_at_least(seen, unfinished, 90)[0])
    true = 16.702  # of a gamma distribution with shape 4 and scale 2.5
    assert float(np.mean(found)) == pytest.approx(true, rel=0.02)
    assert float(np.mean(ended_only)) > 1.05 * true, "without it, what was under way is too long"


def test_every_wait_needs_its_beginning() -> None:
    with pytest.raises(ValueError, match="shorter"):
        stats.percentile_at_least([1.0], [2.0], 50, since=[0.0])


def test_no_percentile_of_no_wait() -> None:
    with pytest.raises(ValueError, match=r"^no percentile of an empty sample$"):
        stats.percentile_at_least([], [], 50)
