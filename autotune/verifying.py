"""Intended against real, side by side: what the unit says, what runs, what the engine reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autotune.engines import open_server
from autotune.errors import AutotuneError, NotApplied, TargetError
from autotune.hosts import HostPlan
from autotune.passage import same_words
from autotune.sglang.flags import get_flag
from autotune.sglang.masking import masked_words
from autotune.sglang.server import MISSING, ServerInfo, setting
from autotune.space import Parameter
from autotune.supervisors.base import Original, ProcessFacts, Supervisor, Word
from autotune.supervisors.systemd import SystemdSupervisor

__all__ = ["Comparison", "compare", "compare_variable", "verify_host"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One thing that must be the same wherever it can be seen.

    Attributes:
        intended: By the definition of the service.
        process: By the kernel; None where it does not apply.
        engine: By the server's own answer; None where it does not apply.
    """

    host: str
    what: str
    intended: str
    process: str | None
    engine: str | None
    ok: bool


def verify_host(
    plan: HostPlan, supervisor: Supervisor, parameters: Iterable[Parameter]
) -> list[Comparison]:
    """Compare what one host is meant to run with what it runs; nothing is changed.

    Raises:
        TargetError: The host or the unit cannot be read.
        NotApplied: The study's service is no standing one.
    """
    if plan.supervisor == "process":
        raise NotApplied(
            f"{plan.host} is a process of the tuner: nothing of it stands between two runs",
            hint="verify compares a systemd unit with what runs",
        )
    original = supervisor.original()
    identity = supervisor.identity()
    process = supervisor.process(identity.main_pid) if identity.main_pid else None
    rows = [
        Comparison(
            plan.host,
            "service",
            "active",
            f"{identity.active_state}, process {identity.main_pid or 'none'}",
            None,
            process is not None,
        )
    ]
    if process is None:
        return rows
    wanted = supervisor.expected_argv(original.launch, process)
    same = same_words(wanted, process.argv)
    rows.append(
        Comparison(
            plan.host,
            "command line",
            f"{len(wanted)} words of the unit",
            "the same" if same else _first_difference(wanted, process.argv),
            None,
            same,
        )
    )
    listener = supervisor.listener(plan.port)
    rows.append(
        Comparison(
            plan.host,
            f"port {plan.port}",
            "held by the service",
            listener.description if listener else "nobody listens",
            None,
            listener is not None and listener.belongs,
        )
    )
    if isinstance(supervisor, SystemdSupervisor) and (export := supervisor.export.standing()):
        seen = "they have changed since" if export.moved else "the same"
        rows.append(
            Comparison(
                plan.host,
                f"export in {export.path}",
                "made for the unit's files",
                seen,
                None,
                not export.moved,
            )
        )
    info, reason = _ask(plan)
    for parameter in parameters:
        if parameter.env:
            rows.append(compare_variable(plan.host, parameter, original, process, info, reason))
        else:
            rows.append(compare(plan.host, parameter, wanted, process.argv, info, reason))
    return rows


def compare_variable(
    host: str,
    parameter: Parameter,
    original: Original,
    process: ProcessFacts,
    info: ServerInfo | None,
    reason: str,
) -> Comparison:
    """One tuned variable in the unit and in the process; engines do not report variables."""
    unit = original.environ.get(parameter.env, "none")
    real = process.environ.get(parameter.env, "none")
    said = reason if info is None else "not reported"
    return Comparison(host, parameter.name, unit, real, said, ok=info is not None and unit == real)


def compare(
    host: str,
    parameter: Parameter,
    intended: tuple[str, ...],
    running: tuple[str, ...],
    info: ServerInfo | None,
    reason: str,
) -> Comparison:
    """One tuned setting in the unit, in the process and in the engine."""
    unit = _flag(intended, parameter)
    real = _flag(running, parameter)
    if info is None:
        return Comparison(host, parameter.name, unit, real, reason, ok=False)
    key, *others = (parameter.flag, *parameter.aliases)
    reported = setting(info, key, tuple(others))
    shown = "not reported" if reported is MISSING else "none" if reported is None else str(reported)
    return Comparison(
        host, parameter.name, unit, real, shown, ok=unit == real and shown in (unit, "not reported")
    )


def _flag(words: tuple[str, ...], parameter: Parameter) -> str:
    found = get_flag(tuple(Word(w) for w in words), parameter.flag, parameter.aliases)
    return "none" if found is None else found


def _first_difference(wanted: tuple[str, ...], seen: tuple[str, ...]) -> str:
    for one, other in zip(masked_words(wanted), masked_words(seen), strict=False):
        if one != other:
            return f"{other!r} instead of {one!r}"
    return f"{len(seen)} words"


def _ask(plan: HostPlan) -> tuple[ServerInfo | None, str]:
    try:
        with open_server(plan) as server:
            return server.server_info(), ""
    except (TargetError, AutotuneError) as error:
        return None, f"no answer: {error.message}"
