"""Tables for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from autotune.cli.live import shown
from autotune.repository import StoredStudy
from autotune.views import trial_views

__all__ = ["print_status", "print_trials"]


def print_trials(study: StoredStudy) -> None:
    """One line for each trial."""
    table = Table(title=f"trials of {study.name}", title_justify="left")
    for column, justify in (
        *(("trial", "right"), ("state", "left"), ("host", "left"), ("parameters", "left")),
        *(("tok/s", "right"), ("95 %", "right"), ("against reference", "right"), ("why", "left")),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for view in trial_views(study):
        interval = view["score_interval"]
        failure = [view["failure"]["message"]] if view["failure"] else []
        table.add_row(
            str(view["number"]) + (" ref" if view["reference"] else ""),
            view["state"],
            view["host"] or "",
            shown(view["parameters"]),
            f"{view['score']:.1f}" if view["score"] is not None else "",
            f"{interval[0]:.1f} - {interval[1]:.1f}" if interval else "",
            f"{view['score_ratio'] - 1:+.1%}" if view["score_ratio"] is not None else "",
            "; ".join([*failure, *view["doubts"]]),
        )
    Console().print(table)


def print_status(view: dict[str, Any]) -> None:
    """A few lines about where a study stands."""
    console = Console()
    states = ", ".join(f"{n} {state}" for state, n in sorted(view["trials"].items())) or "none yet"
    console.print(f"study {view['study']}: {states}; {view['starts']} server starts")
    for host in view["hosts"]:
        back = "restored" if host["restored_at"] else "in use, or not restored yet"
        console.print(f"  host {host['host']}: {back}")
    if view["driver"]:
        console.print(f"  run by process {view['driver']['pid']} on {view['driver']['machine']}")
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
