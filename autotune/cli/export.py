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
    in_place: Annotated[
        bool,
        typer.Option("--in-place", help="With --apply: into the unit's own file, no drop-in."),
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
    from autotune.errors import ConfigError
    from autotune.exporting import choose, rendered
    from autotune.holding import require_records
    from autotune.reading import find_study, load_shown, open_stored, study_name

    if undo and apply:
        raise ConfigError("--undo takes away what --apply has written", hint="give one of them")
    for option, given in (("--in-place", in_place), ("--dry-run", dry_run)):
        if given and not apply:
            raise ConfigError(f"{option} says how to apply", hint=f"give --apply {option}")
    config = find_study(study, storage).replace_budget(
        trials=None, hours=None, hosts=tuple(host or ())
    )
    if undo:
        applying.undo(config, say=typer.echo)
        return
    with open_stored(storage) as repository:
        stored = load_shown(repository, study_name(study))  # with the proof of the choice
    choice = choose(stored)
    require_records(choice)
    for doubt in doubts(stored.definition, choice.parameters):
        typer.echo(f"note: {doubt}", err=True)
    if apply:
        applying.apply_choice(
            config, stored, choice, in_place=in_place, dry_run=dry_run, say=typer.echo
        )
        return
    wanted = format_ is ExportFormat.DROPIN
    dropin = applying.dropin_text(config, stored, choice) if wanted else ""
    typer.echo(rendered(choice, config.space, format_, dropin=dropin))
