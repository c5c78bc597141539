"""Tables for people."""

from __future__ import annotations

from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from autotune.bulk import bulk
from autotune.cli.console import Console
from autotune.repository import StoredStudy
from autotune.space import Values, value_to_file
from autotune.views import trial_views

TABLE_MOST = 500
"""Rows of a drawn table; more are printed as plain columns."""

__all__ = ["print_hosts", "print_status", "print_studies", "print_trials", "shown"]


def shown(values: Values) -> str:
    """`budget 8, topk 4, window none`."""
    return ", ".join(f"{name} {value_to_file(value)}" for name, value in values.items())


@bulk()
def print_trials(study: StoredStudy) -> None:
    """One line for each trial."""
    rows = [_trial_row(view) for view in trial_views(study)]
    if len(rows) > TABLE_MOST:  # drawing a table of thousands of rows takes a minute
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            typer.echo("  ".join(cells).rstrip())
        return
    table = Table(title=f"trials of {study.name}", title_justify="left")
    for column, justify in (
        *(("trial", "right"), ("state", "left"), ("host", "left"), ("parameters", "left")),
        *(("tok/s", "right"), ("95 %", "right"), ("against reference", "right"), ("why", "left")),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)


def _trial_row(view: dict[str, Any]) -> tuple[str, ...]:
    interval = view["score_interval"]
    return (
        str(view["number"])
        + (" ref" if view["reference"] else "")
        + (f" (retry of {view['retry_of']})" if view["retry_of"] is not None else ""),
        view["state"],
        view["host"] or "",
        shown(view["parameters"]),
        f"{view['score']:.1f}" if view["score"] is not None else "",
        f"{interval[0]:.1f} - {interval[1]:.1f}" if interval else "",
        f"{view['score_ratio'] - 1:+.1%}" if view["score_ratio"] is not None else "",
        "; ".join([*([view["why"]] if view["why"] else []), *view["doubts"]]),
    )


def print_hosts(hosts: list[dict[str, Any]]) -> None:
    """One line for each host."""
    table = Table()
    for column in ("host", "state", "wanted", "run by", "why"):
        table.add_column(column)
    for host in hosts:
        driver = host["driver"]
        held = driver and not host["restored_at"]
        by = f"process {driver['pid']} on {driver['machine']}" if held else ""
        state = host["state"] or _standing(host)
        table.add_row(host["host"], state, host["wanted"], by, host["why"])
    Console().print(table)


def _standing(host: dict[str, Any]) -> str:
    """Of a host that nobody has said anything about."""
    if host["restored_at"]:
        return "restored"
    return "in use, or not restored yet" if host["taken_at"] else "never used yet"


def print_studies(views: list[dict[str, Any]]) -> None:
    """One line for each study of a storage."""
    console = Console()
    if not views:
        console.print("the storage holds no study yet")
    for view in views:
        states = ", ".join(f"{n} {state}" for state, n in sorted(view["trials"].items()))
        doing = "running" if view["running"] else view["verdict"] or "no verdict yet"
        console.print(f"study {view['study']}: {states or 'no trial yet'}; {doing}", markup=False)


def print_status(view: dict[str, Any]) -> None:
    """A few lines about where a study stands."""
    console = Console()
    states = ", ".join(f"{n} {state}" for state, n in sorted(view["trials"].items())) or "none yet"
    console.print(
        f"study {view['study']}: {states}; {view['starts']} server starts, "
        f"{view['gpu_hours']:.2f} GPU-hours"
    )
    for host in view["hosts"]:
        score = host["reference_score"]
        reference = f"; reference {score:.1f}" if score is not None else ""
        why = f": {host['why']}" if host["why"] else ""
        state = host["state"] or _standing(host)
        console.print(f"  host {host['host']}: {state}{why}{reference}", markup=False)
    for driver in view["drivers"]:
        console.print(f"  run by process {driver['pid']} on {driver['machine']}")
    best = view["best_observed"]
    if best is not None:
        console.print(
            f"  best observed: trial {best['number']} ({shown(best['parameters'])}), "
            f"{best['score_ratio'] - 1:+.1%}; not a result before it is measured again"
        )
        for doubt in best["doubts"]:
            console.print(f"    {doubt}")
    if view["verdict"]:
        console.print(f"  verdict: {view['verdict']['sentence']}")
