"""Measured against true throughput, TTFT and TPOT, for a server that knows what it sent and when.

    python benchmarks/client_accuracy.py [--window-s 1.0] [--gap-ms 20] [--concurrency 1 8 64]

The server runs as a process of its own on loopback, writes each chunk on an exact schedule and
notes when it really wrote.  True throughput: the tokens written within the measured windows.  True
TTFT and TPOT: the medians of what it noted, from the arrival of a request on.  An error beyond 1 %
(TTFT: 2 ms + 2 %) must come with the mark of a slow client.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from autotune import stats
from autotune.benchmark import Benchmark, MeasureSettings, Phase, WindowNote
from autotune.measurement import BucketMeasurement, BucketQuality
from autotune.workload import Bucket

_ROOT = Path(__file__).resolve().parent.parent
_CHUNKS = 40


@contextmanager
def truth_server(
    *, ttft_s: float, gap_s: float, tokens_per_chunk: tuple[int, ...]
) -> Iterator[str]:
    """A server process; its URL."""
    behaviour = {"ttft_s": ttft_s, "gap_s": gap_s, "tokens_per_chunk": tokens_per_chunk}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.truth_server", json.dumps(behaviour)],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def truth(url: str, notes: list[WindowNote]) -> tuple[float, float, float]:
    """Tokens written within the windows per second, median TTFT ms, median TPOT ms.

    Server and client read the same monotonic clock of the machine.
    """
    start_s, end_s = notes[0].start_s, notes[-1].end_s
    seen = httpx.get(f"{url}/truth", trust_env=False, timeout=60).json()
    tokens = sum(n for at_s, n in seen["written"] if start_s <= at_s < end_s)
    ttft_ms, tpot_ms = (stats.percentile(seen[name], 50) * 1000 for name in ("ttft_s", "tpot_s"))
    return tokens / (end_s - start_s), ttft_ms, tpot_ms


def one_row(
    concurrency: int, sizes: tuple[int, ...], arguments: argparse.Namespace
) -> tuple[list[str], bool]:
    """One line of the table, and whether it holds the promise."""
    gap_s = arguments.gap_ms / 1000
    mean = sum(sizes) / len(sizes)
    bucket = Bucket(
        context_tokens=128,
        concurrency=concurrency,
        output_tokens=round(_CHUNKS * mean),
        weight=1.0,
    )
    settings = MeasureSettings(
        target_half_width=0.01,
        least_windows=8,
        most_windows=arguments.windows,
        window_s=arguments.window_s,
        warm_up_most_s=15.0,
    )
    notes: list[WindowNote] = []
    with (
        truth_server(ttft_s=3 * gap_s, gap_s=gap_s, tokens_per_chunk=sizes) as url,
        Benchmark(url, model="truth", prompts_seed=1, settings=settings) as bench,
    ):
        bench.warm_up()
        measured = bench.measure(bucket, notes.append)
        true_tok_per_s, ttft_ms, true_tpot_ms = truth(
            url, [note for note in notes if note.phase is Phase.MEASURE]
        )
    off = measured.output_tok_per_s / true_tok_per_s - 1
    tpot_off = measured.tpot_ms / true_tpot_ms - 1
    ttft_off_ms = measured.ttft_ms - ttft_ms
    marked = BucketQuality.CLIENT_BOTTLENECK in measured.marks
    right = abs(off) <= 0.01 and abs(tpot_off) <= 0.01 and abs(ttft_off_ms) <= 2 + 0.02 * ttft_ms
    cells = [
        str(concurrency),
        "/".join(map(str, sizes)),
        *(f"{true_tok_per_s:.0f}", f"{measured.output_tok_per_s:.0f}", f"{off:+.2%}"),
        *(f"{ttft_ms:.1f}", f"{measured.ttft_ms:.1f}"),
        *(f"{true_tpot_ms:.3f}", f"{measured.tpot_ms:.3f}", f"{tpot_off:+.2%}"),
        *(f"{measured.client_cpu:.0%}", f"{cpu_us(measured):.0f}", f"{measured.loop_lag_ms:.1f}"),
        "bottleneck" if marked else "",
        "ok" if right or marked else "WRONG",
    ]
    return cells, right or marked


def cpu_us(measured: BucketMeasurement) -> float:
    """CPU of the client for one chunk, microseconds."""
    return measured.client_cpu / (measured.output_tok_per_s / measured.chunk_tokens) * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gap-ms", type=float, default=20.0)
    parser.add_argument("--window-s", type=float, default=1.0)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--chunk-tokens", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--mixed", action="store_true", help="add chunks of 1, 4 and 16 in turns")
    arguments = parser.parse_args()
    table = Table(title=f"one chunk every {arguments.gap_ms:g} ms a stream")
    for column in (
        *("C", "tok/chunk", "true tok/s", "tok/s", "off", "true TTFT", "TTFT ms", "true TPOT"),
        *("TPOT ms", "off", "CPU", "CPU us/chunk", "lag p99 ms", "mark", ""),
    ):
        table.add_column(column, justify="right")
    all_right = True
    sizes = [(n,) for n in arguments.chunk_tokens] + ([(1, 4, 16)] if arguments.mixed else [])
    for concurrency in arguments.concurrency:
        for size in sizes:
            cells, right = one_row(concurrency, size, arguments)
            table.add_row(*cells)
            all_right &= right
    Console(width=150).print(table)
    return 0 if all_right else 1


if __name__ == "__main__":
    raise SystemExit(main())
