"""A configuration that stays in a unit: as a drop-in under /etc, or in the unit's own file."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autotune.errors import NotApplied, UnitRefused
from autotune.supervisors.base import Launch, Lease, ProcessFacts
from autotune.systemd.agent import Agent
from autotune.systemd.checks import UnitChecks
from autotune.systemd.dropin import DROPIN_NAME, EXPORT_NAME, export_path, held_argv, render
from autotune.systemd.record import UnitRecord
from autotune.systemd.unit import UnitFacts
from autotune.systemd.unit_text import rewritten, sets_command
from autotune.systemd.way_back import WayBack

__all__ = ["Standing", "UnitExport", "Written", "files_hash"]

_OWN_FOLDERS = ("/etc/systemd/system/", "/usr/local/lib/systemd/system/")
_BY_DROP_IN = "export without --in-place: a drop-in does not touch the file"


@dataclass(frozen=True, slots=True)
class Written:
    """A file of the host as an export would write it.

    Attributes:
        path: Where it lies.
        before: Its text now; "" for a drop-in, which is new.
        after: Its text then.
        kind, payload: How the agent is told.
    """

    path: str
    before: str
    after: str
    kind: tuple[str, ...]
    payload: bytes


@dataclass(frozen=True, slots=True)
class Standing:
    """An applied export.

    Attributes:
        kind: `drop-in` or `in-place`.
        moved: Whether the unit's files are others than those it was written for.
    """

    kind: str
    path: str
    moved: bool


@dataclass(frozen=True, slots=True)
class UnitExport:
    """Writes and takes away what an export leaves in one unit.

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
        """Where an export lies on the host as a drop-in."""
        return export_path(self.unit)

    def drop_in(self, launch: Launch, *, header: str) -> Written:
        """A drop-in that makes `launch` the unit's command line; nothing is changed."""
        from_files = self.facts.environment().from_files
        text = render(launch, self.checks.one_command(), header=header, from_files=from_files)
        return Written(self.path, "", text, ("drop-in",), text.encode())

    def in_place(self, launch: Launch, *, note: str) -> Written:
        """The unit's own file with the words of `launch`; nothing is changed.

        Args:
            note: Comment lines that the host keeps beside the file.

        Raises:
            UnitRefused: The change would be more than words of that file.
        """
        where = self.checks.where
        path = self.facts.state().fragment_path
        if os.path.basename(path) != self.unit:
            raise UnitRefused(
                f"{where}: its file is {path}, which makes other units too", hint=_BY_DROP_IN
            )
        if not path.startswith(_OWN_FOLDERS):
            raise UnitRefused(
                f"{where}: its file {path} is not its user's own: whoever wrote it writes it again",
                hint=_BY_DROP_IN,
            )
        if launch.environment or launch.unset:
            variable = next(iter((*launch.environment, *launch.unset)))
            raise UnitRefused(
                f"{where}: {variable} is a variable, and --in-place changes the words of "
                "ExecStart= only",
                hint=_BY_DROP_IN,
            )
        raw = self._own_text(path)
        text = raw.decode(errors="surrogateescape")
        command = self.checks.one_command()
        wanted = held_argv(launch, expands=command.expands)
        try:
            after = rewritten(text, command.argv, wanted)
        except UnitRefused as error:
            raise UnitRefused(f"{where}: {path}: {error.message}", hint=error.hint) from error
        written = after.encode(errors="surrogateescape")
        said = f"{note}sha256 {hashlib.sha256(written).hexdigest()}\n".encode()
        payload = base64.b64encode(said) + b"\n" + written
        kind = ("in-place", hashlib.sha256(raw).hexdigest())
        return Written(path, text, after, kind, payload)

    def keep(self, lease: Lease, record: UnitRecord, launch: Launch, written: Written) -> None:
        """Make the command line that runs now the unit's own and end the lease, without a restart.

        Raises:
            UnitError: It could not be written; the lease goes on.
            NotApplied: systemd does not hold it; the lease goes on, and its end takes it back.
        """
        self.agent.call("keep", *written.kind, lease=lease.id, payload=written.payload)
        wanted = held_argv(launch, expands=record.command.expands, from_files=record.from_files)
        held, state = self.checks.one_command(), self.facts.state()
        process = self.facts.process(state.main_pid) if state.main_pid else None
        runs = process is not None and self.expected_argv(launch, process) == process.argv
        same = held.argv == wanted and held.flags == record.command.flags
        if not same or state.need_reload or not runs:
            raise NotApplied(
                f"{self.checks.where}: systemd or the process does not hold what was written to "
                f"{written.path}",
                hint="the host is put back as it was found",
            )
        self.agent.call("kept", lease=lease.id)

    def standing(self) -> Standing | None:
        """The applied export that `undo` would take away."""
        kind, _, path = self.agent.call("exported").decode().strip().partition(" ")
        if not kind:
            return None
        files = self.facts.files()
        if kind == "drop-in":
            now, where = files_hash(files, without=path), path
        else:
            own = self.facts.state().fragment_path
            now, where = files.get(own, ""), f"{path}.autotune-export"
        said = self.facts.texts([where])[where] or b""
        return Standing(kind, path, moved=now.encode() not in said)

    def undo(self) -> bool:
        """Take an applied export away, restart, and wait until the unit serves without it.

        Returns:
            Whether there was one.

        Raises:
            HostBusy: Somebody tunes the unit.
            DropInConflict: The unit's file was edited after the export in place.
            RestoreFailed: It does not serve again.
        """
        answer = self.agent.call("undo").decode().strip()
        if answer == "none":
            return False
        self.way_back.serves_anew(answer)
        return True

    def _own_text(self, path: str) -> bytes:
        """The unit's file, when nothing but that file says what is started."""
        others = [p for p in self.facts.drop_ins() if not p.endswith("/" + DROPIN_NAME)]
        texts = self.facts.texts([path, *others])
        for other in others:
            if sets_command((texts[other] or b"").decode(errors="surrogateescape")):
                ours = other.endswith("/" + EXPORT_NAME)
                raise UnitRefused(
                    f"{self.checks.where}: the command line comes from {other}, not from {path}",
                    hint="`autotune export --undo` takes that export away first"
                    if ours
                    else _BY_DROP_IN,
                )
        raw = texts[path] or b""
        if hashlib.sha256(raw).hexdigest() != self.facts.files().get(path):
            raise UnitRefused(
                f"{self.checks.where}: {path} cannot be read as a whole (64 KiB at most)",
                hint=_BY_DROP_IN,
            )
        return raw


def files_hash(files: Mapping[str, str], *, without: str) -> str:
    """One hash over the unit's files, an export left out: it moves when the unit does."""
    lines = [f"{path} {digest}" for path, digest in sorted(files.items()) if path != without]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
