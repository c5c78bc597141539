"""What systemd says about a unit, as values.

A fact is a command and a pure parser.  Only single-line properties are taken from `systemctl show`;
command lines come from D-Bus, where every word is an exact string (`%` resolved, `$` not).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import TargetError
from autotune.supervisors.base import Identity

__all__ = [
    "SHOWN",
    "ExecCommand",
    "UnitState",
    "bus_command",
    "bus_path",
    "exec_commands",
    "parse_bus",
    "parse_show",
    "parse_version",
    "show_command",
    "unit_state",
]

SHOWN = (
    "ActiveState",
    "SubState",
    "Result",
    "ExecMainCode",
    "ExecMainStatus",
    "ExecMainPID",
    "NRestarts",
    "InvocationID",
    "MainPID",
    "FragmentPath",
    "NeedDaemonReload",
    "UnitFileState",
    "Type",
    "ControlGroup",
    "LoadState",
    "User",
    "SourcePath",
    "StandardOutput",
    "StandardError",
    "RefuseManualStart",
    "RefuseManualStop",
)
"""Properties that are asked for: all of them fit on one line."""

_CLD_EXITED = 1
_CLD_KILLED = 2
_CLD_DUMPED = 3
"""si_code of the main process (man 2 sigaction); ExecMainCode is one of them, 0 while it runs."""


@dataclass(frozen=True, slots=True)
class UnitState:
    """A unit at one moment; the words are systemd's (man org.freedesktop.systemd1).

    Attributes:
        last_pid: The newest main process, also after its end.
        source_path: What a generator made the unit from, "" for a unit that somebody wrote.
        standard_output, standard_error: Where they go: `journal`, `append:PATH`, `null` ...
        by_hand: Whether somebody may start and stop it.
    """

    load_state: str
    active_state: str
    sub_state: str
    result: str
    main_code: int
    main_status: int
    last_pid: int
    n_restarts: int
    invocation_id: str
    main_pid: int
    fragment_path: str
    need_reload: bool
    unit_file_state: str
    type: str
    control_group: str
    user: str
    source_path: str = ""
    standard_output: str = ""
    standard_error: str = ""
    by_hand: bool = True

    def identity(self) -> Identity:
        """The part that every supervisor knows."""
        return Identity(
            invocation_id=self.invocation_id,
            main_pid=self.main_pid,
            active_state=self.active_state,
            sub_state=self.sub_state,
            result=self.result,
            n_restarts=self.n_restarts,
            exit_code=self.main_status if self.main_code == _CLD_EXITED else None,
            exit_signal=self.main_status if self.main_code in (_CLD_KILLED, _CLD_DUMPED) else None,
        )


@dataclass(frozen=True, slots=True)
class ExecCommand:
    """One command of a unit as D-Bus shows it (property ExecStartEx).

    Attributes:
        path: The program that is executed.
        argv: All words, `argv[0]` included.
        flags: `ignore-failure` (-), `no-env-expand` (:), `privileged` (+), `no-setuid` (!),
            `ambient` (!!).
    """

    path: str
    argv: tuple[str, ...]
    flags: frozenset[str]

    @property
    def expands(self) -> bool:
        """Whether systemd replaces `$VARIABLE` in the words."""
        return "no-env-expand" not in self.flags


def show_command(unit: str) -> list[str]:
    """The command whose output `unit_state` reads."""
    return ["systemctl", "show", "--no-pager", "--property=" + ",".join(SHOWN), "--", unit]


def parse_show(text: str) -> dict[str, str]:
    """Properties from `systemctl show`: one KEY=VALUE a line."""
    properties: dict[str, str] = {}
    for line in text.split("\n"):
        key, equals, value = line.partition("=")
        if equals and re.fullmatch(r"[A-Za-z]+", key):
            properties[key] = value
    return properties


def unit_state(text: str) -> UnitState:
    """The state of a unit from the output of `show_command`.

    Raises:
        TargetError: A property is missing: this is not the output of that command.
    """
    properties = parse_show(text)
    missing = [name for name in SHOWN if name not in properties]
    # A unit that is not a service, or that is not loaded, has none of the service's properties.
    if "LoadState" in missing or "ActiveState" in missing:
        raise TargetError(f"systemd did not say {', '.join(missing)} of the unit")

    def number(name: str) -> int:
        value = properties.get(name, "")
        return int(value) if value.isdecimal() else 0

    def word(name: str) -> str:
        return properties.get(name, "")

    return UnitState(
        load_state=word("LoadState"),
        active_state=word("ActiveState"),
        sub_state=word("SubState"),
        result=word("Result"),
        main_code=number("ExecMainCode"),
        main_status=number("ExecMainStatus"),
        last_pid=number("ExecMainPID"),
        n_restarts=number("NRestarts"),
        invocation_id=word("InvocationID"),
        main_pid=number("MainPID"),
        fragment_path=word("FragmentPath"),
        need_reload=word("NeedDaemonReload") == "yes",
        unit_file_state=word("UnitFileState"),
        type=word("Type"),
        control_group=word("ControlGroup"),
        user=word("User"),
        source_path=word("SourcePath"),
        standard_output=word("StandardOutput"),
        standard_error=word("StandardError"),
        by_hand="yes" not in (word("RefuseManualStart"), word("RefuseManualStop")),
    )


def bus_path(unit: str) -> str:
    """D-Bus object path of a unit: every character but letters and digits as `_` and two
    hexadecimal digits, a leading digit too (sd_bus_path_encode(3))."""
    label = "".join(
        character
        if character.isascii() and (character.isalpha() or (character.isdigit() and position))
        else "".join(f"_{byte:02x}" for byte in character.encode())
        for position, character in enumerate(unit)
    )
    return f"/org/freedesktop/systemd1/unit/{label}"


def bus_command(unit: str, interface: str, properties: Sequence[str]) -> list[str]:
    """The command whose output `parse_bus` reads; `interface` is `Unit` or `Service`."""
    return [
        "busctl",
        "--json=short",
        "get-property",
        "org.freedesktop.systemd1",
        bus_path(unit),
        f"org.freedesktop.systemd1.{interface}",
        *properties,
    ]


def parse_bus(text: str, properties: Sequence[str]) -> dict[str, Any]:
    """Values of properties: `busctl` prints one JSON object a line, in the order asked for.

    Raises:
        TargetError: The output is something else.
    """
    # Not splitlines(): a word may hold U+0085 or U+2028.
    lines = text.removesuffix("\n").split("\n")
    if len(lines) != len(properties):
        raise TargetError(f"busctl answered {len(lines)} of {len(properties)} properties")
    try:
        return {
            name: json.loads(line)["data"] for name, line in zip(properties, lines, strict=True)
        }
    except (ValueError, KeyError, TypeError) as error:
        raise TargetError(f"busctl answered no JSON: {error}") from error


def exec_commands(value: Any) -> tuple[ExecCommand, ...]:
    """Commands from the value of ExecStartEx, signature `a(sasasttttuii)`.

    Raises:
        TargetError: The value has another shape.
    """
    try:
        return tuple(
            ExecCommand(str(path), tuple(map(str, argv)), frozenset(map(str, flags)))
            for path, argv, flags, *_ in value
        )
    except (TypeError, ValueError) as error:
        raise TargetError(f"systemd answered no command list: {error}") from error


def parse_version(text: str) -> int:
    """Version of systemd from the first line of `systemctl --version`, 0 when it does not say."""
    found = re.match(r"systemd (\d+)", text)
    return int(found[1]) if found else 0
