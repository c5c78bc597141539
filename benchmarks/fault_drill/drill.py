"""A whole drill: cells over hosts, side by side, results as they come."""

from __future__ import annotations

import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from benchmarks.fault_drill.cell import Outcome, Timing, deploy_service, run_cell
from benchmarks.fault_drill.cells import Cell
from benchmarks.fault_drill.matrix import append
from tests.testhost import SystemdHost, boot

__all__ = ["drill"]


def drill(
    cells: Iterable[Cell],
    *,
    hosts: int,
    folder: Path,
    timing: Timing,
    ends_at: float = float("inf"),
    say: Callable[[str], None],
) -> dict[str, Outcome]:
    """Run cells on hosts of its own, and append each outcome to `results.jsonl` in the folder.

    Args:
        hosts: How many run side by side.
        ends_at: On the monotonic clock; no cell is begun later.

    Returns:
        The outcome of each cell that was run.
    """
    left, lock = deque(cells), Lock()
    outcomes: dict[str, Outcome] = {}

    def work(name: str) -> None:
        host: SystemdHost | None = None
        try:
            while time.monotonic() < ends_at:
                with lock:
                    if not left:
                        return
                    cell = left.popleft()
                host = host or _deployed(timing)
                own = folder / cell.key.replace("/", "--").replace(" ", "-").replace(",", "")
                outcome = run_cell(cell, host, own, seeds=folder / "seeds", timing=timing)
                with lock:
                    outcomes[cell.key] = outcome
                    append(folder / "results.jsonl", outcome)
                    say(_line(outcome, name))
                if not outcome.held:  # what is left there would be blamed on the next cell
                    host.close()
                    host = None
        finally:
            if host is not None:
                host.close()

    with ThreadPoolExecutor(hosts) as pool:
        ended = [pool.submit(work, f"host {index}") for index in range(hosts)]
        for one in ended:
            one.result()
    return outcomes


def _deployed(timing: Timing) -> SystemdHost:
    host = boot("drill")
    try:
        deploy_service(host, timing)
    except (AssertionError, OSError, subprocess.SubprocessError):
        host.close()
        raise
    return host


def _line(outcome: Outcome, host: str) -> str:
    exits = ", ".join(map(str, outcome.exits))
    if outcome.held:
        ended = f"held, back after {outcome.back_s:.0f} s"
    else:
        ended = f"LOST: {outcome.lost.splitlines()[0]}"
    return f"{host} {outcome.key}: {ended} (exits {exits}; {outcome.wall_s:.0f} s)"
