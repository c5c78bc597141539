from __future__ import annotations

import asyncio
import itertools
import json

import httpx
import pytest

from autotune.benchmark.audit import (
    audit_cache,
    audit_client,
    audit_first_tokens,
    audit_tokens,
    commonest_error,
    only_clients_fault,
    server_view,
)
from autotune.benchmark.closed_loop import PromptFeed, WindowLedger
from autotune.benchmark.counters import CounterValues, HttpCounters, parse_metrics
from autotune.benchmark.requests import Failure, Outcome, RequestTimings
from autotune.engine_words import SGLANG_COUNTERS, CounterNames
from autotune.measurement import BucketQuality
from tests.builders import a_bucket

METRICS = """\
# HELP sglang:generation_tokens_total Number of generation tokens processed.
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{is_streaming="false",model_name="a b}"} 152.0
sglang:generation_tokens_total{is_streaming="true",model_name="a"} 1.2e+01
sglang:spec_verify_calls_total{model_name="a"} 46.0
sglang:odd{x="1"} nothing
plain 3
"""


def request(
    tokens: int, *, outcome: Outcome = Outcome.SUCCESSFUL, failure: Failure | None = None
) -> RequestTimings:
    return RequestTimings(
        sent_s=0.0,
        ended_s=9.0,
        chunk_s=(1.0, 2.0),
        chunk_tokens=(tokens / 2, tokens / 2),
        live=True,
        outcome=outcome,
        completion_tokens=tokens,
        failure=failure,
        message="no" if failure else "",
    )


def read(answers: dict[str, str], *, names: CounterNames = SGLANG_COUNTERS) -> CounterValues:
    def handle(asked: httpx.Request) -> httpx.Response:
        text = answers.get(asked.url.path)
        return httpx.Response(404) if text is None else httpx.Response(200, text=text)

    async def run() -> CounterValues:
        transport = httpx.MockTransport(handle)
        async with httpx.AsyncClient(base_url="http://server", transport=transport) as client:
            return await HttpCounters(client, names=names).read()

    return asyncio.run(run())


def test_metrics_are_summed_over_their_labels() -> None:
    totals = parse_metrics(METRICS)
    assert totals["sglang:generation_tokens_total"] == 164
    assert totals["sglang:spec_verify_calls_total"] == 46
    assert totals["plain"] == 3
    assert "sglang:odd" not in totals


def test_counters_of_a_server() -> None:
    server_info = {
        "max_running_requests": None,
        "disable_cuda_graph": False,
        "cuda_graph_config": {"decode": {"backend": "full", "max_bs": 32}},
        "internal_states": [
            {"avg_spec_accept_length": 3.725, "effective_max_running_requests_per_dp": 16}
        ],
    }
    values = read({"/metrics": METRICS, "/server_info": json.dumps(server_info)})
    assert values == CounterValues(
        generation_tokens=164,
        verify_calls=46,
        cached_tokens=None,
        accept_length=3.725,
        max_running_requests=16,
        largest_graph=32,
    )


@pytest.mark.parametrize("server_info", ["", "not json", "[]", '{"internal_states": []}'])
def test_a_server_that_says_nothing(server_info: str) -> None:
    assert read({"/server_info": server_info}) == CounterValues(answered=False)


def test_a_server_that_has_not_counted_yet_has_answered() -> None:
    assert read({"/metrics": ""}) == CounterValues()


def test_accept_length_is_of_the_differences() -> None:
    before = CounterValues(generation_tokens=100, verify_calls=50, accept_length=2.0)
    after = CounterValues(generation_tokens=500, verify_calls=150, accept_length=3.3)
    assert server_view(before, after).accept_length == 4.0


def test_accept_length_is_of_accepted_drafts_where_the_engine_counts_those() -> None:
    before = CounterValues(verify_calls=50, accepted_tokens=100)
    after = CounterValues(verify_calls=150, accepted_tokens=350)
    view = server_view(before, after)
    assert (view.accept_length, view.generation_tokens, view.cached_tokens) == (3.5, None, None)
    assert server_view(before, before).accept_length is None
    assert server_view(CounterValues(answered=False), after).accept_length is None


def test_cached_tokens_count_where_the_engine_counts_no_generated_ones() -> None:
    before = CounterValues(verify_calls=50, cached_tokens=100)
    after = CounterValues(verify_calls=150, cached_tokens=350)
    assert server_view(before, after).cached_tokens == 250


def test_counters_are_read_by_the_names_of_the_engine() -> None:
    text = 'x:steps{a="1"} 3\nx:steps{a="2"} 4\nx:accepted 9\nsglang:generation_tokens_total 5\n'
    names = CounterNames(steps="x:steps", accepted="x:accepted")
    assert read({"/metrics": text}, names=names) == CounterValues(verify_calls=7, accepted_tokens=9)


def test_without_verify_calls_the_running_average_is_all_there_is() -> None:
    after = CounterValues(generation_tokens=500, accept_length=3.3)
    assert server_view(CounterValues(), after).accept_length == 3.3


