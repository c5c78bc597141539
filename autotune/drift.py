"""Whether a server became faster or slower while it was measured.  Pure.

c   change: T_last / T_first - 1, of one bucket measured first and once more at the end
h   sqrt((h_first / T_first)^2 + (h_last / T_last)^2), half-width of the 95 % interval of c
"""

from __future__ import annotations

import math

from autotune.measurement import BucketMeasurement, Drift

__all__ = ["drift_between", "drifted"]


def drift_between(first: BucketMeasurement, last: BucketMeasurement) -> Drift:
    """The change of one bucket from its first measurement to its last, both above 0 tok/s."""
    return Drift(
        bucket=first.key,
        first_tok_per_s=first.output_tok_per_s,
        last_tok_per_s=last.output_tok_per_s,
        change=last.output_tok_per_s / first.output_tok_per_s - 1,
        half_width=math.hypot(
            first.interval.half_width / first.output_tok_per_s,
            last.interval.half_width / last.output_tok_per_s,
        ),
    )


def drifted(drift: Drift, *, most: float) -> bool:
    """Whether the whole interval of the change lies beyond what is allowed."""
    return abs(drift.change) - drift.half_width > most
