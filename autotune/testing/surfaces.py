"""Simulated tuning surfaces: what a server with DDTree would measure, without a server.

The accept length is not a formula but the tree itself: nodes are taken best first by the
probability of their path, as the paper's algorithm does (arXiv 2604.12989, section 3), and the
expected accept length is one plus the sum of those probabilities.  Round time is a roofline with
overheads.  `Surface.random(seed)` draws every constant; odd seeds add what smooth models do not
know: a verify batch padded to a multiple, a graph that ends at some size, a loss of wide trees.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from autotune.ddtree import BLOCK_TOKENS, CONSTRAINTS
from autotune.parameter import FloatArray, Parameter, ParameterKind, Values
from autotune.space import SearchSpace
from autotune.workload import Bucket, Workload

__all__ = ["Observation", "Surface", "accept_table", "ddtree_space"]

BUDGET_HIGH, TOPK_HIGH = 64, 16
WINDOWS = (256, 512, 1024, 2048, 4096, 8192, None)
CONTEXTS, CONCURRENCIES = (60, 1024, 4096, 8192), (1, 8, 32, 64)
CODING_SAMPLES = 200
SHARED_SD, BUCKET_SD, ACCEPT_SD = 0.028, 0.03, 0.01
_CAPACITY_GIB = 96.0


def ddtree_space() -> SearchSpace:
    """Budget, top-k and window of DDTree round 8/4/2048."""
    return SearchSpace(
        (
            Parameter(
                "budget", ParameterKind.INT, low=1, high=BUDGET_HIGH, log=True, deployed=8,
                flag="--speculative-ddtree-budget",
            ),
            Parameter(
                "topk", ParameterKind.INT, low=1, high=TOPK_HIGH, log=True, deployed=4,
                flag="--speculative-ddtree-topk-cap",
            ),
            Parameter(
                "window", ParameterKind.CATEGORICAL, choices=WINDOWS, deployed=2048,
                flag="--speculative-dflash-draft-window-size",
            ),
        ),
        tuple(CONSTRAINTS.values()),
    )  # fmt: skip


def accept_table(ranks: FloatArray, depth_decay: float, quality: float) -> FloatArray:
    """Expected accept length for each top-k and budget, shape (TOPK_HIGH, BUDGET_HIGH + 1).

    `ranks` (TOPK_HIGH,) are the probabilities that the drafter's candidate of a rank is right.
    """
    table = np.empty((TOPK_HIGH, BUDGET_HIGH + 1))
    by_depth = [ranks * quality * depth_decay**depth for depth in range(BLOCK_TOKENS - 1)]
    for topk in range(1, TOPK_HIGH + 1):
        heap = [(-by_depth[0][0], 1.0, 0, 0)]  # path probability, its parent's, depth, rank
        total = [1.0]
        while len(total) <= BUDGET_HIGH:
            if not heap:
                total.append(total[-1])
                continue
            negative, parent, depth, rank = heapq.heappop(heap)
            total.append(total[-1] - negative)
            if rank + 1 < topk:
                heapq.heappush(heap, (-parent * by_depth[depth][rank + 1], parent, depth, rank + 1))
            if depth + 1 < len(by_depth):
                child = -negative * by_depth[depth + 1][0]
                heapq.heappush(heap, (-child, -negative, depth + 1, 0))
        table[topk - 1] = total
    return table


@dataclass(frozen=True, slots=True)
class Observation:
    """One trial on a surface: a score as a ratio to the deployed point's, or none (a crash)."""

    score_ratio: float | None
    buckets: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    free_gib: float | None = None

    @property
    def infeasible(self) -> bool:
        return self.score_ratio is None


