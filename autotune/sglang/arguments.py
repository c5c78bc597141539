"""The `server_args=` line of SGLang's log, as a mapping.

Two shapes exist: `server_args=ServerArgs(k=v, ...)` (0.5.17 and before) and
`server_args={'k': v, ...}` (from 0.5.21 on).  The values are Python's `repr`, but not all of them
can be read back: enums, objects and classes print as `<...>`.  One such value must not cost the
others, so pairs are cut apart first and read one by one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Unparsed", "is_complete", "parse_server_args"]

_OPENING = re.compile(r"\s*(?:\w+(?P<call>\()|(?P<dict>\{))")
_CALL_NAME = re.compile(r"\s*([A-Za-z_]\w*)\s*=")
_DICT_NAME = re.compile(r"""\s*(['"])([^'"]*)\1\s*:""")
_NEXT_CALL = re.compile(r",\s*(?=[A-Za-z_]\w*=)")
_NEXT_DICT = re.compile(r""",\s*(?=(['"])\w+\1:)""")
_ENUM = re.compile(r"<[\w.]+: (.+)>", re.DOTALL)
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_CLOSING = frozenset(_PAIRS.values())
_WORDS: dict[str, object] = {
    "inf": float("inf"),
    "nan": float("nan"),
    "null": None,
    "true": True,
    "false": False,
}


@dataclass(frozen=True, slots=True)
class Unparsed:
    """A value whose text says nothing that could be compared; equal to no plain value."""

    text: str


def parse_server_args(text: str) -> dict[str, object] | None:
    """The settings in the text that follows `server_args=`, None when it has neither shape.

    A text that is cut off gives the pairs that are whole.  Nested constructor calls become
    mappings, enums their values, and what cannot be read `Unparsed`.
    """
    opening = _OPENING.match(text)
    if opening is None:
        return None
    as_call = opening["call"] is not None
    return {name: _read(value) for name, value, _ in _pairs(text, opening.end(), as_call=as_call)}


def is_complete(text: str) -> bool:
    """Whether the text after `server_args=` reaches the bracket that closes it."""
    opening = _OPENING.match(text)
    if opening is None:
        return True
    as_call = opening["call"] is not None
    ends = [end for _, _, end in _pairs(text, opening.end(), as_call=as_call)]
    if not ends:
        return text[opening.end() :].lstrip()[:1] in _CLOSING
    return text[ends[-1] :][:1] in _CLOSING


def _pairs(text: str, at: int, *, as_call: bool) -> Iterator[tuple[str, str, int]]:
    """Name, text of the value and position behind it, of each whole pair."""
    name_form = _CALL_NAME if as_call else _DICT_NAME
    next_pair = _NEXT_CALL if as_call else _NEXT_DICT
    while named := name_form.match(text, at):
        start = named.end()
        end, found = _value_end(text, start)
        if found == "<":
            # The text of an object may hold anything, an apostrophe too: go on at the next name.
            following = next_pair.search(text, start)
            if following is None:
                return
            end = following.start()
        elif not found:
            return
        yield (named[1] if as_call else named[2]), text[start:end].strip(), end
        if text[end] != ",":
            return
        at = end + 1


def _value_end(text: str, at: int) -> tuple[int, str]:
    """Where the value that starts at `at` ends, and the character that ends it.

    That is a comma or a closing bracket outside of all quotes and brackets.  "" stands for a value
    that is cut off, and "<" for one that never leaves an object's `<...>`.
    """
    stack: list[str] = []
    angles = 0
    quote = ""
    while at < len(text):
        char = text[at]
        if quote:
            if char == "\\":
                at += 1
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char == "<" and (angles or text[at - 1] in " [({,:="):
            angles += 1
        elif char == ">" and angles:
            angles -= 1
        elif angles:
            pass
        elif char in _PAIRS:
            stack.append(_PAIRS[char])
        elif char in _CLOSING:
            if not stack:
                return at, char
            if stack[-1] == char:
                stack.pop()
        elif char == "," and not stack:
            return at, char
        at += 1
    return at, "<" if angles else ""


def _read(text: str) -> object:
    enum = _ENUM.fullmatch(text)
    if enum is not None:
        inner = _read(enum[1])
        return Unparsed(text) if isinstance(inner, Unparsed) else inner
    try:
        node = ast.parse(text, mode="eval").body
        return _evaluate(node)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # The errors that `ast` documents for text that is not a Python expression.
        return Unparsed(text)


def _evaluate(node: ast.expr) -> object:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=items):
            return [_evaluate(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_evaluate(item) for item in items)
        case ast.Set(elts=items):
            return [_evaluate(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {
                _hashable(_evaluate(key)): _evaluate(value)
                for key, value in zip(keys, values, strict=True)
                if key is not None
            }
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = _evaluate(operand)
            if isinstance(number, int | float):
                return -number
            raise ValueError("a minus before something that is no number")
        case ast.Call(func=ast.Name(), args=[], keywords=words):
            return {word.arg: _evaluate(word.value) for word in words if word.arg is not None}
        case ast.Name(id=name):
            return _WORDS[name] if name in _WORDS else Unparsed(name)
        case ast.Attribute():
            return ast.unparse(node)
        case _:
            raise ValueError(f"not a plain value: {type(node).__name__}")


def _hashable(key: object) -> object:
    return key if isinstance(key, str | int | float | bool | None) else str(key)
