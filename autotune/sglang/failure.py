"""Whose fault the end of a server was.

`autotune.sglang.signatures` holds the table; here it is held against one start.

::

    parameters    ServerStartError, ServerCrashed   infeasible, never tried again
    busy          HostBusy                          the port or the GPU is held by somebody else
    machine       UnitError                         the parameters say nothing about it
    (no row)      NotReady, ServerEnded             nobody's yet: tried once again, then failed
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Literal

from autotune.errors import (
    AutotuneError,
    HostBusy,
    NotReady,
    ServerCrashed,
    ServerEnded,
    ServerStartError,
    UnitError,
)
from autotune.sglang.log import StartupLog, StartupPhase
from autotune.sglang.signatures import SIGNATURES, Fault, Signature
from autotune.supervisors.base import Identity

__all__ = ["classify"]

_LAST_LINES = 3
_ENDED = ("failed", "inactive", "deactivating")
_BEFORE_MAIN = ("condition", "start-pre", "start")
"""Sub-states in which a unit has no main process yet."""

_ARGPARSE = re.compile(r"^\S+(?: \S+){0,4}: error: (?P<what>.*)$")
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
_DOING = {
    StartupPhase.SILENT: "at once",
    StartupPhase.ARGUMENTS: "while it read its arguments",
    StartupPhase.LOADING: "while it loaded weights",
    StartupPhase.KV_CACHE: "while it allocated the KV cache",
    StartupPhase.CAPTURING: "while it captured CUDA graphs",
    StartupPhase.DRAFT: "while it loaded the draft model",
    StartupPhase.BINDING: "while it opened its port",
    StartupPhase.WARMING: "during its warm-up request",
    StartupPhase.READY: "under load",
    StartupPhase.FAILED: "",
}


def classify(
    log: StartupLog,
    identity: Identity,
    *,
    phase: Literal["start", "run"],
    tuned_flags: Collection[str] = (),
    stop_requested: bool = False,
) -> AutotuneError | None:
    """The error that the state of a server amounts to, None when nothing has failed.

    Read the log until it is quiet first: the line that decides may be the last one.

    Args:
        log: The log of this start so far.
        identity: What the supervisor says about the service now.
        phase: Whether the start was still awaited or its settings were already proven.
        tuned_flags: Every spelling of every flag that the study tunes.  A command line error that
            names one of them is the parameters' fault, any other the unit's.
        stop_requested: Whether we asked the service to stop; then its ending is no failure,
            however it looks.
    """
    ended = _has_ended(log, identity)
    if log.stopping is not None and not log.failed:
        if stop_requested:
            return None
        return UnitError(
            f"the server was stopped by somebody else: {log.stopping}",
            hint="another tuner, an operator or a deployment; the parameters say nothing about it",
        )
    if not (log.failed or ended) or (stop_requested and not log.admitted):
        return None
    certain = ended or log.closed
    lines = (*log.decisive, *_said_by_supervisor(identity))
    argparse_error = _argparse_error(log, lines, phase=phase, tuned_flags=tuned_flags)
    if argparse_error is not None:
        return argparse_error
    for signature in SIGNATURES:
        if signature.weak and not certain:
            continue
        line = next((line for line in lines if signature.pattern.search(line)), None)
        if line is not None:
            return _error(signature, line, log, phase=phase)
    return _unknown(log, lines, phase=phase) if certain else None


def _has_ended(log: StartupLog, identity: Identity) -> bool:
    return (
        log.ending is not None
        or identity.active_state in _ENDED
        or (identity.main_pid == 0 and identity.sub_state not in _BEFORE_MAIN)
        or identity.exit_signal is not None
        or identity.exit_code is not None
    )


def _said_by_supervisor(identity: Identity) -> Iterator[str]:
    """The ending in the supervisor's words, in the shape of the manager's log lines."""
    if identity.exit_code:
        yield f"the main process ended with status={identity.exit_code}"
    if identity.exit_signal is not None:
        yield f"the main process was ended by signal {identity.exit_signal}"
    if identity.result not in ("", "success"):
        yield f"the service manager reports result '{identity.result}'"


def _argparse_error(
    log: StartupLog,
    lines: tuple[str, ...],
    *,
    phase: Literal["start", "run"],
    tuned_flags: Collection[str],
) -> AutotuneError | None:
    for line in lines:
        match = _ARGPARSE.match(line)
        if match is None:
            continue
        named = [flag for flag in _FLAG.findall(match["what"]) if flag in tuned_flags]
        if named:
            text = f"the engine refused {named[0]}: {line}"
            hint = "this engine does not know the flag or not this value"
            return _parameters(text, hint, line, log, phase=phase)
        return UnitError(
            f"the engine refused its command line: {line}",
            hint="no tuned flag is named: the unit's own arguments are wrong for this engine",
        )
    return None


def _error(
    signature: Signature, line: str, log: StartupLog, *, phase: Literal["start", "run"]
) -> AutotuneError:
    doing = _DOING[log.failed_in if log.failed_in is not None else log.phase]
    text = f"{signature.message.format(doing=doing).rstrip()}: {line}"
    match signature.fault:
        case Fault.PARAMETERS:
            return _parameters(text, signature.hint, line, log, phase=phase)
        case Fault.BUSY:
            return HostBusy(text, hint=signature.hint)
        case Fault.MACHINE:
            return UnitError(text, hint=signature.hint)


def _parameters(
    text: str, hint: str, line: str, log: StartupLog, *, phase: Literal["start", "run"]
) -> AutotuneError:
    tail = tuple(log.tail)
    log_tail = tail if line in tail else (line, *tail)
    kind = ServerStartError if phase == "start" else ServerCrashed
    return kind(text, hint=hint, log_tail=log_tail)


def _unknown(
    log: StartupLog, lines: tuple[str, ...], *, phase: Literal["start", "run"]
) -> AutotuneError:
    kind = NotReady if phase == "start" else ServerEnded
    when = "before it was ready" if phase == "start" else "after it was ready"
    last = lines[-1] if lines else "it left no word"
    shown = " | ".join(list(log.tail)[-_LAST_LINES:])
    return kind(
        f"the server ended {when} and nothing says why: {last}",
        hint=f"its last lines: {shown}" if shown else "it logged nothing",
    )
