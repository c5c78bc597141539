"""What a bucket costs beyond its warm-up and its windows."""

from __future__ import annotations

import time

from rich.table import Table

from autotune.benchmark import Benchmark, MeasureSettings
from autotune.workload import Bucket
from benchmarks.client_accuracy.serving import truth_server
from tests.truth_server import Behaviour

__all__ = ["fixed_cost"]

_MOST_S = 0.3
_SETTINGS = MeasureSettings(
    target_half_width=0.5, least_windows=4, most_windows=4, window_s=0.25, warm_up_most_s=3.0
)


def fixed_cost() -> tuple[Table, bool]:
    """Seconds of a bucket that are neither warm-up nor window; prompts, counters, closing."""
    table = Table(title="fixed cost of a bucket: wall time - warm-up - windows")
    for column in ("context", "C", "output", "wall s", "warm-up s", "windows s", "rest s", ""):
        table.add_column(column, justify="right")
    all_right = True
    with (
        truth_server(Behaviour(ttft_s=0.02, gap_s=0.01)) as served,
        Benchmark(served.url, model="truth", prompts_seed=1, settings=_SETTINGS) as bench,
    ):
        bench.warm_up()
        for context_tokens, concurrency, output_tokens in (
            *((60, 1, 40), (60, 8, 400), (1024, 8, 40), (1024, 64, 400)),
            *((8192, 1, 400), (8192, 8, 40), (8192, 32, 400)),
        ):
            begun_s = time.perf_counter()
            one = bench.measure(Bucket(context_tokens, concurrency, output_tokens, 1.0))
            wall_s = time.perf_counter() - begun_s
            rest_s = wall_s - one.warm_up_s - one.windows_s
            right = rest_s < _MOST_S
            table.add_row(
                *(str(context_tokens), str(concurrency), str(output_tokens), f"{wall_s:.2f}"),
                *(f"{one.warm_up_s:.2f}", f"{one.windows_s:.2f}", f"{rest_s:.3f}"),
                "ok" if right else "MISSED",
            )
            all_right &= right
    return table, all_right
