"""How many branches the tests have taken, by module, from what `scripts/coverage` has recorded.

    python -m benchmarks.branches [--core]

A branch is one of the two ways out of a line that decides.  `--core` shows the modules of
`[tool.mutmut]` in pyproject.toml, else the whole package by folder.  Ends with 1 below the goal:
95 % of the core's branches, 85 % of all.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Taken", "main", "table"]

CORE_GOAL, WHOLE_GOAL = 0.95, 0.85


@dataclass(frozen=True, slots=True)
class Taken:
    """Branches and statements of one file that tests have reached."""

    branches: int
    taken: int
    statements: int
    run: int

    def __add__(self, other: Taken) -> Taken:
        return Taken(
            self.branches + other.branches,
            self.taken + other.taken,
            self.statements + other.statements,
            self.run + other.run,
        )

    @property
    def share(self) -> float:
        return self.taken / self.branches if self.branches else 1.0


NOTHING = Taken(0, 0, 0, 0)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--core", action="store_true")
    core = parser.parse_args(arguments).core
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        subprocess.run(
            [sys.executable, "-m", "coverage", "json", "-q", "-o", str(report)], check=True
        )
        files = _read(json.loads(report.read_text()))
    if core:
        settings = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["mutmut"]
        shown = {name: files.get(name, NOTHING) for name in settings["only_mutate"]}
    else:
        folders = sorted({str(Path(name).parent) for name in files})
        shown = {one: _total(t for n, t in files.items() if str(Path(n).parent) == one)
                 for one in folders}  # fmt: skip
    print(table(shown))
    return int(_total(shown.values()).share < (CORE_GOAL if core else WHOLE_GOAL))


def table(rows: Mapping[str, Taken]) -> str:
    lines = [f"{'':34}  branches   taken            statements     run"]
    for name, one in (*rows.items(), ("all", _total(rows.values()))):
        run = one.run / one.statements if one.statements else 1.0
        lines.append(
            f"{name:34}  {one.branches:8}  {one.taken:6}  {one.share:7.1%}  "
            f"{one.statements:12}  {run:6.1%}"
        )
    return "\n".join(lines)


def _read(report: Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]]) -> dict[str, Taken]:
    return {
        name: Taken(
            file["summary"]["num_branches"],
            file["summary"]["covered_branches"],
            file["summary"]["num_statements"],
            file["summary"]["covered_lines"],
        )
        for name, file in report["files"].items()
    }


def _total(rows: Iterable[Taken]) -> Taken:
    return sum(rows, NOTHING)


if __name__ == "__main__":
    sys.exit(main())
