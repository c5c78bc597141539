"""The last command of a `sh -c` script: its words, and the same script with other words.

Read is what POSIX calls lists of simple commands (XCU 2.9.1): words with quotes, variables, the
separators `;`, `&&` and line ends, comments.  Whatever else a script does is refused with a reason,
because then nobody but a shell knows which words the server gets.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from autotune.errors import UnitRefused
from autotune.supervisors.base import Word

__all__ = ["ShellWord", "last_command", "rewritten", "script_index"]

_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_RESERVED = frozenset(
    {"if", "then", "else", "elif", "fi", "do", "done", "case", "esac", "while", "until", "for"}
    | {"{", "}", "!", "[[", "function", "select", "time", "coproc", "trap"}
)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_VARIABLE = re.compile(
    # The name goes on behind a line that is continued in it: that is left to the shell.
    r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*+)(?!(?:\\\n)+[A-Za-z0-9_]))"
)
_OPERATORS = ("&&", "||", ";;", ">>", "<<", "|", "&", ";", "(", ")", "<", ">", "\n")
_GLOB = "*?[~{}"
_UNPLAIN = re.compile(r"^\s|\s$|[*?\[\\]")
"""A value that the shell would join to its neighbours in another way, or match with files."""
_IN_QUOTES = '"\\$`'


@dataclass(frozen=True, slots=True)
class ShellWord:
    """One word of a script.

    Attributes:
        raw: Its text in the script, from `start` to `end`.
        texts: What the shell makes of it, mostly one word; None when only a shell knows.
    """

    raw: str
    start: int
    end: int
    texts: tuple[str, ...] | None


@dataclass
class _Reading:
    """A script while it is read."""

    script: str
    environ: Mapping[str, str]
    at: int = 0
    command: list[ShellWord] = field(default_factory=list)
    problem: str = ""


def script_index(words: Sequence[str]) -> int | None:
    """Position of the script of `sh -c SCRIPT`, None when this is no such command."""
    if not words or os.path.basename(words[0]) not in _SHELLS:
        return None
    at = 1
    while at < len(words) - 1 and words[at][:1] in ("-", "+") and len(words[at]) > 1:
        option = words[at]
        if not option.startswith("--") and "c" in option[1:]:
            return at + 1
        at += 2 if option in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file") else 1
    return None


def last_command(script: str, environ: Mapping[str, str]) -> tuple[ShellWord, ...]:
    """Words of the last command, without `exec` and without assignments before it.

    Args:
        environ: Variables of the shell.

    Raises:
        UnitRefused: The script is more than a list of simple commands, or its end is no command
            that becomes the server.
    """
    reading = _Reading(script, environ)
    last: list[ShellWord] = []
    problem = conditional = ""
    while True:
        operator = _next_operator(reading)
        if reading.command:
            last, problem = reading.command, conditional or reading.problem
            first = last[0].raw
            if first in _RESERVED:
                raise _refused(f"it has {first!r}")
            if operator in ("|", "&"):
                problem = f"its last command is followed by {operator!r}"
        if operator in ("(", ")"):
            raise _refused("it has brackets")
        if not operator:
            break
        conditional = f"its last command follows {operator!r}" if operator in ("||", "|") else ""
        reading.command, reading.problem = [], ""
    if problem:
        raise _refused(problem)
    words = last
    while words and _ASSIGNMENT.match(words[0].raw):
        words = words[1:]
    if words and words[0].raw == "exec":
        words = words[1:]
        if words and words[0].raw.startswith("-"):
            raise _refused(f"`exec {words[0].raw}` gives the program another name")
    if not words:
        raise _refused("it has no last command")
    return tuple(words)


def rewritten(script: str, change: Callable[[tuple[Word, ...]], tuple[Word, ...]]) -> str:
    """The script with the words of its last command changed; kept words keep their spelling.

    Raises:
        UnitRefused: See `last_command`; or a word of ours has a `$`, which systemd would read.
    """
    found = last_command(script, {})
    words = tuple(
        Word(
            word.texts[0]
            if word.texts and len(word.texts) == 1 and "$" not in word.raw
            else word.raw
        )
        for word in found
    )
    spelled = {id(word): shell.raw for word, shell in zip(words, found, strict=True)}
    pieces = []
    for word in change(words):
        if id(word) not in spelled and "$" in word.text:
            raise _refused(f"{word.text!r} cannot be written into it")
        pieces.append(spelled.get(id(word)) or shlex.quote(word.text))
    return script[: found[0].start] + " ".join(pieces) + script[found[-1].end :]


def _refused(why: str) -> UnitRefused:
    return UnitRefused(
        f"the shell script in ExecStart is more than a list of commands: {why}",
        hint="let it end with `exec` and the server's own command line, nothing behind it",
    )


def _next_operator(reading: _Reading) -> str:
    """Read words up to the next operator, and that; "" at the end of the script."""
    script = reading.script
    while reading.at < len(script):
        character = script[reading.at]
        if script.startswith("\\\n", reading.at):
            reading.at += 2
        elif character in " \t\r":
            reading.at += 1
        elif character == "#":
            end = script.find("\n", reading.at)
            reading.at = len(script) if end < 0 else end
        elif operator := next((o for o in _OPERATORS if script.startswith(o, reading.at)), ""):
            reading.at += len(operator)
            if operator[0] not in "<>":
                return operator
            reading.problem = "the output or input of its last command is redirected"
            while script[reading.at : reading.at + 1] in ("&", " ", "\t"):
                reading.at += 1
            if script[reading.at : reading.at + 1] not in ("", "\n", ";"):
                _word(reading)
        else:
            reading.command.append(_word(reading))
    return ""


def _word(reading: _Reading) -> ShellWord:
    """Read one word; `reading.at` is at its first character."""
    script, start = reading.script, reading.at
    known = True
    words: list[str] = []
    text: str | None = None
    while reading.at < len(script):
        at = reading.at
        character = script[at]
        if character in " \t\r\n;&|()<>":
            break
        if character == "\\":
            if script.startswith("\\\n", at):
                reading.at += 2
                continue
            text = (text or "") + script[at + 1 : at + 2]
            reading.at += 2
        elif character == "'":
            end = script.find("'", at + 1)
            if end < 0:
                raise _refused("a quote is not closed")
            text = (text or "") + script[at + 1 : end]
            reading.at = end + 1
        elif character == '"':
            piece = _double_quoted(reading)
            known = known and piece is not None
            text = (text or "") + (piece or "")
        elif character == "$":
            value = _variable(reading)
            if value is None:
                known = False
                continue
            known = known and not _UNPLAIN.search(value)
            for count, piece in enumerate(value.split()):
                if count:
                    words.append(text or "")
                    text = None
                text = (text or "") + piece
        else:
            known = known and character not in _GLOB + "`"
            text = (text or "") + character
            reading.at += 1
    if text is not None:
        words.append(text)
    raw = script[start : reading.at]
    return ShellWord(raw, start, reading.at, tuple(words) if known else None)


def _double_quoted(reading: _Reading) -> str | None:
    """The text between double quotes, None when only a shell knows it."""
    script = reading.script
    reading.at += 1
    text = ""
    known = True
    while reading.at < len(script):
        character = script[reading.at]
        if character == '"':
            reading.at += 1
            return text if known else None
        if character == "\\" and script[reading.at + 1 : reading.at + 2] in (*_IN_QUOTES, "\n"):
            text += script[reading.at + 1].replace("\n", "")
            reading.at += 2
        elif character == "$":
            value = _variable(reading)
            known = known and value is not None
            text += value or ""
        else:
            known = known and character != "`"
            text += character
            reading.at += 1
    raise _refused("a quote is not closed")


def _variable(reading: _Reading) -> str | None:
    """The value at a `$`, None for what is no plain variable."""
    found = _VARIABLE.match(reading.script, reading.at)
    if found is None:
        reading.at += 1
        return None
    reading.at = found.end()
    return reading.environ.get(found[1] or found[2], "")
