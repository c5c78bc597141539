"""What a bucket says of its requests: a load of made-up requests, without a server or a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from autotune.benchmark.counters import NoCounters
from autotune.benchmark.load import Load, Strain
from autotune.benchmark.measure import BucketMeter
from autotune.benchmark.requests import Failure, Outcome, RequestTimings
from autotune.measure_settings import MeasureSettings
from autotune.measurement import BucketMeasurement, BucketQuality
from autotune.workload import Bucket

SETTINGS = MeasureSettings(
    target_half_width=0.5, least_windows=4, most_windows=4, window_s=1.0, warm_up_most_s=1.0
)
EASY = Strain(cpu=0.1, lag_p99_ms=1.0)
BUCKET = Bucket(context_tokens=64, concurrency=4, output_tokens=8, weight=1.0)


class MadeUp:
    """A load that has happened: windows of one second from 0 on, all at one rate."""

    collapsed = False
    all_opened = True
    running = 4

    def __init__(
        self, ended: Sequence[RequestTimings], closed: Sequence[RequestTimings], strain: Strain
    ) -> None:
        self.ended = list(ended)
        self.closed = list(closed)
        self._strain = strain

    async def start(self) -> None: ...

    async def window(self, index: int) -> None: ...

    async def stop(self, *, run_out_s: float) -> None: ...

    def start_s(self, index: int) -> float:
        return float(index)

    def rates(self, first: int, last: int) -> list[float]:
        return [100.0] * (last - first)

    def strain(self, first: int, last: int) -> Strain:
        return self._strain


def a_request(
    sent_s: float, *, ttft_s: float, outcome: Outcome = Outcome.SUCCESSFUL
) -> RequestTimings:
    """Eight tokens in 0.7 s after the first."""
    return RequestTimings(
        sent_s=sent_s,
        ended_s=sent_s + ttft_s + 0.7,
        chunk_s=(sent_s + ttft_s, sent_s + ttft_s + 0.7),
        chunk_tokens=(1.0, 7.0),
        live=True,
        outcome=outcome,
        completion_tokens=8,
        prompt_tokens=64,
        asked_tokens=BUCKET.output_tokens,
    )


def a_wait(
    sent_s: float,
    ended_s: float,
    *,
    outcome: Outcome = Outcome.INCOMPLETE,
    failure: Failure | None = None,
) -> RequestTimings:
    """No token came."""
    return RequestTimings(sent_s, ended_s, (), (), live=False, outcome=outcome, failure=failure)


def measured(
    ended: Sequence[RequestTimings],
    closed: Sequence[RequestTimings] = (),
    *,
    settings: MeasureSettings = SETTINGS,
    strain: Strain = EASY,
) -> BucketMeasurement:
    load: Load = MadeUp(ended, closed, strain)
    meter = BucketMeter(load, BUCKET, settings, counters=NoCounters(), clock=lambda: 0.0)
    return asyncio.run(meter.measure())


FAST = [a_request(1.0 + n / 10, ttft_s=0.1) for n in range(20)]


def test_what_was_closed_before_its_first_token_is_in_the_percentiles() -> None:
    slow = [a_wait(2.0, 5.0), a_wait(2.1, 5.0)]
    bucket = measured(FAST, slow)
    assert bucket.ttft_ms == pytest.approx(100.0)
    assert bucket.ttft_p99_ms > 2900.0
    assert BucketQuality.TTFT_AT_LEAST in bucket.marks
    assert bucket.valid


def test_what_timed_out_before_its_first_token_too() -> None:
    late = a_wait(2.0, 5.0, outcome=Outcome.ERRORED, failure=Failure.TIMEOUT)
    assert measured([*FAST, late]).ttft_p99_ms > 2000.0


def test_a_wait_that_others_outlast_is_no_lower_bound() -> None:
    bucket = measured(FAST, [a_wait(4.95, 5.0)])
    assert bucket.ttft_p99_ms == pytest.approx(100.0)
    assert BucketQuality.TTFT_AT_LEAST not in bucket.marks


def a_slow_stream(
    sent_s: float,
    ended_s: float,
    *,
    outcome: Outcome = Outcome.INCOMPLETE,
    failure: Failure | None = None,
) -> RequestTimings:
    """Its first token came at once; three of eight are there when nobody looks any longer."""
    return replace(
        a_request(sent_s, ttft_s=0.0, outcome=outcome),
        ended_s=ended_s,
        chunk_s=(sent_s, sent_s + 0.1),
        chunk_tokens=(1.0, 2.0),
        completion_tokens=3,
        failure=failure,
    )


def test_a_stream_that_was_closed_before_its_end_is_in_the_percentiles_of_tpot() -> None:
    """Seven steps in 2.8 s or more: 400 ms each at least, the others took 100."""
    bucket = measured(FAST, [a_slow_stream(2.2, 5.0), a_slow_stream(2.2, 5.0)])
    assert bucket.tpot_ms == pytest.approx(100.0)
    assert bucket.tpot_p99_ms == pytest.approx(400.0)
    assert BucketQuality.TPOT_AT_LEAST in bucket.marks
    assert bucket.valid


def test_a_staggered_first_stream_counts_by_what_it_was_asked_for() -> None:
    """Two steps in 2.8 s or more, not seven: 1400 ms each."""
    short = replace(a_slow_stream(2.2, 5.0), asked_tokens=3)
    assert measured(FAST, [short, short]).tpot_p99_ms == pytest.approx(1400.0)


def test_a_stream_that_timed_out_before_its_end_too() -> None:
    late = a_slow_stream(2.2, 5.0, outcome=Outcome.ERRORED, failure=Failure.TIMEOUT)
    assert measured([*FAST, late]).tpot_p99_ms > 300.0


def test_a_stream_that_failed_otherwise_says_nothing_of_tpot() -> None:
    broken = a_slow_stream(2.2, 5.0, outcome=Outcome.ERRORED, failure=Failure.CONNECTION)
    assert measured([*FAST, broken]).tpot_p99_ms == pytest.approx(100.0)


def test_a_closed_stream_that_others_outlast_is_no_lower_bound() -> None:
    bucket = measured(FAST, [a_slow_stream(4.5, 5.0)])
    assert bucket.tpot_p99_ms == pytest.approx(100.0)
    assert BucketQuality.TPOT_AT_LEAST not in bucket.marks


def test_where_no_stream_ended_tpot_is_what_they_came_to() -> None:
    bucket = measured([], [a_slow_stream(1.0, 5.0), a_slow_stream(1.5, 5.0)])
    assert bucket.tpot_p99_ms == pytest.approx(50.0)


def test_what_ended_before_the_windows_is_not_in_tpot() -> None:
    """The windows begin after the warm-up, at 1 s."""
    early = replace(a_slow_stream(0.0, 0.9, outcome=Outcome.SUCCESSFUL), completion_tokens=2)
    assert measured([early, *FAST]).tpot_ms == pytest.approx(100.0)


def test_a_bucket_in_which_no_token_came_has_too_few_requests() -> None:
    bucket = measured([], [a_wait(1.0, 5.0)])
    assert BucketQuality.TOO_FEW_REQUESTS in bucket.marks
    assert not bucket.valid


@pytest.mark.parametrize(
    ("limit_ms", "valid"), [(None, True), (150.0, True), (50.0, False)], ids=str
)
def test_a_late_client_is_believed_in_all_but_a_ttft_above_its_limit(
    limit_ms: float | None, valid: bool
) -> None:
    late = [replace(one, unread_ms=8.0) for one in FAST]
    bucket = measured(late, settings=replace(SETTINGS, ttft_p99_most_ms=limit_ms))
    assert BucketQuality.CLIENT_LATE in bucket.marks
    assert bucket.valid is valid
    assert ("unread" in bucket.reason) is not valid


def test_a_prompt_client_is_not_late() -> None:
    prompt = [replace(one, unread_ms=0.0) for one in FAST]
    assert BucketQuality.CLIENT_LATE not in measured(prompt).marks
