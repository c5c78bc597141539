"""Client and measurement on loopback (one piece: one server that knows what it sent)."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import sys
import threading
from collections.abc import AsyncIterator

import httpx
import pytest

from autotune.benchmark import Benchmark, Endpoint, MeasureSettings, Phase, WindowNote
from autotune.benchmark.client import OpenAiClient
from autotune.benchmark.requests import Failure, Outcome, RequestTimings
from autotune.benchmark.transport import StreamTransport
from autotune.benchmark.unread import Network, unread_ms
from autotune.errors import ErrorRateTooHigh, LeaseLost
from autotune.measurement import BucketMeasurement, BucketQuality
from autotune.workload import Bucket
from tests.truth_server import Behaviour, Fault, TruthServer, UsageStyle

SETTINGS = MeasureSettings(
    target_half_width=0.5, least_windows=4, most_windows=6, window_s=0.1, warm_up_most_s=1.0
)
BUCKET = Bucket(context_tokens=200, concurrency=4, output_tokens=48, weight=1.0)
# Marks that depend on how busy the machine is; no test asks for or against them.
TIMED = frozenset(
    {
        BucketQuality.CLIENT_BOTTLENECK,
        BucketQuality.CLIENT_LATE,
        BucketQuality.NOT_STEADY,
        BucketQuality.TTFT_AT_LEAST,
        BucketQuality.TPOT_AT_LEAST,
        BucketQuality.WIDE_INTERVAL,
    }
)


def sound(measurement: BucketMeasurement) -> bool:
    """Whether nothing but time speaks against it."""
    return set(measurement.marks) <= TIMED


def benchmark(
    server: TruthServer, *, settings: MeasureSettings = SETTINGS, endpoint: Endpoint = Endpoint.CHAT
) -> Benchmark:
    return Benchmark(
        server.url,
        model="m",
        api_key="k",
        prompts_seed=3,
        settings=settings,
        endpoint=endpoint,
    )


def measured(
    behaviour: Behaviour, *, bucket: Bucket = BUCKET, settings: MeasureSettings = SETTINGS
) -> tuple[BucketMeasurement, TruthServer, list[WindowNote]]:
    notes: list[WindowNote] = []
    with TruthServer(behaviour) as server, benchmark(server, settings=settings) as bench:
        measurement = bench.measure(bucket, notes.append)
    return measurement, server, [note for note in notes if note.phase is Phase.MEASURE]


def one_stream(behaviour: Behaviour, *, stall_timeout_s: float = 5.0) -> RequestTimings:
    """One request to a server that behaves so, with what arrived."""

    async def run(url: str) -> RequestTimings:
        client = OpenAiClient(url, model="m", stall_timeout_s=stall_timeout_s)
        try:
            body = client.body(b'"hello"', max_tokens=32, stream=True, ignore_eos=True)
            return await client.stream(body, on_tokens=lambda at_s, tokens: None)
        finally:
            await client.aclose()

    with TruthServer(behaviour) as server:
        return asyncio.run(run(server.url))


@pytest.mark.parametrize("usage", list(UsageStyle))
@pytest.mark.parametrize("tokens_per_chunk", [(1,), (16,), (1, 4, 16)])
def test_tokens_of_the_windows_are_those_that_the_server_wrote(
    usage: UsageStyle, tokens_per_chunk: tuple[int, ...]
) -> None:
    measurement, server, notes = measured(
        Behaviour(usage=usage, tokens_per_chunk=tokens_per_chunk, gap_s=0.004)
    )
    start_s, end_s = notes[0].start_s, notes[-1].end_s
    written = sum(n for at_s, n in server.record.written if start_s <= at_s < end_s)
    seen = measurement.output_tok_per_s * measurement.windows_s
    # A chunk of each stream may be on its way at either edge; a count that comes at the end puts a
    # request's mean where its chunks differ in size.
    # A late loop reads late.
    late = measurement.output_tok_per_s * measurement.loop_lag_ms / 1000
    edges = 2 * BUCKET.concurrency * max(tokens_per_chunk)
    assert abs(seen - written) <= edges + 2 * late + 0.03 * written
    assert measurement.chunk_tokens == pytest.approx(
        sum(tokens_per_chunk) / len(tokens_per_chunk), rel=0.3
    )


def test_a_good_bucket() -> None:
    measurement, server, notes = measured(Behaviour(max_running_requests=256))
    assert sound(measurement)
    assert measurement.valid is (not measurement.reason)
    assert measurement.errors == 0
    assert measurement.accept_length == pytest.approx(4.0, rel=0.05)
    assert measurement.server_tokens is not None
    assert measurement.server_tokens <= server.record.ended_tokens
    assert measurement.ttft_ms > 0
    assert 0 < measurement.tpot_ms <= measurement.tpot_p99_ms
    assert abs(measurement.prompt_tokens - 200) <= 8
    assert measurement.cached_tokens == 0
    assert measurement.interval.low <= measurement.output_tok_per_s <= measurement.interval.high
    assert len(notes) == measurement.windows
    assert notes[-1].mean_tok_per_s == pytest.approx(measurement.output_tok_per_s)


class _Held(httpx.AsyncByteStream):
    """The body of an answer; the event loop stands still whenever some of it has been read."""

    def __init__(self, body: httpx.AsyncByteStream, network: Network) -> None:
        self._body = body
        self._network = network

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._body:
            self._stand_still()
            yield data

    def _stand_still(self) -> None:
        """Until the kernel says that the newest bytes are old: no clock of this machine counts."""
        while (age_ms := unread_ms(self._network)) is not None and age_ms < OLD_MS:
            pass

    async def aclose(self) -> None:
        await self._body.aclose()


class Held(StreamTransport):
    """What comes is taken by the client when the kernel calls it old: a loop that is late."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        network = response.extensions["network_stream"]
        assert isinstance(response.stream, httpx.AsyncByteStream)
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=_Held(response.stream, network),
            extensions=response.extensions,
        )


