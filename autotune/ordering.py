"""In which order a start measures its buckets: by what each tells in a second.  Pure.

A start is stopped when the optimistic end of its score falls below the incumbent.  What bucket b
can still bring is its share of the score, w_b T_b; to measure it costs s_b seconds, warm-up
included.  Taking the largest w_b T_b / s_b first makes the optimistic end fall fastest (the greedy
rule of the fractional knapsack problem, Dantzig 1957).  Both are known from the host's first
reference; every later start of the host has the same order, so that what a server does with time
falls on the same buckets.

The fullest bucket comes first all the same: it shows an out-of-memory before the others are paid
for.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.measurement import BucketMeasurement
from autotune.workload import Bucket

__all__ = ["bucket_order"]


def bucket_order(
    buckets: Sequence[Bucket], seen: Sequence[BucketMeasurement] = ()
) -> tuple[Bucket, ...]:
    """The buckets in the order in which they should be measured.

    Args:
        seen: The host's first reference; by weight alone where it lacks a bucket.
    """
    fullest = max(buckets, key=lambda b: (b.context_tokens * b.concurrency, b.weight))
    told = {one.key: _per_second(one) for one in seen}
    known = all(bucket.key in told for bucket in buckets)
    rest = sorted(
        (bucket for bucket in buckets if bucket is not fullest),
        key=lambda b: -b.weight * (told[b.key] if known else 1.0),
    )
    return (fullest, *rest)


def _per_second(one: BucketMeasurement) -> float:
    """Throughput over the seconds that its measurement took; their unit does not matter."""
    return one.output_tok_per_s / max(one.warm_up_s + one.windows_s, 1e-3)
