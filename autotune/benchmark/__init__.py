"""Measurement of one OpenAI-compatible server."""

from __future__ import annotations

from autotune.benchmark.client import Answer, Endpoint
from autotune.benchmark.counters import Counters, CounterValues
from autotune.benchmark.measure import MeasureSettings, Phase, WindowNote
from autotune.benchmark.session import Benchmark

__all__ = [
    "Answer",
    "Benchmark",
    "CounterValues",
    "Counters",
    "Endpoint",
    "MeasureSettings",
    "Phase",
    "WindowNote",
]
