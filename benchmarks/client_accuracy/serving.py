"""A truth server as a process of its own, and what it knows."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from autotune import stats
from autotune.benchmark import Phase, WindowNote
from tests.truth_server import Behaviour

__all__ = ["Served", "Truth", "truth_of", "truth_server"]

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    process: subprocess.Popen[str]


@dataclass(frozen=True, slots=True)
class Truth:
    """Tokens written within the windows per second; medians over the same requests as the client's.

    TTFT is that of requests which arrived in the windows, TPOT of those which ended in them.
    """

    tok_per_s: float
    ttft_ms: float
    tpot_ms: float


@contextmanager
def truth_server(behaviour: Behaviour) -> Iterator[Served]:
    """A server process; ended when the block is left."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.truth_server", json.dumps(dataclasses.asdict(behaviour))],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Served(f"http://127.0.0.1:{process.stdout.readline().strip()}", process)
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def truth_of(url: str, notes: list[WindowNote]) -> Truth:
    """What the server wrote within the measured windows.

    Server and client read the same monotonic clock of the machine.
    """
    windows = [note for note in notes if note.phase is Phase.MEASURE]
    start_s, end_s = windows[0].start_s, windows[-1].end_s
    seen = httpx.get(f"{url}/truth", trust_env=False, timeout=60).json()
    tokens = sum(n for at_s, n in seen["written"] if start_s <= at_s < end_s)
    ttft_ms, tpot_ms = (
        _median_ms([value for at_s, value in seen[name] if start_s <= at_s < end_s])
        for name in ("ttft_s", "tpot_s")
    )
    return Truth(tokens / (end_s - start_s), ttft_ms, tpot_ms)


def _median_ms(values_s: list[float]) -> float:
    return stats.percentile(values_s, 50) * 1000 if values_s else 0.0
