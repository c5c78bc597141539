"""Measured against true throughput, TTFT and TPOT.

The server writes each chunk on an exact schedule and notes when it really wrote.  True throughput:
the tokens written within the measured windows.  True TTFT and TPOT: the medians of what it noted,
from the arrival of a request on, for requests that arrived (TTFT) or ended (TPOT) in the windows.
An error beyond 1 % (TTFT: 2 ms + 2 %) must come with the mark of a slow client, one of TTFT with
that or the mark of a late one; up to 64 streams at 4 or more tokens a chunk there must be neither.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table

from autotune.benchmark import Benchmark, MeasureSettings, WindowNote
from autotune.measurement import BucketMeasurement, BucketQuality
from autotune.workload import Bucket
from benchmarks.client_accuracy.serving import Truth, truth_of, truth_server
from tests.truth_server import Behaviour

__all__ = ["Plan", "accuracy"]

_CHUNKS = 40
_SPREAD = (0.3, 1.0, 0.55, 0.8, 0.4, 0.95)
"""Shares of the asked length: what ends early, as with natural ends."""
_MARKS = (BucketQuality.CLIENT_BOTTLENECK, BucketQuality.CLIENT_LATE)
_UNMARKED_CONCURRENCY = 64
_UNMARKED_TOKENS = 4
SIZES = ((1,), (4,), (16,), (1, 4, 16))


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: each chunk of a stream comes `gap_s` after the one before."""

    concurrencies: tuple[int, ...] = (1, 8, 64, 256)
    gap_s: float = 0.02
    window_s: float = 0.5
    windows: int = 8


def accuracy(plan: Plan) -> tuple[Table, bool]:
    """The table, and whether every line holds the promise."""
    table = Table(title=f"accuracy: one chunk every {plan.gap_s * 1000:g} ms a stream")
    for column in (
        *("C", "tok/chunk", "lengths", "true tok/s", "tok/s", "off", "true TTFT", "TTFT ms"),
        *("true TPOT", "TPOT ms", "off", "CPU", "CPU us/chunk", "lag p99", "mark", ""),
    ):
        table.add_column(column, justify="right")
    all_right = True
    for concurrency in plan.concurrencies:
        for sizes in SIZES:
            for spread in (False, True):
                measured, truth = _measured(plan, concurrency, sizes, spread=spread)
                problem = _problem(concurrency, sizes, measured, truth)
                table.add_row(
                    str(concurrency),
                    "/".join(map(str, sizes)),
                    "spread" if spread else "fixed",
                    *_cells(measured, truth),
                    problem or "ok",
                )
                all_right &= not problem
    return table, all_right


def _measured(
    plan: Plan, concurrency: int, sizes: tuple[int, ...], *, spread: bool
) -> tuple[BucketMeasurement, Truth]:
    bucket = Bucket(
        context_tokens=128,
        concurrency=concurrency,
        output_tokens=round(_CHUNKS * sum(sizes) / len(sizes)),
        weight=1.0,
    )
    settings = MeasureSettings(
        target_half_width=0.01,
        least_windows=plan.windows,
        most_windows=plan.windows,
        window_s=plan.window_s,
        warm_up_most_s=6.0,
    )
    behaviour = Behaviour(
        ttft_s=3 * plan.gap_s,
        gap_s=plan.gap_s,
        tokens_per_chunk=sizes,
        lengths=_SPREAD if spread else (1.0,),
    )
    notes: list[WindowNote] = []
    with (
        truth_server(behaviour) as served,
        Benchmark(served.url, model="truth", prompts_seed=1, settings=settings) as bench,
    ):
        bench.warm_up()
        measured = bench.measure(bucket, notes.append)
        return measured, truth_of(served.url, notes)


def _problem(
    concurrency: int, sizes: tuple[int, ...], measured: BucketMeasurement, truth: Truth
) -> str:
    slow = BucketQuality.CLIENT_BOTTLENECK in measured.marks
    late = slow or BucketQuality.CLIENT_LATE in measured.marks
    wrong = [
        name
        for name, off, most, marked in (
            ("tok/s", measured.output_tok_per_s / truth.tok_per_s - 1, 0.01, slow),
            ("TPOT", measured.tpot_ms / truth.tpot_ms - 1, 0.01, slow),
            ("TTFT", measured.ttft_ms - truth.ttft_ms, 2 + 0.02 * truth.ttft_ms, late),
        )
        if abs(off) > most and not marked
    ]
    if wrong:
        return f"WRONG {' '.join(wrong)}"
    small = concurrency <= _UNMARKED_CONCURRENCY and sum(sizes) / len(sizes) >= _UNMARKED_TOKENS
    return "MARKED" if late and small else ""


def _cells(measured: BucketMeasurement, truth: Truth) -> list[str]:
    chunks_per_s = measured.output_tok_per_s / measured.chunk_tokens
    return [
        *(f"{truth.tok_per_s:.0f}", f"{measured.output_tok_per_s:.0f}"),
        f"{measured.output_tok_per_s / truth.tok_per_s - 1:+.2%}",
        *(f"{truth.ttft_ms:.1f}", f"{measured.ttft_ms:.1f}"),
        *(f"{truth.tpot_ms:.3f}", f"{measured.tpot_ms:.3f}"),
        f"{measured.tpot_ms / truth.tpot_ms - 1:+.2%}",
        f"{measured.client_cpu:.0%}",
        f"{measured.client_cpu / chunks_per_s * 1e6:.0f}",
        f"{measured.loop_lag_ms:.1f}",
        " ".join(mark for mark in measured.marks if mark in _MARKS),
    ]