OLD_MS = 12.0
"""Some ticks of any kernel, and less than the gap between two chunks of the server below."""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how old unread bytes are")
@pytest.mark.parametrize("limit_ms", [None, 1.0], ids=["no-limit", "above-its-limit"])
def test_a_client_that_takes_first_tokens_late_under_load_is_marked(
    limit_ms: float | None,
) -> None:
    """TTFT of 4 ms, and first tokens that lie for 12 ms before the client looks at them."""
    settings = dataclasses.replace(
        SETTINGS,
        client_cpu_most=100.0,
        loop_lag_most_ms=1e6,  # only the kernel's word counts here
        ttft_p99_most_ms=limit_ms,
    )
    slow = Behaviour(gap_s=0.06, tokens_per_chunk=(24,))
    with (
        TruthServer(slow) as server,
        Benchmark(
            server.url, model="m", prompts_seed=3, settings=settings, transport=Held()
        ) as bench,
    ):
        measurement = bench.measure(BUCKET)
        unread = [t.unread_ms for t in bench.requests if t.unread_ms is not None]
    assert unread
    assert BucketQuality.CLIENT_LATE in measurement.marks
    assert ("unread" in measurement.reason) is (limit_ms is not None)
    if limit_ms is not None:
        assert not measurement.valid


@pytest.mark.parametrize("concurrency", [1, 3, 16])
def test_concurrency_is_exact(concurrency: int) -> None:
    bucket = dataclasses.replace(BUCKET, concurrency=concurrency)
    # Slow enough for server and client to share one interpreter.
    _, server, _ = measured(Behaviour(ttft_s=0.02, gap_s=0.01), bucket=bucket)
    assert server.record.peak == concurrency
    # What the server saw while it wrote: the next request comes before others write much.
    seen = sorted(server.record.at_chunk)
    assert seen[len(seen) // 2] == concurrency


def test_requests_are_greedy_of_fixed_length_and_ask_for_usage() -> None:
    _, server, _ = measured(Behaviour())
    body = server.record.bodies[-1]
    assert body["temperature"] == 0.0
    assert body["ignore_eos"] is True
    assert body["max_tokens"] == BUCKET.output_tokens
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert server.record.headers[-1]["authorization"] == "Bearer k"


def test_prompts_are_exact_and_the_same_in_every_start_and_fresh_in_every_round() -> None:
    def prompts(rounds: int) -> list[str]:
        with TruthServer(Behaviour()) as server, benchmark(server) as bench:
            for _ in range(rounds):
                bench.measure(BUCKET)
            assert all(abs(n - 200) <= 8 for n in server.record.prompt_tokens[1:])
            return server.record.prompts[1:]

    first, second = prompts(1), prompts(2)
    assert len(set(second)) == len(second)
    shared = min(len(first), BUCKET.concurrency * 2)
    assert set(first[:shared]) <= set(second)


def test_completions_endpoint() -> None:
    with (
        TruthServer(Behaviour()) as server,
        benchmark(server, endpoint=Endpoint.COMPLETIONS) as bench,
    ):
        assert sound(bench.measure(BUCKET))
        assert isinstance(server.record.bodies[-1]["prompt"], str)


def test_reasoning_opens_the_decode_window() -> None:
    timings = one_stream(Behaviour(reasoning=True))
    assert timings.outcome is Outcome.SUCCESSFUL
    assert timings.completion_tokens == 32
    assert len(timings.chunk_s) == 8


@pytest.mark.parametrize(
    ("fault", "failure", "message"),
    [
        (Fault.ERROR_EVENT, Failure.ERROR_EVENT, "told to fail"),
        (Fault.TRUNCATED, Failure.TRUNCATED, "finish reason"),
        (Fault.NO_USAGE, Failure.NO_USAGE, "usage"),
        (Fault.HTTP_400, Failure.HTTP_STATUS, "told 400"),
        (Fault.HTTP_429, Failure.HTTP_STATUS, "HTTP 429"),
        (Fault.HTTP_503, Failure.HTTP_STATUS, "HTTP 503"),
        (Fault.RESET, Failure.CONNECTION, "Error"),
        (Fault.BAD_JSON, Failure.BAD_EVENT, "JSON"),
        (Fault.BAD_DELTA, Failure.BAD_EVENT, "delta"),
        (Fault.ABORTED, Failure.ERROR_EVENT, "abort"),
    ],
)
def test_each_error_form_has_its_class(fault: Fault, failure: Failure, message: str) -> None:
    timings = one_stream(Behaviour(fault=fault))
    assert timings.outcome is Outcome.ERRORED
    assert timings.failure is failure
    assert message in timings.message
    assert timings.stats().tpot_ms is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says it")
def test_of_each_first_token_it_is_known_how_long_it_lay_unread() -> None:
    assert one_stream(Behaviour()).unread_ms is not None


def test_a_silent_server_is_a_timeout() -> None:
    timings = one_stream(Behaviour(fault=Fault.SILENT), stall_timeout_s=0.05)
    assert timings.failure is Failure.TIMEOUT


def test_a_refused_connection_is_a_failed_request() -> None:
    with TruthServer(Behaviour()) as server:
        url = server.url

    async def run() -> RequestTimings:
        client = OpenAiClient(url, model="m")
        body = client.body(b'"hello"', max_tokens=4, stream=True, ignore_eos=True)
        timings = await client.stream(body, on_tokens=lambda at_s, tokens: None)
        await client.aclose()
        return timings

    assert asyncio.run(run()).failure is Failure.CONNECTION


@pytest.mark.parametrize(
    "fault", [Fault.ERROR_AFTER_TOKENS, Fault.TRUNCATED, Fault.RESET, Fault.HTTP_503]
)
def test_some_errors_invalidate_the_bucket(fault: Fault) -> None:
    measurement, server, _ = measured(Behaviour(fault=fault, fault_every=5))
    assert BucketQuality.ERRORS in measurement.marks
    assert not measurement.valid
    assert "requests failed" in measurement.reason
    assert 0 < measurement.errors < measurement.requests
    assert server.record.peak <= BUCKET.concurrency


def test_few_errors_are_counted_and_tolerated() -> None:
    settings = dataclasses.replace(SETTINGS, error_rate_most=0.6)
    measurement, _, _ = measured(Behaviour(fault=Fault.HTTP_503, fault_every=4), settings=settings)
    assert measurement.errors > 0
    assert BucketQuality.ERRORS not in measurement.marks


def test_a_server_that_refuses_everything_ends_the_bucket() -> None:
    behaviour = Behaviour(fault=Fault.HTTP_400, fault_every=1)
    with TruthServer(behaviour) as server:
        client_side = Benchmark(
            server.url, model="m", prompts_seed=3, settings=SETTINGS, transport=_Probes()
        )
        with client_side as bench, pytest.raises(ErrorRateTooHigh, match="HTTP 400"):
            bench.measure(BUCKET)


class _Probes(httpx.AsyncBaseTransport):
    """Counts tokens, refuses streams."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        content = await request.aread()
        if b'"stream":true' in content:
            return httpx.Response(400, text="no")
        if request.url.path == "/v1/chat/completions":
            usage = {"prompt_tokens": len(content) // 4, "completion_tokens": 1}
            return httpx.Response(200, json={"choices": [], "usage": usage})
        return httpx.Response(404)


def test_a_server_that_dies_in_a_bucket_is_known_and_nothing_hangs() -> None:
    settings = dataclasses.replace(SETTINGS, most_windows=10_000, target_half_width=1e-9)
    with (
        TruthServer(Behaviour(die_after_chunks=400)) as server,
        benchmark(server, settings=settings) as bench,
        pytest.raises(ErrorRateTooHigh, match="connection"),
    ):
        bench.measure(BUCKET)


def test_cache_hits_invalidate_the_bucket() -> None:
    measurement, _, _ = measured(Behaviour(cached_tokens=150))
    assert BucketQuality.CACHE_HITS in measurement.marks
    assert not measurement.valid


def test_a_server_that_counts_other_tokens_invalidates_the_bucket() -> None:
    measurement, _, _ = measured(Behaviour(miscount=-20))
    assert BucketQuality.TOKEN_MISMATCH in measurement.marks
    assert not measurement.valid
    assert "the server counted" in measurement.reason


def test_without_counters_there_is_no_accept_length_and_no_mismatch() -> None:
    measurement, _, _ = measured(Behaviour(metrics=False, cached_tokens=None))
    assert measurement.accept_length is None
    assert measurement.server_tokens is None
    assert measurement.cached_tokens is None
    assert sound(measurement)


def test_a_limit_below_the_concurrency_is_marked_and_counts() -> None:
    measurement, _, _ = measured(Behaviour(max_running_requests=2))
    assert BucketQuality.QUEUED in measurement.marks
    assert set(measurement.marks) <= TIMED | {BucketQuality.QUEUED}


def test_windows_end_at_the_most_and_say_that_the_interval_is_wide() -> None:
    settings = dataclasses.replace(SETTINGS, target_half_width=1e-9)
    measurement, _, _ = measured(Behaviour(), settings=settings)
    assert measurement.windows == settings.most_windows
    assert BucketQuality.WIDE_INTERVAL in measurement.marks


def test_long_requests_are_closed_after_the_last_window_and_count_nevertheless() -> None:
    bucket = dataclasses.replace(BUCKET, output_tokens=4000)
    measurement, server, _ = measured(Behaviour(gap_s=0.005), bucket=bucket)
    assert measurement.output_tok_per_s > 0
    assert server.record.in_flight == 0
    assert BucketQuality.TOKEN_MISMATCH not in measurement.marks


def test_an_error_of_the_listener_ends_the_measurement_cleanly() -> None:
    class Enough(Exception):
        pass

    def stop(note: WindowNote) -> None:
        raise Enough

    with TruthServer(Behaviour()) as server, benchmark(server) as bench:
        with pytest.raises(Enough):
            bench.measure(BUCKET, stop)
        assert sound(bench.measure(BUCKET))


def test_a_measurement_that_is_given_up_ends_at_once_and_nothing_follows() -> None:
    endless = dataclasses.replace(SETTINGS, target_half_width=1e-9, most_windows=100_000)
    lost = LeaseLost("the host went back")

    def give_up(note: WindowNote) -> None:
        if note.index == 0:
            threading.Thread(target=bench.give_up, args=(lost,)).start()

    with TruthServer(Behaviour()) as server, benchmark(server, settings=endless) as bench:
        with pytest.raises(LeaseLost, match="went back"):
            bench.measure(BUCKET, give_up)
        asked = len(server.record.prompts)
        with pytest.raises(LeaseLost, match="went back"):
            bench.generate_text(["a"], max_tokens=5, concurrency=1)
        assert len(server.record.prompts) == asked


def test_warm_up_throws_its_requests_away() -> None:
    with TruthServer(Behaviour()) as server, benchmark(server) as bench:
        bench.warm_up()
        warm = set(server.record.prompts)
        bench.measure(BUCKET)
        assert warm.isdisjoint(server.record.prompts[len(warm) :])


def test_warm_up_of_a_server_that_only_fails() -> None:
    bench = Benchmark(
        "http://127.0.0.1:9", model="m", prompts_seed=3, settings=SETTINGS, transport=_Probes()
    )
    with bench, pytest.raises(ErrorRateTooHigh, match="HTTP 400"):
        bench.warm_up()


def test_generated_texts_come_in_the_order_of_their_prompts() -> None:
    with TruthServer(Behaviour()) as server, benchmark(server) as bench:
        answers = bench.generate_text(["a", "b", "c"], max_tokens=5, concurrency=2)
    assert [answer.text for answer in answers] == ["xxxxx"] * 3
    assert [answer.completion_tokens for answer in answers] == [5, 5, 5]
    assert answers[0].finish_reason == "length"
    assert server.record.peak <= 2
    assert server.record.bodies[0]["temperature"] == 0.0
    assert server.record.bodies[0]["ignore_eos"] is False


def test_reasoning_of_an_answer_is_not_its_text() -> None:
    with TruthServer(Behaviour(reasoning=True)) as server, benchmark(server) as bench:
        (answer,) = bench.generate_text(["a"], max_tokens=5, concurrency=1)
    assert answer.reasoning == "xxxxx"


@pytest.mark.parametrize("fault", [Fault.HTTP_400, Fault.HTTP_503])
def test_a_failed_answer_says_why(fault: Fault) -> None:
    with TruthServer(Behaviour(fault=fault)) as server, benchmark(server) as bench:
        (answer,) = bench.generate_text(["a"], max_tokens=5, concurrency=1)
    assert fault in answer.error
    assert answer.text == ""


def test_all_numbers_are_finite() -> None:
    measurement, _, _ = measured(Behaviour())
    values = dataclasses.asdict(measurement)
    assert all(math.isfinite(v) for v in values.values() if isinstance(v, float))
