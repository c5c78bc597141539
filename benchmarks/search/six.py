"""A truth with six parameters: the tree, and three limits of the server around it.

On top of a law, `running` bounds the requests served at once (the rest queue), `graphs` the batch
that captured graphs cover (a larger one runs 18 % slower), both cost memory; `attention` names a
kernel with a speed of its own for the cache.  Points are computed when asked for: there are
millions, so the optimum is the best of a full sweep of the server's settings for every tree.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from autotune.parameter import Parameter, ParameterKind, Values
from autotune.space import SearchSpace
from autotune.testing.surfaces import Observation, ddtree_space
from autotune.workload import Workload
from benchmarks.search.truths import Truth

__all__ = ["SixTruth"]

RUNNING, GRAPHS = (16, 32, 48, 64, 96), (8, 16, 32, 64, 96)
ATTENTION = ("triton", "flashinfer", "fa3")
_EAGER = 1.18


@dataclass(frozen=True, slots=True)
class SixTruth:
    """Tables of one law for every setting of the server."""

    name: str
    space: SearchSpace
    workload: Workload
    capacity_gib: float
    tables: dict[tuple[int, int, str], Truth]

    @classmethod
    def named(cls, name: str) -> SixTruth:
        """`sixN`: around random law N."""
        return _made(int(name.removeprefix("six")))

    def _at(self, values: Values) -> tuple[Truth, int]:
        running, graphs, attention = (values[n] for n in ("running", "graphs", "attention"))
        assert isinstance(running, int)
        assert isinstance(graphs, int)
        truth = self.tables[running, graphs, str(attention)]
        return truth, truth.row({name: values[name] for name in ("budget", "topk", "window")})

    def truth(self, values: Values) -> float:
        own, row = self._at(values)
        deployed, reference = self._at(self.space.deployed())
        score = own.score[row]
        return 0.0 if np.isnan(score) else float(score / deployed.score[reference])

    def best(self) -> tuple[Values, float]:
        found: tuple[Values, float] = ({}, 0.0)
        for (running, graphs, attention), truth in self.tables.items():
            row = int(np.nanargmax(truth.score))
            point = {
                **truth.points[row], "running": running, "graphs": graphs, "attention": attention,
            }  # fmt: skip
            if self.truth(point) > found[1]:
                found = (point, self.truth(point))
        return found

    def measure(self, values: Values, rng: np.random.Generator) -> Observation:
        own, row = self._at(values)
        observed = own.measure(own.points[row], rng)
        if observed.score_ratio is None:
            return observed
        deployed, reference = self._at(self.space.deployed())
        scale = float(own.score[own.deployed] / deployed.score[reference])
        return replace(observed, score_ratio=observed.score_ratio * scale)


@lru_cache(maxsize=8)
def _made(number: int) -> SixTruth:
    base = Truth.named(f"r{number}")
    rng = np.random.default_rng([2719, number])
    kernels = dict(zip(ATTENTION, rng.permutation([1.0, 0.97, 0.93]), strict=True))
    per_request, per_graph = rng.uniform(0.01, 0.05), rng.uniform(0.01, 0.05)
    streams = np.array([float(bucket.concurrency) for bucket in base.workload.buckets])
    tables = {}
    for running, graphs, attention in itertools.product(RUNNING, GRAPHS, ATTENTION):
        slow = np.where(np.minimum(streams, running) > graphs, _EAGER, 1.0)
        admitted = np.minimum(1.0, running / streams) ** 0.6  # a smaller batch has shorter rounds
        extra = per_request * (running - 64) + per_graph * (graphs - 32)
        throughput = base.throughput * admitted / slow / kernels[attention]
        memory = base.memory_gib + extra
        score = np.where(memory > base.capacity_gib, np.nan, throughput @ base.weights * base.gate)
        tables[running, graphs, attention] = replace(
            base, throughput=throughput, memory_gib=memory, score=score
        )
    tree = ddtree_space()
    space = SearchSpace(
        (
            *tree.parameters,
            Parameter("running", ParameterKind.CATEGORICAL, choices=RUNNING, deployed=48,
                      flag="--max-running-requests"),
            Parameter("graphs", ParameterKind.CATEGORICAL, choices=GRAPHS, deployed=32,
                      flag="--cuda-graph-max-bs"),
            Parameter("attention", ParameterKind.CATEGORICAL, choices=ATTENTION, deployed="triton",
                      flag="--attention-backend"),
        ),
        tree.constraints,
    )  # fmt: skip
    return SixTruth(f"six{number}", space, base.workload, base.capacity_gib, tables)
