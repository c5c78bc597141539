"""The proof chain: what must hold before a number may be called a measurement.

Each link compares what we intended with what one independent witness shows.  All functions are
pure: facts in, `Evidence` out.  `require` turns the first broken link into SettingsNotApplied.

===================== =============================================================
link                  witness
===================== =============================================================
invocation            the supervisor: this start has an id that no start had before
process               the kernel: the main process began after we asked
argv                  the kernel: `/proc/PID/cmdline`
environ               the kernel: `/proc/PID/environ`
listener              the kernel: who owns the listening socket
bound                 the log of this start: the server bound its port
nonce                 log of this start and the server's own answer
NAME: server_args     the engine's own list of its arguments, in the log of this start
NAME: log             other lines of that log (`sglang.witnesses`)
NAME: server_info     the engine's answer
generation            one real answer of the server
===================== =============================================================
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autotune.errors import SettingsNotApplied
from autotune.measurement import Evidence
from autotune.passage import same_words
from autotune.sglang.log import StartupLog
from autotune.sglang.masking import mask_text, masked_words
from autotune.sglang.server import MISSING, Generation, ServerInfo, setting
from autotune.sglang.witnesses import witnesses
from autotune.space import ParameterValue
from autotune.supervisors.base import Identity, Launch, Listener, ProcessFacts, Start

__all__ = [
    "Nonce",
    "ParameterIntent",
    "argv_link",
    "bound_link",
    "environ_link",
    "environ_links",
    "generation_link",
    "invocation_link",
    "listener_link",
    "nonce_link",
    "parameter_links",
    "process_link",
    "require",
]

RAW_LIMIT = 4000
"""Characters of raw text kept with a link: a whole `server_args=` line would be 18 kB."""

# The kernel counts process starts in ticks of 10 ms, so a start may seem that much too early.
CLOCK_TICK_S = 0.02


@dataclass(frozen=True, slots=True)
class Nonce:
    """What ties the log of one start to the server that answers.

    Attributes:
        flag: The flag that carries `value`; empty when the engine's own random seed serves.
        value: Unique to this start; empty when `flag` is.
    """

    flag: str
    value: str


@dataclass(frozen=True, slots=True)
class ParameterIntent:
    """One parameter as it must be found in the running server.

    Attributes:
        proof: Places that must show the value (argv always must); empty means at least one of the
            engine's own, and no other that contradicts it.
    """

    name: str
    value: ParameterValue
    flag: str
    aliases: tuple[str, ...]
    env: str
    proof: tuple[str, ...]

    def must(self, place: str) -> bool:
        return not self.proof or place in self.proof

    def reported_as(self) -> tuple[str, ...]:
        """Names under which the engine reports the value."""
        return tuple(flag.lstrip("-").replace("-", "_") for flag in (self.flag, *self.aliases))


def _evidence(link: str, *, wanted: str, seen: str, ok: bool, raw: str = "") -> Evidence:
    return Evidence(
        link=link,
        wanted=mask_text(wanted),
        seen=mask_text(seen),
        ok=ok,
        at_s=time.time(),
        raw=mask_text(raw)[:RAW_LIMIT],
    )


def require(links: Iterable[Evidence]) -> None:
    """Raise SettingsNotApplied for the first broken link."""
    for link in links:
        if not link.ok:
            raise SettingsNotApplied(link.link, wanted=link.wanted, seen=link.seen)


def invocation_link(previous: str, start: Start, identity: Identity) -> Evidence:
    """The start has a new id, and it is the one that runs now."""
    return _evidence(
        "invocation",
        wanted=f"a new id, still the current one: {start.invocation_id}",
        seen=f"before {previous or 'none'}, now {identity.invocation_id or 'none'}",
        ok=bool(start.invocation_id)
        and start.invocation_id != previous
        and identity.invocation_id == start.invocation_id
        and identity.n_restarts == start.n_restarts,
        raw=repr(identity),
    )


def process_link(start: Start, identity: Identity, process: ProcessFacts | None) -> Evidence:
    """The main process began after the start was asked for."""
    begun = process.started_at_s if process is not None else None
    return _evidence(
        "process",
        wanted=f"process {identity.main_pid} begun after {start.requested_at_s:.2f} s of uptime",
        seen=f"begun at {begun:.2f} s" if begun is not None else "no such process",
        ok=begun is not None and begun >= start.requested_at_s - CLOCK_TICK_S,
        raw=repr(process and (process.pid, process.started_at_s)),
    )


def argv_link(wanted: tuple[str, ...], process: ProcessFacts | None) -> Evidence:
    """The kernel shows the intended command line.

    Args:
        wanted: `Supervisor.expected_argv` of the launch.

    A script that begins with `#!` is shown with its interpreter in front, so the intended words
    may follow such a prefix.
    """
    seen = process.argv if process is not None else ()
    ok = same_words(wanted, seen)
    shown = _joined(seen)
    return _evidence("argv", wanted=_joined(wanted), seen=shown, ok=ok, raw=shown)


def environ_link(
    launch: Launch, process: ProcessFacts | None, *, absent: tuple[str, ...] = ()
) -> Evidence:
    """The kernel shows the variables that we set, and none of those that must not be there."""
    seen = process.environ if process is not None else {}
    wanted = {**dict.fromkeys(absent), **launch.environment}
    shown = {key: seen.get(key) for key in wanted}
    return _evidence("environ", wanted=repr(wanted), seen=repr(shown), ok=shown == wanted)


def environ_links(
    launch: Launch, intents: Iterable[ParameterIntent], process: ProcessFacts | None
) -> tuple[Evidence, ...]:
    """The link of the environment, where the study sets or leaves out any variable."""
    absent = (*launch.unset, *(i.env for i in intents if i.env and i.value is None))
    if not launch.environment and not absent:
        return ()
    return (environ_link(launch, process, absent=absent),)


def listener_link(port: int, listener: Listener | None) -> Evidence:
    """The listening socket belongs to the service."""
    return _evidence(
        "listener",
        wanted=f"port {port} held by the service",
        seen=listener.description if listener is not None else "nobody listens",
        ok=listener is not None and listener.belongs,
    )


def bound_link(log: StartupLog) -> Evidence:
    """This start logged that it bound its port and was not refused."""
    return _evidence(
        "bound",
        wanted="this start logged its bind and its readiness",
        seen=log.bind_error or ("bound and ready" if log.ready else "no such line"),
        ok=log.ready and not log.bind_error,
        raw="\n".join(log.tail),
    )


def nonce_link(nonce: Nonce, log: StartupLog, info: ServerInfo) -> Evidence:
    """The process that answers is the one that wrote the log."""
    key = nonce.flag.lstrip("-").replace("-", "_") if nonce.flag else "random_seed"
    in_log = (log.server_args or {}).get(key, MISSING)
    in_answer = setting(info, key)
    wanted = nonce.value or "the same random seed in log and answer"
    equal = in_log is not MISSING and in_log is not None and _same(in_log, in_answer)
    return _evidence(
        "nonce",
        wanted=f"{key}: {wanted}",
        seen=f"log {_shown(in_log)}, server {_shown(in_answer)}",
        ok=equal and (not nonce.flag or _same(in_log, nonce.value)),
    )


def parameter_links(
    intents: Iterable[ParameterIntent], log: StartupLog, info: ServerInfo
) -> tuple[Evidence, ...]:
    """Each parameter's value in the engine's own words: its log first, then its answer.

    A parameter that no witness but argv shows is a broken link, unless its definition says that
    argv (or environ) is enough.
    """
    links: list[Evidence] = []
    for intent in intents:
        own: list[Evidence] = []
        for place, found in (
            ("log", _log_links(intent, log)),
            ("server_info", _info_links(intent, info)),
        ):
            if intent.must(place):
                own.extend(found)
            if place in intent.proof and not found:
                own.append(_silent(intent, place, f"its {place} does not show this setting"))
        if not own and not intent.proof:
            silent = "neither its log nor its server_info shows this setting"
            own.append(_silent(intent, "engine", silent))
        links.extend(own)
    return tuple(links)


def _silent(intent: ParameterIntent, place: str, seen: str) -> Evidence:
    """A witness that must speak and does not."""
    wanted = f"{intent.flag or intent.env} = {intent.value} shown by the engine"
    return _evidence(f"{intent.name}: {place}", wanted=wanted, seen=seen, ok=False)


def generation_link(nonce: Nonce, generation: Generation) -> Evidence:
    """One real answer, tokens in it, with the nonce where the engine echoes it."""
    echoed = not nonce.flag or generation.weight_version == nonce.value
    return _evidence(
        "generation",
        wanted=f"at least one token{f' by {nonce.value}' if nonce.flag else ''}",
        seen=f"{generation.completion_tokens} tokens by {generation.weight_version or 'unnamed'}",
        ok=generation.completion_tokens >= 1 and echoed,
        raw=generation.text,
    )


def _log_links(intent: ParameterIntent, log: StartupLog) -> list[Evidence]:
    links: list[Evidence] = []
    said: dict[str, str] = {**(log.tree_worker or {}), **(log.draft_runner or {})}
    wanted = {k: v for k, v in witnesses(intent.reported_as(), intent.value).items() if k in said}
    if wanted:
        shown = {key: said[key] for key in wanted}
        links.append(
            _evidence(
                f"{intent.name}: log", wanted=_pairs(wanted), seen=_pairs(shown), ok=shown == wanted
            )
        )
    arguments = log.server_args or {}
    key = next((key for key in intent.reported_as() if key in arguments), None)
    if key is not None:
        links.append(
            _evidence(
                f"{intent.name}: server_args",
                wanted=f"{key}={intent.value}",
                seen=f"{key}={_shown(arguments[key])}",
                ok=_same(arguments[key], intent.value),
            )
        )
    return links


def _info_links(intent: ParameterIntent, info: ServerInfo) -> list[Evidence]:
    key, *others = intent.reported_as()
    value = setting(info, key, tuple(others))
    if value is MISSING:
        return []
    return [
        _evidence(
            f"{intent.name}: server_info",
            wanted=f"{key}={intent.value}",
            seen=f"{key}={_shown(value)}",
            ok=_same(value, intent.value),
        )
    ]


def _joined(words: tuple[str, ...]) -> str:
    """A command line for people; masked before quoting, which would hide a secret's shape."""
    return shlex.join(masked_words(words))


def _same(seen: object, wanted: object) -> bool:
    """Whether two spellings mean one value: 8, "8" and 8.0 do; a switch is no number."""
    if seen is None or wanted is None or isinstance(seen, bool) or isinstance(wanted, bool):
        return seen is wanted
    if isinstance(seen, int | float) and isinstance(wanted, int | float):
        return float(seen) == float(wanted)
    return str(seen) == str(wanted)


def _shown(value: object) -> str:
    return "not shown" if value is MISSING else str(value)


def _pairs(pairs: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in pairs.items())
