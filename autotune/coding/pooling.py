"""Coding answers of all final rounds, judged once and together; pure.

    pair    one task-sample that the finalist and the reference were both asked on one host in one
            round; pairs of the same sample are one: the side that failed it more often
    N       pairs of a finalist
    b, c    pairs that only the finalist failed, that only the reference failed
    p       P(X >= b), X ~ Binomial(b + c, 1/2): the gate's exact one-sided test of McNemar
    K       finalists with answers; alpha = 0.02
    level   of the finalist with the i-th smallest p (i = 1, 2, ...): alpha / (K - i + 1)

A finalist is refused if its p and every smaller one is at or below its level: Holm (1979), A simple
sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6, 65-70.  So the
chance that any good finalist of a study is refused is at most alpha, however the finalists depend
on the one reference.  There is one look at the end: no final start is judged alone, and each round
asks other samples than the search did, so that what was chosen by the search's answers is not
judged by them again.

An answer of a greedy server to one prompt hardly changes from start to start.  Counting it once
for each round would make one flip look like several, hence one pair for each sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, log2

from autotune.coding.evaluate import Outcome
from autotune.coding.gate import ALPHA, paired_p_value

__all__ = ["Pairs", "Pooled", "judge_pooled", "pool"]

Samples = Mapping[str, str]
"""Outcome of each task-sample by its key."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """N, b and c of one finalist."""

    asked: int
    only_finalist_failed: int
    only_reference_failed: int

    @property
    def p_value(self) -> float:
        """p; 1 where no pair is discordant."""
        return paired_p_value(self.only_finalist_failed, self.only_reference_failed)


@dataclass(frozen=True, slots=True)
class Pooled:
    """What the pooled answers of one finalist say.

    Attributes:
        asked: N.
        only_finalist_failed: b.
        only_reference_failed: c.
        p_value: p.
        level: What p was held against.
        refused: Whether it fails more than chance explains, and so cannot win.
    """

    asked: int
    only_finalist_failed: int
    only_reference_failed: int
    p_value: float
    level: float
    refused: bool

    @property
    def least_found(self) -> int:
        """Fewest new failures that can be told from chance, where nothing else changes."""
        return ceil(log2(1 / self.level))

    def sentence(self) -> str:
        """The counts in words."""
        return (
            f"of {self.asked} coding answers of the final rounds {self.only_finalist_failed} "
            f"failed here alone and {self.only_reference_failed} with the deployed configuration "
            f"alone (p = {self.p_value:.2g}, level {self.level:.2g})"
        )


def pool(rounds: Iterable[tuple[Samples, Samples]]) -> Pairs:
    """Pair the answers of the final rounds.

    Args:
        rounds: Of each host and round: outcomes of the reference, outcomes of the finalist.
            Samples that one of them was not asked are left out.
    """
    ahead: Counter[str] = Counter()  # failures of the finalist beyond the reference's, by sample
    asked: set[str] = set()
    for reference, finalist in rounds:
        for key in reference.keys() & finalist.keys():
            asked.add(key)
            ahead[key] += (finalist[key] != Outcome.PASSED) - (reference[key] != Outcome.PASSED)
    return Pairs(len(asked), sum(n > 0 for n in ahead.values()), sum(n < 0 for n in ahead.values()))


def judge_pooled(pairs: Mapping[str, Pairs], *, alpha: float = ALPHA) -> dict[str, Pooled]:
    """Judge all finalists of a study together; those without pairs are left out.

    Args:
        pairs: By the finalist's key.
        alpha: Highest chance that a good finalist is refused, for all of them together.
    """
    compared = {key: own for key, own in pairs.items() if own.asked}
    found: dict[str, Pooled] = {}
    refusing = True
    for rank, key in enumerate(sorted(compared, key=lambda key: (compared[key].p_value, key))):
        own, level = compared[key], alpha / (len(compared) - rank)
        refusing = refusing and own.p_value <= level
        found[key] = Pooled(
            own.asked,
            own.only_finalist_failed,
            own.only_reference_failed,
            own.p_value,
            level,
            refusing,
        )
    return found
