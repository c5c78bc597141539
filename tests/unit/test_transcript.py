"""The film in docs/transcript.md is of this program: each of its sentences is still in the code.

Filming takes half an hour on a test host; this takes a second.  What a line says apart from names
and numbers must be found among the texts of the program, so a changed message asks for a new film.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.newcomer import COMMANDS, PAGE

ROOT = Path(__file__).parents[2]
# Names and numbers of this one study; everything else in a line is a sentence of ours.
DATA = re.compile(
    r"(?<!\w)/[\w./-]+|\b[\w./-]*llm[\w./-]*|\bgpu-a\b|\bdeploy\b|\btables/\w+\.csv\b|\bautotune\.db\b"
    r"|--[a-z][\w-]*|https?://\S+|\b(?:budget|topk|window|none)\b|\b60x1\b|\buid 0\b"
    r"|[-+]?\d[\d.,:]*(?:\s?(?:GB|MB|ms|min|s|h)\b)?"
)
# Lines of the unit itself, of its processes and of differences between two of them.
FOREIGN = re.compile(r"\s*(?:---|\+\+\+|@@|[-+]?\s*--|[-+]\d|/models|[┏┃┡├└]|\S*python -m)")


def told(command: str) -> list[str]:
    """The lines that a command printed; what a table has wrapped is put together."""
    page = PAGE.read_text("utf-8")
    found = re.search(rf"^    \$ {re.escape(command)}\n(.*?)(?=^    \$ |\Z)", page, re.M | re.S)
    assert found, command
    lines = [line.removeprefix("    ") for line in found[1].splitlines()]
    return list(_joined(_cells(lines) if "│" in found[1] else lines))


def _cells(lines: list[str]) -> Iterator[str]:
    """The texts of a table with lines, the command line of the server left out."""
    for line in lines:
        if "│" in line:
            _, _, what, intended, process, *_ = (cell.strip() for cell in line.split("│"))
            if what and "…" not in line:
                yield from (what, intended, process)


def _joined(lines: list[str] | Iterator[str]) -> Iterator[str]:
    """Each line with those that go on with it; they begin where its last column does."""
    whole = ""
    for line in lines:
        if whole and re.match(r" {18}(?! *->)", line) and not FOREIGN.match(line):
            beyond = line.strip()
            if re.match(r" {25,}", line):
                whole += f" {beyond}"
                continue
        if whole:
            yield whole
        whole = "" if FOREIGN.match(line) else line
    if whole:
        yield whole


@cache
def texts() -> tuple[tuple[str, ...], frozenset[str]]:
    """Sentences of the program, the longest first, and its single words; docstrings are none."""
    pieces: set[str] = set()
    for path in (ROOT / "autotune").rglob("*.py"):
        if "testing" not in path.parts:
            tree = ast.parse(path.read_text("utf-8"))
            silent = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
            pieces |= {
                " ".join(part.split())
                for node in ast.walk(tree)
                if isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in silent
                for part in re.split(r"\{[^}]*\}|\n", node.value)
            }
    bare = {piece.strip(" ,.;:()[]'`->") for piece in pieces}
    several = sorted((piece for piece in bare if " " in piece), key=len, reverse=True)
    return tuple(several), frozenset(piece for piece in bare if piece and " " not in piece)


def unknown(line: str) -> list[str]:
    """Words of a line that no text of the program has."""
    several, single = texts()
    rest = " ".join(line.split())
    for piece in several:
        if piece in rest:
            rest = re.sub(rf"(?<!\w){re.escape(piece)}(?!\w)", "|", rest)
    rest = DATA.sub("|", rest)
    return [word for word in re.findall(r"[A-Za-z][A-Za-z/-]+", rest) if word not in single]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_the_film_shows_is_still_said(command: str) -> None:
    lines = told(command)
    assert lines
    lost = {line: words for line in lines if (words := unknown(line))}
    assert lost == {}, "say it as before, or film it again: python -m tests.newcomer"


@pytest.mark.parametrize(
    ("line", "lost"),
    [
        ("wrote search_spaces/llm.toml and objectives/llm.toml", []),
        ("has scribbled search_spaces/llm.toml", ["scribbled"]),
        ("gpu-a: 17 proof links hold", []),
        ("gpu-a: 17 proof chains stand firm", ["chains", "stand", "firm"]),
    ],
)
def test_a_changed_sentence_is_noticed(line: str, lost: list[str]) -> None:
    assert [word for word in unknown(line) if word not in ("has", "proof")] == lost
