"""`autotune export`: the configuration that the study came to."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.cli.options import Host, Storage, Study
from autotune.exporting import ExportFormat

__all__ = ["command"]


def command(
    study: Study,
    storage: Storage = None,
    format_: Annotated[
        ExportFormat, typer.Option("--format", help="How to print it.")
    ] = ExportFormat.FLAGS,
    host: Host = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Write it into the service, restart, prove it.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="With --apply: show what would change, change nothing."),
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Take an applied configuration away again.")
    ] = False,
) -> None:
    """Print the configuration that the study's verdict names, or apply it to the service.

    Example: autotune export --study demo --format flags
    """
    from autotune import applying
    from autotune.doubts import doubts
    from autotune.exporting import choose, rendered
    from autotune.reading import find_study, load_stored

    config = find_study(study, storage).replace_budget(
        trials=None, hours=None, hosts=tuple(host or ())
    )
    if undo:
        applying.undo(config, say=typer.echo)
        return
    stored = load_stored(study, storage, evidence=False)
    choice = choose(stored)
    for doubt in doubts(stored.definition, choice.parameters):
        typer.echo(f"note: {doubt}", err=True)
    if apply:
        applying.apply_choice(config, choice, dry_run=dry_run, say=typer.echo)
        return
    dropin = applying.dropin_text(config, choice) if format_ is ExportFormat.DROPIN else ""
    typer.echo(rendered(choice, config.space, format_, dropin=dropin))
