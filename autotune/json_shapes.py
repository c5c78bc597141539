"""What `--json` prints, as models: their schemas are in docs/schemas/, and tests hold them to it.

Unknown keys are errors, so a key that is printed without standing here is found.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, RootModel

__all__ = [
    "BestShape",
    "BucketShape",
    "CheckShape",
    "CodingShape",
    "ComparisonShape",
    "ConcludedShape",
    "DriverShape",
    "ExportShape",
    "FailureShape",
    "FindingShape",
    "HostShape",
    "HostsShape",
    "InitShape",
    "IntervalShape",
    "LinkShape",
    "LosslessShape",
    "OverShape",
    "ProcessShape",
    "PruneShape",
    "RepeatShape",
    "RunShape",
    "Shape",
    "StatusShape",
    "StudiesShape",
    "StudyShape",
    "TrialShape",
    "TrialsShape",
    "VerdictShape",
    "VerifyShape",
]

Value = int | float | str | None
"""Of a parameter; null leaves the flag out."""


class Shape(BaseModel):
    """What all shapes share: nothing beside the named keys."""

    model_config = ConfigDict(extra="forbid")


class BucketShape(Shape):
    """One measured bucket of a trial."""

    context_tokens: int
    concurrency: int
    weight: float
    output_tok_per_s: float | None
    interval: tuple[float | None, float | None]
    accept_length: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    valid: bool
    marks: list[str]
    reason: str


class LinkShape(Shape):
    """One link of the proof: what was wanted and what was seen."""

    link: str
    wanted: str
    seen: str
    ok: bool
    at: float


class CodingShape(Shape):
    """How the programming tasks ended."""

    passed: int
    failed: int
    outcomes: dict[str, int]
    rules: dict[str, Any]
    sandbox: str | None


class FailureShape(Shape):
    """Why a trial has no score."""

    kind: str
    message: str
    link: str
    log_tail: list[str]


class LosslessShape(Shape):
    """The greedy texts against the reference's."""

    verdict: str
    parted: int
    prompts: int
    p_value: float | None
    reason: str


class RepeatShape(Shape):
    """One more start of the same trial."""

    role: Literal["search", "reference", "final"]
    round: int
    host: str
    score: float | None
    score_ratio: float | None
    failure: str | None
    proof_ok: bool


class TrialShape(Shape):
    """One trial, as `trials` and `verify` print it."""

    number: int
    state: Literal["complete", "infeasible", "failed", "pruned", "running"]
    parameters: dict[str, Value]
    doubts: list[str]
    reference: bool
    score: float | None
    score_interval: tuple[float, float] | None
    score_ratio: float | None
    host: str | None
    buckets: list[BucketShape]
    proof: list[LinkShape]
    coding: CodingShape | None
    lossless: LosslessShape | None
    failure: FailureShape | None
    why: str | None
    retry_of: int | None
    invocation_id: str | None
    started_at: float | None
    stop_s: float | None
    load_s: float | None
    measure_s: float | None
    drift: dict[str, Any] | None
    repeats: list[RepeatShape]


class TrialsShape(RootModel[list[TrialShape]]):
    """`autotune trials --json`"""


class IntervalShape(Shape):
    """Both ends of a 95 % interval."""

    low: float
    high: float


class VerdictShape(Shape):
    """What the final rounds allow to be said."""

    kind: Literal["better", "no-significant-difference", "not-enough-data"]
    sentence: str
    trial: int | None
    parameters: dict[str, Value]
    score: float | None
    interval: IntervalShape | None
    ratio: float | None
    ratio_interval: IntervalShape | None
    reference_score: float | None
    finalists: list[dict[str, Any]]
    findings: dict[str, Any] = {}
    outlook: str = ""
    starts: int = 0


class ProcessShape(Shape):
    """A process and the machine that it runs on."""

    machine: str
    pid: int


class DriverShape(ProcessShape):
    """A run that takes part in the study."""

    heard_at: float


class HostShape(Shape):
    """One host of the study."""

    host: str
    taken_at: float | None
    restored_at: float | None
    reference_score: float | None
    wanted: str
    state: str
    why: str
    driver: ProcessShape | None


class HostsShape(RootModel[list[HostShape]]):
    """`autotune hosts list --json`"""


class BestShape(Shape):
    """The best observed trial: not yet a verdict."""

    number: int
    parameters: dict[str, Value]
    score: float | None
    score_interval: tuple[float, float] | None
    score_ratio: float | None
    host: str | None
    doubts: list[str]


class StatusShape(Shape):
    """`autotune status --study S --json`"""

    study: str
    created_at: float
    trials: dict[str, int]
    starts: int
    final_starts: int
    hosts: list[HostShape]
    driver: DriverShape | None
    drivers: list[DriverShape]
    gpu_hours: float
    best_observed: BestShape | None
    verdict: VerdictShape | None


class StudyShape(Shape):
    """One study of a database."""

    study: str
    created_at: float
    trials: dict[str, int]
    hosts: list[str]
    running: bool
    verdict: str | None


class StudiesShape(RootModel[list[StudyShape]]):
    """`autotune status --json`"""


class PruneShape(Shape):
    """`autotune prune --json`"""

    study: str
    folder: str
    dry_run: bool
    removed: int
    removed_bytes: int
    kept: int
    kept_bytes: int


class FindingShape(Shape):
    """One line of the table of `check`."""

    place: str
    what: str
    state: Literal["ok", "note", "bad"]
    found: str
    todo: str


class CheckShape(Shape):
    """`autotune check --json` and `autotune run --dry-run --json`"""

    study: str
    ok: bool
    findings: list[FindingShape]
    deployed: dict[str, Value]
    reference_argv: list[str]
    buckets: list[str]


class InitShape(Shape):
    """`autotune init --json`"""

    study: str
    engine: str
    algorithm: str
    deployed: dict[str, Value]
    search_space: str
    objective: str
    notes: list[str]


class ExportShape(Shape):
    """`autotune export --format json`"""

    study: str
    trial: int
    parameters: dict[str, Value]
    score: float | None
    interval: tuple[float, float] | None
    reference_score: float | None
    verdict: str
    findings: dict[str, Any]


class ConcludedShape(Shape):
    """A run that came to its end."""

    study: str
    verdict: VerdictShape
    report: str


class OverShape(Shape):
    """A run whose budget had been spent before: no host was touched."""

    over: str


class RunShape(RootModel[ConcludedShape | OverShape]):
    """`autotune run --json`"""


class ComparisonShape(Shape):
    """One setting: as it is meant, as the process has it, as the engine says."""

    host: str
    what: str
    intended: str
    process: str | None
    engine: str | None
    ok: bool


class VerifyShape(RootModel[list[ComparisonShape]]):
    """`autotune verify --json`"""
