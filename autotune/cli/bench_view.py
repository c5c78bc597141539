"""What `autotune bench` shows while it measures, and what it prints at the end."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

from rich.table import Table

from autotune.benching import Target, bench
from autotune.benchmark import MeasureSettings, WindowNote
from autotune.cli.console import Console, table_console
from autotune.cli.options import print_json
from autotune.errors import InvalidBucket
from autotune.measurement import BucketMeasurement, Drift
from autotune.workload import Bucket

__all__ = ["run_and_show"]


def run_and_show(
    opened: AbstractContextManager[Target],
    buckets: tuple[Bucket, ...],
    *,
    settings: MeasureSettings,
    seed: int,
    as_json: bool,
) -> None:
    """Measure one server and print what was measured, also when an error or Ctrl-C ends it.

    Raises:
        InvalidBucket: A bucket is not valid.
    """
    measured: list[BucketMeasurement] = []
    drift: Drift | None = None
    with opened as target:
        try:
            with Console(stderr=True).status(f"{target.base_url}: warm-up") as status:

                def window(note: WindowNote) -> None:
                    status.update(_progress(note, len(measured), len(buckets)))

                drift = bench(
                    target,
                    buckets,
                    settings=settings,
                    seed=seed,
                    on_window=window,
                    on_bucket=measured.append,
                )
        finally:
            if measured:
                view = _view(target, measured, drift, seed=seed)
                print_json(view) if as_json else _print(target, measured, drift)
    bad = [one for one in measured if not one.valid]
    if bad:
        raise InvalidBucket(
            f"{len(bad)} of {len(measured)} buckets are not valid; {bad[0].key}: {bad[0].reason}"
        )


def _progress(note: WindowNote, done: int, buckets: int) -> str:
    half = ""
    if note.half_width is not None and note.mean_tok_per_s > 0:
        half = f" +- {note.half_width / note.mean_tok_per_s:.1%}"
    return (
        f"bucket {done + 1} of {buckets}, {note.bucket}: {note.phase} {note.index + 1}, "
        f"{note.mean_tok_per_s:.1f} tok/s{half}"
    )


def _view(
    target: Target, measured: list[BucketMeasurement], drift: Drift | None, *, seed: int
) -> dict[str, Any]:
    return {
        "url": target.base_url,
        "model": target.model,
        "endpoint": str(target.endpoint),
        "seed": seed,
        "buckets": [asdict(one) for one in measured],
        "drift": asdict(drift) if drift else None,
    }


def _print(
    target: Target,
    measured: list[BucketMeasurement],
    drift: Drift | None,
) -> None:
    console = table_console()
    table = Table(title=f"{target.model} at {target.base_url}", title_justify="left")
    for column in (
        *("context", "C", "output tok/s", "95 %", "+-", "TTFT ms", "p99", "TPOT ms", "p99"),
        *("accept", "tok/chunk", "windows", "client", "marks"),
    ):
        table.add_column(column, justify="left" if column == "marks" else "right")
    for one in measured:
        relative = one.interval.half_width / one.output_tok_per_s if one.output_tok_per_s else 0.0
        table.add_row(
            *(str(one.context_tokens), str(one.concurrency), f"{one.output_tok_per_s:.1f}"),
            *(f"{one.interval.low:.1f} - {one.interval.high:.1f}", f"{relative:.1%}"),
            *(f"{one.ttft_ms:.0f}", f"{one.ttft_p99_ms:.0f}"),
            *(f"{one.tpot_ms:.2f}", f"{one.tpot_p99_ms:.2f}"),
            f"{one.accept_length:.2f}" if one.accept_length is not None else "",
            *(f"{one.chunk_tokens:.2f}", str(one.windows), f"{one.client_cpu:.0%}"),
            ", ".join(one.marks) + ("" if one.valid else " NOT VALID"),
        )
    console.print(table)
    for one in measured:
        if one.reason:
            console.print(f"{one.key} is not valid: {one.reason}")
    last = measured[-1]
    if last.max_running_requests is not None:
        graphs = "" if last.largest_graph is None else f", largest graph {last.largest_graph}"
        console.print(f"the server admits {last.max_running_requests} requests at once{graphs}")
    if drift is not None:
        more = "more than" if abs(drift.change) > drift.half_width else "within"
        console.print(
            f"drift: {drift.bucket} measured again at the end: {drift.change:+.1%}, {more} its"
            f" uncertainty of {drift.half_width:.1%}"
        )
    if all(one.valid for one in measured):
        mean = sum(one.weight * one.output_tok_per_s for one in measured)
        console.print(f"weighted mean: {mean:.1f} tok/s")
