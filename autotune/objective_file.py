"""The format of a file in `objectives/`, as pydantic models; `objectives/schema.json` is theirs."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from autotune.measure_settings import MeasureSettings
from autotune.sections import AggregateName, Positive, PositiveInt, Section, Share, mistake
from autotune.workload import Bucket, Workload

__all__ = [
    "BucketSection",
    "CodingSection",
    "LosslessSection",
    "MeasureSection",
    "ObjectiveFile",
    "ScoreSection",
]

_MEASURE = MeasureSettings()


class BucketSection(Section):
    """One cell of the workload: a closed loop of so many requests at once."""

    context_tokens: PositiveInt
    """Length of a prompt, tokens of the server's own count."""
    concurrency: PositiveInt
    """Requests in flight at once."""
    output_tokens: PositiveInt
    """Length of an answer, tokens; the server is told to ignore its end mark."""
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """How much it counts; weights are divided by their sum."""
    why: str = ""
    """For people: whose requests these are."""


class ScoreSection(Section):
    """How buckets become one number; formulas in metrics.md, "Score"."""

    aggregate: AggregateName = "arithmetic"
    """`arithmetic`: weighted tok/s; `geometric`: weighted mean of ratios to the reference; or an
    objective of an installed package."""
    penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.5
    """Of coding answers that fail beyond the reference's: share of the score lost per share of
    samples."""
    floor: Share = 0.0
    """Least throughput of every bucket, as a share of the reference's; 0 asks for nothing."""
    ttft_p99_ms: Positive | None = None
    """Longest 99th percentile of the time to first token in any bucket, ms."""
    tpot_p99_ms: Positive | None = None
    """Longest 99th percentile of the time per output token in any bucket, ms."""


class CodingSection(Section):
    """The programming tasks that guard the output (coding-eval.md)."""

    suite: str = "coding"
    """Name of a shipped suite, or path of a folder of .toml files or of a .jsonl file."""
    samples: Annotated[int, Field(ge=0, le=5000)] = 200
    """Answers of each start that are judged; 0 asks for none."""
    final_samples: Annotated[int, Field(ge=0, le=5000)] = 200
    """Answers that a contender gives at least in all final rounds together; `samples` in each."""
    concurrency: PositiveInt = 32
    """Tasks asked at once."""
    max_tokens: PositiveInt = 512
    """Longest answer, tokens."""
    timeout_s: Positive = 10.0
    """Longest run of one answer in its sandbox, seconds."""
    sandbox: Literal["auto", "bubblewrap", "weak"] = "auto"
    """`weak` lets a weaker sandbox stand in where bubblewrap does not work; the others refuse."""


class LosslessSection(Section):
    """Fixed prompts whose greedy text is compared with the reference's."""

    prompts: Annotated[int, Field(ge=0, le=64)] = 16
    """Prompts of each start; 0 compares nothing."""
    max_tokens: PositiveInt = 128
    """Longest text, tokens."""


class MeasureSection(Section):
    """How long a bucket is measured, and when it is not believed (metrics.md, "One bucket")."""

    target_half_width: Annotated[float, Field(gt=0, le=0.5)] = _MEASURE.target_half_width
    """Half-width of the 95 % interval at which a bucket ends, as a share of the mean."""
    least_windows: Annotated[int, Field(ge=4)] = _MEASURE.least_windows
    """Windows at least."""
    most_windows: Annotated[int, Field(ge=4)] = _MEASURE.most_windows
    """Windows at most."""
    window_s: Positive = _MEASURE.window_s
    """Length of a window, seconds."""
    warm_up_most_s: Positive = _MEASURE.warm_up_most_s
    """Longest wait until throughput is steady, seconds."""
    request_timeout_s: Positive = _MEASURE.request_timeout_s
    """Longest request, seconds."""
    stall_timeout_s: Positive = _MEASURE.stall_timeout_s
    """Longest time in which nothing arrives on a stream, seconds."""
    error_rate_most: Share = _MEASURE.error_rate_most
    """Share of failed requests above which a bucket is invalid."""
    client_cpu_most: Annotated[float, Field(gt=0, le=1)] = _MEASURE.client_cpu_most
    """Share of a core above which the client is the bottleneck and the bucket invalid."""
    loop_lag_most_ms: Positive = _MEASURE.loop_lag_most_ms
    """99th percentile of the lateness of the client's event loop above which it is, ms."""
    drift_most: Share = _MEASURE.drift_most
    """Change of the first bucket, measured again after the last, above which a start is not
    steady, as a share."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.least_windows > self.most_windows:
            raise mistake(
                "least_windows is above most_windows", hint="lower the first or raise the second"
            )
        return self

    def settings(self) -> MeasureSettings:
        return MeasureSettings(**self.model_dump())


class ObjectiveFile(Section):
    """A file in `objectives/`."""

    buckets: Annotated[tuple[BucketSection, ...], Field(min_length=1)]
    score: ScoreSection = ScoreSection()
    coding: CodingSection = CodingSection()
    lossless: LosslessSection = LosslessSection()
    measure: MeasureSection = MeasureSection()

    @field_validator("buckets")
    @classmethod
    def _weighted(cls, buckets: tuple[BucketSection, ...]) -> tuple[BucketSection, ...]:
        if sum(bucket.weight for bucket in buckets) <= 0:
            raise mistake("all weights are 0", hint="give at least one bucket a weight above 0")
        return buckets

    def workload(self) -> Workload:
        total = sum(bucket.weight for bucket in self.buckets)
        return Workload(
            tuple(
                Bucket(
                    context_tokens=bucket.context_tokens,
                    concurrency=bucket.concurrency,
                    output_tokens=bucket.output_tokens,
                    weight=bucket.weight / total,
                )
                for bucket in self.buckets
            )
        )
