"""The file format of studies and objectives, as pydantic models.

The JSON schemas in `search_spaces/schema.json` and `objectives/schema.json` are made from them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    field_validator,
    model_validator,
)
from pydantic_core import core_schema

from autotune.measure_settings import MeasureSettings
from autotune.plugins import Group, require_known
from autotune.space import ParameterKind
from autotune.workload import Bucket, Workload

__all__ = [
    "BucketSection",
    "CodingSection",
    "FixedFlag",
    "LosslessSection",
    "MeasureSection",
    "ObjectiveFile",
    "ParameterSection",
    "ScoreSection",
    "Section",
    "ServiceSection",
    "StudyFile",
    "StudySection",
    "comparable",
]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Reason = Annotated[str, Field(min_length=3)]
_MEASURE = MeasureSettings()


@dataclass(frozen=True, slots=True)
class _Named:
    """Marks a name: a shipped part's, or a plug-in's of the group."""

    group: Group
    shipped: tuple[str, ...]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._known, handler(source))

    def __get_pydantic_json_schema__(
        self, _schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {
            "anyOf": [{"enum": list(self.shipped)}, {"type": "string"}],
            "description": f"a shipped one, or one of an installed package ({self.group})",
        }

    def _known(self, name: str) -> str:
        return require_known(name, self.group, self.shipped)


SamplerName = Annotated[
    str, _Named(Group.SAMPLERS, ("auto", "tpe", "gp", "cmaes", "qmc", "random", "grid"))
]
SupervisorName = Annotated[str, _Named(Group.SUPERVISORS, ("systemd", "process"))]
EngineName = Annotated[str, _Named(Group.ENGINES, ("sglang",))]
AggregateName = Annotated[str, _Named(Group.OBJECTIVES, ("arithmetic", "geometric"))]


class Section(BaseModel):
    """A table of a definition file: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StudySection(Section):
    """`[study]`: what is searched, how, and for how long.

    At least one of `trials`, `hours` and `gpu_hours` bounds the study; with `least_gain` (0.005 is
    half a percent) the search ends earlier, once another trial is expected to bring less.
    `enqueue` lists points that are measured before the sampler's own, values in the order of the
    parameters in this file.
    A driver on another machine that was silent for `driver_grace_s` is dead: its trials are queued
    again.  It must be longer than a load, a measurement and an outage of the database.
    The raw request records beside the database may take `raw_records_mb` megabytes, the newest
    stay; 0 keeps none.
    """

    objective: str
    trials: PositiveInt | None = None
    hours: Positive | None = None
    gpu_hours: Positive | None = None
    least_gain: Annotated[float, Field(ge=0, lt=1)] = 0.0
    sampler: SamplerName = "auto"
    seed: int = 0
    enqueue: tuple[tuple[int | float | str, ...], ...] = ()
    constraints: tuple[str, ...] = ()
    reference_every: PositiveInt = 8
    finalists: Annotated[int, Field(ge=0, le=5)] = 2
    final_rounds: Annotated[int, Field(ge=0, le=20)] = 3
    same_failure_most: PositiveInt = 4
    driver_grace_s: Annotated[float, Field(ge=10, allow_inf_nan=False)] = 3600.0
    raw_records_mb: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1000.0

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.trials is None and self.hours is None and self.gpu_hours is None:
            raise ValueError("give a budget: one of trials, hours, gpu_hours")
        return self


class FixedFlag(Section):
    """A flag that holds for every trial and for the reference."""

    flag: Annotated[str, Field(pattern=r"^--?[a-z0-9]")]
    value: str | None = None
    why: Reason


class ServiceSection(Section):
    """`[service]`: the server under test and how it is driven.

    `hosts` are ssh names for the systemd supervisor (`local` is this machine without ssh), plain
    labels (`label` or `label:port`) for the process supervisor.  `base_url` may hold `{host}` and
    `{port}`; `command` may hold `{port}`.  `ssh_config` is read instead of the user's own.
    """

    engine: EngineName = "sglang"
    supervisor: SupervisorName
    unit: str | None = None
    hosts: Annotated[tuple[str, ...], Field(min_length=1)]
    base_url: Annotated[str, Field(pattern=r"^https?://")]
    command: str | tuple[str, ...] | None = None
    environment: Mapping[str, str] = {}
    ssh_config: str | None = None
    api_key_env: str | None = None
    admin_api_key_env: str | None = None
    fixed_flags: tuple[FixedFlag, ...] = ()
    gpus_per_host: PositiveInt = 1
    load_timeout_s: Positive = 1800.0
    stop_timeout_s: Positive = 300.0
    restore_after_s: Annotated[float, Field(ge=5, allow_inf_nan=False)] = 300.0
    command_timeout_s: Positive = 60.0

    @model_validator(mode="after")
    def _supervised(self) -> Self:
        if self.supervisor == "systemd" and not self.unit:
            raise ValueError('supervisor = "systemd" needs unit = "NAME.service"')
        if self.supervisor == "process" and not self.command:
            raise ValueError('supervisor = "process" needs command = "..."')
        if self.unit and not self.unit.endswith(".service"):
            raise ValueError(f"unit = {self.unit!r} must end in .service")
        if len({host.partition(":")[0] for host in self.hosts}) < len(self.hosts):
            raise ValueError("hosts names one host twice")
        if self.supervisor == "process":
            self._check_labels()
            try:
                self.command_words()
            except ValueError as error:
                raise ValueError(f"command cannot be split into words: {error}") from error
        return self

    def _check_labels(self) -> None:
        ports = [host.partition(":")[2] for host in self.hosts if ":" in host]
        if len(set(ports)) < len(ports):
            raise ValueError("two hosts have the same port")
        for host in self.hosts:
            label, colon, port = host.partition(":")
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", label):
                raise ValueError(f"host {host!r}: a label has letters, digits, '.', '_' and '-'")
            if colon and not (port.isdecimal() and 0 < int(port) < 65536):
                raise ValueError(f"host {host!r}: {port!r} is no port")

    def command_words(self) -> tuple[str, ...]:
        if self.command is None:
            return ()
        return tuple(shlex.split(self.command)) if isinstance(self.command, str) else self.command


