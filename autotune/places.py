"""Read a definition file and say where in it a mistake is: file, line, key, nearest known key."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, to_json

from autotune.errors import ConfigError
from autotune.sections import Section

__all__ = ["Where", "nearest", "parse", "read", "worded"]

M = TypeVar("M", bound=Section)


class Where:
    """Turns a key path into `file:line: ` text."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text

    def __call__(self, place: tuple[str | int, ...], message: str) -> str:
        line = _line_of(self.text, place)
        return f"{self.path}:{line}: {message}" if line else f"{self.path}: {message}"


def read(path: Path) -> str:
    """The text of a definition file; ConfigError when it cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", hint="look at its owner and its rights"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8: {error}", hint="save it as UTF-8 in your editor"
        ) from error


def parse(path: Path, text: str, model: type[M], kind: type[ConfigError]) -> M:
    """A definition file as its model; `kind`, with file, line and key, when it is none."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise kind(
            f"{path}: not TOML: {error}",
            hint='for example [study], then trials = 30 and text in "quotes"; https://toml.io',
        ) from error
    except RecursionError as error:
        raise kind(
            f"{path}: nested too deep", hint="docs/reference.md has the tables of a file"
        ) from error
    try:
        # As JSON: only there does a strict reading take a text for a choice, a list for a tuple.
        return model.model_validate_json(to_json(document), strict=True)
    except ValidationError as error:
        raise _explained(error, Where(path, text), model, kind) from error


def _explained(
    error: ValidationError, where: Where, model: type[Section], kind: type[ConfigError]
) -> ConfigError:
    """The first mistake of a file as one sentence; unknown keys come first."""
    mistakes = sorted(error.errors(), key=lambda m: m["type"] != "extra_forbidden")
    first = mistakes[0]
    place = tuple(part for part in first["loc"] if not _is_union_tag(part))
    key = ".".join(str(part) for part in place) or "file"
    if first["type"] == "extra_forbidden":
        known = _known_keys(model, place[:-1])
        close = nearest(str(place[-1]), known)
        return kind(
            where(place, f"unknown key {key!r}"),
            hint=close or (f"known keys: {', '.join(known)}" if known else ""),
        )
    if first["type"] == "missing":
        return kind(
            where(place[:-1] or place, f"{key!r} is missing"), hint=_explanation(model, place)
        )
    shown = isinstance(first["input"], str | int | float | bool)
    given = f" (given: {first['input']!r})" if shown else ""
    hint = first.get("ctx", {}).get("hint") or _EXAMPLES.get(key) or _explanation(model, place)
    return kind(where(place, f"{key}: {_must(first)}{given}"), hint=hint)


_EXAMPLES = {
    "service.base_url": 'for example base_url = "http://{host}:30000"',
}
"""What would be right, by key."""
_MUST = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be text in quotes",
    "bool_type": "must be true or false",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "literal_error": "must be one of {expected}",
    "enum": "must be one of {expected}",
    "string_too_short": "needs at least {min_length} characters",
    "too_short": "needs at least {min_length} of them",
    "string_pattern_mismatch": "has another form than {pattern}",
}
"""Messages by pydantic's type of error; its context fills the braces."""


def _must(mistake: ErrorDetails) -> str:
    form = _MUST.get(mistake["type"])
    if form is None:
        return worded(mistake["msg"])
    if mistake["loc"][-1:] == ("base_url",):
        return "must begin with http:// or https://"
    return form.format(**mistake.get("ctx", {}))


def worded(message: str) -> str:
    """A message of pydantic as the middle of a sentence of ours."""
    message = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return message[:1].lower() + message[1:]


def _is_union_tag(part: str | int) -> bool:
    return isinstance(part, str) and part in ("int", "float", "str", "tuple[str, ...]")


def _known_keys(model: type[BaseModel], place: tuple[str | int, ...]) -> tuple[str, ...]:
    """Keys that may stand at `place` of `model`."""
    here = _model_at(model, place)
    return tuple(here.model_fields) if here is not None else ()


def _model_at(model: type[BaseModel], place: tuple[str | int, ...]) -> type[BaseModel] | None:
    """The table at `place`; None where there is none."""
    here: type[BaseModel] | None = model
    for part in place:
        if here is None:
            return None
        if isinstance(part, int) or part not in here.model_fields:
            continue
        here = _model_in(here.model_fields[part].annotation)
    return here


def _explanation(model: type[BaseModel], place: tuple[str | int, ...]) -> str:
    """What the key at `place` means, or for a table which keys it has."""
    for depth in range(len(place), 0, -1):
        name = place[depth - 1]
        here = _model_at(model, place[: depth - 1])
        if here is not None and isinstance(name, str) and name in here.model_fields:
            meaning = here.model_fields[name].description
            if meaning:
                return f"{name}: {' '.join(meaning.split())}"
    keys = _known_keys(model, place)
    return f"known keys: {', '.join(keys)}" if keys else "docs/reference.md has every key"


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if (found := _model_in(argument)) is not None:
            return found
    return None


def nearest(word: str, known: Iterable[str]) -> str:
    """ "did you mean ...?" with the nearest known word; "" when none is near."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else ""


def _line_of(text: str, place: tuple[str | int, ...]) -> int | None:
    """Line (1-based) of a key or table header; the nearest enclosing table when unknown.

    `tomllib` gives no positions; this reads headers and `key =` beginnings only, which is enough
    for a message and never for a value.
    """
    best: int | None = None
    header: tuple[str | int, ...] = ()
    depth = 0
    counts: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if match := re.match(r"\s*\[(\[?)\s*([^\]]+?)\s*\]\]?\s*(#.*)?$", line):
            names = tuple(part.strip().strip("\"'") for part in match[2].split("."))
            header = names
            if match[1]:
                counts[names] = counts.get(names, -1) + 1
                header = (*names, counts[names])
            keys: tuple[str | int, ...] = header
        elif match := re.match(r"\s*([A-Za-z0-9_\-\"'.]+)\s*=", line):
            names = tuple(part.strip().strip("\"'") for part in match[1].split("."))
            keys = (*header, *names)
        else:
            continue
        common = sum(1 for a, b in zip(keys, place, strict=False) if a == b)
        if common == len(keys) and common > depth:
            best, depth = number, common
    return best
