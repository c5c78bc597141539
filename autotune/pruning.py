"""Stop inside the matrix when even the optimistic end cannot reach the incumbent.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.measurement import BucketMeasurement

__all__ = ["HEADROOM", "PruneRule"]

HEADROOM = 1.25
"""An unmeasured bucket is allowed this much above the best that any trial has shown in it.

A margin by choice, not derived: too small would cut a configuration that is a step better than all
before it, too large only measures some buckets in vain.
"""


@dataclass(frozen=True, slots=True)
class PruneRule:
    """What a start must still be able to reach.

    Attributes:
        weights: w_b by bucket key.
        best: Highest T_b that any trial of this host has shown, tok/s, by bucket key.
        incumbent: Arithmetic score to reach, tok/s.
    """

    weights: Mapping[str, float]
    best: Mapping[str, float]
    incumbent: float

    def optimistic(self, measured: tuple[BucketMeasurement, ...]) -> float:
        """Upper end of the score: measured buckets at the high end of their intervals, tok/s."""
        seen = {bucket.key: bucket.interval.high for bucket in measured}
        return sum(
            weight * seen.get(key, HEADROOM * self.best.get(key, float("inf")))
            for key, weight in self.weights.items()
        )

    def hopeless(self, measured: tuple[BucketMeasurement, ...]) -> bool:
        """Whether the rest of the matrix cannot bring the start up to the incumbent."""
        return self.optimistic(measured) < self.incumbent
