"""The variables that systemd gives to a service, as far as the unit sets them.

The order is that of systemd.exec(5), "Environment": `Environment=`, then each file of
`EnvironmentFile=` in turn, then `UnsetEnvironment=`.  The syntax of a file is that of
`parse_env_file` in systemd's src/basic/env-file.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["UnitEnvironment", "parse_environment_file", "unit_environment"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_COMMENTS = "#;"
_ESCAPED_IN_QUOTES = '"\\`$'


@dataclass(frozen=True, slots=True)
class UnitEnvironment:
    """Variables of a unit.

    Attributes:
        from_files: Names that a file sets: `Environment=` in a drop-in does not override them.
    """

    variables: Mapping[str, str]
    from_files: frozenset[str]


def unit_environment(
    assignments: Iterable[str], files: Iterable[str], unset: Iterable[str]
) -> UnitEnvironment:
    """What a unit sets.

    Args:
        assignments: `NAME=value` of `Environment=`, as D-Bus has them.
        files: Texts of the files of `EnvironmentFile=` that are there, in order.
        unset: Of `UnsetEnvironment=`: a name, or `NAME=value` to unset only that value.
    """
    variables = dict(_pair(text) for text in assignments)
    from_files: set[str] = set()
    for text in files:
        found = parse_environment_file(text)
        variables.update(found)
        from_files.update(found)
    for one in unset:
        name, equals, value = one.partition("=")
        if not equals or variables.get(name) == value:
            variables.pop(name, None)
    return UnitEnvironment(variables, frozenset(from_files))


def parse_environment_file(text: str) -> dict[str, str]:
    """The variables that a file of `EnvironmentFile=` sets."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        if text[at] in " \t\r\n":
            at += 1
        elif text[at] in _COMMENTS:
            at = _end_of_comment(text, at)
        else:
            name, at = _name(text, at)
            if at < len(text) and text[at] == "=":
                value, at = _value(text, at + 1)
                if _NAME.fullmatch(name):
                    found[name] = value
    return found


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _end_of_comment(text: str, at: int) -> int:
    """Behind a comment; a backslash takes the next line into it."""
    while at < len(text) and text[at] != "\n":
        at += 2 if text[at] == "\\" else 1
    return at + 1


def _name(text: str, at: int) -> tuple[str, int]:
    start = at
    while at < len(text) and text[at] not in "=\n":
        at += 1
    return text[start:at].strip(), at


def _value(text: str, at: int) -> tuple[str, int]:
    """The value that begins at `at`, and where the next line begins.

    Quotes count at the beginning and right behind other quotes; behind a plain character they are
    characters.  Blanks around the value are dropped.
    """
    pieces: list[str] = []
    kept = 0
    plain = False
    while at < len(text) and text[at] not in "\r\n":
        character = text[at]
        if not plain and character in " \t":
            at += 1
            continue
        if not plain and character in "'\"":
            piece, at = _quoted(text, at)
            pieces.append(piece)
            kept = len(pieces)
            continue
        plain = True
        if character == "\\":
            following = text[at + 1 : at + 2]
            at += 2
            if following not in ("\n", ""):
                pieces.append(following)
                kept = len(pieces)
            continue
        pieces.append(character)
        at += 1
        if character not in " \t":
            kept = len(pieces)
    return "".join(pieces[:kept]), at


def _quoted(text: str, at: int) -> tuple[str, int]:
    """Text between quotes, and the position behind them; quotes may span lines."""
    quote, at = text[at], at + 1
    pieces: list[str] = []
    while at < len(text) and text[at] != quote:
        if text[at] == "\\" and quote == '"':
            following = text[at + 1 : at + 2]
            if following in _ESCAPED_IN_QUOTES:
                pieces.append(following)
            elif following != "\n":
                pieces.append("\\" + following)
            at += 2
        else:
            pieces.append(text[at])
            at += 1
    return "".join(pieces), at + 1
