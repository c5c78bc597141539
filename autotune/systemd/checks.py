"""What must hold of a unit: before it is tuned, after a drop-in was written, after the way back.

Each check reads the host and raises; none changes anything.
"""

from __future__ import annotations

from collections.abc import Collection

from autotune.errors import (
    DropInConflict,
    RestoreFailed,
    ServerStartError,
    UnitError,
    UnitNotFound,
    UnitRefused,
)
from autotune.supervisors.base import Launch, Original
from autotune.systemd.dropin import DROPIN_NAME, dropin_path, held_argv, mask_path
from autotune.systemd.facts import ExecCommand, UnitState
from autotune.systemd.logs import LogPlace, log_place
from autotune.systemd.record import UnitRecord
from autotune.systemd.unit import UnitFacts

__all__ = ["UnitChecks", "is_refusal", "not_started"]

_ENDED = ("inactive", "failed")
_EXIT_EXEC_FIRST, _EXIT_EXEC_LAST = 200, 243
"""Exit statuses of systemd's own child before the program runs (systemd.exec(5), "Process Exit
Codes"): the parameters are not at fault."""
_PROGRAM_RESULTS = ("exit-code", "signal", "core-dump", "oom-kill", "success")


class UnitChecks:
    """Checks of one unit on one host.

    Args:
        port: The port that the service serves on, 0 when it serves none.
    """

    def __init__(self, facts: UnitFacts, *, host: str, unit: str, port: int) -> None:
        self._facts = facts
        self._host = host
        self._unit = unit
        self._port = port

    @property
    def where(self) -> str:
        """Host and unit, for messages."""
        return f"{self._host}: {self._unit}"

    @property
    def revert(self) -> str:
        """The command that puts this unit back, for hints."""
        return f"`autotune revert --host {self._host} --unit {self._unit}`"

    def require_tunable(self, state: UnitState) -> None:
        """Raises UnitNotFound or UnitRefused when the unit's shape cannot be tuned."""
        where = self.where
        match state.load_state:
            case "loaded":
                pass
            case "not-found":
                raise self._not_found()
            case other:
                raise UnitRefused(
                    f"{where}: systemd does not load it ({other})",
                    hint=f"`systemctl status {self._unit}` says why",
                )
        if state.active_state in ("activating", "deactivating"):
            raise UnitRefused(
                f"{where}: it is {state.active_state}/{state.sub_state}",
                hint="wait until it runs or stop it, so that it is known what to go back to",
            )
        if state.need_reload:
            raise UnitRefused(
                f"{where}: its files have changed since systemd read them",
                hint="run `systemctl daemon-reload` when the change is wanted",
            )
        if state.type == "oneshot":
            raise UnitRefused(
                f"{where}: Type=oneshot: this unit does not run the server itself, so neither "
                "its flags nor its process are found there",
                hint="name the unit whose main process is the server",
            )
        if state.type == "forking":
            raise UnitRefused(
                f"{where}: Type=forking: the server leaves the command of ExecStart behind, so its "
                "command line cannot be proved",
                hint="let the server stay in the foreground, with Type=exec",
            )
        if not state.by_hand:
            raise UnitRefused(
                f"{where}: RefuseManualStart= or RefuseManualStop= forbids to restart it",
                hint="take the line out of the unit",
            )
        if state.source_path.endswith((".container", ".pod", ".kube")):
            raise UnitRefused(
                f"{where}: it is generated from {state.source_path}: its main process is a "
                "container's, and what the server in it got cannot be proved from here",
                hint="run the server as a unit without a container",
            )
        if state.fragment_path.startswith("/run/systemd/transient/"):
            raise UnitRefused(
                f"{where}: a transient unit is gone once it is stopped",
                hint="write it as a file under /etc/systemd/system",
            )

    def _not_found(self) -> UnitNotFound:
        of_a_user = self._facts.is_of_a_user()
        return UnitNotFound(
            f"{self.where}: there is no such unit"
            + (" of the system; one of a user's own systemd has this name" if of_a_user else ""),
            hint="a user unit ends with its user's session: install it under /etc/systemd/system"
            if of_a_user
            else "`systemctl list-units --type=service` there names those that run",
        )

    def require_alone(self, state: UnitState) -> None:
        """Raises UnitRefused when a restart would change more than this unit."""
        if sockets := self._facts.sockets():
            raise UnitRefused(
                f"{self.where}: {', '.join(sockets)} holds its socket and starts it, so who "
                "listens cannot be proved",
                hint="let the server open its port itself",
            )
        if state.active_state != "active":
            return
        if others := self._facts.stopped_with_it():
            raise UnitRefused(
                f"{self.where}: a stop of it would stop {', '.join(others)} too, and its start "
                "would not bring that back",
                hint="say Wants= there instead of Requires=, BindsTo= or PartOf=",
            )

    def require_log(self) -> LogPlace:
        """Where the service logs.  Raises UnitRefused when that cannot be read."""
        try:
            return log_place(*self._facts.outputs())
        except UnitRefused as error:
            raise UnitRefused(f"{self.where}: {error.message}", hint=error.hint) from error

    def require_free_of_ours(self) -> None:
        """Raises DropInConflict when a drop-in of ours, masking or later than ours, is there."""
        if self._facts.masked():
            raise DropInConflict(
                f"{self._host}: {mask_path(self._unit)} masks the tuner's drop-in",
                hint="rename it",
            )
        drop_ins = self._facts.drop_ins()
        for path in drop_ins:
            name = path.rpartition("/")[2]
            if name == DROPIN_NAME:
                raise DropInConflict(
                    f"{self._host}: a tuner's drop-in is there already: {path}",
                    hint=f"{self.revert} takes it away",
                )
            if name > DROPIN_NAME:
                raise DropInConflict(
                    f"{self._host}: {path} is read after every drop-in of the tuner",
                    hint=f"give it a name that sorts before {DROPIN_NAME}",
                )

    def one_command(self) -> ExecCommand:
        """The unit's only command.  Raises UnitRefused when there is none or several."""
        commands = self._facts.commands()
        if len(commands) != 1 or not commands[0].argv:
            raise UnitRefused(
                f"{self._host}: {self._unit} has {len(commands)} ExecStart commands",
                hint="exactly one is needed: the server's",
            )
        return commands[0]

    def require_same_files(self, original: Original) -> None:
        """Raises DropInConflict when a file that defines the unit is not as it was."""
        now = self._facts.files()
        moved = sorted(
            path
            for path in now.keys() | original.files.keys()
            if now.get(path) != original.files.get(path)
        )
        if moved:
            raise DropInConflict(
                f"{self._host}: somebody changed {', '.join(moved)} since the study began",
                hint="the study stops; nothing of that change is overwritten",
            )

    def require_held(
        self, launch: Launch, command: ExecCommand, *, from_files: Collection[str] = ()
    ) -> None:
        """What systemd holds after its reload is what was asked for."""
        path = dropin_path(self._unit)
        drop_ins = self._facts.drop_ins()
        if not drop_ins or drop_ins[-1] != path:
            raise DropInConflict(f"{self._host}: {path} does not count last: {', '.join(drop_ins)}")
        wanted = held_argv(launch, expands=command.expands, from_files=from_files)
        held = self.one_command()
        if held.argv != wanted or held.flags != command.flags:
            raise DropInConflict(
                f"{self._host}: systemd holds another command line than the one written: "
                f"{_first_difference(wanted, held.argv)}"
            )
        if launch.environment:
            variables = self._facts.properties("Service", ["Environment"])["Environment"]
            for name, value in launch.environment.items():
                if name not in from_files and f"{name}={value}" not in variables:
                    raise DropInConflict(f"{self._host}: systemd does not hold our {name}=")
        if launch.unset:
            gone = self._facts.properties("Service", ["UnsetEnvironment"])["UnsetEnvironment"]
            if missing := sorted(set(launch.unset) - set(gone)):
                raise DropInConflict(f"{self._host}: systemd does not unset our {missing[0]}")
        if self._facts.state().need_reload:
            raise DropInConflict(f"{self._host}: {self._unit} changed while it was written")
        if warnings := self._facts.verify():
            raise DropInConflict(f"{self._host}: systemd-analyze objects: {warnings}")

    def has_ours(self) -> bool:
        """Whether systemd has read a drop-in of ours."""
        return any(path.rpartition("/")[2] == DROPIN_NAME for path in self._facts.drop_ins())

    def prove_back(self, record: UnitRecord) -> None:
        """Raises RestoreFailed when the unit is not as the record says."""
        original = record.original
        state = self._facts.state()
        where = self.where
        if self.has_ours():
            raise RestoreFailed(f"{where}: the tuner's drop-in is still there")
        if self._facts.cat() != original.fragment or self._facts.files() != original.files:
            raise RestoreFailed(
                f"{where}: its files are not those of the beginning",
                hint="somebody changed them meanwhile; nothing of the tuner is left in them",
            )
        if self.one_command().argv != original.launch.texts():
            raise RestoreFailed(f"{where}: systemd does not hold the original command line")
        if not original.active:
            if state.active_state not in _ENDED:
                raise RestoreFailed(f"{where}: it was stopped before and is {state.active_state}")
            return
        process = self._facts.process(state.main_pid) if state.main_pid else None
        if state.active_state != "active" or process is None:
            raise RestoreFailed(f"{where}: it is {state.active_state}/{state.sub_state}")
        if original.live_argv and process.argv != original.live_argv:
            raise RestoreFailed(f"{where}: it runs, but not with the original command line")
        listener = self._facts.listener(self._port) if self._port else None
        if self._port and (listener is None or not (listener.belongs or record.listen == "any")):
            raise RestoreFailed(f"{where}: it does not listen on port {self._port}")


def is_refusal(state: UnitState) -> bool:
    """Whether systemd could not run the program at all: the parameters are not at fault."""
    before_program = (
        state.result == "exit-code" and _EXIT_EXEC_FIRST <= state.main_status <= _EXIT_EXEC_LAST
    )
    return before_program or state.result not in _PROGRAM_RESULTS


def not_started(
    where: str, state: UnitState, tail: tuple[str, ...]
) -> ServerStartError | UnitError:
    """Whose fault it is that a start ended before it was one.

    Args:
        tail: The log of that start.
    """
    ending = f"result {state.result}, status {state.main_status}"
    message = f"{where} ended at once ({ending})"
    if is_refusal(state):
        return UnitError(message, hint=tail[-1] if tail else "")
    return ServerStartError(message, log_tail=tail)


def _first_difference(wanted: tuple[str, ...], held: tuple[str, ...]) -> str:
    for position, (one, other) in enumerate(zip(wanted, held, strict=False)):
        if one != other:
            return f"word {position} is {other!r}, not {one!r}"
    return f"{len(held)} words, not {len(wanted)}"
