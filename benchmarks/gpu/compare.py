"""How far the sampler's winner is from the best of a grid, both measured on one machine.

`python benchmarks/gpu/compare.py STUDY_FOLDER GRID_FOLDER`; the folders hold `autotune.db`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from autotune.reading import load_stored
from autotune.views import trial_views


def scored(folder: Path) -> list[tuple[float, str, float]]:
    """Score ratio, configuration and cost in seconds of each scored trial, in their order."""
    rows = []
    for trial in trial_views(load_stored(folder.name, f"sqlite:///{folder}/autotune.db")):
        if trial["score_ratio"] is None:
            continue
        values = ", ".join(f"{name} {value}" for name, value in trial["parameters"].items())
        cost_s = sum(trial[key] or 0.0 for key in ("stop_s", "load_s", "measure_s"))
        rows.append((float(trial["score_ratio"]), values, cost_s))
    return rows


def main(study: Path, grid: Path) -> None:
    found, known = scored(study), scored(grid)
    by_values = {values: ratio for ratio, values, _ in known}
    best, best_values, _ = max(known)
    print(f"grid: {len(known)} points, {sum(row[2] for row in known):.0f} s")
    for ratio, values, cost_s in sorted(known, reverse=True):
        print(f"  {ratio:6.3f}  {values}  ({cost_s:.0f} s)")
    print(f"study: {len(found)} trials, {sum(row[2] for row in found):.0f} s")
    for ratio, values, cost_s in found:
        print(
            f"  {ratio:6.3f}  {values}  ({cost_s:.0f} s), by the grid {by_values.get(values, '-')}"
        )
    winner, winner_values, _ = max(found)
    truth = by_values.get(winner_values, winner)
    print(f"grid's best {best:.3f} ({best_values}); winner {winner_values}: {truth:.3f}")
    print(f"the winner is {100 * (1 - truth / best):.1f} % below the grid's best")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