@dataclass(frozen=True, slots=True)
class Surface:
    """The truth about every point of `space`: (topk, budget, window)-indexed tables.

    Attributes:
        throughput: tok/s, shape (windows, TOPK_HIGH, BUDGET_HIGH, buckets).
        accept: Accept length, same shape.
        gate: Share of the score that the coding answers leave, shape of the first three axes.
        crash: Whether the server runs out of memory.
    """

    space: SearchSpace
    workload: Workload
    throughput: FloatArray
    accept: FloatArray
    gate: FloatArray
    crash: npt.NDArray[np.bool_]

    @classmethod
    def random(cls, seed: int) -> Surface:
        """Surface number `seed`; redrawn while the deployed point crashes or most points do."""
        for attempt in itertools.count():
            rng = np.random.default_rng([seed, attempt, 60_129])
            surface = cls._drawn(rng, stepped=bool(seed % 2))
            deployed = surface._index(surface.space.deployed())
            if not surface.crash[deployed] and surface.crash.mean() < 0.7:
                return surface
        raise AssertionError("unreachable: itertools.count never ends")

    @classmethod
    def _drawn(cls, rng: np.random.Generator, *, stepped: bool) -> Surface:
        def ratio(low: float, high: float) -> float:
            return float(np.exp(rng.uniform(np.log(low), np.log(high))))

        weights = np.outer(rng.dirichlet([3.0] * 4), rng.dirichlet([4.0, 3.0, 2.0, 1.0])).ravel()
        weights[-1] = 1.0 - weights[:-1].sum()
        cells = list(itertools.product(CONTEXTS, CONCURRENCIES))
        workload = Workload(
            tuple(Bucket(c, n, 256, float(w)) for (c, n), w in zip(cells, weights, strict=True))
        )
        context = np.array([c for c, _ in cells], dtype=float)
        streams = np.array([n for _, n in cells], dtype=float)

        # the drafter
        first = rng.uniform(0.5, 0.8)
        tail = np.arange(2, TOPK_HIGH + 1, dtype=float) ** -rng.uniform(0.6, 2.0)
        ranks = np.concatenate([[first], (1 - first) * rng.uniform(0.7, 0.95) * tail / tail.sum()])
        decay, trained = rng.uniform(0.93, 0.995), float(rng.choice([1024, 2048, 4096]))
        unseen, beyond, long = rng.uniform(0.1, 0.4), rng.uniform(0.02, 0.15), rng.uniform(0, 0.1)
        shape = (len(WINDOWS), TOPK_HIGH, BUDGET_HIGH, len(cells))
        accept = np.empty(shape)
        attended = np.empty((len(WINDOWS), len(cells)))
        tables: dict[float, FloatArray] = {}
        for w, window in enumerate(WINDOWS):
            for b, length in enumerate(context):
                seen = length + 128 if window is None else min(float(window), length + 128)
                attended[w, b] = seen
                missing = max(0.0, 1 - seen / min(length + 128, trained))
                quality = (1 - unseen * missing**1.5) * (
                    1 - long * math.log2(1 + length / 1024) / 3
                )
                quality *= 1 - beyond * max(0.0, math.log2(seen / trained))
                if quality not in tables:
                    tables[quality] = accept_table(ranks, decay, quality)
                accept[w, :, :, b] = tables[quality][:, 1:]

        # the round
        budget = np.arange(1, BUDGET_HIGH + 1, dtype=float)[None, None, :, None]
        topk = np.arange(1, TOPK_HIGH + 1, dtype=float)[None, :, None, None]
        tokens = streams * (budget + 1)
        slow = 1.0
        if stepped:
            pad = float(rng.choice([16, 64, 128]))
            slow = 1.0 + rng.uniform(0.1, 0.5) * (tokens > rng.choice([256, 512, 1024]))
            tokens = np.ceil(tokens / pad) * pad
            accept = 1 + (accept - 1) * (1 - rng.uniform(0, 0.03) * np.maximum(0, topk - 6))
        moe = 1 - np.exp(-tokens / ratio(60, 500))
        memory_ms = rng.uniform(8, 25) + rng.uniform(3, 18) * moe
        memory_ms = memory_ms + ratio(1e-5, 6e-5) * streams * context
        knee = rng.uniform(2, 6)
        verify_ms = (memory_ms**knee + (ratio(0.008, 0.09) * tokens) ** knee) ** (1 / knee) * slow
        draft_ms = rng.uniform(0.8, 3) + ratio(1e-5, 1e-4) * streams * attended[:, None, None, :]
        host_ms = ratio(0.004, 0.03) * budget * np.sqrt(streams) + rng.uniform(0.01, 0.1) * topk
        throughput = 1000 * streams * accept / (verify_ms + draft_ms + host_ms)

        # memory and answers
        budget3, topk3 = budget[..., 0], topk[..., 0]
        windows = np.array([8320.0 if w is None else min(w, 8320) for w in WINDOWS])[:, None, None]
        gib = rng.uniform(62, 78) + rng.uniform(0.1, 0.6) * budget3
        gib = gib + rng.uniform(0.0003, 0.0012) * windows + rng.uniform(0, 0.006) * budget3 * topk3
        breaks_at = ratio(60, 500)
        wide = (budget3 * topk3 - breaks_at) / (breaks_at * rng.uniform(0.05, 0.2))
        excess = CODING_SAMPLES * 0.3 / (1 + np.exp(-np.clip(wide, -50, 50))) * np.ones_like(gib)
        gate = np.where(excess > 6.0, np.maximum(0.0, 1 - 1.5 * excess / CODING_SAMPLES), 1.0)
        return cls(ddtree_space(), workload, throughput, accept, gate, gib > _CAPACITY_GIB)

    def _index(self, values: Values) -> tuple[int, int, int]:
        point = self.space.effective(values)
        budget, topk = point["budget"], point["topk"]
        assert isinstance(budget, int)
        assert isinstance(topk, int)
        return WINDOWS.index(point["window"]), topk - 1, budget - 1

    @property
    def weights(self) -> FloatArray:
        return np.array([bucket.weight for bucket in self.workload.buckets])

    def truth(self, values: Values) -> float:
        """The score ratio without noise; 0 for a crash."""
        index, deployed = self._index(values), self._index(self.space.deployed())
        if self.crash[index]:
            return 0.0
        score = self.gate[index] * (self.throughput[index] @ self.weights)
        return float(score / (self.gate[deployed] * (self.throughput[deployed] @ self.weights)))

    def best(self) -> tuple[dict[str, int | float | str | None], float]:
        """The best valid point and its score ratio."""
        scores = np.where(self.crash, -np.inf, self.gate * (self.throughput @ self.weights))
        budgets = np.arange(1, BUDGET_HIGH + 1)[None, None, :]
        scores = np.where(np.arange(1, TOPK_HIGH + 1)[None, :, None] > budgets, -np.inf, scores)
        window, topk, budget = np.unravel_index(int(np.argmax(scores)), scores.shape)
        point = self.space.effective(
            {"budget": int(budget) + 1, "topk": int(topk) + 1, "window": WINDOWS[int(window)]}
        )
        return point, self.truth(point)

    def measure(self, values: Values, rng: np.random.Generator) -> Observation:
        """One trial: noise of the start shared by all buckets, and noise of each bucket."""
        index = self._index(values)
        if self.crash[index]:
            return Observation(None)
        deployed = self._index(self.space.deployed())
        size = len(self.workload.buckets)
        noise = rng.normal(0, SHARED_SD) + rng.normal(0, BUCKET_SD, size)
        throughput = self.throughput[index] * np.exp(noise)
        accept = self.accept[index] * np.exp(rng.normal(0, ACCEPT_SD, size))
        reference = self.gate[deployed] * (self.throughput[deployed] @ self.weights)
        buckets = {
            bucket.key: {"output_tok_per_s": float(t), "accept_length": float(a)}
            for bucket, t, a in zip(self.workload.buckets, throughput, accept, strict=True)
        }
        score = self.gate[index] * (throughput @ self.weights)
        return Observation(float(score / reference), buckets)
