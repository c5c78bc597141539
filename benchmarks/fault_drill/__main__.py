"""The fault drill: what may go wrong in a run, in each of its phases, on real systemd hosts.

    python -m benchmarks.fault_drill [--cells 'load/*'] [--hosts 4] [--minutes 4]

Each cell holds `autotune run` at one phase, lets one fault happen, and requires afterwards: the
host is as it was found (unit byte for byte, original command line serving), by its own timer where
nobody can reach it; every score is kept, proven and told; no process and no lease is left.  It
prints the matrix and ends with 1 when a cell was lost.  Results are appended to `results.jsonl` in
the folder; started again, it goes on with the cells that are not held there yet.  Needs root and
what the host tests need.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from benchmarks.fault_drill.cell import Outcome, Timing
from benchmarks.fault_drill.cells import CELLS, FIXED, Cell, drawn, named
from benchmarks.fault_drill.drill import drill
from benchmarks.fault_drill.matrix import read, table
from tests.testhost import unavailable


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", nargs="+", help="POINT/FAULT, `*` for all; or `fixed`")
    parser.add_argument("--draw", type=int, metavar="N", help="N more cells, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hosts", type=int, default=4, help="side by side")
    parser.add_argument("--load-s", type=float, default=5.0)
    parser.add_argument("--timer-s", type=float, default=15.0)
    parser.add_argument("--minutes", type=float, help="begin no cell after that")
    parser.add_argument("--folder", type=Path, default=Path("fault-drill"))
    parser.add_argument("--show", action="store_true", help="print the matrix of the results only")
    given = parser.parse_args()
    if (reason := unavailable()) is not None:
        print(reason, file=sys.stderr)
        return 2
    wanted = list(CELLS)
    if given.cells or given.draw:
        wanted = [c for text in given.cells or () if text != "fixed" for c in named(text)]
        wanted += [*(FIXED if "fixed" in (given.cells or ()) else ())]
        wanted += drawn(given.seed, given.draw or 0)
    results = given.folder / "results.jsonl"
    known = read(results)
    console = Console(width=160)
    left = [c for c in wanted if c.key not in known or not known[c.key].held]
    left = _spread(left, known, seed=given.seed)
    if not given.show:
        drill(
            left,
            hosts=given.hosts,
            folder=given.folder.resolve(),
            timing=Timing(load_s=given.load_s, timer_s=given.timer_s),
            ends_at=time.monotonic() + 60 * given.minutes if given.minutes else float("inf"),
            say=lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True),
        )
    outcomes = read(results)
    own = {key: one for key, one in outcomes.items() if key in {c.key for c in wanted}}
    lost = [one for one in own.values() if not one.held]
    console.print(table(outcomes, cells=wanted))
    for one in lost:
        console.print(f"{one.key}: {one.lost}", highlight=False, markup=False)
    held = len(own) - len(lost)
    console.print(
        f"{len(wanted)} cells, {held} held, {len(lost)} lost, {len(wanted) - len(own)} to do"
    )
    return 1 if lost else 0


def _spread(left: list[Cell], known: Mapping[str, Outcome], *, seed: int) -> list[Cell]:
    """Drawn; those of CI first, then the faults in turns: a part has seen a bit of everything."""
    left = random.Random(seed).sample(left, len(left))
    seen = Counter(cell.fault for cell in CELLS if cell.key in known)
    turns: dict[Cell, int] = {}
    for cell in left:
        turns[cell] = seen[cell.fault]
        seen[cell.fault] += 1
    return sorted(left, key=lambda cell: (cell not in FIXED, turns[cell]))


if __name__ == "__main__":
    sys.exit(main())
