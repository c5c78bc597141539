"""Measurement of one OpenAI-compatible server."""

from __future__ import annotations

from autotune.benchmark.client import Answer, Endpoint
from autotune.benchmark.counters import Counters, CounterValues
from autotune.benchmark.measure import Phase, WindowNote
from autotune.benchmark.session import Benchmark
from autotune.measure_settings import MeasureSettings

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
