"""The way back, as a tuner asks for it and proves it.

The host walks it by itself (`agent_script/way_back.sh`), as a service of its own: it is started
here, or by the timer when nobody beats, and it goes on whatever happens to this end.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

from autotune.errors import LeaseLost, RestoreFailed, TargetError
from autotune.systemd.agent import Agent
from autotune.systemd.checks import UnitChecks
from autotune.systemd.record import UnitRecord
from autotune.systemd.unit import UnitFacts

__all__ = ["Limits", "WayBack"]

_ENDED = ("inactive", "failed")


@dataclass(frozen=True, slots=True)
class Limits:
    """How long things on the host may take, seconds.

    Attributes:
        serve_s: A start of the original until its port listens, on the way back.
        restore_s: The whole way back, as far as the tuner waits for it; the host goes on.
        kill_s: After the SIGKILL that follows a stop that took too long, until nothing is left.
        start_s: From the start command to the main process (ExecStartPre= included).
        poll_s: Pause between two looks.
    """

    serve_s: float = 1800.0
    restore_s: float = 2100.0
    kill_s: float = 60.0
    start_s: float = 120.0
    poll_s: float = 0.1


class WayBack:
    """Asks one host to put one unit back, and proves that it is.

    Args:
        port: The port that the service serves on, 0 when it serves none.
    """

    def __init__(
        self, agent: Agent, facts: UnitFacts, checks: UnitChecks, *, port: int, limits: Limits
    ) -> None:
        self._agent = agent
        self._facts = facts
        self._checks = checks
        self._port = port
        self._limits = limits

    def go(self, lease_id: str) -> None:
        """Start the host's restore and wait until the lease is free; nothing when it is.

        Args:
            lease_id: `any` for whoever holds it.

        Raises:
            RestoreFailed: It takes too long; the message says what the host says.
        """
        ends_at = time.monotonic() + self._limits.restore_s
        while (held := self._agent.holder(install=False)) is not None:
            if time.monotonic() >= ends_at:
                raise RestoreFailed(
                    f"{self._checks.where} is not back after {self._limits.restore_s:g} s: "
                    f"{held.failure or 'it does not serve yet'}",
                    hint="the host goes on trying by itself",
                )
            if self._facts.restorer_state() in _ENDED:
                with suppress(LeaseLost):  # it was freed since we looked
                    self._agent.call("release", lease=lease_id)
            time.sleep(self._limits.poll_s)
        while self._facts.restorer_state() not in _ENDED:
            if time.monotonic() >= ends_at:
                raise RestoreFailed(
                    f"{self._checks.where}: the original is back, but the host's restore service "
                    "cannot clear up after itself",
                    hint="`journalctl -u 'autotune-restore@*'` on the host says why",
                )
            time.sleep(self._limits.poll_s)

    def was_forgotten(self, record: UnitRecord) -> bool:
        """Whether the original ran before and does not now, with no lease to bring it back."""
        return record.original.active and self._facts.state().active_state in _ENDED

    def prove(self, record: UnitRecord) -> None:
        """Wait until the original serves, as after a reboot, and prove that all is as it was.

        Raises:
            RestoreFailed: It is not.
        """
        ends_at = time.monotonic() + self._limits.serve_s
        while (
            record.original.active
            and self._port
            and self._facts.state().active_state in ("active", "activating")
            and self._facts.listener(self._port) is None
            and time.monotonic() < ends_at
        ):
            time.sleep(self._limits.poll_s)
        self._checks.prove_back(record)

    def leave(self) -> None:
        """Take the agent away, which nobody needs any more.

        Raises:
            RestoreFailed: The host refused.
        """
        try:
            self._agent.leave()
        except TargetError as error:
            raise RestoreFailed(
                f"{self._checks.where}: the original is back, but the tuner's agent cannot be "
                f"taken away: {error.message}",
                hint=f"{self._checks.revert} takes it away",
            ) from error

    def serves_anew(self, before: str) -> None:
        """Wait until another start of the unit than `before` serves, or the unit is stopped.

        Raises:
            RestoreFailed: It failed, or does not serve in time.
        """
        ends_at = time.monotonic() + self._limits.serve_s
        while True:
            state = self._facts.state()
            listener = self._facts.listener(self._port) if self._port else None
            serves = self._port == 0 or (listener is not None and listener.belongs)
            if state.active_state == "inactive" or (state.invocation_id != before and serves):
                return
            if state.active_state == "failed" or time.monotonic() >= ends_at:
                raise RestoreFailed(
                    f"{self._checks.where} does not serve without the export "
                    f"({state.active_state}, {state.result})"
                )
            time.sleep(self._limits.poll_s)
