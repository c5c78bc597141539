"""A configuration that stays in a unit, as a drop-in under /etc."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.errors import NotApplied
from autotune.supervisors.base import Launch, Lease, ProcessFacts
from autotune.systemd.agent import Agent
from autotune.systemd.checks import UnitChecks
from autotune.systemd.dropin import export_path, held_argv, render
from autotune.systemd.record import UnitRecord
from autotune.systemd.unit import UnitFacts
from autotune.systemd.way_back import WayBack

__all__ = ["UnitExport"]


@dataclass(frozen=True, slots=True)
class UnitExport:
    """Writes and takes away the permanent drop-in of one unit.

    Attributes:
        expected_argv: `Supervisor.expected_argv`.
    """

    unit: str
    agent: Agent
    facts: UnitFacts
    checks: UnitChecks
    way_back: WayBack
    expected_argv: Callable[[Launch, ProcessFacts | None], tuple[str, ...]]

    @property
    def path(self) -> str:
        """Where an applied export lies on the host."""
        return export_path(self.unit)

    def render(self, launch: Launch, *, header: str = "") -> str:
        """Text of a drop-in that makes `launch` the unit's command line; nothing is changed."""
        from_files = self.facts.environment().from_files
        return render(launch, self.checks.one_command(), header=header, from_files=from_files)

    def keep(self, lease: Lease, record: UnitRecord, launch: Launch, text: str) -> None:
        """Make the command line that runs now the unit's own and end the lease, without a restart.

        Args:
            text: The permanent drop-in, `render` of the same launch.

        Raises:
            UnitError: It could not be written; the lease goes on.
            NotApplied: systemd does not hold it afterwards.
        """
        self.agent.call("keep", lease=lease.id, payload=text.encode())
        wanted = held_argv(launch, expands=record.command.expands, from_files=record.from_files)
        held, state = self.checks.one_command(), self.facts.state()
        process = self.facts.process(state.main_pid) if state.main_pid else None
        runs = process is not None and self.expected_argv(launch, process) == process.argv
        if held.argv != wanted or state.need_reload or not runs:
            raise NotApplied(
                f"{self.checks.where}: systemd or the process does not hold what was written to "
                f"{self.path}",
                hint="`autotune export --undo` takes it away",
            )

    def undo(self) -> bool:
        """Take an applied export away, restart, and wait until the unit serves without it.

        Returns:
            Whether there was one.

        Raises:
            HostBusy: Somebody tunes the unit.
            RestoreFailed: It does not serve again.
        """
        answer = self.agent.call("undo").decode().strip()
        if answer == "none":
            return False
        self.way_back.serves_anew(answer)
        return True
