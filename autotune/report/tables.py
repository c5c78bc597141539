"""Frames -> tables of text.  Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup, escape

from autotune.report.thinning import ALL_OF_THEM, Detail
from autotune.report.words import gpu_unit, number, plain
from autotune.repository import Role

__all__ = ["Table", "bounds", "coding_table", "last_of", "or_none", "table", "trials_table"]


@dataclass(frozen=True, slots=True)
class Table:
    """Text in rows; `numeric` columns are set to the right."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()

    @property
    def body(self) -> Markup:
        """The rows as HTML; a template takes a second for the cells of ten thousand starts."""
        kinds = (' class="n"' if i in self.numeric else "" for i in range(len(self.columns)))
        cells = "".join(f"<td{kind}>%s</td>" for kind in kinds)
        form = f"<tr>{cells}</tr>"
        return Markup("\n".join(form % tuple(map(escape, row)) for row in self.rows))


def table(
    caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *numeric: int
) -> Table:
    """A table of texts; `numeric` are the columns that are set flush right."""
    return Table(caption, tuple(columns), tuple(tuple(row) for row in rows), frozenset(numeric))


def last_of(rows: pd.DataFrame, most: int, caption: str) -> tuple[pd.DataFrame, str]:
    """The last `most` rows, and the caption, which says so where there are more."""
    if len(rows) <= most:
        return rows, caption
    return rows.tail(most), f"{caption}: the last {most} of {len(rows)}; {ALL_OF_THEM}"


def trials_table(starts: pd.DataFrame, names: Sequence[str], *, most: int) -> Table:
    """Every start, final rounds too; of more than `most` the last."""
    shown, caption = last_of(starts, most, "Every server start in the order of their ends")
    unit, unit_name = gpu_unit(float(starts["spent_gpu_hours"].max()))
    rows = [
        (
            str(one["trial"]),
            f"{one['role']} {one['round']}" if one["role"] == Role.FINAL else str(one["role"]),
            plain(str(one["host"])),
            *(plain(str(or_none(one["parameters"].get(name)))) for name in names),
            str(one["state"]),
            number(one["score"]),
            number(one["score_ratio"], 3),
            bounds(one["ratio_low"], one["ratio_high"], 3),
            number(one["spent_gpu_hours"] / unit, 2),
        )
        for one in shown.to_dict("records")
    ]
    columns = (
        *("Trial", "Start for", "Host", *map(plain, names), "State", "Score", "Ratio"),
        *("95 % interval", f"{unit_name} spent"),
    )
    first = 3
    return table(
        caption,
        columns,
        rows,
        0,
        *range(first, first + len(names)),
        *(len(columns) - back for back in (1, 2, 3, 4)),
    )


def coding_table(coding: pd.DataFrame, detail: Detail) -> Table | None:
    """Outcomes of the coding answers, one row for each start."""
    if not len(coding):
        return None
    outcomes = sorted({name for row in coding["outcomes"] for name in row} - {"passed"})
    shown, caption = last_of(coding, detail.rows, "Coding answers by start")
    return table(
        caption,
        ("Trial", "Start for", "Passed", "Failed", *(name.replace("_", " ") for name in outcomes)),
        [
            (
                f"{one['trial']}{' (reference)' if one['reference'] else ''}",
                str(one["role"]),
                str(one["passed"]),
                str(one["failed"]),
                *(str(one["outcomes"].get(name, 0)) for name in outcomes),
            )
            for one in shown.to_dict("records")
        ],
        *range(2, 4 + len(outcomes)),
    )


def bounds(low: float, high: float, digits: int) -> str:
    """An interval; a dash where there is none."""
    if math.isnan(low) or math.isnan(high):
        return number(None)
    return f"{number(low, digits)} to {number(high, digits)}"


def or_none(value: Any) -> Any:
    """A parameter's value as files write it."""
    return "none" if value is None else value
