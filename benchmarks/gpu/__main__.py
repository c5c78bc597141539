"""`python -m benchmarks.gpu tune|grid|dflash|compare OUT`; see README.md beside this file."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from string import Template
from typing import Any

HERE = Path(__file__).parent
DRAFT_TOKENS = range(4, 33, 4)
BREADTHS = (1, 4)
TRIALS = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("what", choices=["tune", "grid", "dflash", "compare"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", type=Path, default=Path("models"))
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument(
        "--engine",
        default=os.environ.get("PYTHONPATH", ""),
        help="PYTHONPATH of the server, where SGLang is not installed",
    )
    arguments = parser.parse_args()
    out: Path = arguments.out.resolve()
    if arguments.what == "compare":
        return _compare(out)
    points = list(product(DRAFT_TOKENS, BREADTHS))
    values = {
        "tune": {"trials": TRIALS, "enqueue": [], "finalists": 1},
        # The first point is the deployed one: the reference has it.
        "grid": {"trials": len(points), "enqueue": [list(p) for p in points[1:]], "finalists": 0},
        "dflash": {},
    }[arguments.what]
    out.mkdir(parents=True, exist_ok=True)
    study = out / f"gpu-{arguments.what}.toml"
    space = "dflash.toml" if arguments.what == "dflash" else "ngram.toml"
    objective = out / f"gpu-{arguments.what}-objective.toml"
    # Of the length of the answers that the pair was trained on, or less.
    answer = Template((HERE / "objective.toml").read_text())
    objective.write_text(answer.substitute(output_tokens=96 if arguments.what == "dflash" else 256))
    text = Template((HERE / space).read_text())
    study.write_text(
        text.substitute(
            values,
            objective=objective.name,
            host=f"gpu{arguments.gpu}",
            gpu=arguments.gpu,
            models=arguments.models.resolve(),
            engine=arguments.engine,
        )
    )
    command = [sys.executable, "-m", "autotune", "run", "--executor", "serial"]
    ran = subprocess.run([*command, "--study", str(study), "--storage", _storage(study)], cwd=out)
    return ran.returncode


def _storage(study: Path) -> str:
    return f"sqlite:///{study.with_suffix('.db')}"


def _read(out: Path, what: str, command: str, *options: str) -> Any:
    study = out / f"gpu-{what}.toml"
    words = [sys.executable, "-m", "autotune", command, "--study", str(study)]
    words += ["--storage", _storage(study), *options]
    return json.loads(subprocess.run(words, check=True, capture_output=True, cwd=out).stdout)


def _compare(out: Path) -> int:
    """The grid, best first, and where the winner of the study stands in it."""
    grid = [t for t in _read(out, "grid", "trials", "--json") if t["score"] is not None]
    grid.sort(key=lambda trial: -trial["score_ratio"])
    export = _read(out, "tune", "export", "--format", "json")
    trials = _read(out, "tune", "trials", "--json")
    print("rank  draft  breadth   ratio to 4/1   tok/s (accept length) by bucket")
    for rank, trial in enumerate(grid, start=1):
        buckets = "  ".join(
            f"{b['output_tok_per_s']:8.0f} ({b['accept_length'] or 1:.2f})"
            for b in sorted(trial["buckets"], key=lambda bucket: bucket["concurrency"])
        )
        point = trial["parameters"]
        print(
            f"{rank:4}  {point['draft_tokens']:5}  {point['breadth']:7}   "
            f"{trial['score_ratio']:12.3f}   {buckets}"
        )
    ranked = [trial["parameters"] for trial in grid]
    print(f"verdict of the study after {len(trials)} trials: {export['verdict']}")
    tried = [t for t in trials if t["score"] is not None and t["parameters"] in ranked]
    best = max(tried, key=lambda trial: trial["score_ratio"])
    for what, point in (("named", export["parameters"]), ("best observed", best["parameters"])):
        if point in ranked:
            place = ranked.index(point)
            short = 1 - grid[place]["score_ratio"] / grid[0]["score_ratio"]
            print(
                f"{what}: {point}, number {place + 1} of {len(grid)} in the grid, "
                f"{100 * short:.1f} % below the grid's best"
            )
    for what in ("tune", "grid"):
        done = _read(out, what, "trials", "--json")
        spent_s = sum((t["load_s"] or 0) + (t["measure_s"] or 0) for t in done)
        print(f"{what}: {len(done)} trials, {spent_s / 60:.1f} GPU-minutes of load and measurement")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
