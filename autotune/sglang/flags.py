"""Editing flags in an argument vector, word by word, without touching what is not ours.

Only the words after the program count: after `-m sglang.launch_server`, after `sglang serve`, after
a script.  What stands before (`env`, `numactl -m 0`, the interpreter's own flags) has flags of its
own.  The rules are argparse's: `--flag value` or `--flag=value`, an unambiguous beginning of a flag
is the flag, the last of several counts, `--` ends the flags.  Underscores and dashes differ.

Only flags with one value, or none (a switch), are edited.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from autotune.errors import UnitRefused
from autotune.supervisors.base import Word

__all__ = ["Found", "find", "first_argument", "get_flag", "has_flag", "set_flag"]

_SHORTEST_PREFIX = 4
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
_ENGINE_MODULE = re.compile(r"sglang(?:\.[\w.]+)?")
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")


@dataclass(frozen=True, slots=True)
class Found:
    """One flag as it stands in an argument vector.

    Attributes:
        index: Position of the word that holds the flag.
        words: Words that belong to it, 1 or 2.
        spelling: The flag as it is written there.
        value: Its value, None for a switch or a flag whose value is missing.
        inline: Whether flag and value are one word, `--flag=value`.
        times: How often the flag is given; the last one counts and is this one.
    """

    index: int
    words: int
    spelling: str
    value: str | None
    inline: bool
    times: int = 1


def first_argument(argv: Sequence[Word]) -> int:
    """Position of the first word that the program itself reads as an argument."""
    texts = [word.text for word in argv]
    for at, text in enumerate(texts):
        glued = text.startswith("-m") and _ENGINE_MODULE.fullmatch(text[2:])
        named = text == "-m" and at + 1 < len(texts) and _ENGINE_MODULE.fullmatch(texts[at + 1])
        if glued or named:
            return at + (1 if glued else 2)
        if os.path.basename(text) == "sglang" and texts[at + 1 : at + 2] == ["serve"]:
            return at + 2
    return _after_interpreter(texts)


def find(
    argv: Sequence[Word],
    flag: str,
    aliases: Collection[str] = (),
    *,
    known_flags: Collection[str] = (),
    switch: bool = False,
) -> Found | None:
    """The occurrence of a flag that counts, None when it is not given.

    Args:
        argv: The whole argument vector.
        flag: The flag with its dashes.
        aliases: Other spellings of the same flag.
        known_flags: All flags of the engine.  Abbreviations are only recognised when they are
            given, since without them nobody knows what is ambiguous.
        switch: The flag takes no value.
    """
    found = list(_occurrences(argv, flag, aliases, known_flags=known_flags, switch=switch))
    if not found:
        return None
    last = found[-1]
    return Found(last.index, last.words, last.spelling, last.value, last.inline, len(found))


def get_flag(
    argv: Sequence[Word],
    flag: str,
    aliases: Collection[str] = (),
    *,
    known_flags: Collection[str] = (),
) -> str | None:
    """The value of a flag, None when it is not given or has none."""
    found = find(argv, flag, aliases, known_flags=known_flags)
    return found.value if found else None


def has_flag(
    argv: Sequence[Word],
    flag: str,
    aliases: Collection[str] = (),
    *,
    known_flags: Collection[str] = (),
) -> bool:
    """Whether a switch is given."""
    return find(argv, flag, aliases, known_flags=known_flags, switch=True) is not None


def set_flag(
    argv: Sequence[Word],
    flag: str,
    aliases: Collection[str] = (),
    value: str | bool | None = None,
    *,
    known_flags: Collection[str] = (),
    switch: bool = False,
) -> tuple[Word, ...]:
    """The argument vector with one flag changed.

    Args:
        argv: The whole argument vector.
        flag: The flag, in the spelling to write when it is not there yet.
        aliases: Other spellings; one that is already used is kept.
        value: The new value; True and False set and clear a switch; None removes the flag.
        known_flags: All flags of the engine, see `find`.
        switch: For None: the flag takes no value, so the word after it stays.

    Returns:
        All words.  Words that did not have to change are the same objects.

    Raises:
        UnitRefused: The flag is given with more than one value.
    """
    switch = switch or isinstance(value, bool)
    found = list(_occurrences(argv, flag, aliases, known_flags=known_flags, switch=switch))
    if not switch:
        for one in found:
            _refuse_list(argv, one, flag)
    last = found[-1] if found else None
    keep = last is not None and value is not None and value is not False
    dropped = {
        at
        for one in found
        if not (keep and one is last)
        for at in range(one.index, one.index + one.words)
    }
    words: list[Word] = []
    for at, word in enumerate(argv):
        if keep and last is not None and last.index <= at < last.index + last.words:
            if at == last.index:
                words += _rewritten(argv, last, flag, aliases, value)
        elif at not in dropped:
            words.append(word)
    if last is None and value is not None and value is not False:
        end = _end_of_flags(words)
        words[end:end] = _written(flag, value)
    return tuple(words)


def _rewritten(
    argv: Sequence[Word],
    found: Found,
    flag: str,
    aliases: Collection[str],
    value: str | bool | None,
) -> list[Word]:
    """The words of an existing flag with the new value, in the form that was there."""
    full = found.spelling in (flag, *aliases)
    old = list(argv[found.index : found.index + found.words])
    if isinstance(value, bool) or value is None:
        return old if full and not found.inline else [Word(flag, ours=True)]
    # An inherited `$` is a reference, one of ours is a dollar sign: equal text, other meaning.
    same = found.value == value and all(word.ours or "$" not in word.text for word in old)
    if same and full:
        return old
    spelling = found.spelling if full else flag
    if found.inline or not _is_value(value):
        return [Word(f"{spelling}={value}", ours=True)]
    return [old[0] if full else Word(flag, ours=True), Word(value, ours=True)]


def _written(flag: str, value: str | bool) -> list[Word]:
    if isinstance(value, bool):
        return [Word(flag, ours=True)]
    if not _is_value(value):
        return [Word(f"{flag}={value}", ours=True)]
    return [Word(flag, ours=True), Word(value, ours=True)]


def _occurrences(
    argv: Sequence[Word],
    flag: str,
    aliases: Collection[str],
    *,
    known_flags: Collection[str],
    switch: bool,
) -> Iterator[Found]:
    names = (flag, *aliases)
    end = _end_of_flags(argv)
    at = first_argument(argv)
    while at < end:
        spelling, equals, inline_value = argv[at].text.partition("=")
        if not _names(spelling, names, known_flags):
            at += 1
            continue
        if equals:
            found = Found(at, 1, spelling, inline_value, inline=True)
        elif not switch and at + 1 < end and _is_value(argv[at + 1].text):
            found = Found(at, 2, spelling, argv[at + 1].text, inline=False)
        else:
            found = Found(at, 1, spelling, None, inline=False)
        yield found
        at += found.words


def _names(word: str, names: Collection[str], known_flags: Collection[str]) -> bool:
    """Whether argparse takes this word for one of these flags."""
    if word in names:
        return True
    if not word.startswith("--") or len(word) < _SHORTEST_PREFIX or not known_flags:
        return False
    if not any(name.startswith(word) for name in names):
        return False
    return not any(other.startswith(word) for other in known_flags if other not in names)


def _is_value(text: str) -> bool:
    return not text.startswith("-") or text == "-" or bool(_NEGATIVE_NUMBER.fullmatch(text))


def _end_of_flags(argv: Sequence[Word]) -> int:
    for at in range(first_argument(argv), len(argv)):
        if argv[at].text == "--":
            return at
    return len(argv)


def _refuse_list(argv: Sequence[Word], found: Found, flag: str) -> None:
    after = found.index + found.words
    if found.inline or found.words == 1 or after >= _end_of_flags(argv):
        return
    text = argv[after].text
    # `$ARGS` after a value holds further flags, not a second value.
    if _is_value(text) and not text.startswith("$"):
        raise UnitRefused(
            f"{flag} is given with several values: {found.value} {text} ...",
            hint="only flags with one value can be tuned; write it once as --flag=value",
        )


def _after_interpreter(texts: Sequence[str]) -> int:
    """First argument behind `python -m module` or `python script.py`, else behind the program."""
    for at, text in enumerate(texts):
        if not _PYTHON.fullmatch(os.path.basename(text)):
            continue
        inner = at + 1
        while inner < len(texts):
            word = texts[inner]
            if word == "-m":
                return min(inner + 2, len(texts))
            if word in ("-X", "-W"):
                inner += 2
            elif word.startswith("-"):
                inner += 1
            else:
                return inner + 1
        return len(texts)
    return min(1, len(texts))
