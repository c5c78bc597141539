"""The verdict on finalists (one piece: one model): intervals that hold, words that say no more."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy

from autotune.verdict import (
    PointEstimate,
    Remeasured,
    Verdict,
    VerdictKind,
    dunnett_critical,
    finalists,
    verdict,
)


def rounds(
    gains: dict[str, float],
    *,
    turns: int,
    noise: float,
    seed: int,
    hosts: tuple[str, ...] = ("a",),
    drift: float = 0.05,
) -> list[Remeasured]:
    """Fresh measurements: each turn of each host has its own level, `drift` in its logarithm."""
    rng = np.random.default_rng(seed)
    measured = []
    for host in hosts:
        for turn in range(turns):
            level = math.log(500.0) + rng.normal(0, drift)
            for key, gain in {"ref": 0.0, **gains}.items():
                score = math.exp(level + math.log1p(gain) + rng.normal(0, noise))
                measured.append(Remeasured(key, host, turn, score))
    return measured


def judge(measured: list[Remeasured], **changes: int) -> Verdict:
    keys = {one.key for one in measured} - {"ref"}
    return verdict(measured, reference="ref", changes={key: changes.get(key, 1) for key in keys})


@pytest.mark.parametrize(
    ("freedom", "comparisons", "table"),
    [(10, 1, 2.23), (10, 2, 2.57), (10, 3, 2.76), (20, 4, 2.65), (1_000_000, 3, 2.35)],
)
def test_critical_values_are_those_of_the_table(
    freedom: int, comparisons: int, table: float
) -> None:
    """Two-sided 5 % points of Dunnett (1964), table II, equal numbers."""
    loadings = np.full(comparisons, math.sqrt(0.5))
    assert dunnett_critical(freedom, loadings) == pytest.approx(table, abs=0.006)


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("freedom", [3, 12])
@pytest.mark.parametrize("loadings", [(0.9, 0.2), (0.3, 0.5, 0.8), (0.0, 0.0, 0.0, 0.0)])
def test_critical_values_hold_together(
    level: float, freedom: int, loadings: tuple[float, ...]
) -> None:
    """scipy's multivariate t of that correlation lies within +-c with the probability `level`."""
    critical = dunnett_critical(freedom, np.array(loadings), level=level)
    correlation = np.outer(loadings, loadings)
    np.fill_diagonal(correlation, 1.0)
    bound = np.full(len(loadings), critical)
    inside = scipy.stats.multivariate_t.cdf(
        bound, shape=correlation, df=freedom, lower_limit=-bound, maxpts=60_000, random_state=1
    )
    assert inside == pytest.approx(level, abs=1.5e-3)


def test_one_comparison_is_students() -> None:
    for level, freedom in ((0.9, 4), (0.95, 2)):
        critical = dunnett_critical(freedom, np.array([0.3]), level=level)
        assert critical == pytest.approx(scipy.stats.t.ppf(0.5 + level / 2, freedom))


def by_least_squares(measured: list[Remeasured], keys: list[str]) -> dict[str, tuple[float, float]]:
    """ln ratio to "ref" and its standard error, by contrasts of an over-complete model."""
    blocks = sorted({(one.host, one.turn) for one in measured})
    columns = ["ref", *keys, *blocks]
    design = np.array(
        [[float(c in (one.key, (one.host, one.turn))) for c in columns] for one in measured]
    )
    y = np.log([one.score for one in measured])
    effects, *_ = np.linalg.lstsq(design, y, rcond=None)
    spread = np.linalg.pinv(design.T @ design)
    freedom = len(y) - np.linalg.matrix_rank(design)
    variance = float(((y - design @ effects) ** 2).sum()) / freedom
    found = {}
    for at, key in enumerate(keys, start=1):
        contrast = np.zeros(len(columns))
        contrast[[0, at]] = -1.0, 1.0
        found[key] = (
            float(contrast @ effects),
            math.sqrt(variance * float(contrast @ spread @ contrast)),
        )
    return found


