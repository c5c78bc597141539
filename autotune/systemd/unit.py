"""Facts of one unit on one host: commands go out, values come back, nothing is changed."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from autotune.errors import CommandError, TargetError, UnitRefused
from autotune.remote.connector import Connector
from autotune.supervisors.base import Listener, ProcessFacts
from autotune.systemd.agent import Agent, restore_units
from autotune.systemd.dropin import DROPIN_NAME
from autotune.systemd.environment import UnitEnvironment, unit_environment
from autotune.systemd.facts import (
    ExecCommand,
    UnitState,
    bus_command,
    exec_commands,
    parse_bus,
    parse_show,
    parse_version,
    show_command,
    unit_state,
)
from autotune.systemd.gpus import GpuRoom, gpu_room, occupied
from autotune.systemd.logs import FILE_KINDS, written_outputs

__all__ = ["UnitFacts", "parse_listeners", "parse_process"]

OLDEST_SYSTEMD = 244
"""ExecStartEx over D-Bus (243) and Restart= of a oneshot service (244), systemd's NEWS."""


class UnitFacts:
    """Reads one unit."""

    def __init__(self, connector: Connector, agent: Agent, unit: str) -> None:
        self._connector = connector
        self._agent = agent
        self._unit = unit

    def require_version(self) -> None:
        """Raises UnitRefused when the host's systemd is too old."""
        version = parse_version(self._text(["systemctl", "--version"]))
        if version < OLDEST_SYSTEMD:
            raise UnitRefused(
                f"{self._connector.host} runs systemd {version}",
                hint=f"systemd {OLDEST_SYSTEMD} or newer is needed",
            )

    def state(self) -> UnitState:
        """The unit now."""
        return unit_state(self._text(show_command(self._unit)))

    def restorer_state(self) -> str:
        """ActiveState of the service that puts the unit back."""
        service, _ = restore_units(self._unit)
        argv = ["systemctl", "show", "--no-pager", "--property=ActiveState", "--", service]
        return parse_show(self._text(argv)).get("ActiveState", "")

    def commands(self) -> tuple[ExecCommand, ...]:
        """The commands of ExecStart= as systemd holds them."""
        return exec_commands(self.properties("Service", ["ExecStartEx"])["ExecStartEx"])

    def properties(self, interface: str, names: Sequence[str]) -> dict[str, Any]:
        """Properties over D-Bus: exact values."""
        argv = bus_command(self._unit, interface, names)
        return parse_bus(self._text(argv), names)

    def drop_ins(self) -> tuple[str, ...]:
        """Paths of the drop-ins, in the order in which they count."""
        return tuple(self.properties("Unit", ["DropInPaths"])["DropInPaths"])

    def files(self) -> dict[str, str]:
        """Path and SHA-256 of each file that defines the unit; ours is left out, and a missing
        environment file is `missing`."""
        unit = self.properties("Unit", ["FragmentPath", "DropInPaths"])
        service = self.properties("Service", ["EnvironmentFiles"])
        paths = [unit["FragmentPath"], *unit["DropInPaths"]]
        paths += [path for path, _ in service["EnvironmentFiles"]]
        paths = [path for path in dict.fromkeys(paths) if path and "\n" not in path]
        paths = [path for path in paths if path.rpartition("/")[2] != DROPIN_NAME]
        listed = "".join(path + "\n" for path in paths)
        hashes = self._agent.call("hash", payload=listed.encode()).decode().splitlines()
        return dict(zip(paths, hashes, strict=True))

    def environment(self) -> UnitEnvironment:
        """The variables that the unit sets.

        Raises:
            UnitRefused: A file is given by a pattern, so nobody knows which files count next time.
        """
        names = ["Environment", "EnvironmentFiles", "UnsetEnvironment"]
        found = self.properties("Service", names)
        for path, _ in found["EnvironmentFiles"]:
            if set(path) & set("*?["):
                raise UnitRefused(
                    f"{self._connector.host}: {self._unit}: EnvironmentFile={path} is a pattern: "
                    "which files it means may change between two starts",
                    hint="name each file",
                )
        texts = self.texts([path for path, _ in found["EnvironmentFiles"]])
        return unit_environment(
            found["Environment"],
            [text.decode(errors="surrogateescape") for text in texts.values() if text is not None],
            found["UnsetEnvironment"],
        )

    def outputs(self) -> tuple[str, str]:
        """`StandardOutput=` and `StandardError=`; systemd tells their kind, the unit's text the
        path."""
        state = self.state()
        said = (state.standard_output, state.standard_error)
        if any(kind in FILE_KINDS for kind in said):
            return written_outputs(self.cat(), *said)
        return said

    def texts(self, paths: Sequence[str]) -> dict[str, bytes | None]:
        """The first 64 KiB of files, None of those that are not there."""
        paths = [path for path in dict.fromkeys(paths) if path and "\n" not in path]
        if not paths:
            return {}
        listed = "".join(path + "\n" for path in paths)
        lines = self._agent.call("texts", payload=listed.encode()).decode().splitlines()
        return {
            path: None if line == "-" else base64.b64decode(line)
            for path, line in zip(paths, lines, strict=True)
        }

    def stopped_with_it(self) -> list[str]:
        """Active units that a stop of this one would stop too, and its start not bring back."""
        names = ["RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf"]
        others = sorted(
            {unit for found in self.properties("Unit", names).values() for unit in found}
        )
        if not others:
            return []
        argv = ["systemctl", "show", "--no-pager", "--property=Id,ActiveState", "--", *others]
        blocks = [parse_show(block) for block in self._text(argv).split("\n\n")]
        return [b["Id"] for b in blocks if b.get("ActiveState") in ("active", "activating")]

    def sockets(self) -> list[str]:
        """Socket units that start this one."""
        found = self.properties("Unit", ["TriggeredBy"])["TriggeredBy"]
        return [unit for unit in found if unit.endswith(".socket")]

    def is_of_a_user(self) -> bool:
        """Whether a unit of this name exists for users' own managers."""
        places = ["/etc/systemd/user", "/usr/lib/systemd/user", "/root", "/home"]
        argv = ["find", *places, "-maxdepth", "5", "-path", f"*systemd/user/{self._unit}"]
        return bool(self._connector.run(argv).stdout.strip())

    def cat(self) -> str:
        """Text of `systemctl cat`."""
        return self._agent.call("cat").decode(errors="surrogateescape")

    def masked(self) -> bool:
        """Whether a file in /etc hides our drop-in."""
        return bool(self._agent.call("masked").strip())

    def verify(self) -> str:
        """Lines of `systemd-analyze verify` that name our drop-in; "" when it finds nothing to say
        or is not there."""
        argv = ["systemd-analyze", "verify", "--man=no", "--", self._unit]
        completed = self._connector.run(argv)
        said = completed.stderr.decode(errors="replace").splitlines()
        return "\n".join(line for line in said if DROPIN_NAME in line)

    def process(self, pid: int) -> ProcessFacts | None:
        """One process, None when it is gone."""
        try:
            return parse_process(pid, self._agent.call("proc", str(pid)))
        except ProcessLookupError:
            return None

    def listener(self, port: int) -> Listener | None:
        """Who listens on a port."""
        text = self._agent.call("owners", str(port)).decode(errors="replace")
        return parse_listeners(text, group=self.state().control_group)

    def left(self, group: str) -> str:
        """Processes of a control group, for people; "" when it is empty or gone."""
        if not group:
            return ""
        text = self._agent.call("left", payload=group.encode() + b"\n").decode(errors="replace")
        return "; ".join(_described(line) for line in text.split("\n") if line)

    def gpu_room(self, *, running: bool) -> GpuRoom:
        """How much memory of each GPU may be in use once the service has ended.

        Args:
            running: Whether the service runs now.
        """
        return gpu_room(self._gpus(), running=running)

    def occupied(self, room: GpuRoom) -> str:
        """What is left on the GPUs of a service that has ended, "" when nothing is."""
        return occupied(self._gpus(), room) if room else ""

    def _gpus(self) -> str:
        return self._agent.call("gpus").decode(errors="replace")

    def _text(self, argv: Sequence[str]) -> str:
        completed = self._connector.run(argv)
        try:
            return completed.checked().text
        except CommandError as error:
            if completed.exit_status == 127:
                raise UnitRefused(
                    f"{self._connector.host} has no {argv[0]}",
                    hint="the supervisor `systemd` needs a host that systemd runs",
                ) from error
            raise


