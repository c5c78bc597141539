"""What goes wrong with requests, servers and the client: classed rightly, never a higher number."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rich.table import Table

from autotune.benchmark import Benchmark, MeasureSettings, Phase, WindowNote
from autotune.errors import ErrorRateTooHigh, MeasurementError
from autotune.measurement import BucketMeasurement, BucketQuality
from autotune.workload import Bucket
from benchmarks.client_accuracy.serving import Served, truth_of, truth_server
from tests.truth_server import Behaviour, Fault, UsageStyle

__all__ = ["faults", "killed"]

_CLEAN = Behaviour(ttft_s=0.02, gap_s=0.01)
_BUCKET = Bucket(context_tokens=128, concurrency=8, output_tokens=120, weight=1.0)
_SETTINGS = MeasureSettings(
    target_half_width=0.5, least_windows=6, most_windows=6, window_s=0.25, warm_up_most_s=2.5
)
_ABOVE_TRUTH = 1.01
_KNOWN_WITHIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Case:
    """One way to go wrong.

    Attributes:
        mark: What the bucket must be marked with; None for what must do no harm.
        words: What the reason must say.
        spinning: Threads of the client's process that take the interpreter away from it.
    """

    name: str
    behaviour: Behaviour
    mark: BucketQuality | None
    words: str = ""
    spinning: int = 0


def _faulty(fault: Fault, every: int = 4) -> Behaviour:
    return replace(_CLEAN, fault=fault, fault_every=every)


CASES = (
    Case("nothing wrong", _CLEAN, None),
    Case("several tokens a chunk (C-O1)", replace(_CLEAN, tokens_per_chunk=(5, 2, 9)), None),
    Case("reasoning text only (C-O2)", replace(_CLEAN, reasoning=True), None),
    Case("U+2028 in the text (C-O5)", replace(_CLEAN, separators=True), None),
    Case("usage twice", replace(_CLEAN, usage=UsageStyle.TWICE), None),
    Case("usage at the end only", replace(_CLEAN, usage=UsageStyle.END), None),
    Case("error event after 200 (C-O3)", _faulty(Fault.ERROR_EVENT), BucketQuality.ERRORS, "error"),
    Case("error after tokens", _faulty(Fault.ERROR_AFTER_TOKENS), BucketQuality.ERRORS, "error"),
    Case("abort as finish reason", _faulty(Fault.ABORTED), BucketQuality.ERRORS, "abort"),
    Case("truncated stream", _faulty(Fault.TRUNCATED), BucketQuality.ERRORS, "truncated"),
    Case("connection reset", _faulty(Fault.RESET), BucketQuality.ERRORS, "connection"),
    Case("no usage", _faulty(Fault.NO_USAGE), BucketQuality.ERRORS, "no-usage"),
    Case("no JSON", _faulty(Fault.BAD_JSON), BucketQuality.ERRORS, "bad-event"),
    Case("503 storm: every second", _faulty(Fault.HTTP_503, 2), BucketQuality.ERRORS, "HTTP 503"),
    Case("429", _faulty(Fault.HTTP_429), BucketQuality.ERRORS, "HTTP 429"),
    Case(
        "prefix cache helps (C-O4)",
        replace(_CLEAN, cached_tokens=100),
        BucketQuality.CACHE_HITS,
        "prefix cache",
    ),
    Case(
        "server counts 2 % less",
        replace(_CLEAN, miscount=-3),
        BucketQuality.TOKEN_MISMATCH,
        "the server counted",
    ),
    Case(
        "server gets slower (H-O2)",
        replace(_CLEAN, slower_by_s=0.004),
        BucketQuality.NOT_STEADY,
        "did not settle",
    ),
    Case(
        "slow reader: a client without CPU",
        _CLEAN,
        BucketQuality.CLIENT_BOTTLENECK,
        "the client",
        spinning=12,
    ),
)


def faults() -> tuple[Table, bool]:
    """The table, and whether each case is classed and none reports more than was written."""
    table = Table(title="faults: 8 streams, every 4th request unless said otherwise")
    for column in ("case", "true tok/s", "tok/s", "requests", "failed", "valid", "said", ""):
        table.add_column(column, justify="left" if column in ("case", "said") else "right")
    all_right = True
    for case in CASES:
        measured, true_tok_per_s = _measured(case)
        problem = _problem(case, measured, true_tok_per_s)
        table.add_row(
            *(case.name, f"{true_tok_per_s:.0f}", f"{measured.output_tok_per_s:.0f}"),
            *(str(measured.requests), str(measured.errors), "yes" if measured.valid else "no"),
            (measured.reason or ", ".join(measured.marks))[:60],
            problem or "ok",
        )
        all_right &= not problem
    return table, all_right


def _measured(case: Case) -> tuple[BucketMeasurement, float]:
    notes: list[WindowNote] = []
    with (
        truth_server(case.behaviour) as served,
        Benchmark(served.url, model="truth", prompts_seed=1, settings=_SETTINGS) as bench,
        _spinning(case.spinning),
    ):
        measured = bench.measure(_BUCKET, notes.append)
        return measured, truth_of(served.url, notes).tok_per_s


@contextmanager
def _spinning(threads: int) -> Iterator[None]:
    """Threads that hold the interpreter in turns."""
    over = threading.Event()

    def spin() -> None:
        while not over.is_set():
            sum(range(2000))

    running = [threading.Thread(target=spin, daemon=True) for _ in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in running:
            thread.join()


def _problem(case: Case, measured: BucketMeasurement, true_tok_per_s: float) -> str:
    if measured.output_tok_per_s > _ABOVE_TRUTH * true_tok_per_s and measured.valid:
        return "TOO HIGH"
    if case.mark is None:
        off = measured.output_tok_per_s / true_tok_per_s - 1
        if not measured.valid:
            return "NOT VALID"
        return "" if abs(off) <= _ABOVE_TRUTH - 1 else "WRONG"
    if case.mark not in measured.marks:
        return "NOT MARKED"
    return "" if case.words in measured.reason else "WRONG CLASS"


def killed() -> tuple[Table, bool]:
    """The server is killed in a bucket: seconds until that is known."""
    table = Table(title="server killed in the third window")
    for column in ("C", "how", "known after s", "said", "at most 1 s"):
        table.add_column(column, justify="left" if column == "said" else "right")
    all_right = True
    for concurrency in (1, 8, 64):
        for processes in (1, 2) if concurrency > 1 else (1,):
            took_s, said = _kill(concurrency, processes)
            right = took_s <= _KNOWN_WITHIN_S and "connection" in said
            how = "one process" if processes == 1 else f"{processes} processes"
            table.add_row(
                *(str(concurrency), how, f"{took_s:.3f}", said[:90]), "ok" if right else "MISSED"
            )
            all_right &= right
    return table, all_right


def _kill(concurrency: int, processes: int) -> tuple[float, str]:
    killed_at_s = 0.0
    settings = replace(_SETTINGS, most_windows=10_000, target_half_width=1e-9, window_s=1.0)
    bucket = replace(_BUCKET, concurrency=concurrency)

    def watch(served: Served, note: WindowNote) -> None:
        nonlocal killed_at_s
        if note.phase is Phase.MEASURE and note.index == 2 and not killed_at_s:
            killed_at_s = time.perf_counter()
            served.process.kill()

    with (
        truth_server(_CLEAN) as served,
        Benchmark(
            served.url, model="truth", prompts_seed=1, settings=settings, processes=processes
        ) as bench,
    ):
        try:
            bench.measure(bucket, lambda note: watch(served, note))
        except ErrorRateTooHigh as error:
            return time.perf_counter() - killed_at_s, error.message
        except MeasurementError as error:
            return float("inf"), error.message
    return float("inf"), "the bucket ended as if nothing had happened"
