"""The format of a file in `search_spaces/`, as pydantic models; `search_spaces/schema.json` is
theirs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from autotune.sections import (
    EngineName,
    Positive,
    PositiveInt,
    Reason,
    SamplerName,
    Section,
    SupervisorName,
    mistake,
)
from autotune.space import ParameterKind

__all__ = [
    "FixedFlag",
    "ParameterSection",
    "ServiceSection",
    "StudyFile",
    "StudySection",
    "comparable",
]


class StudySection(Section):
    """What is searched, how, and for how long.

    At least one of `trials`, `hours` and `gpu_hours` bounds the study.
    """

    objective: str
    """Name in `objectives/`, or path of an objective's .toml file."""
    trials: PositiveInt | None = None
    """Trials in all, finished ones of earlier runs included."""
    hours: Positive | None = None
    """Hours of one run."""
    gpu_hours: Positive | None = None
    """GPU-hours in all."""
    least_gain: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The search ends once another trial is expected to bring less, as a share (0.005 is
    half a percent of the score); 0 never."""
    sampler: SamplerName = "auto"
    """Who suggests points: `auto` is the shipped search, the others are Optuna's; or one of an
    installed package."""
    seed: int = 0
    """Of the search and of the prompts."""
    enqueue: tuple[tuple[int | float | str, ...], ...] = ()
    """Points that are measured before the sampler's own: values in the order of the parameters in
    this file, `"none"` leaves one out."""
    constraints: tuple[str, ...] = ()
    """Names of rules between parameters, shipped ones or those of installed packages."""
    reference_every: PositiveInt = 8
    """Starts on a host after which its reference is measured again."""
    finalists: Annotated[int, Field(ge=0, le=5)] = 2
    """Trials that are measured again against the reference at the end."""
    final_rounds: Annotated[int, Field(ge=0, le=20)] = 3
    """Fresh starts of each finalist and of the reference, 3 or more; 0 for a study without a
    verdict."""
    same_failure_most: PositiveInt = 4
    """Failures of one kind in a row that stop the study."""
    driver_grace_s: Annotated[float, Field(ge=10, allow_inf_nan=False)] = 3600.0
    """Seconds of silence after which a run on another machine is dead and its trials are queued
    again; longer than a load, a measurement and an outage of the database."""
    raw_records_mb: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1000.0
    """Megabytes that the raw request records beside the database may take, the newest stay; 0 keeps
    none."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.trials is None and self.hours is None and self.gpu_hours is None:
            raise mistake(
                "give a budget: one of trials, hours, gpu_hours", hint="for example trials = 30"
            )
        return self


class FixedFlag(Section):
    """A flag that holds for every trial and for the reference."""

    flag: Annotated[str, Field(pattern=r"^--?[a-z0-9]")]
    """As the server spells it, with its dashes."""
    value: str | None = None
    """Its value; left out for a flag without one."""
    why: Reason
    """For people."""


