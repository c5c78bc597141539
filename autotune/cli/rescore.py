"""`autotune rescore`: scores computed again from the stored records."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.options import Json, Storage, Study, print_json

if TYPE_CHECKING:
    from autotune.rescoring import Rescored

__all__ = ["command"]


def command(
    study: Study,
    storage: Storage = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="Objective whose weights and rule to use instead of the study's: a name or path.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compute every score again from the stored measurements; nothing is written.

    Example: autotune rescore --study demo
    """
    from autotune import definitions
    from autotune.config import load_objective
    from autotune.reading import load_stored
    from autotune.rescoring import objective_of, rescore
    from autotune.starting import rule_of

    file = load_objective(definitions.find("objectives", objective)) if objective else None
    stored = load_stored(study, storage, evidence=False)
    file = file or objective_of(stored)
    rows = rescore(stored, workload=file.workload(), rule=rule_of(file.score))
    if as_json:
        print_json([_plain(row) for row in rows])
        return
    _print(rows, file.score.aggregate, own=objective is None)


def _plain(row: Rescored) -> dict[str, Any]:
    score = row.score
    return {
        "trial": row.trial,
        "reference": row.reference,
        "role": str(row.role),
        "round": row.round,
        "host": row.host,
        "stored_score": row.stored.value if row.stored else None,
        "stored_score_ratio": row.stored.ratio if row.stored else None,
        "score": score.value if score else None,
        "score_interval": list(asdict(score.interval).values()) if score else None,
        "score_ratio": score.ratio if score else None,
        "gate": score.gate if score else None,
        "violations": list(score.violations) if score else [],
        "arithmetic_tok_per_s": row.arithmetic_tok_per_s,
        "geometric": row.geometric,
        "same": row.same,
    }


def _print(rows: list[Rescored], aggregate: str, *, own: bool) -> None:
    from rich.table import Table

    from autotune.cli.console import table_console

    unit = "ratio" if aggregate == "geometric" else "tok/s"
    table = Table()
    for column in (
        *("trial", "role", "host", f"stored {unit}", f"score {unit}", "against reference"),
        *("arithmetic tok/s", "geometric", "gate", ""),
    ):
        table.add_column(column, justify="right")
    for row in rows:
        score = row.score
        table.add_row(
            str(row.trial) + (" ref" if row.reference else ""),
            str(row.role),
            row.host,
            _number(row.stored.value if row.stored else None),
            _number(score.value if score else None),
            f"{score.ratio - 1:+.2%}" if score else "no score",
            _number(row.arithmetic_tok_per_s),
            _number(row.geometric),
            _number(score.gate if score else None),
            "" if row.same else "differs",
        )
    console = table_console()
    console.print(table)
    differ = sum(not row.same for row in rows)
    whose = "the study's own rule" if own else "this objective"
    console.print(
        f"{len(rows)} starts by {whose}: {differ} scores differ from the stored ones;"
        " nothing was written"
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if value < 10 else f"{value:.1f}"
