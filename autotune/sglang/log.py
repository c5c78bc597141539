"""What the log of one start says, line by line.

::

    silent > arguments > loading > kv-cache > capturing     the target model
                 > draft > kv-cache > capturing             the draft model, where there is one
    > binding > warming > ready                             or `failed` at any point

The order of the middle differs between SGLang versions (0.5.11 captures the target before it loads
the draft, 0.5.17 loads both first), and with tensor parallelism each rank writes its own lines, so
the phase never goes back.  The fired-up line alone proves nothing: a process that could not bind
prints it too, when an older server on its port answers its warm-up request.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from autotune.sglang import decisive
from autotune.sglang.arguments import is_complete, parse_server_args
from autotune.sglang.masking import mask_text, masked
from autotune.supervisors.log_lines import LogLine, LogSource

__all__ = ["StartLimits", "StartupLog", "StartupPhase"]

_Number = TypeVar("_Number", int, float)

_TAIL_LINES = 60
_DECISIVE_LINES = 60
_LONGEST_KEPT = 1000
_LONGEST_ARGUMENTS = 512 * 1024

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# `[2026-01-29 00:23:27 TP0 EP3] text`; behind a progress bar when the bar was not ended.
_STAMP = re.compile(
    r"(?:^|(?<=it/s\])|(?<=s/it\]))\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?"
    r"(?P<rank>(?: [A-Z_]+\d+)*)\] ?(?:[A-Z]+ \S+\.py:\d+: )?"
)
# `Loading safetensors checkpoint shards:  45% Completed | 5/11 [00:10<00:12, ...]`
_SHARDS = re.compile(r"\d+% Completed \| (\d+)/(\d+)")
_KEY_VALUE = re.compile(r"(\w+)=((?:\[[^\]]*\]|\([^)]*\)|<[^>]*>|[^,\s])+)")

_SERVER_ARGS = re.compile(r"server_args=(?=\w+\(|\{)")
_DRAFT_RUNNER = re.compile(r"Initialized \w+ draft runner\.", re.IGNORECASE)
_TREE_WORKER = re.compile(r"Initialized DDTree worker\.", re.IGNORECASE)
_LIMITS = re.compile(r"max_total_num_tokens=\d+,")
_STARTED = re.compile(r"(?:INFO:\s+)?Started (?:server|parent) process \[(\d+)\]")
_RUNNING = re.compile(r"(?:INFO:\s+)?Uvicorn running on (\S+(?: \S+)?) \(Press")
_BIND_ERROR = re.compile(r"(?:ERROR:\s+)?\[Errno 98\]")
_FIRED_UP = "The server is fired up and ready to roll!"
# 0.5.11: `Capture cuda graph bs [1, 2, 4]`; since 0.5.15: `Capture target verify CUDA graph begin.`
_GRAPH_OLD = re.compile(r"Capture cuda graph bs \[([\d, ]+)\]")
_GRAPH_NEW = re.compile(r"Capture target \w+ CUDA graph begin\..*?\bbs=\[([\d, ]+)\]")
_GRAPH_BEGIN = re.compile(r"Capture (?:[\w ]+ )?cuda graph (?:begin|bs)\b", re.IGNORECASE)


class StartupPhase(StrEnum):
    """How far a start has come."""

    SILENT = "silent"
    ARGUMENTS = "arguments"
    LOADING = "loading"
    KV_CACHE = "kv-cache"
    CAPTURING = "capturing"
    DRAFT = "draft"
    BINDING = "binding"
    WARMING = "warming"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StartLimits:
    """The scheduler's own limits, the smallest of all ranks that logged them.

    Attributes:
        max_running_requests: Requests that one scheduler (one data-parallel rank) runs at once.
        available_gpu_mem_gb: Memory left after everything was allocated, GB.
    """

    max_running_requests: int | None = None
    max_total_num_tokens: int | None = None
    context_len: int | None = None
    available_gpu_mem_gb: float | None = None


class StartupLog:
    """The state of one start, fed with its log lines in order.

    Only lines of the service itself set what counts as proof; lines of the service manager and
    lines without the start's id are only searched for a failure.  All text that is kept is masked.

    Args:
        secrets: Values that must not be kept, beside what `masking` finds by name.

    Attributes:
        phase: How far the start has come.
        failed_in: The phase in which the failure began, None while nothing has failed.
        admitted: Whether the failure was told by more than the service manager.
        closed: Whether the failure is complete: a line came after which this process cannot serve.
        stopping: The line that shows that the service was asked to stop, None when it was not.
        ending: The service manager's line about the end of the main process.
        progress: Share of the weight files loaded, 0..1, of the model that loads at present.
        server_args: Resolved settings as the engine logged them.
        draft_runner: `key=value` pairs of the draft runner's line, as text.
        tree_worker: The same of the tree worker's line, where an engine writes one.
        limits: The scheduler's limits.
        captured_batches: Largest batch of the target's decode or verify CUDA graphs.
        bound_pid: Process id that the HTTP server logged for itself.
        bound: Address that it serves on, None until it listens.
        bind_error: The line that says that the port is taken.
        warnings: Lines worth a mark beside the result, the first of each kind.
        tail: The last 60 lines.
        decisive: Lines that may say why it failed, oldest first.
    """

    def __init__(self, *, secrets: Iterable[str] = ()) -> None:
        self._secrets = tuple(secrets)
        self.phase = StartupPhase.SILENT
        self.failed_in: StartupPhase | None = None
        self.admitted = False
        self.closed = False
        self.stopping: str | None = None
        self.ending: str | None = None
        self.progress: float | None = None
        self.server_args: Mapping[str, object] | None = None
        self.draft_runner: Mapping[str, str] | None = None
        self.tree_worker: Mapping[str, str] | None = None
        self.limits = StartLimits()
        self.captured_batches: int | None = None
        self.bound_pid: int | None = None
        self.bound: str | None = None
        self.bind_error: str | None = None
        self.warnings: list[str] = []
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self.decisive: deque[str] = deque(maxlen=_DECISIVE_LINES)
        self._step = (0, 0)
        self._fired_up = False
        self._loaded: set[str] = set()
        self._drafting: set[str] = set()
        self._warned: set[re.Pattern[str]] = set()
        self._arguments = ""

    @property
    def ready(self) -> bool:
        """Whether this very process says that it serves: bound, fired up, and nothing failed."""
        return (
            self._fired_up
            and self.bound is not None
            and self.bind_error is None
            and self.failed_in is None
        )

    @property
    def failed(self) -> bool:
        """Whether a line said that this start has failed."""
        return self.failed_in is not None

    def feed(self, line: LogLine) -> None:
        """Take the next line."""
        for piece in line.text.split("\r"):
            text = _ANSI.sub("", piece).rstrip()
            if not text.strip():
                continue
            if line.source is LogSource.SERVICE:
                self._service_line(text)
            else:
                self._foreign_line(text, manager=line.source is LogSource.MANAGER)

    # -- one line -------------------------------------------------------------------------------
    def _service_line(self, text: str) -> None:
        stamp = _STAMP.search(text)
        if self._continued(text, stamped=stamp is not None):
            return
        message = text[stamp.end() :] if stamp else text
        rank = stamp["rank"] if stamp else ""
        kept = self._keep(text)
        self._advance(StartupPhase.ARGUMENTS, (0, 1))
        self._judge(message, kept)
        self._warn(message)
        bar = _SHARDS.findall(text)
        if bar:
            done, total = (int(number) for number in bar[-1])
            self.progress = min(1.0, done / total) if total else None
            self._advance(*self._model_step(rank, StartupPhase.LOADING))
        self.prove(message, rank)
        self._refresh()

    # -- what an engine's own log overrides, and what it calls ------------------------------------
    def prove(self, message: str, rank: str) -> None:
        """Take what one line of the service proves.

        Args:
            message: The line without SGLang's time stamp.
            rank: Of the process that wrote it, as the stamp says; "" without.
        """
        named = _SERVER_ARGS.match(message)
        if named and self.server_args is None:
            self._take_arguments(message[named.end() :])
        elif message.startswith("Load weight begin"):
            if rank in self._loaded:
                self._drafting.add(rank)
                self.progress = None
            self._advance(*self._model_step(rank, StartupPhase.LOADING))
        elif message.startswith("Load weight end"):
            self._loaded.add(rank)
        elif "KV Cache is allocated" in message or "KV Cache VA upper bound" in message:
            self._advance(*self._model_step(rank, StartupPhase.KV_CACHE))
        elif _GRAPH_BEGIN.match(message):
            self._advance(*self._model_step(rank, StartupPhase.CAPTURING))
            self._take_graphs(message)
        elif _DRAFT_RUNNER.match(message):
            self.draft_runner = {**_key_values(message), **(self.draft_runner or {})}
            self._advance(StartupPhase.DRAFT, (1, 1))
        elif _TREE_WORKER.match(message):
            self.tree_worker = {**_key_values(message), **(self.tree_worker or {})}
            self._advance(StartupPhase.DRAFT, (1, 1))
        elif _LIMITS.match(message):
            self._take_limits(_key_values(message))
            self._advance(StartupPhase.BINDING, (2, 0))
        elif started := _STARTED.match(message):
            self.bound_pid = self.bound_pid or int(started[1])
            self._advance(StartupPhase.BINDING, (2, 0))
        elif running := _RUNNING.match(message):
            self.says_bound(running[1])
        elif message.startswith(_FIRED_UP):
            self.says_ready()

    def says_settings(self, settings: Mapping[str, object]) -> None:
        """The resolved settings, by the names of their flags, `_` for `-`; the first ones count."""
        if self.server_args is None:
            self.server_args = masked(settings, self._secrets)

    def says_loading(self, share: float | None) -> None:
        """Weights are being loaded.

        Args:
            share: 0..1 where it is known.
        """
        self.progress = share
        self._advance(StartupPhase.LOADING, (0, 2))

    def says_bound(self, address: str) -> None:
        """The server listens."""
        self.bound = address
        self._advance(StartupPhase.WARMING, (3, 0))

    def says_ready(self) -> None:
        """The server will answer."""
        self._fired_up = True

    # -- inside -----------------------------------------------------------------------------------
    def _foreign_line(self, text: str, *, manager: bool) -> None:
        stamp = _STAMP.search(text)
        message = text[stamp.end() :] if stamp else text
        kept = self._keep(text)
        if manager and decisive.MANAGER_STOP.match(message) and not self.failed:
            self.stopping = self.stopping or kept
        elif decisive.MANAGER_END.match(message):
            self.ending = self.ending or kept
            self.decisive.append(kept)
            if self.stopping is None:
                self._fail(closed=True, admitted=False)
        else:
            self._judge(message, kept)

    def _judge(self, message: str, kept: str) -> None:
        """Look for the beginning or the end of a failure."""
        if _BIND_ERROR.match(message):
            self.bind_error = self.bind_error or kept
        if not self.failed and decisive.STOP_ASKED.match(message):
            self.stopping = self.stopping or kept
            return
        if self.stopping is not None and not self.failed:
            # Whoever stops the service kills the schedulers first: that looks like a crash.
            return
        if decisive.CLOSING.match(message):
            self.decisive.append(kept)
            self._fail(closed=True)
        elif decisive.OPENING.match(message):
            self.decisive.append(kept)
            self._fail(closed=False)
        elif decisive.EVIDENCE.match(message):
            self.decisive.append(kept)
        elif decisive.EXCEPTION.match(message) and self.phase is not StartupPhase.READY:
            # A server that serves logs the exceptions of bad requests too.
            self.decisive.append(kept)

    def _fail(self, *, closed: bool, admitted: bool = True) -> None:
        if self.failed_in is None:
            self.failed_in = self.phase
        self.admitted = self.admitted or admitted
        self.closed = self.closed or closed
        self.phase = StartupPhase.FAILED

    def _warn(self, message: str) -> None:
        if message.startswith("server_args="):
            return
        for pattern in decisive.WARNINGS:
            if pattern not in self._warned and pattern.search(message[:_LONGEST_KEPT]):
                self._warned.add(pattern)
                self.warnings.append(mask_text(message, self._secrets)[:_LONGEST_KEPT])
                return

    def _keep(self, text: str) -> str:
        kept = mask_text(text, self._secrets)
        if len(kept) > _LONGEST_KEPT:
            kept = f"{kept[:_LONGEST_KEPT]}... ({len(text)} characters)"
        self.tail.append(kept)
        return kept

    # -- what was said --------------------------------------------------------------------------
    def _advance(self, phase: StartupPhase, step: tuple[int, int]) -> None:
        if step > self._step and not self.failed:
            # What was logged before the start went on did not end it.
            self.decisive.clear()
            self._step, self.phase = step, phase

    def _refresh(self) -> None:
        if self.ready:
            self._advance(StartupPhase.READY, (4, 0))

    def _model_step(self, rank: str, phase: StartupPhase) -> tuple[StartupPhase, tuple[int, int]]:
        """Phase and order of a line about one model: the rank's second load is the draft's."""
        order = {StartupPhase.LOADING: 2, StartupPhase.KV_CACHE: 3, StartupPhase.CAPTURING: 4}
        if rank not in self._drafting:
            return phase, (0, order[phase])
        return (StartupPhase.DRAFT if phase is StartupPhase.LOADING else phase), (1, order[phase])

    def _take_arguments(self, text: str) -> None:
        self._arguments = "" if is_complete(text) else text
        settings = parse_server_args(text)
        if settings is not None:
            self.server_args = masked(settings, self._secrets)

    def _continued(self, text: str, *, stamped: bool) -> bool:
        """Whether this line is the rest of a `server_args=` line that the journal has split."""
        if not self._arguments:
            return False
        if stamped or len(self._arguments) + len(text) > _LONGEST_ARGUMENTS:
            self._arguments = ""
            return False
        # Half of a secret may stand at the beginning of the rest, so the rest is not kept.
        self.tail.append(f"(server_args continued, {len(text)} characters)")
        self._take_arguments(self._arguments + text)
        return True

    def _take_graphs(self, message: str) -> None:
        new = _GRAPH_NEW.match(message)
        old = _GRAPH_OLD.match(message)
        if new:
            largest = max(int(number) for number in new[1].split(","))
            self.captured_batches = max(self.captured_batches or 0, largest)
        elif old and self.captured_batches is None:
            # The draft's capture has the same words; the target always comes first.
            self.captured_batches = max(int(number) for number in old[1].split(","))

    def _take_limits(self, pairs: Mapping[str, str]) -> None:
        seen = self.limits
        memory = pairs.get("available_gpu_mem", pairs.get("available_cpu_mem"))
        self.limits = StartLimits(
            max_running_requests=_least(
                seen.max_running_requests, pairs.get("max_running_requests"), int
            ),
            max_total_num_tokens=_least(
                seen.max_total_num_tokens, pairs.get("max_total_num_tokens"), int
            ),
            context_len=_least(seen.context_len, pairs.get("context_len"), int),
            available_gpu_mem_gb=_least(seen.available_gpu_mem_gb, memory, float),
        )


def _key_values(message: str) -> dict[str, str]:
    """`key=value` pairs wherever they stand: forks drop and reorder them."""
    return {match[1]: match[2].rstrip(".") for match in _KEY_VALUE.finditer(message)}


def _least(
    seen: _Number | None, text: str | None, kind: Callable[[str], _Number]
) -> _Number | None:
    if text is None:
        return seen
    try:
        number = kind(text)
    except ValueError:
        return seen
    return number if seen is None else min(seen, number)