@pytest.mark.parametrize("seed", range(6))
def test_ratios_and_intervals_are_those_of_the_block_design(seed: int) -> None:
    gains = {"f": 0.10, "g": 0.02, "h": -0.05}
    measured = rounds(gains, turns=3, noise=0.02, seed=seed, hosts=("a", "b"))
    if seed % 2:  # unbalanced
        del measured[seed]
        del measured[-seed]
    said = judge(measured)
    expected = by_least_squares(measured, ["f", "g", "h"])
    assert [one.ratio for one in said.finalists] == sorted(
        (one.ratio for one in said.finalists), reverse=True
    )
    width = set()
    for one in said.finalists:
        effect, error = expected[one.key]
        assert one.ratio == pytest.approx(math.exp(effect))
        assert math.sqrt(one.interval.low * one.interval.high) == pytest.approx(one.ratio)
        width.add(round(math.log(one.interval.high / one.ratio) / error, 6))
        assert one.repeats == sum(m.key == one.key for m in measured)
    assert len(width) == 1  # one critical value for all
    (critical,) = width
    freedom = len(measured) - 6 - 3
    single = scipy.stats.t.ppf(0.975, freedom)
    bonferroni = scipy.stats.t.ppf(1 - 0.025 / 3, freedom)
    assert single < critical < bonferroni
    effect, error = expected["f"]
    assert said.noise is not None
    if not seed % 2:  # balanced: the error of a difference of two means of six
        assert error == pytest.approx(said.noise * math.sqrt(2 / 6))
        assert critical == pytest.approx(
            dunnett_critical(freedom, np.full(3, math.sqrt(0.5))), abs=1e-5
        )


def test_another_level_is_another_interval_and_another_winner() -> None:
    measured = rounds({"f": 0.05}, turns=4, noise=0.02, seed=3)
    sure, bold = (
        verdict(measured, reference="ref", changes={"f": 1}, level=level) for level in (0.999, 0.5)
    )
    assert sure.kind is VerdictKind.NO_SIGNIFICANT_DIFFERENCE
    assert bold.kind is VerdictKind.BETTER
    (wide,), (narrow,) = sure.finalists, bold.finalists
    assert wide.interval.low < narrow.interval.low < narrow.interval.high < wide.interval.high


def test_what_is_better_must_be_above_and_not_at_the_reference() -> None:
    """Without any noise the interval has no width, and the logarithm of 1 is 0 exactly."""
    flat = [Remeasured(key, "a", turn, 1.0) for turn in range(3) for key in ("ref", "f")]
    said = judge(flat)
    assert said.kind is VerdictKind.NO_SIGNIFICANT_DIFFERENCE
    assert said.sentence == "no significant difference: +0.0 % [+0.0, +0.0]"


def test_the_unit_of_a_score_does_not_matter() -> None:
    measured = rounds({"f": 0.15}, turns=3, noise=0.01, seed=9)
    small = [Remeasured(m.key, m.host, m.turn, m.score / 1e4) for m in measured]
    assert judge(small).ratio == pytest.approx(judge(measured).ratio)


def test_a_barred_finalist_is_judged_and_does_not_win() -> None:
    measured = rounds({"fast": 0.30, "slow": 0.15}, turns=3, noise=0.01, seed=7)
    changes = {"fast": 1, "slow": 1}
    free = verdict(measured, reference="ref", changes=changes)
    one = verdict(measured, reference="ref", changes=changes, barred={"fast"})
    assert (free.winner, one.winner) == ("fast", "slow")
    assert (one.finalists, one.noise) == (free.finalists, free.noise)
    none = verdict(measured, reference="ref", changes=changes, barred={"fast", "slow"})
    assert none == Verdict(
        VerdictKind.NO_SIGNIFICANT_DIFFERENCE,
        winner=None,
        ratio=None,
        interval=None,
        sentence="no significant difference: no finalist may win",
        noise=free.noise,
        finalists=free.finalists,
    )


