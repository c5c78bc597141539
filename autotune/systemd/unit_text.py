"""The text of a unit file: find the words of its ExecStart=, change some, keep every other byte.

Lines and words are read as systemd reads them (systemd.syntax(7) "Quoting"; `config_parse` in
src/shared/conf-parser.c, `extract_first_word` in src/basic/extract-word.c): a backslash at the end
continues a line, comment lines within are skipped, an empty ExecStart= forgets what came before.
Whatever is read otherwise than systemd holds it is refused, not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from autotune.errors import UnitRefused
from autotune.systemd.dropin import quote

__all__ = ["UnitWord", "exec_words", "rewritten", "sets_command"]

_BLANK = " \t\n\r"
_COMMENT = ("#", ";")
_PREFIX = re.compile(r"[-@:+!|]*")
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]*", re.ASCII)
_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})", re.ASCII)
_SIMPLE = {
    **dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True)),
    "\\": "\\",
    '"': '"',
    "'": "'",
    "s": " ",
}
_CODED = re.compile(
    r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})", re.ASCII
)
_OTHERWISE = "write the flags there by hand, or export without --in-place: a drop-in needs no edit"

Place = tuple[int, int]
"""Where something stands in the file: first character, and the one behind it."""
Read = list[tuple[str, Place]]
"""Characters with their places."""


@dataclass(frozen=True, slots=True)
class UnitWord:
    """One word of a command as it stands in the file.

    Attributes:
        text: Without its quotes, escapes replaced; `%` and `$` as they are written.
        places: Of each character of `text`.
        place: Of the whole word, quotes included.
    """

    text: str
    places: tuple[Place, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class _Edit:
    place: Place
    text: str


def sets_command(text: str) -> bool:
    """Whether a unit file or drop-in says anything about ExecStart=."""
    return any(True for _ in _commands(text))


def exec_words(text: str) -> tuple[UnitWord, ...]:
    """The words of the one command of a unit file, prefixes and `@` name left out.

    Raises:
        UnitRefused: It has none or several, or its text cannot be read safely.
    """
    commands: list[Read] = []
    for value in _commands(text):
        commands = [*commands, value] if value else []
    if len(commands) != 1:
        raise UnitRefused(
            f"the file has {len(commands)} ExecStart= lines that count", hint=_OTHERWISE
        )
    program, *words = _words(commands[0])
    signs = _PREFIX.match(program.text)
    length = len(signs[0]) if signs else 0
    if "@" in program.text[:length]:
        return tuple(words)
    bare = UnitWord(program.text[length:], program.places[length:], program.place)
    return (bare, *words)


def rewritten(text: str, held: Sequence[str], wanted: Sequence[str]) -> str:
    """The file with other words in its ExecStart=; every byte that need not change stays.

    Args:
        held: The words that systemd holds now, its specifiers (`%`) replaced.
        wanted: The words that it is to hold.

    Raises:
        UnitRefused: The words of the file are not those that systemd holds, or a change would
            touch more than words of the file.
    """
    words = exec_words(text)
    if len(words) != len(held) or not all(map(_reads_as, words, held)):
        raise UnitRefused("its ExecStart= does not read as what systemd holds", hint=_OTHERWISE)
    expected: list[str] = []
    edits: list[_Edit] = []
    for kind, i, i_end, j, j_end in SequenceMatcher(None, held, wanted, False).get_opcodes():
        if kind == "equal":
            expected += [word.text for word in words[i:i_end]]
            continue
        _require_words(held[i:i_end], at=i)
        expected += [word.replace("%", "%%") for word in wanted[j:j_end]]
        both = min(i_end - i, j_end - j)
        edits += map(_changed, words[i : i + both], held[i:i_end], wanted[j:j_end])
        if j + both < j_end:
            edits.append(_inserted(text, words, i + both, wanted[j + both : j_end]))
        elif i + both < i_end:
            edits.append(_deleted(text, words, i + both, i_end))
    result = text
    edits.sort(key=lambda edit: edit.place)
    for edit in reversed(edits):  # of two at one place the later one first
        result = result[: edit.place[0]] + edit.text + result[edit.place[1] :]
    if [word.text for word in exec_words(result)] != expected:
        raise UnitRefused("its ExecStart= cannot be changed word by word", hint=_OTHERWISE)
    return result


def _require_words(gone: Sequence[str], *, at: int) -> None:
    for word in gone:
        if _VARIABLE.fullmatch(word):
            raise UnitRefused(
                f"a flag comes from the variable {word}, not from a word of ExecStart=",
                hint="write its words into ExecStart=, or export without --in-place",
            )
    if at == 0:
        raise UnitRefused("the program itself would change", hint=_OTHERWISE)


def _reads_as(word: UnitWord, held: str) -> bool:
    """Whether a word of the file is the one that systemd holds; a specifier may be anything."""
    pieces = re.split(r"(%.)", word.text)
    pattern = "".join(
        "%" if piece == "%%" else ".*" if piece.startswith("%") else re.escape(piece)
        for piece in pieces
    )
    return re.fullmatch(pattern, held, re.DOTALL) is not None


def _changed(word: UnitWord, old: str, new: str) -> _Edit:
    """The smallest change that turns a word into another, its quotes kept where that is safe."""
    if word.text == old and old and new:
        same = next((at for at in range(len(old)) if new[at : at + 1] != old[at]), len(old))
        most = min(len(old), len(new)) - same
        tail = next((at for at in range(most) if old[-at - 1] != new[-at - 1]), most)
        middle = new[same : len(new) - tail]
        if _PLAIN.fullmatch(middle):
            begin = word.places[same][0] if same < len(old) else word.places[-1][1]
            end = word.places[len(old) - tail - 1][1] if same + tail < len(old) else begin
            return _Edit((begin, end), middle)
    elif "%" in word.text and word.text.replace("%%", "%") != old:
        raise UnitRefused(f"the word {word.text!r} holds a specifier", hint=_OTHERWISE)
    return _Edit(word.place, _written(new))


def _inserted(text: str, words: Sequence[UnitWord], at: int, new: Sequence[str]) -> _Edit:
    """New words behind word `at - 1`, each flag on a line of its own where flags have lines."""
    flags = [i for i in range(1, at) if words[i].text.startswith("--")]
    gap = text[words[flags[-1] - 1].place[1] : words[flags[-1]].place[0]] if flags else ""
    own_line = re.fullmatch(r"\s*\\\n(?:.*\n)*?([ \t]*)", gap)
    before = f" \\\n{own_line[1]}" if own_line else " "
    place = words[at - 1].place[1]
    pieces = [
        (before if i == 0 or word.startswith("--") else " ") + _written(word)
        for i, word in enumerate(new)
    ]
    return _Edit((place, place), "".join(pieces))


def _deleted(text: str, words: Sequence[UnitWord], begin: int, end: int) -> _Edit:
    """Words go with the blanks before them; comments between lines stay where one of the two gaps
    has none."""
    before = (words[begin - 1].place[1], words[end - 1].place[1])
    if end < len(words) and re.search(r"\n\s*[#;]", text[before[0] : words[begin].place[0]]):
        return _Edit((words[begin].place[0], words[end].place[0]), "")
    return _Edit(before, "")


def _written(word: str) -> str:
    return word if word and _PLAIN.fullmatch(word) else quote(word)


# -- reading ---------------------------------------------------------------------------------------


def _commands(text: str) -> Iterator[Read]:
    """The values of ExecStart= in the section of services, in order."""
    section = ""
    for line in _lines(text):
        said = "".join(one for one, _ in line).strip(_BLANK)
        if said.startswith("[") and said.endswith("]"):
            section = said
        key, equals, _ = said.partition("=")
        if section == "[Service]" and equals and key.strip(_BLANK) == "ExecStart":
            at = next(i for i, (one, _) in enumerate(line) if one == "=") + 1
            value = line[at:]
            yield value if "".join(one for one, _ in value).strip(_BLANK) else []


def _lines(text: str) -> Iterator[Read]:
    """Logical lines: continued ones are one, comment lines are left out."""
    if "\r" in text or "\0" in text:
        raise UnitRefused("the file has lines that end with a carriage return", hint=_OTHERWISE)
    pending: Read = []
    start = 0
    for line in text.split("\n"):
        at, start = start, start + len(line) + 1
        if line.lstrip(_BLANK).startswith(_COMMENT):
            continue
        pending += [(one, (at + i, at + i + 1)) for i, one in enumerate(line)]
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending[-1] = (" ", pending[-1][1])
            continue
        if pending:
            yield pending
        pending = []
    if pending:
        yield pending


def _words(value: Read) -> list[UnitWord]:
    words: list[UnitWord] = []
    at = 0
    while True:
        while at < len(value) and value[at][0] in _BLANK:
            at += 1
        if at == len(value):
            return words
        word, at = _word(value, at)
        words.append(word)


def _word(value: Read, begin: int) -> tuple[UnitWord, int]:
    """The word that begins at `begin`, and where it ends."""
    found: Read = []
    quoted = ""
    at = begin
    while at < len(value) and (quoted or value[at][0] not in _BLANK):
        one, place = value[at]
        if one == quoted:
            quoted = ""
        elif not quoted and one in "'\"":
            quoted = one
        elif one == "\\":
            letter, length = _escape("".join(c for c, _ in value[at + 1 : at + 10]))
            found.append((letter, (place[0], value[at + length][1][1])))
            at += length
        else:
            found.append((one, place))
        at += 1
    if quoted:
        raise UnitRefused("a quote in ExecStart= has no end", hint=_OTHERWISE)
    place = (value[begin][1][0], value[at - 1][1][1])
    return UnitWord("".join(c for c, _ in found), tuple(p for _, p in found), place), at


def _escape(text: str) -> tuple[str, int]:
    """What a backslash before `text` means, and how many characters of it belong to that.

    An unknown one stands for itself: systemd warns and keeps both characters.
    """
    if text[:1] in _SIMPLE and text:
        return _SIMPLE[text[0]], 1
    if coded := _CODED.match(text):
        number = int(coded[4], 8) if coded[4] else int(coded[1] or coded[2] or coded[3], 16)
        # A single byte above ASCII is a part of a character: it equals nothing that systemd holds.
        is_byte = (coded[1] or coded[4]) and number > 0x7F
        return chr(0xDC00 + number if is_byte else min(number, 0x10FFFF)), coded.end()
    return "\\", 0
