"""From a model's answer to the code that it means; pure.

Fences follow CommonMark 0.31 (section 4.5) with three liberties that models take: a block may be
left open (the answer was cut), a block may contain blocks, and code may start on the fence's own
line. A language tag is only a tag when nothing but a tag stands on that line.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Extraction", "ExtractionRule", "extract", "without_thinking"]

_FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<marks>`{3,}|~{3,})(?P<rest>.*)$")
_TAG = re.compile(r"^[\w+#.-]*(?:\s*\{[^}]*\}|\s+[\w-]+=\S+)*$")
_ONE_LINE = re.compile(r"^\s*```(?:[Pp]y(?:thon)?3?\s+)?(?P<code>[^`\n]+)```\s*$", re.MULTILINE)
_PYTHON_TAGS = ("", "python", "python3", "py", "py3", "python2", "ipython", "pycon")
_MARKDOWN_TAGS = ("markdown", "md", "text", "txt")
_START_OF_CODE = re.compile(
    r"^(?:from\s+\S+\s+import\b|import\s+\w|(?:async\s+)?def\s|class\s|@\w)"
)
_THINKING = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("◁think▷", "◁/think▷"),
    ("<reasoning>", "</reasoning>"),
)
# Longer texts are garbage or an attack on the parser; the longest solution of a suite has 3 kB.
_LONGEST_CODE = 200_000


class ExtractionRule(StrEnum):
    """Which reading of the answer gave the code."""

    NAMED_BLOCK = "named_block"  # the last closed block that defines the asked name
    UNCLOSED_BLOCK = "unclosed_block"  # as before, but the answer ends inside it
    LAST_BLOCK = "last_block"  # no block defines the name; the last Python block
    WHOLE_TEXT = "whole_text"  # no fence; all of it is code
    PART_OF_TEXT = "part_of_text"  # no fence; from the first line of code as far as it parses
    NO_CODE = "no_code"


@dataclass(frozen=True, slots=True)
class Extraction:
    """The code, None if there is none, and the rule that found it."""

    code: str | None
    rule: ExtractionRule


@dataclass(frozen=True, slots=True)
class _Block:
    code: str
    tag: str
    closed: bool


def extract(answer: str, *, entry_point: str) -> Extraction:
    """The code in `answer` that defines `entry_point`, or the nearest thing to it."""
    text = without_thinking(answer).replace("\r\n", "\n")
    if len(text) > _LONGEST_CODE:
        text = text[:_LONGEST_CODE]
    blocks = [block for block in _blocks(text) if block.code.strip()]
    defining = [block for block in blocks if _defines(block.code, entry_point)]
    if defining:
        # One that parses is preferred: the last may be a fragment ("then change f like this").
        whole = [block for block in defining if _parse(block.code) is not None]
        chosen = (whole or defining)[-1]
        rule = ExtractionRule.NAMED_BLOCK if chosen.closed else ExtractionRule.UNCLOSED_BLOCK
        return Extraction(chosen.code, rule)
    python = [block for block in blocks if block.tag in _PYTHON_TAGS]
    if python:
        return Extraction(python[-1].code, ExtractionRule.LAST_BLOCK)
    if blocks:
        return Extraction(None, ExtractionRule.NO_CODE)
    if _defines(text, entry_point) and _parse(text) is not None:
        return Extraction(text.strip("\n") + "\n", ExtractionRule.WHOLE_TEXT)
    part = _part(text, entry_point)
    if part is not None:
        return Extraction(part, ExtractionRule.PART_OF_TEXT)
    return Extraction(None, ExtractionRule.NO_CODE)


def without_thinking(answer: str) -> str:
    """The answer without its thinking; what is thought and never finished is no answer."""
    text = answer
    for opening, closing in _THINKING:
        # Chat templates often open the thinking in the prompt: then only its end is in the answer.
        before = text.partition(closing)[0]
        if closing in text and opening not in before:
            text = text.partition(closing)[2]
        while (start := _at_line_start(text, opening)) is not None:
            end = text.find(closing, start)
            text = text[:start] if end < 0 else text[:start] + text[end + len(closing) :]
    return text


def _at_line_start(text: str, opening: str) -> int | None:
    found = re.search(rf"^[ \t]*{re.escape(opening)}", text, re.MULTILINE)
    return found.start() if found else None


def _blocks(text: str) -> list[_Block]:
    """All fenced blocks in order; the blocks inside a Markdown block instead of itself."""
    lines = text.split("\n")
    found: list[_Block] = []
    at = 0
    while at < len(lines):
        one_line = _ONE_LINE.match(lines[at])
        if one_line:
            found.append(_Block(one_line["code"].strip() + "\n", "", closed=True))
            at += 1
            continue
        fence = _FENCE.match(lines[at])
        if fence is None or ("`" in fence["rest"] and fence["marks"][0] == "`"):
            at += 1
            continue
        rest = fence["rest"].strip()
        is_tag = _TAG.match(rest) is not None
        tag = re.split(r"[\s{]", rest.lower())[0] if is_tag else ""
        first = [] if is_tag else [fence["indent"] + fence["rest"]]
        end, closed = _end(lines, at + 1, marks=fence["marks"], first=first, tag=tag)
        body = textwrap.dedent("\n".join([*first, *lines[at + 1 : end]]) + "\n")
        inner = _blocks(body) if tag in _MARKDOWN_TAGS else []
        found += inner or [_Block(body, tag, closed)]
        at = end + 1
    return found


def _end(
    lines: list[str], start: int, *, marks: str, first: list[str], tag: str
) -> tuple[int, bool]:
    """(index of the closing line, whether there is one).

    A fence with a tag inside the block opens an inner one. Bare fences in a doc string cannot be
    told from the end, so among the possible ends the first that makes the code parse is taken.
    """
    depth = 0
    ends = []
    nested_end = None
    for index in range(start, len(lines)):
        fence = _FENCE.match(lines[index])
        if fence is None or fence["marks"][0] != marks[0] or len(fence["marks"]) < len(marks):
            continue
        if fence["rest"].strip():
            depth += 1
            continue
        ends.append(index)
        if depth == 0 and nested_end is None:
            nested_end = index
        depth = max(0, depth - 1)
    if not ends:
        return len(lines), False
    if tag in _PYTHON_TAGS:
        for end in ends[:20]:
            if _parse(textwrap.dedent("\n".join([*first, *lines[start:end]]))) is not None:
                return end, True
    return (nested_end if nested_end is not None else ends[-1]), True


def _parse(code: str) -> ast.Module | None:
    """The syntax tree, None if there is none. Never raises, whatever the text is."""
    tree = _tree(code)
    return tree if isinstance(tree, ast.Module) else None


def _tree(code: str) -> ast.Module | SyntaxError | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as an invalid escape: it runs nevertheless
            return ast.parse(code)
    except SyntaxError as error:
        return error
    except (ValueError, MemoryError, RecursionError):
        return None  # a null byte, or nested deeper than the parser goes


def _defines(code: str, name: str) -> bool:
    """Whether the code defines `name` at its top level; by its lines where it does not parse."""
    tree = _parse(code)
    if not isinstance(tree, ast.Module):
        pattern = rf"^[ \t]*(?:async\s+def|def|class)\s+{re.escape(name)}\b"
        return re.search(pattern, code, re.MULTILINE) is not None
    queue = list(tree.body)
    while queue:
        node = queue.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name == name:
                return True
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return True
        elif isinstance(node, ast.If | ast.Try | ast.With):
            queue += node.body
            queue += [] if isinstance(node, ast.With) else node.orelse
            queue += [s for h in node.handlers for s in h.body] if isinstance(node, ast.Try) else []
        elif isinstance(node, ast.Import | ast.ImportFrom) and any(
            (alias.asname or alias.name) == name for alias in node.names
        ):
            return True
    return False


def _part(text: str, entry_point: str) -> str | None:
    """The longest run of lines from a first line of code on that parses and defines the name."""
    lines = text.split("\n")
    for start, line in enumerate(lines):
        if not _START_OF_CODE.match(line):
            continue
        rest = lines[start:]
        while rest:
            tree = _tree("\n".join(rest))
            if isinstance(tree, ast.Module):
                code = "\n".join(rest).rstrip() + "\n"
                return code if _defines(code, entry_point) else None
            if tree is None:
                return None
            rest = rest[: min((tree.lineno or 1) - 1, len(rest) - 1)]
    return None