def parse_process(pid: int, answer: bytes) -> ProcessFacts:
    """The agent's answer about one process: command line and environment in base64, the kernel's
    stat line, clock ticks per second.

    Raises:
        TargetError: The answer has another shape.
    """
    try:
        cmdline, environ, stat, ticks = answer.decode(errors="replace").rstrip("\n").split("\n")
        argv = _zero_separated(base64.b64decode(cmdline))
        variables = (word.partition("=") for word in _zero_separated(base64.b64decode(environ)))
        # Field 22 of proc(5) stat; the name in field 2 may hold blanks and brackets.
        started_ticks = int(stat[stat.rindex(")") + 2 :].split()[19])
        return ProcessFacts(
            pid,
            argv,
            {name: value for name, equals, value in variables if equals},
            started_ticks / int(ticks),
        )
    except (ValueError, IndexError) as error:
        raise TargetError(f"the host's answer about process {pid} cannot be read") from error


def parse_listeners(text: str, *, group: str) -> Listener | None:
    """The agent's answer about a port: `PID, cgroup, uid, command line`, one owner a line.

    Args:
        group: Control group of our unit, "" when it has none now.
    """
    owners = [line.split("\t") for line in text.split("\n") if line.count("\t") >= 3]
    if not owners:
        return None
    own = [owner for owner in owners if group and _inside(owner[1], group)]
    pid, *_ = chosen = (own or owners)[0]
    return Listener(int(pid), bool(own), _described("\t".join(chosen)))


def _inside(path: str, group: str) -> bool:
    return path == group or path.startswith(group + "/")


def _described(line: str) -> str:
    pid, group, uid, words = (line.split("\t") + [""] * 4)[:4]
    if pid == "0":
        return "a process that the kernel does not name"
    unit = group.rpartition("/")[2]
    return f"pid {pid} (uid {uid}) of {unit or 'no unit'}: {words.strip()}"


def _zero_separated(raw: bytes) -> tuple[str, ...]:
    if not raw:
        return ()
    return tuple(
        word.decode(errors="surrogateescape") for word in raw.removesuffix(b"\0").split(b"\0")
    )
