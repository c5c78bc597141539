"""Scores by hand: every formula of `autotune.objective` with numbers worked out on paper."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.coding.lossless import Comparison, Losslessness
from autotune.measurement import BucketMeasurement, BucketQuality, CodingResult, Interval
from autotune.objective import Reference, Rule, Score, score_start
from autotune.workload import Bucket, Workload
from tests.builders import a_bucket

WORKLOAD = Workload((Bucket(60, 1, 128, 0.25), Bucket(1024, 8, 128, 0.75)))
ARITHMETIC, GEOMETRIC = Rule("arithmetic"), Rule("geometric")
REFERENCE = Reference({"60x1": 100.0, "1024x8": 400.0}, score=325.0, samples={})


def buckets(
    small: float = 120.0, large: float = 500.0, *, half_width: float = 0.02
) -> tuple[BucketMeasurement, ...]:
    return (
        a_bucket(60, 1, small, weight=0.25, relative_half_width=half_width),
        a_bucket(1024, 8, large, weight=0.75, relative_half_width=half_width),
    )


def coding(failed: int, *, of: int = 200, first: int = 0) -> CodingResult:
    """`failed` samples failed, from number `first` on."""
    bad = range(first, first + failed)
    samples = {f"task/{n}": "wrong" if n in bad else "passed" for n in range(of)}
    return CodingResult(samples, of - failed, failed, {})


def scored(
    measured: tuple[BucketMeasurement, ...],
    *,
    rule: Rule = ARITHMETIC,
    reference: Reference | None = REFERENCE,
    answers: CodingResult | None = None,
    workload: Workload = WORKLOAD,
) -> Score:
    score = score_start(measured, answers, workload=workload, rule=rule, reference=reference)
    assert score is not None
    return score


# -- the two aggregates ---------------------------------------------------------------------------


def test_arithmetic_is_the_weighted_sum() -> None:
    score = scored(buckets(120.0, 500.0))
    assert score.value == pytest.approx(0.25 * 120 + 0.75 * 500)  # 405 tok/s
    assert score.ratio == pytest.approx(405 / 325)
    assert (score.gate, score.excess_failures, score.violations) == (1.0, 0, ())


def test_arithmetic_interval_adds_independent_errors() -> None:
    """Half-widths 2.4 and 10 tok/s with weights 1/4 and 3/4: sqrt(0.6^2 + 7.5^2)."""
    score = scored(buckets(120.0, 500.0))
    half = math.hypot(0.25 * 2.4, 0.75 * 10.0)
    assert score.interval.low == pytest.approx(405 - half)
    assert score.interval.high == pytest.approx(405 + half)


def test_geometric_is_the_weighted_mean_of_ratios() -> None:
    score = scored(
        buckets(120.0, 500.0),
        rule=GEOMETRIC,
        reference=replace(REFERENCE, score=1.0),
    )
    assert score.value == pytest.approx(1.2**0.25 * 1.25**0.75)
    assert score.ratio == pytest.approx(score.value)
    relative = math.hypot(0.25 * 0.02, 0.75 * 0.02)
    assert score.interval.half_width == pytest.approx(score.value * relative)


def test_the_reference_is_compared_with_itself() -> None:
    own = scored(buckets(100.0, 400.0), reference=None)
    assert own.value == pytest.approx(325.0)
    assert own.ratio == 1.0
    geometric = scored(buckets(100.0, 400.0), rule=GEOMETRIC, reference=None)
    assert geometric.value == pytest.approx(1.0)
    assert geometric.ratio == 1.0


def test_weights_are_the_workloads_and_not_the_buckets() -> None:
    wrong = tuple(replace(bucket, weight=0.5) for bucket in buckets())
    assert scored(wrong).value == scored(buckets()).value


def test_a_bucket_outside_of_the_workload_does_not_count() -> None:
    assert scored((*buckets(), a_bucket(8192, 64, 9_999.0))).value == scored(buckets()).value


# -- missing and invalid buckets ------------------------------------------------------------------


@pytest.mark.parametrize(
    "measured",
    [
        pytest.param((), id="nothing"),
        pytest.param(buckets()[:1], id="one is missing"),
        pytest.param((buckets()[0], replace(buckets()[1], valid=False)), id="one is invalid"),
        pytest.param(
            (buckets()[0], replace(buckets()[1], output_tok_per_s=0.0)), id="one has no throughput"
        ),
        pytest.param(
            (buckets()[0], replace(buckets()[1], output_tok_per_s=math.nan)), id="one is no number"
        ),
        pytest.param(
            (buckets()[0], replace(buckets()[1], output_tok_per_s=math.inf)), id="one is infinite"
        ),
    ],
)
@pytest.mark.parametrize("rule", [ARITHMETIC, GEOMETRIC])
def test_no_score_without_every_bucket(measured: tuple[BucketMeasurement, ...], rule: Rule) -> None:
    assert score_start(measured, None, workload=WORKLOAD, rule=rule, reference=REFERENCE) is None


rates = st.floats(1.0, 1e5)


@given(rates, rates, st.sets(st.sampled_from([0, 1]), min_size=1), st.booleans())
def test_a_missing_bucket_never_gives_a_score(
    small: float, large: float, bad: set[int], dropped: bool
) -> None:
    """However fast the others are: leaving one out is never a way to a score."""
    whole = buckets(small, large)
    assert scored(whole).value > 0
    measured = tuple(
        replace(bucket, valid=index not in bad)
        for index, bucket in enumerate(whole)
        if not (dropped and index in bad)
    )
    assert (
        score_start(measured, None, workload=WORKLOAD, rule=ARITHMETIC, reference=REFERENCE) is None
    )


@given(rates, rates, st.floats(1.0, 3.0), st.sampled_from([ARITHMETIC, GEOMETRIC]))
def test_a_faster_bucket_never_lowers_a_score(
    small: float, large: float, by: float, rule: Rule
) -> None:
    before = scored(buckets(small, large), rule=rule).value
    assert scored(buckets(small * by, large), rule=rule).value >= before * (1 - 1e-12)


@given(rates, rates, st.floats(0.0, 0.4), st.sampled_from([ARITHMETIC, GEOMETRIC]))
def test_the_value_lies_in_its_interval(
    small: float, large: float, half_width: float, rule: Rule
) -> None:
    score = scored(buckets(small, large, half_width=half_width), rule=rule)
    assert score.interval.low <= score.value * (1 + 1e-9)
    assert score.value <= score.interval.high * (1 + 1e-9)


@given(rates, rates, st.floats(0.1, 10.0))
def test_the_geometric_score_does_not_depend_on_the_unit(
    small: float, large: float, unit: float
) -> None:
    scaled = Reference({k: v * unit for k, v in REFERENCE.throughput.items()}, 1.0, {})
    one = scored(buckets(small, large), rule=GEOMETRIC, reference=replace(REFERENCE, score=1.0))
    other = scored(buckets(small * unit, large * unit), rule=GEOMETRIC, reference=scaled)
    assert other.value == pytest.approx(one.value)


# -- the gate -------------------------------------------------------------------------------------


def gated(trial_failed: int, reference_failed: int, *, penalty: float = 1.5) -> Score:
    reference = replace(REFERENCE, samples=coding(reference_failed).samples)
    return scored(buckets(), rule=Rule(penalty=penalty), reference=reference,
                  answers=coding(trial_failed))  # fmt: skip


def test_failures_beyond_chance_cost_their_share() -> None:
    """20 of 200 fail where the reference passes: p = 2^-20, E = 20, G = 1 - 1.5 * 20 / 200."""
    score = gated(20, 0)
    assert score.excess_failures == 20
    assert score.gate == pytest.approx(0.85)
    assert score.value == pytest.approx(0.85 * 405)
    assert score.interval.high == pytest.approx(0.85 * (405 + math.hypot(0.25 * 2.4, 0.75 * 10.0)))


def test_failures_within_chance_cost_nothing() -> None:
    """5 discordant pairs, all against the trial: p = 1/32 > 0.02."""
    score = gated(5, 0)
    assert score.excess_failures == 0
    assert score.gate == 1.0


def test_six_are_beyond_chance() -> None:
    """p = 1/64 < 0.02."""
    score = gated(6, 0)
    assert score.excess_failures == 6
    assert score.gate == pytest.approx(1 - 1.5 * 6 / 200)


def test_five_are_beyond_chance_where_the_texts_drift_too() -> None:
    drifting = Comparison(Losslessness.DRIFTING, False, {"greedy/0": 3}, 0.001, "parted")
    for lossless, excess in ((None, 0), (drifting, 5)):
        score = score_start(
            buckets(120.0, 500.0),
            coding(5),
            workload=WORKLOAD,
            rule=ARITHMETIC,
            reference=replace(REFERENCE, samples=coding(0).samples),
            lossless=lossless,
        )
        assert score is not None
        assert score.excess_failures == excess


def test_only_failures_above_the_references_count() -> None:
    assert gated(40, 20).excess_failures == 20
    assert gated(20, 20).gate == 1.0
    assert gated(0, 20).gate == 1.0


def test_the_gate_never_goes_below_zero() -> None:
    score = gated(200, 0)
    assert (score.gate, score.value, score.ratio) == (0.0, 0.0, 0.0)


def test_no_penalty_no_gate() -> None:
    assert gated(200, 0, penalty=0.0).gate == 1.0


def test_only_samples_that_both_answered_are_compared() -> None:
    reference = replace(REFERENCE, samples=coding(0, of=100).samples)
    score = scored(buckets(), reference=reference, answers=coding(50, of=200, first=150))
    assert score.excess_failures == 0
    score = scored(buckets(), reference=reference, answers=coding(50, of=200, first=0))
    assert score.excess_failures == 50
    assert score.gate == pytest.approx(1 - 1.5 * 50 / 100)


def test_every_outcome_but_passed_is_a_failure() -> None:
    outcomes = ("wrong", "error", "timeout", "no-answer", "garbled")
    samples = {f"task/{n}": outcomes[n % 5] for n in range(20)}
    reference = replace(REFERENCE, samples=dict.fromkeys(samples, "passed"))
    answers = CodingResult(samples, 0, 20, {})
    assert scored(buckets(), reference=reference, answers=answers).excess_failures == 20


def test_the_reference_is_never_gated() -> None:
    assert scored(buckets(), reference=None, answers=coding(200)).gate == 1.0


# -- limits ---------------------------------------------------------------------------------------


def test_the_floor_is_a_share_of_the_references_bucket() -> None:
    rule = Rule(floor=0.9)
    assert scored(buckets(90.0, 500.0), rule=rule).violations == ()
    (sentence,) = scored(buckets(89.0, 500.0), rule=rule).violations
    assert "60x1" in sentence
    assert "89" in sentence
    assert "90%" in sentence
    assert "100" in sentence


def test_without_a_common_sample_nothing_is_held_against_a_start() -> None:
    reference = replace(REFERENCE, samples={"other": "passed"})
    for answers in (coding(200), CodingResult({}, 0, 0, {})):
        score = scored(buckets(), reference=reference, answers=answers)
        assert (score.excess_failures, score.gate) == (0, 1.0)


def test_a_limit_is_broken_beyond_it_only() -> None:
    at, over = (replace(buckets()[0], tpot_p99_ms=ms) for ms in (14.0, 14.001))
    rule = Rule(tpot_p99_ms=14.0)
    assert scored((at, buckets()[1]), rule=rule).violations == ()
    (sentence,) = scored((over, buckets()[1]), rule=rule).violations
    assert sentence == "bucket 60x1: TPOT p99 14 ms is above the limit 14 ms"


def test_a_wait_that_nobody_watched_to_its_limit_is_told() -> None:
    bound = replace(
        buckets()[0], ttft_p99_ms=1500.0, marks=(BucketQuality.TTFT_AT_LEAST,), windows_s=10.0
    )
    measured = (bound, buckets()[1])
    # Requests were watched for 10 s: less than a limit of 10 s is known, more is not.
    assert scored(measured, rule=Rule(ttft_p99_ms=9_999.0)).violations == ()
    (sentence,) = scored(measured, rule=Rule(ttft_p99_ms=10_000.0)).violations
    assert sentence == (
        "bucket 60x1: TTFT p99 is at least 1500 ms; the limit, 10000 ms, is longer than the "
        "10 s of its windows"
    )
    # A bound that is at the limit is known to be there, beyond it to be above.
    at_limit = (replace(bound, ttft_p99_ms=20_000.0), buckets()[1])
    assert len(scored(at_limit, rule=Rule(ttft_p99_ms=20_000.0)).violations) == 1
    beyond = (replace(bound, ttft_p99_ms=20_001.0), buckets()[1])
    (sentence,) = scored(beyond, rule=Rule(ttft_p99_ms=20_000.0)).violations
    assert sentence == "bucket 60x1: TTFT p99 20001 ms is above the limit 20000 ms"


def test_latency_limits_name_the_bucket_and_the_limit() -> None:
    rule = Rule(ttft_p99_ms=150.0, tpot_p99_ms=14.0)
    slow = replace(buckets()[1], ttft_p99_ms=180.0, tpot_p99_ms=14.5)
    fast = replace(buckets()[0], ttft_p99_ms=150.0, tpot_p99_ms=14.0)
    violations = scored((fast, slow), rule=rule).violations
    assert len(violations) == 2
    assert "1024x8: TTFT p99 180 ms is above the limit 150 ms" in violations[0]
    assert "TPOT" in violations[1]


def test_a_start_that_breaks_limits_still_has_a_value() -> None:
    score = scored(buckets(1.0, 500.0), rule=Rule(floor=0.9))
    assert score.value == pytest.approx(0.25 + 375)


def test_intervals_of_no_width_are_allowed() -> None:
    exact = tuple(
        replace(b, interval=Interval(b.output_tok_per_s, b.output_tok_per_s)) for b in buckets()
    )
    assert scored(exact).interval.half_width == 0.0


@pytest.mark.parametrize(
    ("seen_ms", "limit_ms", "apart_ms", "broken"),
    [
        (60.0, 50.0, 40.0, True),
        (40.0, 50.0, 60.0, False),
        (40.0, 90.0, 100.0, True),
        # A few streams had not ended; all are faster than the limit.
        (40.0, 90.0, 40.0, False),
    ],
)
def test_a_tpot_that_is_a_lower_bound(
    seen_ms: float, limit_ms: float, apart_ms: float, broken: bool
) -> None:
    """Within the limit counts only where a stream at the limit would have ended: 127 steps."""
    first, second = buckets()
    bound = replace(
        first,
        output_tokens=128,
        output_tok_per_s=1000 * first.concurrency / apart_ms,
        tpot_p99_ms=seen_ms,
        marks=(BucketQuality.TPOT_AT_LEAST,),
        windows_s=10.0,
    )
    score = scored((bound, second), rule=Rule(tpot_p99_ms=limit_ms))
    assert bool(score.violations) is broken
    known = replace(bound, marks=())
    assert bool(scored((known, second), rule=Rule(tpot_p99_ms=limit_ms)).violations) is (
        seen_ms > limit_ms
    )


def test_a_tpot_that_nobody_watched_to_its_limit_is_told() -> None:
    """128 tokens at the limit of 100 ms take 127 steps, 12.7 s: as long as the windows."""
    first, second = buckets()
    bound = replace(
        second,
        output_tok_per_s=8 / 0.125,
        tpot_p99_ms=40.0,
        marks=(BucketQuality.TPOT_AT_LEAST,),
        windows_s=12.7,
    )

    def said(measured: BucketMeasurement) -> tuple[str, ...]:
        return scored((first, measured), rule=Rule(tpot_p99_ms=100.0)).violations

    assert said(bound) == (
        "bucket 1024x8: TPOT p99 is at least 40 ms; 128 tokens at the limit, 100 ms, take longer "
        "than the 13 s of its windows, and the tokens of a stream came 125 ms apart on average",
    )
    assert said(replace(bound, windows_s=12.701)) == ()
    assert len(said(replace(bound, tpot_p99_ms=100.0))) == 1
    assert said(replace(bound, output_tok_per_s=8 / 0.1)) == ()  # as fast as the limit
    slow = said(replace(bound, output_tok_per_s=0.5))
    assert slow[0].endswith("came 16000 ms apart on average")


@pytest.mark.parametrize(
    ("seen_ms", "limit_ms", "broken"),
    [(3000.0, 2000.0, True), (1500.0, 2000.0, False), (1500.0, 60_000.0, True)],
)
def test_a_ttft_that_is_a_lower_bound(seen_ms: float, limit_ms: float, broken: bool) -> None:
    """Within the limit counts only where requests were watched for as long as the limit."""
    first, second = buckets()
    bound = replace(
        first, ttft_p99_ms=seen_ms, marks=(BucketQuality.TTFT_AT_LEAST,), windows_s=10.0
    )
    score = scored((bound, second), rule=Rule(ttft_p99_ms=limit_ms))
    assert bool(score.violations) is broken
    known = replace(bound, marks=())
    assert bool(scored((known, second), rule=Rule(ttft_p99_ms=limit_ms)).violations) is (
        seen_ms > limit_ms
    )