def test_a_counter_that_appears_later_began_at_nothing() -> None:
    before = CounterValues(generation_tokens=10)
    after = CounterValues(generation_tokens=50, verify_calls=10, cached_tokens=7)
    view = server_view(before, after)
    assert (view.generation_tokens, view.accept_length, view.cached_tokens) == (40, 4.0, 7)


def test_without_an_answer_before_the_bucket_there_is_no_difference() -> None:
    after = CounterValues(generation_tokens=10**6, verify_calls=10, cached_tokens=7)
    view = server_view(CounterValues(answered=False), after)
    assert (view.generation_tokens, view.accept_length, view.cached_tokens) == (None, None, None)
    assert audit_tokens(server_tokens=view.generation_tokens, ended=[request(10)], closed=[]) == ""


@pytest.mark.parametrize(
    ("server_tokens", "agrees"),
    [(10_000, True), (9_900, True), (10_100, True), (9_890, False), (10_110, False)],
)
def test_one_percent_of_ended_requests(server_tokens: int, agrees: bool) -> None:
    said = audit_tokens(server_tokens=server_tokens, ended=[request(10_000)], closed=[])
    assert (said == "") is agrees


@pytest.mark.parametrize("counted", [10_000, 10_000 + 400])
def test_closed_streams_may_be_counted_or_not(counted: int) -> None:
    closed = [request(400, outcome=Outcome.INCOMPLETE)]
    assert audit_tokens(server_tokens=counted, ended=[request(10_000)], closed=closed) == ""


def test_cache_hits_beyond_the_template_are_seen() -> None:
    def audit(cached_tokens: int | None) -> str:
        return audit_cache(
            cached_tokens=cached_tokens, prompt_tokens=10_000, requests=10, template_tokens=20
        )

    assert audit(None) == audit(0) == audit(10 * 20 + 200) == ""
    assert "prefix cache" in audit(10 * 24 + 201)


@pytest.mark.parametrize(
    ("cpu", "lag_p99_ms", "ttft_ms", "word"),
    [(0.5, 5, 50, ""), (0.99, 5, 50, "core"), (0.5, 90, 50, "late"), (0.5, 90, 1000, "")],
)
def test_a_slow_client_is_seen(cpu: float, lag_p99_ms: float, ttft_ms: float, word: str) -> None:
    said = audit_client(
        cpu=cpu, lag_p99_ms=lag_p99_ms, ttft_ms=ttft_ms, cpu_most=0.85, lag_most_ms=20
    )
    assert (word in said) if word else said == ""


@pytest.mark.parametrize(
    ("unread_ms", "ttft_ms", "late"),
    [
        ([], 60.0, False),
        ([0.0, 4.0], 60.0, False),
        ([4.0, 0.0, 4.0], 60.0, True),
        ([4.0, 0.0, 4.0], 500.0, False),
        ([12.0, 8.0], 500.0, True),
        ([12.0], 60.0, False),
    ],
)
def test_first_tokens_that_lay_unread_are_seen(
    unread_ms: list[float], ttft_ms: float, late: bool
) -> None:
    said = audit_first_tokens(unread_ms=unread_ms, ttft_ms=ttft_ms)
    assert ("unread" in said) is late
    assert bool(said) is late


@pytest.mark.parametrize(
    ("marks", "valid", "again"),
    [
        ((BucketQuality.CLIENT_BOTTLENECK,), False, True),
        ((BucketQuality.CLIENT_LATE, BucketQuality.QUEUED), False, True),
        ((BucketQuality.CLIENT_LATE,), True, False),
        ((BucketQuality.CLIENT_LATE, BucketQuality.ERRORS), False, False),
        ((BucketQuality.CLIENT_BOTTLENECK, BucketQuality.TTFT_AT_LEAST), False, True),
    ],
)
def test_what_is_worth_a_second_try(
    marks: tuple[BucketQuality, ...], valid: bool, again: bool
) -> None:
    assert only_clients_fault(a_bucket(marks=marks, valid=valid)) is again


def test_the_commonest_error() -> None:
    failed = [
        request(0, outcome=Outcome.ERRORED, failure=failure)
        for failure in (Failure.TIMEOUT, Failure.CONNECTION, Failure.TIMEOUT)
    ]
    assert commonest_error(failed) == "timeout: no"
    assert commonest_error([request(4)]) == ""


def test_tokens_belong_to_the_window_in_which_they_arrived() -> None:
    ledger = WindowLedger(origin_s=100.0, window_s=0.5)
    for at_s, tokens in [(100.0, 3), (100.499, 1), (100.5, 4), (101.6, 5), (100.2, -1)]:
        ledger.add(at_s, tokens)
    assert ledger.rates(0, 4) == [6.0, 8.0, 0.0, 10.0]


def test_prompts_are_ready_before_they_are_asked_for() -> None:
    made = 0

    def texts() -> itertools.count[int]:
        return itertools.count()

    def count(number: int) -> str:
        nonlocal made
        made += 1
        return f"prompt {number}"

    feed = PromptFeed(map(count, texts()))
    feed.fill(3)
    assert made == 3
    assert [feed.take() for _ in range(4)] == [b'"prompt %d"' % n for n in range(4)]
    feed.fill(10, at_once=1)
    assert made == 5
