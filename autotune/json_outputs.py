"""Which command prints which JSON, and the shapes of what was measured."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, RootModel

from autotune.json_shapes import (
    CheckShape,
    ExportShape,
    HostsShape,
    InitShape,
    IntervalShape,
    PruneShape,
    RunShape,
    Shape,
    StatusShape,
    StudiesShape,
    TrialsShape,
    VerifyShape,
)

__all__ = [
    "OUTPUTS",
    "SHAPES",
    "BenchShape",
    "DriftShape",
    "MeasuredShape",
    "RescoreShape",
    "RescoredShape",
]


class MeasuredShape(Shape):
    """One bucket with every attribute that docs/metrics.md names."""

    context_tokens: int
    concurrency: int
    output_tokens: int
    weight: float
    output_tok_per_s: float | None
    interval: IntervalShape
    accept_length: float | None
    ttft_ms: float | None
    ttft_p99_ms: float | None
    tpot_ms: float | None
    tpot_p99_ms: float | None
    chunk_gap_ms: float | None
    chunk_tokens: float | None
    prompt_tokens: float | None
    cached_tokens: int | None
    server_tokens: int | None
    client_cpu: float | None
    loop_lag_ms: float | None
    warm_up_s: float
    windows_s: float
    windows: int
    requests: int
    errors: int
    valid: bool
    marks: list[str]
    reason: str
    started_at_s: float
    max_running_requests: int | None
    largest_graph: int | None
    client_processes: int


class DriftShape(Shape):
    """The first bucket, measured again after the last."""

    bucket: str
    first_tok_per_s: float
    last_tok_per_s: float
    change: float
    half_width: float


class BenchShape(Shape):
    """`autotune bench --json`: one such object for each server."""

    url: str
    model: str
    endpoint: str
    seed: int
    buckets: list[MeasuredShape]
    drift: DriftShape | None


class RescoredShape(Shape):
    """A score as it was stored and as it was computed again."""

    trial: int
    reference: bool
    role: str
    round: int
    host: str
    stored_score: float | None
    stored_score_ratio: float | None
    score: float | None
    score_interval: tuple[float, float] | None
    score_ratio: float | None
    gate: float | None
    violations: list[str]
    arithmetic_tok_per_s: float | None
    geometric: float | None
    same: bool


class RescoreShape(RootModel[list[RescoredShape]]):
    """`autotune rescore --json`"""


SHAPES: Mapping[str, type[BaseModel]] = {
    "bench": BenchShape,
    "check": CheckShape,
    "export": ExportShape,
    "hosts": HostsShape,
    "init": InitShape,
    "prune": PruneShape,
    "rescore": RescoreShape,
    "run": RunShape,
    "status": StatusShape,
    "studies": StudiesShape,
    "trials": TrialsShape,
    "verify": VerifyShape,
}
"""By the name of the schema in docs/schemas/."""

OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "bench": ("bench",),
    "check": ("check",),
    "export": ("export",),
    "hosts list": ("hosts",),
    "init": ("init",),
    "prune": ("prune",),
    "rescore": ("rescore",),
    "run": ("run", "check"),
    "status": ("status", "studies"),
    "trials": ("trials",),
    "verify": ("verify",),
}
"""Schemas of what a command prints as JSON; `run` with `--dry-run` prints what `check` does."""
