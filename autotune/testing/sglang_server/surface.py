"""The tuning surface of the simulated server: speed, accept length, memory and corruption.

| symbol | meaning | unit |
|---|---|---|
| B, K, W | budget, top-k cap, draft window (None = the whole context) | nodes, ranks, tokens |
| C, L | concurrency, prompt length | requests, tokens |
| q | quality of the drafter at a window and a context, 1 = as trained | - |
| tau | accept length: output tokens of a verify step | tokens |
| n | tokens verified in a round, C (B + 1) | tokens |
| t | duration of a round | ms |

    q    = (1 - undersight * max(0, 1 - seen / min(L, trained)))
           * (1 - overreach * max(0, log2(seen / trained))) * (1 - length_loss * log2(1 + L / 1024))
    seen = min(W, L)
    tau  = 1 + the survivals of the best-first tree at hit rate hit * q           (tree.py)
    t    = (memory^knee + (token_ms n)^knee)^(1/knee) + draft + tree + top-k
           memory = base + expert (1 - exp(-n / expert_tokens)) + kv C L
           draft  = draft_ms + draft_kv C seen;  tree = tree_ms B sqrt(C);  top-k = topk_ms K
    output throughput = 1000 C tau / t

The verify step is bound by memory until the experts of a mixture model are all touched and by
arithmetic later, hence the roofline with a rounded knee.  Everything here is pure: the same
arguments give the same numbers, and the simulated server draws its rounds from them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

from autotune.testing.sglang_server.setting import Algorithm, Setting
from autotune.testing.sglang_server.tree import (
    Drafter,
    TreeNode,
    accept_length,
    accept_variance,
    best_first,
    survival,
)

__all__ = ["Algorithm", "Setting", "Surface"]

_NODES_MOST = 64


@dataclass(frozen=True, slots=True)
class Surface:
    """A named set of constants; the defaults are those of `kimi-k26`, see the module for symbols.

    The constants are our own choice, not a measurement: they are set so that `kimi-k26` gives about
    150 tok/s at budget 8, top-k 4, window 2048 for one short request, and so that `demo` has its
    optimum 15 to 21 % above 8/4/none.
    """

    name: str
    # drafter
    block_size: int = 8
    hit: float = 0.75
    hit_decay: float = 0.99
    tail: float = 0.5
    tail_belief: float = 0.6
    cover: float = 0.9
    ngram_hit: float = 0.62
    eagle_hit: float = 0.72
    trained_tokens: int = 2048
    overreach: float = 0.08
    undersight: float = 0.12
    length_loss: float = 0.012
    # round, ms
    base_ms: float = 21.6
    expert_ms: float = 10.0
    expert_tokens: float = 200.0
    token_ms: float = 0.03
    knee: float = 4.0
    kv_ms: float = 0.00003
    draft_ms: float = 1.6
    draft_kv_ms: float = 0.00003
    tree_ms: float = 0.02
    topk_ms: float = 0.05
    eager_factor: float = 1.4
    # prefill
    prefill_ms: float = 4.0
    prefill_tok_per_s: float = 60_000.0
    # memory of one GPU, GiB
    total_gib: float = 95.0
    weights_gib: float = 66.0
    mem_fraction: float = 0.85
    kv_gib_per_token: float = 0.00002
    node_gib: float = 0.222
    pair_gib: float = 0.0043
    window_gib: float = 0.00015
    tree_requests: float = 64.0
    # corruption
    garble_at: float = 480.0
    garble_width: float = 20.0
    garble_most: float = 0.5
    garble_gain: float = 0.4
    flake_rate: float = 0.02
    # noise, standard deviations of the logarithm
    shared_sd: float = 0.01
    bucket_sd: float = 0.01
    attention: dict[str, float] = field(
        default_factory=lambda: {"triton": 1.0, "flashinfer": 0.93, "fa3": 0.9, "fa4": 0.9}
    )

    @classmethod
    def named(cls, name: str) -> Surface:
        """The surface `demo` or `kimi-k26`.

        Raises:
            KeyError: No surface has this name.
        """
        surfaces = {surface.name: surface for surface in (_DEMO, _KIMI)}
        if name not in surfaces:
            raise KeyError(f"no surface {name!r}; there are {', '.join(sorted(surfaces))}")
        return surfaces[name]

    def quality(self, *, window: int | None, context_tokens: int) -> float:
        """Factor on the drafter's hit rate, 1 = as trained."""
        context = max(1, context_tokens)
        seen = context if window is None else min(window, context)
        lost = max(0.0, 1 - seen / min(context, self.trained_tokens))
        beyond = max(0.0, math.log2(seen / self.trained_tokens))
        return (
            (1 - self.undersight * lost)
            * (1 - self.overreach * beyond)
            * (1 - self.length_loss * math.log2(1 + context / 1024))
        )

    def survivals(self, setting: Setting, *, context_tokens: int) -> tuple[float, ...]:
        """Probability that at least d drafted tokens are accepted, for d = 1, 2, ..."""
        if setting.algorithm == Algorithm.NONE or setting.budget < 1:
            return ()
        nodes = min(setting.budget, _NODES_MOST * 4)
        tree = self._tree(setting, context_tokens)[:nodes]
        clean = survival(tree)
        corrupt = self.corruption_rate(budget=setting.budget, topk=setting.topk)
        if setting.algorithm != Algorithm.DDTREE or not corrupt:
            return clean
        # A drafter follows degenerate text easily: garbled answers are accepted to the full depth.
        share = self.garble_gain * corrupt
        return tuple(s + share * (1 - s) for s in clean)

    def accept_length(
        self,
        *,
        budget: int,
        topk: int,
        window: int | None,
        context_tokens: int,
        algorithm: Algorithm = Algorithm.DDTREE,
    ) -> float:
        """Mean output tokens of a verify step, the bonus token included."""
        setting = Setting(budget=budget, topk=topk, window=window, algorithm=algorithm)
        return accept_length(self.survivals(setting, context_tokens=context_tokens))

    def round_s(
        self,
        setting: Setting,
        *,
        running: int,
        context_tokens: float,
        seen_tokens: float | None = None,
    ) -> float:
        """Duration of one verify round, seconds.

        Args:
            running: Requests in the batch.
            context_tokens: Mean prompt length of the batch, tokens.
            seen_tokens: Mean context that the drafter attends to; by default from the window.
        """
        if seen_tokens is None:
            window = math.inf if setting.window is None else setting.window
            seen_tokens = min(window, context_tokens)
        speculates = setting.algorithm != Algorithm.NONE
        verified = running * (setting.budget + 1 if speculates else 1)
        kv = self.kv_ms * self.attention.get(setting.attention_backend, 1.0)
        memory = (
            self.base_ms
            + self.expert_ms * (1 - math.exp(-verified / self.expert_tokens))
            + kv * running * context_tokens
        )
        compute = self.token_ms * verified
        time_ms = (memory**self.knee + compute**self.knee) ** (1 / self.knee)
        if speculates:
            time_ms += self.tree_ms * setting.budget * math.sqrt(running)
            time_ms += self.topk_ms * min(setting.topk, setting.budget)
        if setting.algorithm in (Algorithm.DDTREE, Algorithm.DFLASH, Algorithm.EAGLE):
            time_ms += self.draft_ms + self.draft_kv_ms * running * seen_tokens
        if running > min(setting.cuda_graph_max_bs, setting.max_running_requests):
            time_ms *= self.eager_factor
        return float(time_ms) / 1000

    def prefill_s(self, *, uncached_tokens: int) -> float:
        """Duration of one prefill batch, seconds."""
        return self.prefill_ms / 1000 + uncached_tokens / self.prefill_tok_per_s

    def output_tok_per_s(
        self,
        setting: Setting,
        *,
        context_tokens: int,
        concurrency: int,
        output_tokens: int | None = None,
    ) -> float:
        """Output throughput of all streams together, tok/s.

        Args:
            output_tokens: With a number, the throughput of a closed loop of requests of that
                length: the prefill of each stalls every stream, the last step of a request is cut
                short, and with several streams a new request waits out the round that runs when it
                arrives.  Without, the rate of undisturbed decoding.
        """
        survivals = self.survivals(setting, context_tokens=context_tokens)
        tau = accept_length(survivals)
        running = min(concurrency, setting.max_running_requests)
        if output_tokens is None:
            return (
                running
                * tau
                / self.round_s(setting, running=running, context_tokens=context_tokens)
            )
        # Mean overshoot of a renewal process on the integers: (E[X^2] / E[X] - 1) / 2.
        overshoot = ((accept_variance(survivals) + tau**2) / tau - 1) / 2
        rounds = max(1.0, (output_tokens - 1 + overshoot) / tau)
        missed = 1.0 if 1 < concurrency <= setting.max_running_requests else 0.0
        busy = max(1.0, running * rounds / (rounds + missed))
        low, high = math.floor(busy), math.ceil(busy)
        share = busy - low
        round_s = (1 - share) * self.round_s(setting, running=low, context_tokens=context_tokens)
        round_s += share * self.round_s(setting, running=high, context_tokens=context_tokens)
        cycle = (rounds + missed) * round_s
        # Requests that arrive within one round are prefilled together: of `running` arrivals at
        # random rounds of the cycle, this many batches are left (occupied boxes).
        span = rounds + missed
        batches = span * (1 - math.exp(-running / span)) if running > 1 else 1.0
        cycle += batches * self.prefill_s(uncached_tokens=0)
        cycle += running * context_tokens / self.prefill_tok_per_s
        return running * output_tokens / cycle

    def memory_gib(self, setting: Setting) -> float:
        """Memory of one GPU that the setting needs, GiB: weights, KV cache, tree and window."""
        fraction = setting.mem_fraction_static or self.mem_fraction
        return self.total_gib * fraction + self.tree_gib(setting)

    def tree_gib(self, setting: Setting) -> float:
        """Verify logits, tree masks, graphs and the drafter's own request table, GiB."""
        if setting.algorithm == Algorithm.NONE:
            return 0.0
        share = (self.tree_requests + setting.max_running_requests) / (self.tree_requests + 64)
        topk = min(setting.topk, setting.budget)
        tree = self.node_gib * setting.budget + self.pair_gib * setting.budget * topk
        return share * (tree + self.window_gib * (setting.window or 0))

    def fits(self, setting: Setting) -> bool:
        """Whether the server survives its start."""
        return self.memory_gib(setting) <= self.total_gib and self.kv_tokens(setting) > 0

    def kv_tokens(self, setting: Setting) -> int:
        """Tokens that the KV cache holds; 0 or less when the weights alone do not fit."""
        fraction = setting.mem_fraction_static or self.mem_fraction
        return int((self.total_gib * fraction - self.weights_gib) / self.kv_gib_per_token)

    def corruption_rate(self, *, budget: int, topk: int) -> float:
        """Share of the answers that a tree of this shape corrupts, 0..1."""
        width = budget * min(topk, budget)
        z = (width - self.garble_at) / self.garble_width
        if z < -12:
            return 0.0
        return self.garble_most / (1 + math.exp(-z))

    def _tree(self, setting: Setting, context_tokens: int) -> tuple[TreeNode, ...]:
        algorithm = setting.algorithm
        topk, nodes = min(setting.topk, setting.budget), max(setting.budget, _NODES_MOST)
        depth = setting.block_size - 1
        if algorithm in (Algorithm.NGRAM, Algorithm.EAGLE):
            depth = setting.budget
        if algorithm in (Algorithm.DFLASH, Algorithm.EAGLE):
            topk, nodes = 1, setting.budget
        hit = {Algorithm.NGRAM: self.ngram_hit, Algorithm.EAGLE: self.eagle_hit}.get(
            algorithm, self.hit
        )
        window = setting.window if algorithm in (Algorithm.DDTREE, Algorithm.DFLASH) else None
        quality = 1.0
        if algorithm != Algorithm.NGRAM:
            quality = self.quality(window=window, context_tokens=context_tokens)
        drafter = Drafter(
            hit=hit * quality,
            decay=self.hit_decay,
            tail=self.tail,
            tail_belief=self.tail_belief,
            cover=self.cover,
            depth=depth,
        )
        return _cached_tree(drafter, topk, min(nodes, _NODES_MOST * 4))


@lru_cache(maxsize=4096)
def _cached_tree(drafter: Drafter, topk: int, nodes: int) -> tuple[TreeNode, ...]:
    return best_first(drafter, topk=topk, nodes=nodes)


_KIMI = Surface(name="kimi-k26")
_DEMO = Surface(
    name="demo",
    hit=0.72,
    hit_decay=0.985,
    tail=0.52,
    tail_belief=0.63,
    cover=0.92,
    trained_tokens=512,
    overreach=0.095,
    undersight=0.03,
    base_ms=20.0,
    expert_ms=11.0,
    expert_tokens=240.0,
    token_ms=0.02,
    draft_kv_ms=0.00002,
    prefill_tok_per_s=200_000.0,
    garble_at=430.0,
    garble_width=18.0,
    garble_most=0.9,
)