class ServiceSection(Section):
    """The server under test and how it is driven."""

    engine: EngineName = "sglang"
    """Whose logs and answers these are; or an engine of an installed package."""
    supervisor: SupervisorName
    """`systemd`: a unit of a host; `process`: a command on this machine; or one of an installed
    package."""
    unit: str | None = None
    """With systemd: the unit, NAME.service."""
    hosts: Annotated[tuple[str, ...], Field(min_length=1)]
    """With systemd ssh names, `local` is this machine without ssh; else labels, `label` or
    `label:port`."""
    base_url: Annotated[str, Field(pattern=r"^https?://")]
    """Address of the server; `{host}` and `{port}` are filled in."""
    command: str | tuple[str, ...] | None = None
    """With process: what starts the server, as one text or as a list of words; `{port}`, `{python}`
    and `{coding}` are filled in."""
    environment: Mapping[str, str] = {}
    """With process: variables of the server."""
    ssh_config: str | None = None
    """Read instead of the user's own ssh configuration."""
    api_key_env: str | None = None
    """Variable of the tuner's environment that holds the server's API key."""
    admin_api_key_env: str | None = None
    """The same for the server's admin key."""
    fixed_flags: tuple[FixedFlag, ...] = ()
    """Flags that hold for every trial and for the reference."""
    gpus_per_host: PositiveInt = 1
    """Counts the GPU-hours."""
    load_timeout_s: Positive = 1800.0
    """Longest load until the server is ready, seconds."""
    stop_timeout_s: Positive = 300.0
    """Longest stop, seconds."""
    restore_after_s: Annotated[float, Field(ge=5, allow_inf_nan=False)] = 300.0
    """Seconds of silence after which a host puts itself back."""
    command_timeout_s: Positive = 60.0
    """Longest single command on a host, seconds."""

    @model_validator(mode="after")
    def _supervised(self) -> Self:
        if self.supervisor == "systemd" and not self.unit:
            raise mistake(
                'supervisor = "systemd" needs unit = "NAME.service"',
                hint='for example unit = "llm.service"',
            )
        if self.supervisor == "process" and not self.command:
            raise mistake(
                'supervisor = "process" needs command = "..."',
                hint='for example command = "python -m sglang.launch_server --port {port}"',
            )
        if self.unit and not self.unit.endswith(".service"):
            raise mistake(
                f"unit = {self.unit!r} must end in .service",
                hint='for example unit = "llm.service"',
            )
        if len({host.partition(":")[0] for host in self.hosts}) < len(self.hosts):
            raise mistake("hosts names one host twice", hint="name each host once")
        if self.supervisor == "process":
            self._check_labels()
            try:
                self.command_words()
            except ValueError as error:
                raise mistake(
                    f"command cannot be split into words: {error}",
                    hint="close every quote, or give a list of words",
                ) from error
        return self

    def _check_labels(self) -> None:
        ports = [host.partition(":")[2] for host in self.hosts if ":" in host]
        if len(set(ports)) < len(ports):
            raise mistake("two hosts have the same port", hint="a port for each, or none")
        for host in self.hosts:
            label, colon, port = host.partition(":")
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", label):
                raise mistake(
                    f"host {host!r}: a label has letters, digits, '.', '_' and '-'",
                    hint='for example "gpu-0" or "gpu-0:30000"',
                )
            if colon and not (port.isdecimal() and 0 < int(port) < 65536):
                raise mistake(
                    f"host {host!r}: {port!r} is no port", hint='for example "gpu-0:30000"'
                )

    def command_words(self) -> tuple[str, ...]:
        if self.command is None:
            return ()
        return tuple(shlex.split(self.command)) if isinstance(self.command, str) else self.command


class ParameterSection(Section):
    """One tuned setting of the server."""

    kind: ParameterKind
    """`int`, `float` or `categorical`."""
    low: int | float | None = None
    """Least value of a number, itself included."""
    high: int | float | None = None
    """Greatest value of a number, itself included."""
    step: int | float | None = None
    """Distance between values; an int without one has 1, a float without one is continuous."""
    log: bool = False
    """Whether ratios matter rather than differences; excludes a step."""
    choices: tuple[int | float | str, ...] = ()
    """Values of a categorical; `"none"` leaves the flag out."""
    flag: str | None = None
    """Flag that carries the value; this or `env`."""
    aliases: tuple[str, ...] = ()
    """Other spellings of the flag."""
    env: str | None = None
    """Environment variable that carries the value; this or `flag`."""
    deployed: int | float | str
    """What runs today."""
    why: Reason
    """For people: why it is tuned."""
    source: str = ""
    """For people: where its meaning is written down."""
    proof: tuple[Literal["argv", "environ", "server_info", "log"], ...] = ()
    """Places that must show the value; left out, the command line must, and at least one of the
    engine's own, and none may contradict it."""
    doubtful: Mapping[str, str] = {}
    """Values that are in doubt, each with its reason; searched nevertheless, the reason is shown
    beside them."""

    @model_validator(mode="after")
    def _has_home(self) -> Self:
        if (self.flag is None) == (self.env is None):
            raise mistake(
                "give exactly one of flag and env",
                hint='for example flag = "--max-running-requests", and no env',
            )
        return self


class StudyFile(Section):
    """A file in `search_spaces/`."""

    study: StudySection
    service: ServiceSection
    parameters: Annotated[Mapping[str, ParameterSection], Field(min_length=1)]


# What may change between two runs of a study without making it another study.
RESUMABLE = frozenset(
    {
        *("study.trials", "study.hours", "study.gpu_hours", "study.least_gain"),
        *("study.same_failure_most", "study.driver_grace_s", "study.raw_records_mb"),
        *("service.hosts", "service.load_timeout_s", "service.stop_timeout_s"),
        *("service.restore_after_s", "service.command_timeout_s", "service.ssh_config"),
        "objective.coding.final_samples",
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
