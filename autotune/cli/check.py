"""`autotune check`: everything that can be known before the first restart."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import typer

from autotune.cli.options import Host, Json, Storage, Study, print_json

if TYPE_CHECKING:
    from autotune.checking.whole import Checked
    from autotune.config import StudyConfig

__all__ = ["command", "show"]


def command(
    study: Study, storage: Storage = None, host: Host = None, as_json: Json = False
) -> None:
    """Check everything that can be known before the first restart, and say what to do.

    ssh, rights, the unit and where each flag lives, port, journal, GPUs, the engine's limits
    against the buckets, storage, sandbox, and how long it will take. Nothing is changed; no file
    is written. Ends with 1 when something keeps the study from running.

    Example: autotune check --study demo
    """
    from autotune.reading import find_study

    config = find_study(study, storage).replace_budget(
        trials=None, hours=None, hosts=tuple(host or ())
    )
    show(config, storage, as_json=as_json, plan=False)


def show(config: StudyConfig, storage: str | None, *, as_json: bool, plan: bool) -> None:
    """Check a study and print the table.

    Args:
        plan: Also say what a run would start.

    Raises:
        StudyError: Something keeps the study from running.
    """
    from autotune.checking.whole import check_study
    from autotune.errors import StudyError

    checked = check_study(config, storage)
    if as_json:
        print_json(checked.json())
    else:
        _print(checked)
        if plan:
            _print_plan(checked)
    if checked.bad:
        first = checked.bad[0]
        raise StudyError(
            f"study {config.name!r} cannot run: {first.place}: {first.found}", hint=first.todo
        )


def _print(checked: Checked) -> None:
    from rich.markup import escape
    from rich.table import Table

    from autotune.cli.console import Console

    styles = {"ok": "green", "note": "yellow", "bad": "bold red"}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for width in ("place", "what", "state"):
        table.add_column(width, no_wrap=True)
    table.add_column("found", ratio=1, overflow="fold")
    shown = ""
    for one in checked.findings:
        place = one.place if one.place != shown else ""
        shown = one.place
        style = styles[str(one.state)]
        table.add_row(escape(place), one.what, f"[{style}]{one.state}[/{style}]", escape(one.found))
        if one.todo:
            table.add_row("", "", "", f"[{style}]-> {escape(one.todo)}[/{style}]")
    Console(highlight=False).print(table)
    notes = sum(str(one.state) == "note" for one in checked.findings)
    typer.echo(
        f"{len(checked.findings)} checks: {len(checked.bad)} bad, {notes} to know; "
        "nothing was changed"
    )


def _print_plan(checked: Checked) -> None:
    config = checked.config
    hosts = ", ".join(look.plan.host for look in checked.looks)
    typer.echo(f"would run on {hosts} for the objective {config.objective_path}, and restore it")
    argv = checked.reference_argv()
    if argv:
        typer.echo(f"the reference, first and last on each host: {shlex.join(argv)}")
    if not checked.bad:
        typer.echo(f"next: autotune run --study {config.name}")
