"""Where each flag of a study really lives, found before anything is changed.

::

    the words of ExecStart          edited in place
    a variable, `$ARGS`             its words take its place in our command line; the variable and
                                    the file that sets it are not touched
    the script of a `bash -c`       edited in our copy of the script
    a wrapper script, a fixed       refused: the message shows the line
    value behind the unit's words

What is asked is always the running process: a flag that it has and that none of these places gives
lives somewhere else, and a drop-in would not change it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from autotune.errors import UnitRefused
from autotune.passage import read_words
from autotune.sglang.flags import first_argument, get_flag
from autotune.sglang.masking import masked_words
from autotune.supervisors.base import Original, Word
from autotune.systemd.expand import split_words

__all__ = ["Flag", "nearest_flag", "resolved"]

_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_ONE_ARGUMENT = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_BROKEN = re.compile(r"\\\s+#")
"""A continuation that is none: in a shell the comment ends the command."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag that the study sets: tuned, fixed or the nonce's.

    Attributes:
        removable: Whether some start leaves it out.
    """

    name: str
    aliases: tuple[str, ...] = ()
    removable: bool = False

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


def resolved(
    original: Original, flags: Iterable[Flag], *, known_flags: frozenset[str] = frozenset()
) -> tuple[Word, ...]:
    """The unit's own words, with each variable that carries one of the flags written out.

    The words of a shell script stay in the script.

    Args:
        known_flags: All flags of the engine, for abbreviated ones.

    Raises:
        UnitRefused: A flag lives where it cannot be changed safely.
    """
    flags = tuple(flags)
    argv = original.launch.argv
    passage = original.launch.passage
    _refuse_comments(argv)
    words = read_words(argv, passage)
    if not passage.shell:
        argv = words = _written_out(words, flags, original.environ, known_flags)
    live = tuple(Word(text) for text in original.live_argv)
    in_front = tuple(Word(text) for text in passage.before)
    for flag in flags:
        _refuse_abbreviation(words, flag, known_flags)
        if not live:
            continue
        own = _value(words, flag, known_flags)
        real = _value(live, flag, known_flags)
        beneath = flag.removable and _has(in_front, flag, known_flags)
        if not beneath and (own == real or (own is not None and "$" in own)):
            continue
        raise _elsewhere(flag, own, real, original)
    return argv


def nearest_flag(words: Iterable[Word], flag: str) -> str:
    """The flag among the words that is most like this one, with its value; "" when none is."""
    texts = [word.text for word in words]
    names = [text.partition("=")[0] for text in texts if text.startswith("--")]
    close = difflib.get_close_matches(flag, [name for name in names if name != flag], n=1)
    if not close:
        return ""
    value = get_flag([Word(text) for text in texts], close[0])
    return close[0] if value is None else f"{close[0]} {value}"


def _value(words: tuple[Word, ...], flag: Flag, known: frozenset[str]) -> str | None:
    return get_flag(words, flag.name, flag.aliases, known_flags=known)


def _written_out(
    words: tuple[Word, ...],
    flags: tuple[Flag, ...],
    environ: Mapping[str, str],
    known: frozenset[str],
) -> tuple[Word, ...]:
    result: list[Word] = []
    for word in words:
        variable = _VARIABLE.fullmatch(word.text) if not word.ours else None
        inside = split_words(environ.get(variable[1], "")) if variable else []
        carried = tuple(Word(text, ours=True) for text in inside)
        # The first word of a command line is a program: flags are looked for behind it.
        if any(_has((Word("program"), *carried), flag, known) for flag in flags):
            if masked_words(inside) != tuple(inside):
                raise UnitRefused(
                    f"{word.text} holds a key beside a tuned flag, and a drop-in with its words "
                    "could be read by everybody",
                    hint="give the key by a variable of its own",
                )
            result.extend(carried)
        else:
            _refuse_one_argument(word, flags, environ)
            result.append(word)
    return tuple(result)


def _has(words: tuple[Word, ...], flag: Flag, known: frozenset[str]) -> bool:
    texts = [word.text.partition("=")[0] for word in words]
    return any(spelling in texts for spelling in flag.spellings) or (
        _value(words, flag, known) is not None
    )


def _refuse_one_argument(word: Word, flags: tuple[Flag, ...], environ: Mapping[str, str]) -> None:
    found = _ONE_ARGUMENT.fullmatch(word.text) if not word.ours else None
    inside = split_words(environ.get(found[1], "")) if found else []
    if (
        found is not None
        and len(inside) > 1
        and any(text.partition("=")[0] in flag.spellings for text in inside for flag in flags)
    ):
        raise UnitRefused(
            f"systemd gives {word.text} to the server as one single argument, with all of "
            f"{len(inside)} words in it",
            hint=f"write ${found[1]}, which is split at blanks",
        )


def _refuse_comments(argv: tuple[Word, ...]) -> None:
    """`# ...` behind an argument of ExecStart is no comment: systemd gives its words on."""
    for before, word in pairwise(argv):
        if word.text.startswith("#") and not before.text.startswith("-"):
            raise UnitRefused(
                f"ExecStart has a comment at the end of a line, which systemd gives to the server "
                f"as arguments: {word.text!r} behind {before.text!r}",
                hint="write comments on lines of their own",
            )


def _refuse_abbreviation(words: tuple[Word, ...], flag: Flag, known: frozenset[str]) -> None:
    """Without the engine's own list nobody knows what an abbreviated flag means."""
    if known:
        return
    for word in words[first_argument(words) :]:
        name = word.text.partition("=")[0]
        short = name.startswith("--") and len(name) > 3 and name not in flag.spellings
        if short and any(spelling.startswith(name) for spelling in flag.spellings):
            raise UnitRefused(
                f"{name} may be an abbreviation of {flag.name}, and the server does not run, so "
                "nobody can be asked",
                hint="write the flag in full, or start the service first",
            )


def _elsewhere(flag: Flag, own: str | None, real: str | None, original: Original) -> UnitRefused:
    """The running server has another value than the unit's words give it."""
    has = f"{flag.name} {real}" if real is not None else f"no {flag.name}"
    gives = f"gives it {own}" if own is not None else "does not give it"
    lines = _lines_of(original.scripts, flag)
    if real is not None and lines:
        return UnitRefused(
            f"the server has {has}, which stands in a script: {'; '.join(lines)}",
            hint=f"take it out there and write {flag.name} behind the script's name in ExecStart",
        )
    if own is None and _VARIABLE.search(" ".join(original.launch.texts())):
        return UnitRefused(
            f"the server has {has}, which comes from a variable whose value cannot be read, "
            "not from the words of ExecStart",
            hint="write the flag itself into ExecStart, then run again",
        )
    return UnitRefused(
        f"the server has {has}, but ExecStart {gives}",
        hint="restart the service so that it runs what its unit says, then run again"
        if own is not None
        else "write the flag into ExecStart, restart the service, then run again",
    )


def _lines_of(scripts: Mapping[str, str], flag: Flag) -> list[str]:
    found = []
    for path, text in scripts.items():
        lines = text.split("\n")
        for number, line in enumerate(lines, start=1):
            if line.lstrip().startswith("#"):
                continue
            if any(re.search(rf"{re.escape(s)}(?![\w-])", line) for s in flag.spellings):
                found.append(f"{path}:{number}: {line.strip()}")
        broken = next((n for n, line in enumerate(lines, start=1) if _BROKEN.search(line)), None)
        if found and broken is not None:
            found.append(f"line {broken} ends the command with a comment")
    return found
