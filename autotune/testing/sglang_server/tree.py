"""The draft tree of DDTree and how many of its tokens are accepted.

| symbol | meaning |
|---|---|
| D | depth of the drafter's block: block size - 1, for the first token is the target's own |
| B | budget: nodes of the tree, the root not counted |
| K | top-k cap: candidates of each position that may enter the tree |
| p[d][r] | probability that the target takes the candidate of rank r at depth d |
| b[d][r] | the same as the drafter believes it |

DDTree (arXiv 2604.12989, algorithm 1) takes prefixes best-first by the product of the drafter's
marginals until B nodes are in the tree.  A node is accepted when the target takes every token of
its prefix, so the survival at depth d is the sum of the true prefix probabilities of the nodes at
that depth, and the expected accept length is 1 (the bonus token) + the sum of all survivals.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

__all__ = ["Drafter", "TreeNode", "accept_length", "accept_variance", "best_first", "survival"]


@dataclass(frozen=True, slots=True)
class Drafter:
    """How well a block drafter guesses.

    Attributes:
        hit: Probability that the first candidate of the first position is right.
        decay: Factor on `hit` for each further position.
        tail: Ratio of the probabilities of one rank and the rank before it, from rank 2 on.
        tail_belief: The same ratio as the drafter believes it; above `tail` it wastes nodes on
            siblings, which is why a cap on the ranks can help.
        cover: Share of the misses that all ranks together still hold.
        depth: Positions that can be drafted, block size - 1.
    """

    hit: float
    decay: float
    tail: float
    tail_belief: float
    cover: float
    depth: int

    def first(self, depth: int) -> float:
        """Probability of the first candidate at a depth, counted from 1."""
        return self.hit * self.decay ** (depth - 1)

    def true(self, depth: int, rank: int) -> float:
        """p[depth][rank], ranks from 1."""
        first = self.first(depth)
        if rank == 1:
            return first
        return float((1 - first) * self.cover * (1 - self.tail) * self.tail ** (rank - 2))

    def belief(self, depth: int, rank: int) -> float:
        """b[depth][rank], ranks from 1."""
        first = self.first(depth)
        if rank == 1:
            return first
        tail = self.tail_belief
        return float((1 - first) * (1 - tail) * tail ** (rank - 2))


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A node in the order in which it entered the tree.

    Attributes:
        depth: Depth from 1.
        accepted: Probability that the target accepts the whole prefix.
    """

    depth: int
    accepted: float


def best_first(drafter: Drafter, *, topk: int, nodes: int) -> tuple[TreeNode, ...]:
    """The first `nodes` nodes of the tree; the tree of a smaller budget is a prefix of it."""
    if drafter.depth < 1 or nodes < 1:
        return ()
    order = 0
    # (-belief of the prefix, order, depth, rank, belief and truth of the parent's prefix)
    heap = [(-drafter.belief(1, 1), order, 1, 1, 1.0, 1.0)]
    tree: list[TreeNode] = []
    while heap and len(tree) < nodes:
        negative, _, depth, rank, parent_belief, parent_true = heapq.heappop(heap)
        accepted = parent_true * drafter.true(depth, rank)
        tree.append(TreeNode(depth=depth, accepted=accepted))
        if rank < topk:
            order += 1
            belief = parent_belief * drafter.belief(depth, rank + 1)
            heapq.heappush(heap, (-belief, order, depth, rank + 1, parent_belief, parent_true))
        if depth < drafter.depth:
            order += 1
            belief = -negative * drafter.belief(depth + 1, 1)
            heapq.heappush(heap, (-belief, order, depth + 1, 1, -negative, accepted))
    return tuple(tree)


def survival(tree: tuple[TreeNode, ...]) -> tuple[float, ...]:
    """Probability that at least d drafted tokens are accepted, for d = 1, 2, ..."""
    deepest = max((node.depth for node in tree), default=0)
    totals = [0.0] * deepest
    for node in tree:
        totals[node.depth - 1] += node.accepted
    return tuple(totals)


def accept_length(survivals: tuple[float, ...]) -> float:
    """Expected output tokens of a verify step, the bonus token included."""
    return 1.0 + sum(survivals)


def accept_variance(survivals: tuple[float, ...]) -> float:
    """Variance of the output tokens of a verify step.

    For an integer X >= 1 with P(X > d) = s[d]: E[X^2] = sum over d >= 0 of (2 d + 1) P(X > d).
    """
    second = 1.0 + sum((2 * d + 1) * s for d, s in enumerate(survivals, start=1))
    return float(second - accept_length(survivals) ** 2)
