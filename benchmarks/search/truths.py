"""Surfaces whose truth is a law: what every point of the space brings, without noise.

Two places with fixed constants (`pcie`: the link makes every verified token dear; `nvlink`: a
large tree wins, against the memory wall) and any number of random ones.  Constants of random
truth i come from the seed [2718, i, attempt] alone; it is drawn again only while the deployed
point crashes or less than 30 % of the points run.  Odd truths pad the verify batch, leave the
captured graphs at some size and lose accept length in wide trees: what no smooth model knows.

A measurement has three kinds of noise: what a whole start shares, what one bucket has, and the
coding tasks, of which a handful more or less fail.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autotune.parameter import FloatArray, ParameterValue, Values
from autotune.space import SearchSpace
from autotune.testing.surfaces import (
    BUDGET_HIGH,
    CONCURRENCIES,
    CONTEXTS,
    TOPK_HIGH,
    WINDOWS,
    Observation,
    ddtree_space,
)
from autotune.workload import Bucket, Workload

__all__ = ["Law", "Truth"]

TASKS = 40
PENALTY, DEAD_BAND = 1.5, 0.05
ACCEPT_SD, MEMORY_SD = 0.01, 0.2
_NO_WINDOW_TOKENS = 16_384.0
_CELLS = np.array(list(itertools.product(CONTEXTS, CONCURRENCIES)), dtype=float)
_CONTEXT, _STREAMS = _CELLS[None, :, 0], _CELLS[None, :, 1]


@dataclass(frozen=True, slots=True)
class Law:
    """Constants of one surface: accept length, round (ms), memory (GiB), answers, traffic."""

    gain: float = 4.6
    budget_scale: float = 7.0
    concavity: float = 0.75
    topk_scale: float = 1.6
    chain_share: float = 0.62
    dilution: float = 0.10
    trained_tokens: float = 2048.0
    beyond: float = 0.22
    hidden: float = 0.45
    fixed_ms: float = 15.5
    expert_ms: float = 14.0
    expert_tokens: float = 110.0
    token_ms: float = 0.060
    cache_ms: float = 0.00003
    draft_ms: float = 1.6
    draft_cache_ms: float = 0.000035
    node_ms: float = 0.020
    topk_ms: float = 0.05
    knee: float = 4.0
    base_gib: float = 70.0
    node_gib: float = 0.26
    window_gib: float = 0.0011
    pair_gib: float = 0.004
    capacity_gib: float = 93.0
    breaks_at: float = 300.0
    breaks_width: float = 60.0
    flake_rate: float = 0.03
    concurrency_shares: tuple[float, ...] = (0.4, 0.3, 0.2, 0.1)
    context_shares: tuple[float, ...] = (0.25, 0.25, 0.25, 0.25)
    padding: int = 1
    graph_tokens: float = 1e9
    beyond_graph: float = 1.0
    wide_loss: float = 0.0

    @classmethod
    def drawn(cls, number: int, attempt: int) -> Law:
        """Constants of random truth `number`; the order of the draws is part of the definition."""
        rng = np.random.default_rng([2718, number, attempt])
        draw = rng.uniform

        def ratio(low: float, high: float) -> float:
            return float(np.exp(draw(np.log(low), np.log(high))))

        steps: dict[str, float] = {}
        smooth = {
            "gain": draw(3, 6.5), "budget_scale": ratio(3, 18), "concavity": draw(0.6, 1),
            "topk_scale": ratio(0.8, 4), "chain_share": draw(0.4, 0.8), "dilution": draw(0, 0.2),
            "trained_tokens": float(rng.choice([1024, 2048, 4096])), "beyond": draw(0.05, 0.35),
            "hidden": draw(0.15, 0.6), "fixed_ms": draw(8, 25), "expert_ms": draw(3, 18),
            "expert_tokens": ratio(60, 500), "token_ms": ratio(0.008, 0.09),
            "cache_ms": ratio(1e-5, 6e-5), "draft_ms": draw(0.8, 3),
            "draft_cache_ms": ratio(1e-5, 1e-4), "node_ms": ratio(0.004, 0.03),
            "topk_ms": draw(0.01, 0.1), "knee": draw(2, 6), "node_gib": draw(0.1, 0.6),
            "window_gib": draw(0.0005, 0.0016), "pair_gib": draw(0, 0.006),
            "capacity_gib": draw(85, 100), "breaks_at": ratio(60, 500),
            "breaks_width": draw(15, 70),
        }  # fmt: skip
        shares = tuple(rng.dirichlet([2] * 4))
        contexts = tuple(rng.dirichlet([3] * 4))
        if number % 2:
            steps = {
                "padding": int(rng.choice([16, 64, 128])),
                "graph_tokens": float(rng.choice([256, 512, 768, 1024])),
                "beyond_graph": draw(1.1, 1.5),
                "wide_loss": draw(0, 0.03),
            }
        return cls(**smooth, **steps, concurrency_shares=shares, context_shares=contexts)  # type: ignore[arg-type]

    def accept_length(self, budget: FloatArray, topk: FloatArray, window: FloatArray) -> FloatArray:
        """Tokens of a round, shape (m, buckets), for columns (m, 1)."""
        seen = np.minimum(window, _CONTEXT + 128)
        missing = np.clip(1 - seen / np.minimum(_CONTEXT + 128, self.trained_tokens), 0, 1)
        quality = 1 - self.hidden * missing**1.5
        quality = quality * (
            1 - self.beyond * np.clip(np.log2(seen / self.trained_tokens), 0, None)
        )
        quality = quality * (1 - 0.05 * np.log2(1 + _CONTEXT / 1024) / 3)
        by_topk = 1 - (1 - self.chain_share) * np.exp(-(topk - 1) / self.topk_scale)
        by_budget = 1 - np.exp(-((budget / self.budget_scale) ** self.concavity))
        wide = 1 - self.wide_loss * np.maximum(0, topk - 6)
        diluted = 1 + self.dilution * topk / budget
        return np.asarray(1 + self.gain * quality * by_budget * by_topk / diluted * wide)

    def round_ms(self, budget: FloatArray, topk: FloatArray, window: FloatArray) -> FloatArray:
        """Duration of a round, shape (m, buckets)."""
        seen = np.minimum(window, _CONTEXT + 128)
        tokens = np.ceil(_STREAMS * (budget + 1) / self.padding) * self.padding
        memory = self.fixed_ms + self.expert_ms * (1 - np.exp(-tokens / self.expert_tokens))
        memory = memory + self.cache_ms * _STREAMS * _CONTEXT
        verify = (memory**self.knee + (self.token_ms * tokens) ** self.knee) ** (1 / self.knee)
        verify = verify * np.where(tokens > self.graph_tokens, self.beyond_graph, 1.0)
        draft = self.draft_ms + self.draft_cache_ms * _STREAMS * seen
        return np.asarray(
            verify + draft + self.node_ms * budget * np.sqrt(_STREAMS) + self.topk_ms * topk
        )


_NAMED = {
    "pcie": Law(
        fixed_ms=20.0, budget_scale=10.0, topk_scale=2.6, chain_share=0.55, token_ms=0.052
    ),
    "nvlink": Law(
        fixed_ms=11.0, expert_ms=9.0, expert_tokens=400, token_ms=0.010, node_ms=0.006, gain=5.4,
        budget_scale=12, topk_scale=2.6, chain_share=0.5, node_gib=0.50, window_gib=0.0013,
        capacity_gib=97.0, breaks_at=420,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Truth:
    """What every valid point of the DDTree space brings.

    Attributes:
        rows: Place of each key in the tables.
        throughput, accept: Shape (points, buckets), tok/s and tokens.
        memory_gib: Shape (points,).
        fail_rate: Share of coding tasks that fail, shape (points,).
        score: Without noise, NaN for a crash, shape (points,).
    """

    name: str
    space: SearchSpace
    workload: Workload
    capacity_gib: float
    flake_rate: float
    shared_sd: float
    bucket_sd: float
    points: tuple[Mapping[str, ParameterValue], ...]
    rows: Mapping[str, int]
    throughput: FloatArray
    accept: FloatArray
    memory_gib: FloatArray
    fail_rate: FloatArray
    score: FloatArray

    @classmethod
    def named(cls, name: str) -> Truth:
        """`pcie`, `nvlink`, or `rN` for random truth N."""
        return _made(name)

    @classmethod
    def of(cls, name: str, law: Law, *, shared_sd: float = 0.028, bucket_sd: float = 0.03) -> Truth:
        """Tables of one law."""
        space, points, rows, columns = _grid()
        budget, topk, window = (column[:, None] for column in columns.T)
        accept = law.accept_length(budget, topk, window)
        throughput = 1000 * _STREAMS * accept / law.round_ms(budget, topk, window)
        held = np.minimum(columns[:, 2], 8192 + 128)
        memory = law.base_gib + law.node_gib * columns[:, 0] + law.window_gib * held
        memory = memory + law.pair_gib * columns[:, 0] * columns[:, 1]
        broken = (columns[:, 0] * columns[:, 1] - law.breaks_at) / law.breaks_width
        fails = law.flake_rate + 0.35 / (1 + np.exp(-broken))
        weights = np.outer(law.context_shares, law.concurrency_shares).ravel()
        weights = weights / weights.sum()
        lost = PENALTY * np.maximum(0, fails - law.flake_rate - DEAD_BAND)
        score = np.where(memory > law.capacity_gib, np.nan, throughput @ weights * (1 - lost))
        shares = [float(w) for w in weights[:-1]]
        shares.append(1.0 - sum(shares))
        buckets = tuple(
            Bucket(int(c), int(n), 256, max(0.0, w))
            for (c, n), w in zip(_CELLS, shares, strict=True)
        )
        return cls(
            name, space, Workload(buckets), law.capacity_gib, law.flake_rate, shared_sd, bucket_sd,
            points, rows, throughput, accept, memory, fails, score,
        )  # fmt: skip

    @property
    def gate(self) -> FloatArray:
        """Share of the score that the expected failures leave, shape (points,)."""
        return np.asarray(1 - PENALTY * np.maximum(0, self.fail_rate - self.flake_rate - DEAD_BAND))

    @property
    def weights(self) -> FloatArray:
        return np.array([bucket.weight for bucket in self.workload.buckets])

    def row(self, values: Values) -> int:
        return self.rows[self.space.key(values)]

    def truth(self, values: Values) -> float:
        """Score ratio to the deployed point without noise; 0 for a crash."""
        score = self.score[self.row(values)]
        return 0.0 if np.isnan(score) else float(score / self.score[self.deployed])

    @property
    def deployed(self) -> int:
        return self.row(self.space.deployed())

    def best(self) -> tuple[Values, float]:
        row = int(np.nanargmax(self.score))
        return self.points[row], float(self.score[row] / self.score[self.deployed])

    def measure(self, values: Values, rng: np.random.Generator) -> Observation:
        """One trial as it would be observed."""
        row = self.row(values)
        if np.isnan(self.score[row]):
            return Observation(None)
        size = len(self.workload.buckets)
        shared = rng.normal(0, self.shared_sd)
        throughput = self.throughput[row] * np.exp(shared + rng.normal(0, self.bucket_sd, size))
        accept = self.accept[row] * np.exp(rng.normal(0, ACCEPT_SD, size))
        failed = rng.binomial(TASKS, self.fail_rate[row]) / TASKS
        memory = float(self.memory_gib[row] + rng.normal(0, MEMORY_SD))
        gate = 1 - PENALTY * max(0.0, failed - self.flake_rate - DEAD_BAND)
        buckets = {
            bucket.key: {"output_tok_per_s": float(t), "accept_length": float(a)}
            for bucket, t, a in zip(self.workload.buckets, throughput, accept, strict=True)
        }
        score = float(throughput @ self.weights * gate / self.score[self.deployed])
        return Observation(score, buckets, free_gib=self.capacity_gib - memory)


@lru_cache(maxsize=1)
def _grid() -> tuple[
    SearchSpace, tuple[Mapping[str, ParameterValue], ...], Mapping[str, int], FloatArray
]:
    space = ddtree_space()
    points: list[dict[str, ParameterValue]] = [
        {"budget": budget, "topk": topk, "window": window}
        for budget in range(1, BUDGET_HIGH + 1)
        for topk in range(1, min(TOPK_HIGH, budget) + 1)
        for window in WINDOWS
    ]
    rows = {space.key(point): row for row, point in enumerate(points)}
    columns = np.array(
        [[p["budget"], p["topk"], p["window"] or _NO_WINDOW_TOKENS] for p in points], dtype=float
    )
    return space, tuple(points), rows, columns


@lru_cache(maxsize=64)
def _made(name: str) -> Truth:
    if name in _NAMED:
        return Truth.of(name, _NAMED[name])
    number = int(name.removeprefix("r"))
    for attempt in itertools.count():
        truth = Truth.of(name, Law.drawn(number, attempt))
        crash = np.isnan(truth.score)
        if not crash[truth.deployed] and crash.mean() < 0.7:
            return truth
    raise AssertionError("unreachable: itertools.count never ends")