def test_a_clear_gain_is_better_and_said_with_its_interval() -> None:
    measured = [
        Remeasured(key, "a", turn, score)
        for turn, (reference, finalist) in enumerate([(100, 112.5), (101, 114.5), (99, 112.5)])
        for key, score in (("ref", reference), ("f", finalist))
    ]
    said = judge(measured)
    assert said.kind is VerdictKind.BETTER
    assert said.winner == "f"
    assert said.ratio == pytest.approx(1.1313, abs=1e-4)  # measured 1.1316
    assert said.interval is not None
    # by hand: log ratios 0.11778, 0.12546, 0.12783; sd/sqrt(3) = 0.003035; t(2) = 4.3027
    assert said.interval.low == pytest.approx(1.1170, abs=2e-4)
    assert said.interval.high == pytest.approx(1.1465, abs=2e-4)
    assert said.sentence == "better by 13.1 % [11.7, 14.7] than the deployed configuration"


def test_nothing_is_claimed_within_the_noise() -> None:
    said = judge(rounds({"f": 0.005}, turns=4, noise=0.02, seed=4))
    assert said.kind is VerdictKind.NO_SIGNIFICANT_DIFFERENCE
    assert said.winner is None
    (best,) = said.finalists
    assert (said.ratio, said.interval) == (best.ratio, best.interval)
    assert said.sentence == (
        f"no significant difference: {100 * (best.ratio - 1):+.1f} % "
        f"[{100 * (best.interval.low - 1):+.1f}, {100 * (best.interval.high - 1):+.1f}]"
    )
    assert said.noise == pytest.approx(0.02, rel=0.7)
    assert said.interval is not None
    assert said.interval.low < 1 < said.interval.high


def test_a_worse_finalist_leaves_the_deployed_one() -> None:
    said = judge(rounds({"f": -0.2}, turns=3, noise=0.01, seed=5))
    assert said.kind is VerdictKind.NO_SIGNIFICANT_DIFFERENCE
    assert said.winner is None
    (best,) = said.finalists
    assert best.interval.high < 1
    assert said.ratio == best.ratio == pytest.approx(0.8, abs=0.02)
    assert said.sentence == (
        "nothing better than the deployed configuration: the best finalist is at "
        f"{100 * (best.ratio - 1):+.1f} % "
        f"[{100 * (best.interval.low - 1):+.1f}, {100 * (best.interval.high - 1):+.1f}]"
    )


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ([], "the deployed configuration was measured again 0 time(s), 2 are needed"),
        (
            rounds({"f": 0.1}, turns=1, noise=0.01, seed=1),
            "the deployed configuration was measured again 1 time(s), 2 are needed",
        ),
        (rounds({}, turns=3, noise=0.01, seed=1), "no finalist was measured again"),
        (
            [
                *rounds({"g": 0.1}, turns=3, noise=0.01, seed=1),
                Remeasured("f", "a", 0, 100.0),
            ],
            "a finalist was measured again 1 time(s), 2 are needed",
        ),
        (
            [
                *rounds({"f": 0.1}, turns=3, noise=0.01, seed=1),
                Remeasured("g", "a", 0, 100.0),
            ],
            "a finalist was measured again 1 time(s), 2 are needed",
        ),
        (
            # Three values of one, two of the other, in three blocks: the noise is seen once.
            rounds({"f": 0.1}, turns=3, noise=0.01, seed=1)[:-1],
            "3 final round(s) of 1 finalist(s) show the noise once, which decides nothing; "
            "ask for final_rounds = 4 or more",
        ),
        (
            # Two configurations twice each in three blocks: nothing is left for the noise.
            [
                *(Remeasured("ref", "a", turn, 100.0 + turn) for turn in range(2)),
                *(Remeasured("f", host, 0, 110.0) for host in ("a", "b")),
            ],
            "3 final round(s) of 1 finalist(s) show the noise never, which decides nothing; "
            "ask for final_rounds = 3 or more",
        ),
        (
            [
                *(Remeasured("ref", "a", turn, 100.0 + turn) for turn in range(2)),
                *(Remeasured("f", "b", turn, 110.0 + turn) for turn in range(2)),
            ],
            "some configurations never shared a turn with the others",
        ),
    ],
)
def test_too_little_is_said_to_be_too_little(measured: list[Remeasured], words: str) -> None:
    said = judge(measured)
    assert said.kind is VerdictKind.NOT_ENOUGH_DATA
    assert (said.winner, said.ratio, said.interval) == (None, None, None)
    assert said.sentence == f"not enough data: {words}"
    assert (said.noise, said.finalists) == (None, ())


