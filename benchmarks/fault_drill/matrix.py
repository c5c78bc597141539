"""The results file of a drill, one line for each cell, and its matrix."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from benchmarks.fault_drill.cell import Outcome
from benchmarks.fault_drill.cells import SENSELESS, Cell
from benchmarks.fault_drill.faults import Fault
from benchmarks.fault_drill.points import Point

__all__ = ["append", "read", "table"]


def append(path: Path, outcome: Outcome) -> None:
    """Write one outcome at the end of the file, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as results:
        results.write(json.dumps(asdict(outcome)) + "\n")


def read(path: Path) -> dict[str, Outcome]:
    """The newest outcome of each cell; none when there is no file."""
    found: dict[str, Outcome] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            stored = json.loads(line)
            outcome = Outcome(**{**stored, "exits": tuple(stored["exits"])})
            found[outcome.key] = outcome
    return found


def table(outcomes: Mapping[str, Outcome], *, cells: Iterable[Cell]) -> Table:
    """Phases by faults: seconds from the fault until the host was as found, or LOST."""
    wanted = set(cells)
    shown = Table(title="seconds until the host was as found")
    shown.add_column("")
    for point in Point:
        shown.add_column(point, justify="right")
    for fault in Fault:
        row = [_entry(Cell(point, fault), outcomes, wanted) for point in Point]
        if any(row):
            senseless = (Cell(point, fault) in SENSELESS for point in Point)
            shown.add_row(
                fault,
                *(
                    "-" if left_out else entry
                    for left_out, entry in zip(senseless, row, strict=True)
                ),
            )
    return shown


def _entry(cell: Cell, outcomes: Mapping[str, Outcome], wanted: set[Cell]) -> str:
    outcome = outcomes.get(cell.key)
    if outcome is None:
        return "?" if cell in wanted else ""
    return f"{outcome.back_s:.0f}" if outcome.held else "LOST"