class ParameterSection(Section):
    """`[parameters.NAME]`: one tuned parameter.

    `choices` may hold "none": the flag is left out.  `proof` lists which evidence must show the
    value; left out, everything that can show it must.  `doubtful` maps values to the reason why
    they are doubtful: they are searched nevertheless, and the reason is shown beside them.
    """

    kind: ParameterKind
    low: int | float | None = None
    high: int | float | None = None
    step: int | float | None = None
    log: bool = False
    choices: tuple[int | float | str, ...] = ()
    flag: str | None = None
    aliases: tuple[str, ...] = ()
    env: str | None = None
    deployed: int | float | str
    why: Reason
    source: str = ""
    proof: tuple[Literal["argv", "environ", "server_info", "log"], ...] = ()
    doubtful: Mapping[str, str] = {}

    @model_validator(mode="after")
    def _has_home(self) -> Self:
        if (self.flag is None) == (self.env is None):
            raise ValueError("give exactly one of flag and env")
        return self


class StudyFile(Section):
    """A file in `search_spaces/`."""

    study: StudySection
    service: ServiceSection
    parameters: Annotated[Mapping[str, ParameterSection], Field(min_length=1)]


class BucketSection(Section):
    """`[[buckets]]`: one cell of the workload; weights are divided by their sum."""

    context_tokens: PositiveInt
    concurrency: PositiveInt
    output_tokens: PositiveInt
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    why: str = ""


class ScoreSection(Section):
    """`[score]`: how buckets become one number; formulas in docs/metrics.md."""

    aggregate: AggregateName = "arithmetic"
    penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.5
    floor: Share = 0.0
    ttft_p99_ms: Positive | None = None
    tpot_p99_ms: Positive | None = None


class CodingSection(Section):
    """`[coding]`: the programming tasks that guard the output."""

    suite: str = "coding"
    samples: Annotated[int, Field(ge=0, le=5000)] = 200
    concurrency: PositiveInt = 32
    max_tokens: PositiveInt = 512
    timeout_s: Positive = 10.0
    sandbox: Literal["auto", "bubblewrap", "weak"] = "auto"


class LosslessSection(Section):
    """`[lossless]`: fixed prompts whose greedy text is compared with the reference's."""

    prompts: Annotated[int, Field(ge=0, le=64)] = 16
    max_tokens: PositiveInt = 128


class MeasureSection(Section):
    """`[measure]`: how long a bucket is measured, and when it is not believed.

    Beyond `client_cpu_most` (share of a core) or `loop_lag_most_ms` (99th percentile of the event
    loop's lateness) the client is the bottleneck and the bucket is invalid.  Beyond `drift_most`,
    the change of the first bucket when it is measured again after the last, a start is not steady.
    """

    target_half_width: Annotated[float, Field(gt=0, le=0.5)] = _MEASURE.target_half_width
    least_windows: Annotated[int, Field(ge=4)] = _MEASURE.least_windows
    most_windows: Annotated[int, Field(ge=4)] = _MEASURE.most_windows
    window_s: Positive = _MEASURE.window_s
    warm_up_most_s: Positive = _MEASURE.warm_up_most_s
    request_timeout_s: Positive = _MEASURE.request_timeout_s
    stall_timeout_s: Positive = _MEASURE.stall_timeout_s
    error_rate_most: Share = _MEASURE.error_rate_most
    client_cpu_most: Annotated[float, Field(gt=0, le=1)] = _MEASURE.client_cpu_most
    loop_lag_most_ms: Positive = _MEASURE.loop_lag_most_ms
    drift_most: Share = _MEASURE.drift_most

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.least_windows > self.most_windows:
            raise ValueError("least_windows is above most_windows")
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
            raise ValueError("all weights are 0")
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


# What may change between two runs of a study without making it another study.
RESUMABLE = frozenset(
    {
        *("study.trials", "study.hours", "study.gpu_hours", "study.least_gain"),
        *("study.same_failure_most", "study.driver_grace_s", "study.raw_records_mb"),
        *("service.hosts", "service.load_timeout_s", "service.stop_timeout_s"),
        *("service.restore_after_s", "service.command_timeout_s", "service.ssh_config"),
    }
)
REASONS = frozenset(
    {
        *("parameters.*.why", "parameters.*.source", "parameters.*.doubtful"),
        *("service.fixed_flags.*.why", "objective.buckets.*.why"),
    }
)
"""Texts for people, by their place; `*` is any name or position."""


def comparable(definition: Mapping[str, Any]) -> dict[str, Any]:
    """What must be equal for two definitions to be one study: no reasons, no resumable keys."""

    left_out = [tuple(place.split(".")) for place in (*REASONS, *RESUMABLE)]

    def is_left_out(place: tuple[str, ...]) -> bool:
        return any(
            len(place) == len(pattern)
            and all(want in ("*", is_) for want, is_ in zip(pattern, place, strict=True))
            for pattern in left_out
        )

    def stripped(value: Any, place: tuple[str, ...]) -> Any:
        if isinstance(value, Mapping):
            return {
                key: stripped(one, (*place, str(key)))
                for key, one in value.items()
                if not is_left_out((*place, str(key)))
            }
        if isinstance(value, list | tuple):
            return [stripped(one, (*place, str(at))) for at, one in enumerate(value)]
        return value

    result: dict[str, Any] = stripped(definition, ())
    return result
