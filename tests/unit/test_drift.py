"""The first bucket again at the end: a server that changed meanwhile gives no score."""

from __future__ import annotations

import pytest

from autotune.drift import drift_between, drifted
from autotune.measurement import BucketMeasurement, Drift, Ending, StartRecord
from autotune.trial import Notes, execute
from autotune.workload import Bucket
from tests.builders import a_bucket
from tests.scripted import Script, a_host, a_spec


def test_the_change_and_its_uncertainty() -> None:
    first = a_bucket(60, 1, 200.0, relative_half_width=0.03)
    last = a_bucket(60, 1, 190.0, relative_half_width=0.04)
    drift = drift_between(first, last)
    assert (drift.bucket, drift.first_tok_per_s, drift.last_tok_per_s) == ("60x1", 200.0, 190.0)
    assert drift.change == pytest.approx(-0.05)
    assert drift.half_width == pytest.approx(0.05)


def test_an_interval_that_touches_what_is_allowed_is_not_beyond_it() -> None:
    touches = Drift("60x1", 100.0, 150.0, change=0.5, half_width=0.25)
    assert not drifted(touches, most=0.25)
    assert drifted(touches, most=0.125)


@pytest.mark.parametrize(
    ("rate", "half", "most", "expected"),
    [
        (104.0, 0.01, 0.05, False),  # within what is allowed
        (108.0, 0.01, 0.05, True),
        (92.0, 0.01, 0.05, True),
        (106.0, 0.01, 0.05, False),  # perhaps only 4.6 %
        (108.0, 0.05, 0.05, False),  # its own uncertainty is 7 %
    ],
)
def test_what_counts_as_drift(rate: float, half: float, most: float, expected: bool) -> None:
    first = a_bucket(60, 1, 100.0, relative_half_width=half)
    last = a_bucket(60, 1, rate, relative_half_width=half)
    assert drifted(drift_between(first, last), most=most) is expected


def run(
    *rates: float, buckets: tuple[Bucket, ...] | None = None, last_valid: bool = True
) -> StartRecord:
    """One start whose buckets are measured at these rates, in turn."""
    host = a_host()
    left = list(rates)

    def measured(bucket: BucketMeasurement) -> BucketMeasurement:
        rate = left.pop(0)
        return a_bucket(
            bucket.context_tokens,
            bucket.concurrency,
            rate,
            relative_half_width=0.01,
            valid=bool(left) or last_valid,
        )

    spec = a_spec(host) if buckets is None else a_spec(host, buckets=buckets)
    return execute(spec, Script(host, bucket=measured).tools(), Notes())


def test_a_steady_start_keeps_its_drift() -> None:
    record = run(100.0, 50.0, 101.0)
    assert record.ending is Ending.COMPLETE
    assert record.drift is not None
    assert record.drift.change == pytest.approx(0.01)
    assert [bucket.output_tok_per_s for bucket in record.buckets] == [100.0, 50.0]


def test_a_start_that_drifted_has_no_score_and_is_nobodys_fault() -> None:
    record = run(100.0, 50.0, 80.0)
    assert record.ending is Ending.FAILED
    assert record.failure is not None
    assert record.failure.kind == "NotSteady"
    assert "-20.0%" in record.failure.message
    assert record.coding is None


def test_a_last_look_that_is_not_valid_fails_the_start() -> None:
    record = run(100.0, 50.0, 99.0, last_valid=False)
    assert record.failure is not None
    assert record.failure.kind == "InvalidBucket"
    assert "measured again" in record.failure.message


def test_one_bucket_has_no_later_time_to_compare() -> None:
    record = run(100.0, buckets=(Bucket(60, 1, 128, 1.0),))
    assert record.ending is Ending.COMPLETE
    assert record.drift is None
