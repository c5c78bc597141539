from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.benchmark.requests import (
    Failure,
    Outcome,
    RequestRecorder,
    RequestTimings,
    StreamUsage,
)

Arrivals = list[tuple[float, float]]


def recorder(*, guess_tokens: float = 0.0) -> tuple[RequestRecorder, Arrivals]:
    arrivals: Arrivals = []
    made = RequestRecorder(
        10.0, lambda at_s, tokens: arrivals.append((at_s, tokens)), guess_tokens=guess_tokens
    )
    return made, arrivals


def usage(tokens: int) -> StreamUsage:
    return StreamUsage(completion_tokens=tokens, prompt_tokens=100, cached_tokens=3)


def live_stream(*counts: int) -> tuple[RequestTimings, Arrivals]:
    made, arrivals = recorder()
    for number, tokens in enumerate(counts):
        made.chunk(11.0 + number, has_text=True, usage=usage(tokens), last=False)
    made.finish_reason = "length"
    made.chunk(99.0, has_text=False, usage=usage(counts[-1]), last=True)
    return made.finish(99.0, Outcome.SUCCESSFUL), arrivals


def test_tokens_are_those_of_the_usage_and_not_the_chunks() -> None:
    timings, arrivals = live_stream(4, 9, 10)
    assert arrivals == [(11.0, 4.0), (12.0, 5.0), (13.0, 1.0)]
    assert timings.completion_tokens == 10
    assert timings.live


def test_ttft_and_tpot_are_sglangs() -> None:
    stats = live_stream(4, 9, 10)[0].stats()
    assert stats.ttft_ms == pytest.approx(1000)
    # (13 - 11) s over the nine tokens after the first.
    assert stats.tpot_ms == pytest.approx(2000 / 9)
    assert stats.output_tokens == 10


def test_gaps_between_chunks() -> None:
    assert live_stream(4, 9, 10)[0].chunk_gaps_ms() == [1000.0, 1000.0]


def test_one_token_has_no_tpot() -> None:
    assert live_stream(1)[0].stats().tpot_ms is None


def test_a_usage_sent_twice_counts_once() -> None:
    made, arrivals = recorder()
    made.chunk(11.0, has_text=True, usage=usage(4), last=False)
    made.chunk(12.0, has_text=False, usage=usage(4), last=True)
    made.chunk(13.0, has_text=False, usage=usage(4), last=True)
    timings = made.finish(13.0, Outcome.SUCCESSFUL)
    assert sum(tokens for _, tokens in arrivals) == 4
    assert timings.chunk_s == (11.0,)


def test_a_count_at_the_end_only_is_spread_over_the_chunks() -> None:
    made, arrivals = recorder()
    for at_s in (11.0, 12.0, 13.0, 14.0):
        made.chunk(at_s, has_text=True, usage=None, last=False)
    made.chunk(15.0, has_text=False, usage=usage(10), last=True)
    timings = made.finish(15.0, Outcome.SUCCESSFUL)
    assert arrivals == [(11.0, 2.5), (12.0, 2.5), (13.0, 2.5), (14.0, 2.5)]
    assert timings.chunk_tokens == (2.5,) * 4
    assert not timings.live


def test_a_guess_is_replaced_by_the_truth() -> None:
    made, arrivals = recorder(guess_tokens=3.0)
    made.chunk(11.0, has_text=True, usage=None, last=False)
    made.chunk(12.0, has_text=True, usage=None, last=False)
    assert arrivals == [(11.0, 3.0), (12.0, 3.0)]
    made.chunk(13.0, has_text=False, usage=usage(10), last=True)
    made.finish(13.0, Outcome.SUCCESSFUL)
    assert sum(tokens for _, tokens in arrivals) == 10


def test_a_count_in_the_last_choice_is_a_count_at_the_end() -> None:
    made, arrivals = recorder()
    made.chunk(11.0, has_text=True, usage=None, last=False)
    made.chunk(12.0, has_text=True, usage=usage(8), last=False)
    assert not made.finish(12.0, Outcome.SUCCESSFUL).live
    assert arrivals == [(11.0, 4.0), (12.0, 4.0)]


def test_an_empty_role_delta_does_not_open_the_decode_window() -> None:
    made, _ = recorder()
    made.chunk(10.5, has_text=False, usage=None, last=False)
    made.chunk(11.0, has_text=True, usage=usage(1), last=False)
    assert made.finish(12.0, Outcome.SUCCESSFUL).stats().ttft_ms == pytest.approx(1000)


def test_tokens_before_an_error_have_arrived_but_the_request_failed() -> None:
    made, arrivals = recorder()
    made.chunk(11.0, has_text=True, usage=usage(4), last=False)
    timings = made.finish(12.0, Outcome.ERRORED, Failure.TRUNCATED, "cut")
    assert arrivals == [(11.0, 4.0)]
    stats = timings.stats()
    assert stats.outcome is Outcome.ERRORED
    assert stats.failure is Failure.TRUNCATED
    assert stats.tpot_ms is None


@given(st.lists(st.integers(1, 16), min_size=1, max_size=50), st.floats(0, 20), st.booleans())
def test_arrivals_always_sum_to_the_usage(steps: list[int], guess: float, live: bool) -> None:
    made, arrivals = recorder(guess_tokens=guess)
    total = 0
    for number, step in enumerate(steps):
        total += step
        made.chunk(11.0 + number, has_text=True, usage=usage(total) if live else None, last=False)
    made.chunk(99.0, has_text=False, usage=usage(total), last=True)
    made.finish(99.0, Outcome.SUCCESSFUL)
    assert sum(tokens for _, tokens in arrivals) == pytest.approx(total)
