"""What a server is configured with, as far as its speed depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Algorithm", "Setting"]


class Algorithm(StrEnum):
    """Names of the speculative algorithms that the surface knows."""

    NONE = "NONE"
    DDTREE = "DDTREE"
    DFLASH = "DFLASH"
    NGRAM = "NGRAM"
    EAGLE = "EAGLE"


@dataclass(frozen=True, slots=True)
class Setting:
    """What a server is configured with, as far as the surface depends on it.

    Attributes:
        budget: Nodes of the tree; for a chain algorithm the drafted tokens.
        topk: Most candidates of one position; a value above the budget is the same as the budget.
        window: Tokens that the drafter attends to; None = the whole context.
        algorithm: One of the names in `Algorithm`.
        max_running_requests: Requests that decode at the same time.
        cuda_graph_max_bs: Largest captured batch; a larger batch runs eagerly.
        mem_fraction_static: Share of the memory given to weights and KV cache; None = the default.
        attention_backend: Kernel family, see `Surface.attention`.
        block_size: Tokens of the drafter's block; the tree is at most this - 1 deep.
    """

    budget: int
    topk: int
    window: int | None = None
    algorithm: Algorithm = Algorithm.DDTREE
    max_running_requests: int = 64
    cuda_graph_max_bs: int = 512
    mem_fraction_static: float | None = None
    attention_backend: str = "triton"
    block_size: int = 8

    def __post_init__(self) -> None:
        if self.budget < 0 or self.topk < 0:
            raise ValueError(f"budget {self.budget} and topk {self.topk} must not be negative")