def test_the_simplest_within_the_noise_wins() -> None:
    measured = rounds({"three": 0.155, "one": 0.15}, turns=3, noise=0.02, seed=6)
    assert judge(measured, three=3, one=1).winner == "one"
    assert judge(measured, three=1, one=3).winner == "three"


def test_the_simplest_does_not_win_beyond_the_noise() -> None:
    measured = rounds({"three": 0.30, "one": 0.15}, turns=3, noise=0.01, seed=7)
    said = judge(measured, three=3, one=1)
    assert said.winner == "three"
    assert [finalist.key for finalist in said.finalists] == ["three", "one"]


def test_a_simpler_one_wins_up_to_students_bound_and_not_beyond() -> None:
    """Equal residuals in every run: only the distance of two finalists moves."""
    residuals = np.random.default_rng(12).normal(0, 0.01, (4, 3))

    def at(distance: float) -> Verdict:
        logs = residuals + np.array([0.0, 0.5, 0.5 - distance])
        return judge(
            [
                Remeasured(key, "a", turn, math.exp(5 + logs[turn, column]))
                for turn in range(4)
                for column, key in enumerate(("ref", "best", "simple"))
            ],
            best=3,
            simple=1,
        )

    shift = math.log(at(0.0).finalists[0].ratio) - math.log(at(0.0).finalists[1].ratio)
    if at(0.0).finalists[0].key == "simple":
        shift = -shift
    noise = at(0.0).noise
    assert noise is not None
    bound = scipy.stats.t.ppf(0.975, 6) * noise * math.sqrt(2 / 4)
    assert at(bound - shift - 1e-6).winner == "simple"
    assert at(bound - shift + 1e-6).winner == "best"


def test_of_equally_simple_ones_the_better_wins() -> None:
    measured = rounds({"f": 0.150, "g": 0.155}, turns=4, noise=0.02, seed=6)
    said = judge(measured, f=2, g=2)
    assert said.winner == said.finalists[0].key


def test_levels_of_hosts_and_turns_cancel() -> None:
    calm = rounds({"f": 0.1}, turns=2, noise=0.01, seed=8, hosts=("a", "b"), drift=0.0)
    wild = rounds({"f": 0.1}, turns=2, noise=0.01, seed=8, hosts=("a", "b"), drift=0.5)
    assert judge(calm).kind is judge(wild).kind is VerdictKind.BETTER
    levels = {("a", 0): 3.0, ("a", 1): 0.5, ("b", 0): 1.0, ("b", 1): 9.0}
    moved = [Remeasured(m.key, m.host, m.turn, m.score * levels[m.host, m.turn]) for m in calm]
    before, after = judge(calm).interval, judge(moved).interval
    assert before is not None
    assert after is not None
    assert (after.low, after.high) == pytest.approx((before.low, before.high))


def test_a_missing_measurement_is_no_obstacle() -> None:
    measured = rounds({"f": 0.15, "g": 0.1}, turns=3, noise=0.01, seed=9)
    said = judge([one for one in measured if (one.key, one.turn) != ("g", 1)])
    assert said.winner == "f"
    assert {finalist.key: finalist.repeats for finalist in said.finalists} == {"f": 3, "g": 2}


