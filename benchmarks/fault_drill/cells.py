"""Which phase meets which fault."""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.fault_drill.faults import Fault
from benchmarks.fault_drill.points import Point

__all__ = ["CELLS", "FIXED", "SENSELESS", "Cell", "drawn", "named"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One fault in one phase."""

    point: Point
    fault: Fault

    @property
    def key(self) -> str:
        return f"{self.point}/{self.fault}"


SENSELESS = {
    Cell(Point.STOP, Fault.SERVICE): "the service is being ended already",
    Cell(Point.STOP, Fault.OOM): "the service is being ended already",
    Cell(Point.RESTORE, Fault.SECOND): "the host is free a moment later: a second tuner may come",
}
"""Cells that are left out, and why."""

CELLS = tuple(
    cell for fault in Fault for point in Point if (cell := Cell(point, fault)) not in SENSELESS
)

FIXED = (
    Cell(Point.APPLY, Fault.KILLED),
    Cell(Point.BUCKET, Fault.SECOND),
    Cell(Point.START, Fault.BACK),
    Cell(Point.TELL, Fault.BACK),
    Cell(Point.BUCKET, Fault.CUT),
    Cell(Point.STOP, Fault.BLACKHOLE),
    Cell(Point.LOAD, Fault.REBOOT),
    Cell(Point.PROOF, Fault.SERVICE),
    Cell(Point.EVAL, Fault.OOM),
    Cell(Point.RESTORE, Fault.HOST_FULL),
    Cell(Point.SAVE, Fault.HERE_FULL),
    Cell(Point.RESTORE, Fault.READ_ONLY),
)
"""Always run in CI: every fault that leaves something behind, and every kind of phase."""


def drawn(seed: int, count: int) -> tuple[Cell, ...]:
    """Cells beside the fixed ones, drawn by a seed."""
    others = [cell for cell in CELLS if cell not in FIXED]
    return tuple(random.Random(seed).sample(others, count))


def named(text: str) -> tuple[Cell, ...]:
    """The cells of `POINT/FAULT`; either may be `*`.

    Raises:
        ValueError: There is none.
    """
    point, _, fault = text.partition("/")
    found = tuple(c for c in CELLS if point in ("*", c.point) and fault in ("*", c.fault))
    if not found:
        raise ValueError(f"{text!r} is no cell: give POINT/FAULT, `*` for all")
    return found
