"""`autotune prune`: delete old raw request records."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.cli.options import Json, Storage, Study, print_json

__all__ = ["command"]


def command(
    study: Study,
    storage: Storage = None,
    keep_mb: Annotated[
        float | None,
        typer.Option(
            "--keep-mb",
            min=0,
            help="Megabytes that may stay, the newest; else raw_records_mb of the study.",
            show_default=False,
        ),
    ] = None,
    older_than_days: Annotated[
        float | None,
        typer.Option(
            "--older-than-days", min=0, help="Delete all that is older.", show_default=False
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be deleted.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Delete old raw request records of a study on this machine; scores and reports need none.

    Example: autotune prune --study demo --keep-mb 200
    """
    from autotune.pruning_records import prune

    pruned = prune(
        study,
        storage,
        keep_mb=keep_mb,
        older_than_days=older_than_days,
        dry_run=dry_run,
    )
    if as_json:
        print_json(pruned.json())
    else:
        typer.echo(pruned.sentence())