@pytest.mark.parametrize("turns", [2, 3])
def test_equal_configurations_are_rarely_called_better(turns: int) -> None:
    """A/A: two-sided 5 % for all finalists together, so 2.5 % on the side of better.

    600 runs: the standard deviation of the rate is 0.6 %.
    """
    runs = 600
    better = sum(
        judge(rounds({"f": 0.0, "g": 0.0}, turns=turns, noise=0.03, seed=seed)).kind
        is VerdictKind.BETTER
        for seed in range(runs)
    )
    assert 0.007 <= better / runs <= 0.045


def test_intervals_cover_the_truth_together() -> None:
    gains = {"f": 0.12, "g": 0.05, "h": -0.03}
    runs, covered = 400, 0
    for seed in range(runs):
        said = judge(rounds(gains, turns=3, noise=0.03, seed=seed))
        covered += all(
            one.interval.low <= 1 + gains[one.key] <= one.interval.high for one in said.finalists
        )
    assert 0.92 <= covered / runs <= 0.98


def test_finalists_are_the_best_by_posterior_mean_without_the_reference() -> None:
    points = [
        PointEstimate("lucky", 0.05, 1),
        PointEstimate("ref", 0.30, 0),
        PointEstimate("good", 0.12, 2),
        PointEstimate("good", 0.12, 2),
        PointEstimate("simple", 0.12, 1),
    ]
    assert finalists(points, 2, reference="ref") == ("simple", "good")
    assert finalists(points, 9, reference="ref") == ("simple", "good", "lucky")


@pytest.mark.parametrize("score", [0.0, -1.0, math.nan, math.inf])
def test_a_score_without_a_logarithm_is_refused(score: float) -> None:
    with pytest.raises(ValueError, match="not above 0"):
        Remeasured("f", "a", 0, score)


def test_a_winner_by_a_hair_is_not_reported_at_the_end_of_its_interval() -> None:
    """Two finalists at +9.7 and +8.5 % on two hosts, the reference known from a few values each."""
    logs = {  # (host, turn): ln of reference and finalists over the level of the host
        ("a", 0): {"ref": -0.0329, "f": 0.0931, "g": 0.0958},
        ("b", 0): {"ref": 0.0301, "f": 0.0602, "g": 0.078},
        ("a", 1): {"ref": 0.0027, "f": 0.1244, "g": 0.0709},
    }
    levels = {"a": math.log(5400.0), "b": math.log(5450.0)}
    said = judge(
        [
            Remeasured(key, host, turn, math.exp(levels[host] + log))
            for (host, turn), scores in logs.items()
            for key, log in scores.items()
        ],
        f=2,
        g=3,
    )
    measured = {one.key: one.ratio for one in said.finalists}
    assert measured == pytest.approx({"f": 1.097, "g": 1.085}, abs=0.001)
    assert (said.kind, said.winner) == (VerdictKind.BETTER, "f")
    assert said.interval is not None
    assert said.interval.low == pytest.approx(1.007, abs=0.006)  # by a hair
    assert said.ratio is not None
    up = (said.ratio - said.interval.low) / (said.interval.high - said.interval.low)
    assert 0.3 < up < 0.5
    assert said.ratio < measured["f"]


def test_one_degree_of_freedom_decides_nothing_and_says_what_to_ask_for() -> None:
    said = judge(rounds({"f": 0.5}, turns=2, noise=0.001, seed=2))
    assert said.kind is VerdictKind.NOT_ENOUGH_DATA
    assert said.sentence == (
        "not enough data: 2 final round(s) of 1 finalist(s) show the noise once, which decides "
        "nothing; ask for final_rounds = 3 or more"
    )
    assert judge(rounds({"f": 0.5}, turns=3, noise=0.001, seed=2)).winner == "f"
