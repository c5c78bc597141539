"""The drop-in that makes one command line the next start's: its text and what it must give.

Quoting rules (systemd.service(5) "Command lines", systemd.syntax(7) "Quoting", systemd.unit(5)
"Specifiers"): a word in double quotes with C escapes is taken whole; `%` begins a specifier and is
doubled; `$` begins a variable and is doubled only in words that we write, because an inherited word
must go on meaning what it meant.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from autotune.errors import UnitRefused
from autotune.supervisors.base import Launch
from autotune.systemd.facts import ExecCommand

__all__ = [
    "DROPIN_NAME",
    "ENV",
    "EXPORT_NAME",
    "NO_LINE_LOST",
    "dropin_path",
    "export_path",
    "held_argv",
    "mask_path",
    "quote",
    "render",
]

DROPIN_NAME = "zzzz-autotune.conf"
"""Drop-ins are read in the order of their file names, whatever their folder: ours is last."""

EXPORT_NAME = "zzz-autotune-export.conf"
"""Where an applied export stays: after the user's own drop-ins, before those of trials."""

HEADER = """\
# Written by autotune for the trial that runs now. It goes away by itself: when the tuner ends,
# when it is silent for too long, and at every reboot. `autotune revert` takes it away at once.
"""

ENV = "/usr/bin/env"

NO_LINE_LOST = ("LogRateLimitIntervalSec=1s", "LogRateLimitBurst=1000000")
"""Journald drops what is above a unit's limit, and the line that says ready may be among it.  An
interval of 0 would not do: systemd does not tell journald of it, and the unit's burst stays."""

_SIGNS = {
    "ignore-failure": "-",
    "no-env-expand": ":",
    "privileged": "+",
    "no-setuid": "!",
    "ambient": "!!",
}
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def dropin_path(unit: str) -> str:
    """Where our drop-in lies: forgotten by a reboot."""
    return f"/run/systemd/system/{unit}.d/{DROPIN_NAME}"


def export_path(unit: str) -> str:
    """Where an applied export lies: it outlives a reboot."""
    return f"/etc/systemd/system/{unit}.d/{EXPORT_NAME}"


def mask_path(unit: str) -> str:
    """A file there would hide our drop-in."""
    return f"/etc/systemd/system/{unit}.d/{DROPIN_NAME}"


def quote(text: str) -> str:
    """One word for a unit file, `%` doubled and everything else literal.

    Raises:
        UnitRefused: It holds a NUL or bytes that are not UTF-8, which a unit file cannot carry.
    """
    pieces: list[str] = []
    for character in text.replace("%", "%%"):
        if character == "\0" or "\ud800" <= character <= "\udfff":
            raise UnitRefused(
                f"the word {text!r} cannot be written into a unit file",
                hint="only UTF-8 text without NUL can be an argument of a unit",
            )
        if character in _ESCAPES:
            pieces.append(_ESCAPES[character])
        elif ord(character) < 0x20 or ord(character) == 0x7F:
            pieces.append(f"\\x{ord(character):02x}")
        else:
            pieces.append(character)
    return '"' + "".join(pieces) + '"'


def held_argv(
    launch: Launch, *, expands: bool, from_files: Collection[str] = ()
) -> tuple[str, ...]:
    """The words that systemd must hold (over D-Bus) once it has read the drop-in.

    Args:
        expands: Whether systemd replaces variables in this command; then `$` of ours is doubled.
        from_files: Variables that files of the unit set.  `Environment=` does not override those
            (systemd.exec(5)), so ours come by `env`, which executes the rest.
    """
    given = [
        f"{name}={value}"
        for name, value in sorted(launch.environment.items())
        if name in from_files
    ]
    words = [
        word.text.replace("$", "$$") if word.ours and expands else word.text for word in launch.argv
    ]
    if not given:
        return tuple(words)
    return (ENV, *(text.replace("$", "$$") if expands else text for text in given), *words)


def render(
    launch: Launch,
    command: ExecCommand,
    *,
    header: str = HEADER,
    from_files: Collection[str] = (),
    lines: Sequence[str] = (),
) -> str:
    """Text of the drop-in.

    Args:
        command: The unit's own command: its program and its prefixes are kept.
        from_files: See `held_argv`.
        lines: More lines of the service's section.

    Raises:
        UnitRefused: A word or a variable cannot be written into a unit file.
    """
    words = held_argv(launch, expands=command.expands, from_files=from_files)
    if not words:
        raise UnitRefused("a command line needs at least one word")
    kept = words[0] == command.argv[0]
    if words[0] == ENV and not kept and command.path != command.argv[0]:
        raise UnitRefused(
            f"a file of EnvironmentFile= sets a tuned variable, and ExecStart gives its program "
            f"another name ({command.argv[0]!r})",
            hint="write Environment= into the unit instead of the line in the file",
        )
    path = command.path if kept else words[0]
    signs = "".join(sign for flag, sign in _SIGNS.items() if flag in command.flags)
    if path != words[0]:
        signs += "@"
        words = (path, *words)
    line = "ExecStart=" + signs + " ".join(quote(word) for word in words)
    more = [*_environment(launch, from_files), *lines]
    return f"{header}[Service]\nExecStart=\n{line}\n{''.join(one + chr(10) for one in more)}"


def _environment(launch: Launch, from_files: Collection[str]) -> list[str]:
    for name in (*launch.environment, *launch.unset):
        if not _VARIABLE.fullmatch(name):
            raise UnitRefused(f"{name!r} is no name of an environment variable")
    lines = [
        "Environment=" + quote(f"{name}={value}")
        for name, value in sorted(launch.environment.items())
        if name not in from_files
    ]
    return [*lines, *(f"UnsetEnvironment={name}" for name in sorted(launch.unset))]
