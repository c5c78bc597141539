"""The load spread over processes: the same numbers, and no process that outlives its use."""

from __future__ import annotations

import dataclasses
import os
import threading

import psutil
import pytest

from autotune.benchmark import Benchmark, MeasureSettings, Phase, WindowNote, spread
from autotune.errors import ErrorRateTooHigh, LeaseLost, MeasurementError
from autotune.measurement import BucketQuality
from autotune.workload import Bucket
from tests.truth_server import Behaviour, TruthServer

SETTINGS = MeasureSettings(
    target_half_width=0.5, least_windows=4, most_windows=6, window_s=0.1, warm_up_most_s=2.0
)
BUCKET = Bucket(context_tokens=200, concurrency=5, output_tokens=48, weight=1.0)
SLOW = Behaviour(ttft_s=0.02, gap_s=0.01)


def benchmark(server: TruthServer, settings: MeasureSettings = SETTINGS) -> Benchmark:
    return Benchmark(
        server.url, model="m", api_key="k", prompts_seed=3, settings=settings, processes=2
    )


def workers() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if "autotune.benchmark.worker" in argv(one)]


def argv(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def test_tokens_streams_and_prompts_are_those_of_one_process() -> None:
    notes: list[WindowNote] = []
    with TruthServer(SLOW) as server:
        with benchmark(server) as bench:
            measured = bench.measure(BUCKET, notes.append)
            again = bench.measure(BUCKET)
            assert len(workers()) == 2
        assert workers() == []
    windows = [note for note in notes if note.phase is Phase.MEASURE]
    start_s, end_s = windows[0].start_s, windows[-1].end_s
    written = sum(n for at_s, n in server.record.written if start_s <= at_s < end_s)
    late = measured.output_tok_per_s * measured.loop_lag_ms / 1000
    edges = 2 * BUCKET.concurrency * 4
    assert abs(measured.output_tok_per_s * measured.windows_s - written) <= edges + 2 * late
    assert measured.client_processes == again.client_processes == 2
    assert server.record.peak == BUCKET.concurrency
    assert len(set(server.record.prompts)) == len(server.record.prompts)
    assert measured.requests > 0
    assert BucketQuality.TOKEN_MISMATCH not in measured.marks
    assert all(header["authorization"] == "Bearer k" for header in server.record.headers)


def test_a_bucket_of_one_stream_stays_in_this_process() -> None:
    with TruthServer(SLOW) as server, benchmark(server) as bench:
        measured = bench.measure(dataclasses.replace(BUCKET, concurrency=1))
        assert measured.client_processes == 1
        assert workers() == []


def test_a_server_that_dies_is_known_to_all_processes() -> None:
    settings = dataclasses.replace(SETTINGS, most_windows=10_000, target_half_width=1e-9)
    behaviour = dataclasses.replace(SLOW, die_after_chunks=300)
    with (
        TruthServer(behaviour) as server,
        benchmark(server, settings) as bench,
        pytest.raises(ErrorRateTooHigh, match="connection"),
    ):
        bench.measure(BUCKET)
    assert workers() == []


def test_a_load_process_that_dies_ends_the_bucket_and_is_replaced() -> None:
    settings = dataclasses.replace(SETTINGS, most_windows=10_000, target_half_width=1e-9)

    def kill(note: WindowNote) -> None:
        workers()[0].kill()

    with TruthServer(SLOW) as server, benchmark(server, settings) as bench:
        with pytest.raises(MeasurementError, match="has died"):
            bench.measure(BUCKET, kill)
        with pytest.raises(Enough):  # two new processes, which measure
            bench.measure(BUCKET, stop)
    assert workers() == []


class Enough(Exception):
    """The first window came."""


def stop(note: WindowNote) -> None:
    assert len(workers()) == 2
    raise Enough


def test_processes_of_a_measurement_that_is_given_up_end_with_it() -> None:
    endless = dataclasses.replace(SETTINGS, target_half_width=1e-9, most_windows=100_000)

    def give_up(note: WindowNote) -> None:
        if note.index == 0:
            lost = LeaseLost("the host went back")
            threading.Thread(target=bench.give_up, args=(lost,)).start()

    with TruthServer(SLOW) as server:
        with benchmark(server, endless) as bench, pytest.raises(LeaseLost, match="went back"):
            bench.measure(BUCKET, give_up)
        assert workers() == []


def test_a_process_that_does_not_end_by_itself_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may wait for a reader that will never come."""
    monkeypatch.setattr(spread, "_END_MOST_S", 0.2)
    with TruthServer(SLOW) as server:
        with benchmark(server) as bench:
            bench.measure(BUCKET)
            workers()[0].suspend()
        assert workers() == []


def test_a_client_that_was_too_slow_is_spread_for_the_next_bucket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    settings = dataclasses.replace(SETTINGS, client_cpu_most=1e-6)
    with (
        TruthServer(SLOW) as server,
        Benchmark(server.url, model="m", prompts_seed=3, settings=settings) as bench,
    ):
        first, second = bench.measure(BUCKET), bench.measure(BUCKET)
    assert BucketQuality.CLIENT_BOTTLENECK in first.marks
    assert (first.client_processes, second.client_processes) == (1, 2)
