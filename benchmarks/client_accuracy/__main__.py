"""The measuring client against the truth.  Needs no network.

    python -m benchmarks.client_accuracy [--only accuracy coverage ...] [--concurrency 1 8 64 256]
    python -m benchmarks.client_accuracy --only peers [--environments FOLDER]

`peers` compares with aiperf and guidellm, which it installs into environments of its own; it needs
a package index, takes minutes and gigabytes, and is not part of the others.  Ends with 1 when a
line is missed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.client_accuracy.accuracy import Plan, accuracy
from benchmarks.client_accuracy.cost import fixed_cost
from benchmarks.client_accuracy.faults import faults, killed
from benchmarks.client_accuracy.intervals import coverage, stopping

OWN = ("accuracy", "coverage", "stopping", "cost", "faults", "kill")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=(*OWN, "peers"), default=OWN)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--gap-ms", type=float, default=20.0, help="between chunks of a stream")
    parser.add_argument("--window-s", type=float, default=0.5)
    parser.add_argument("--buckets", type=int, default=2400, help="simulated, for coverage")
    parser.add_argument(
        "--environments", type=Path, default=Path("build/peers"), help="where peers are installed"
    )
    given = parser.parse_args()
    plan = Plan(
        concurrencies=tuple(given.concurrency),
        gap_s=given.gap_ms / 1000,
        window_s=given.window_s,
    )

    def peers() -> tuple[Table, bool]:
        from benchmarks.client_accuracy.peers import compare

        return compare(given.environments)

    parts: dict[str, Callable[[], tuple[Table, bool]]] = {
        "accuracy": lambda: accuracy(plan),
        "coverage": lambda: coverage(given.buckets),
        "stopping": lambda: stopping(given.buckets // 4),
        "cost": fixed_cost,
        "faults": faults,
        "kill": killed,
        "peers": peers,
    }
    console = Console(width=170)
    missed = []
    for name in given.only:
        table, right = parts[name]()
        console.print(table)
        if not right:
            missed.append(name)
    console.print(f"missed: {', '.join(missed)}" if missed else "all lines hold")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
