"""Wait through the load of one start: ready, or whose fault it is, a second after it is logged."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from autotune.errors import (
    AutotuneError,
    ConnectError,
    InvocationChanged,
    NotReady,
    ServerEnded,
)
from autotune.sglang.failure import classify
from autotune.sglang.log import StartupLog, StartupPhase
from autotune.supervisors.base import Identity, Start, Supervisor
from autotune.supervisors.log_lines import LogFollower, LogLine

__all__ = ["Watch"]

# How long one read of the log waits; also the delay with which an ending is noticed.
READ_S = 0.2
# How often the supervisor is asked for the service's state when the log is silent.
LOOK_S = 1.0
# A dying process writes its traceback over some seconds; the verdict waits for its last lines,
# until nothing has come for QUIET_S.
LAST_WORDS_S = 3.0
QUIET_S = 0.6
# The same once the service manager has told the end of the main process: what it wrote came before.
QUIET_AFTER_END_S = 0.3


class Watch:
    """One start and its log; says when it is ready and explains why it is not.

    Args:
        log: The log of this start, empty, in the words of its engine.
        tuned_flags: Flags that the study sets: an argument error about another one is not the
            parameters' fault.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        start: Start,
        follower: LogFollower,
        *,
        tuned_flags: tuple[str, ...],
        log: StartupLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.start = start
        self.log = log or StartupLog()
        self._supervisor = supervisor
        self._follower = follower
        self._tuned_flags = tuned_flags
        self._clock = clock

    def wait_ready(
        self, *, timeout_s: float, progress: Callable[[StartupPhase, float | None], None]
    ) -> None:
        """Return when this start has logged that it serves.

        Args:
            progress: Told when the phase, or a whole percent of the load, has changed.

        Raises:
            TrialError: The parameters' fault.
            TargetError: The machine's fault.
            MeasurementError: Nobody's: the deadline passed, or nothing says why it ended.
        """
        deadline = self._clock() + timeout_s
        said: tuple[StartupPhase, float | None] | None = None
        look_at = self._clock() + LOOK_S
        while not self.log.ready:
            line = self._read(READ_S)
            if line is not None:
                self.log.feed(line)
                share = None if self.log.progress is None else round(self.log.progress, 2)
                if (self.log.phase, share) != said:
                    said = (self.log.phase, share)
                    progress(*said)
            if self.log.closed:
                raise self._explanation("start")
            if line is None or self._clock() >= look_at:
                look_at = self._clock() + LOOK_S
                self._require_alive()
            if self._clock() > deadline:
                raise NotReady(
                    f"not ready after {timeout_s:.0f} s, last seen {self.log.phase}: {self._last()}"
                )

    def require_same(self) -> None:
        """The start that was proven still runs; anything else voids what was measured.

        Raises:
            InvocationChanged: Somebody restarted it.
            LeaseLost: The host went back, by itself or for somebody else.
            TrialError, TargetError, MeasurementError: It died; see `explain`.
        """
        self._drain()
        identity = self._supervisor.identity()
        by_itself = identity.n_restarts > self.start.n_restarts
        if (
            identity.invocation_id != self.start.invocation_id
            and identity.running
            and not by_itself
        ):
            self._supervisor.check_claim()
            raise InvocationChanged(
                f"the service was restarted by somebody else: {identity.invocation_id} runs now"
            )
        if not self._same(identity):
            raise self._explanation("run")

    def died(self) -> bool:
        """Whether the start that was made has ended by itself; one that somebody else replaced has
        not."""
        identity = self._supervisor.identity()
        if identity.n_restarts > self.start.n_restarts:
            return True
        return identity.invocation_id == self.start.invocation_id and not identity.running

    def explain(self, error: AutotuneError) -> AutotuneError:
        """The reason behind an error that was met while the server was measured.

        Returns:
            What the log and the supervisor say when the server died, else the error itself.
        """
        end = self._clock() + LAST_WORDS_S
        while self._clock() < end:
            line = self._read(READ_S)
            if line is not None:
                self.log.feed(line)
                continue
            identity = self._supervisor.identity()
            if not self._same(identity):
                return self._explanation("run")
        return error

    # -- inside -----------------------------------------------------------------------------------
    def _same(self, identity: Identity) -> bool:
        return (
            identity.running
            and identity.invocation_id == self.start.invocation_id
            and identity.n_restarts == self.start.n_restarts
        )

    def _require_alive(self) -> None:
        identity = self._supervisor.identity()
        if not self._same(identity):
            raise self._explanation("start")

    def _explanation(self, phase: Literal["start", "run"]) -> AutotuneError:
        """Read the last words, then decide whose fault it is.

        Raises:
            LeaseLost: Nobody's: the host went back as it was found.
        """
        self._supervisor.check_claim()
        end = self._clock() + LAST_WORDS_S
        heard = self._clock()
        identity: Identity | None = None
        while self._clock() < end:
            line = self._read(READ_S / 2)
            quiet_s = QUIET_S if self.log.ending is None else QUIET_AFTER_END_S
            if line is not None:
                self.log.feed(line)
                heard = self._clock()
            elif self._clock() - heard >= quiet_s:
                identity = self._supervisor.identity()
                if self.log.closed or not self._same(identity):
                    break
        identity = identity or self._supervisor.identity()
        found = classify(self.log, identity, phase=phase, tuned_flags=self._tuned_flags)
        if found is not None:
            return found
        kind = NotReady if phase == "start" else ServerEnded
        return kind(
            f"the server ended ({identity.result or identity.active_state}) "
            f"and nothing says why: {self._last()}"
        )

    def _read(self, timeout_s: float) -> LogLine | None:
        """The next line of the log."""
        try:
            return self._follower.read(timeout_s)
        except ConnectError:
            # Where the host went back or was rebooted, that is why the log has ended.
            self._supervisor.check_claim()
            raise

    def _drain(self) -> None:
        """Take what was logged meanwhile, so that a failure is explained by fresh lines."""
        while (line := self._read(0.0)) is not None:
            self.log.feed(line)

    def _last(self) -> str:
        return self.log.tail[-1] if self.log.tail else "it logged nothing"
