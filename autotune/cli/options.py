"""Options that several commands share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from autotune.bulk import bulk

__all__ = ["Host", "Json", "Storage", "Study", "print_json", "rounded"]

DIGITS = 6
"""Significant digits of printed numbers: more than any measurement has."""
CLOCK_S = 1e8
"""Numbers above are Unix seconds, and keep their tenths."""

Study = Annotated[
    str, typer.Option("--study", help="Study: a name in search_spaces/, or a path to a .toml file.")
]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        help="Database URL; else AUTOTUNE_STORAGE, else sqlite:///autotune.db.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Host = Annotated[
    list[str] | None,
    typer.Option("--host", help="Host to use instead of the study's; may be repeated."),
]


@bulk()
def print_json(value: Any) -> None:
    """One JSON document on standard output; floats are rounded, see `rounded`."""
    from pydantic_core import to_json

    typer.echo(to_json(rounded(value), indent=2, fallback=str).decode())


def rounded(value: Any) -> Any:
    """The same with floats of `DIGITS` significant digits, at any depth; not finite is null."""
    if type(value) in _AS_THEY_ARE:  # most values are, and there may be a million of them
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return round(value, 1) if abs(value) > CLOCK_S else float(f"{value:.{DIGITS}g}")
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    if isinstance(value, dict | Mapping):
        return {key: rounded(one) for key, one in value.items()}
    return value


_AS_THEY_ARE = frozenset({str, int, bool, type(None)})
