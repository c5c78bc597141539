"""Options that several commands share."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

__all__ = ["Host", "Json", "Storage", "Study", "print_json"]

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


def print_json(value: Any) -> None:
    """One JSON document on standard output; what is not finite becomes null."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False, default=str))
