"""What is searched: a space, its noise and its truth."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from autotune.parameter import Values
from autotune.space import SearchSpace
from autotune.testing.surfaces import Observation, Surface
from autotune.workload import Workload
from benchmarks.search.six import SixTruth
from benchmarks.search.truths import Truth

__all__ = ["Problem", "problem"]


class Problem(Protocol):
    @property
    def space(self) -> SearchSpace: ...
    @property
    def workload(self) -> Workload: ...
    def measure(self, values: Values, rng: np.random.Generator) -> Observation: ...
    def truth(self, values: Values) -> float: ...
    def best(self) -> tuple[Values, float]: ...


def problem(name: str) -> Problem:
    """`pcie`, `nvlink`, `rN`, `sixN`, or `treeN`: the surface of a real tree, not tuned on."""
    if name.startswith("six"):
        return SixTruth.named(name)
    if name.startswith("tree"):
        return Surface.random(int(name.removeprefix("tree")))
    return Truth.named(name)
