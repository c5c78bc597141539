"""How soon a hopeless start is stopped, by the order of its buckets.  Simulated time, no server.

    python -m benchmarks.search.ordering

On each random truth: valid points at least 5 % behind the best, with the best as incumbent, stopped
by the product's own rule.  A bucket costs its prefill (all streams at once, 20000 tokens a second),
six seconds until it is steady, and twelve of windows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from autotune.measurement import BucketMeasurement, Interval
from autotune.ordering import bucket_order
from autotune.pruning import PruneRule
from autotune.workload import Bucket
from benchmarks.search.truths import Truth

__all__ = ["main"]

PREFILL_TOKENS_PER_S, STEADY_S, WINDOWS_S, HALF_WIDTH = 20_000.0, 6.0, 12.0, 0.02
BEHIND = 0.05


def _measured(bucket: Bucket, output_tok_per_s: float) -> BucketMeasurement:
    half = HALF_WIDTH * output_tok_per_s
    return BucketMeasurement(
        context_tokens=bucket.context_tokens, concurrency=bucket.concurrency,
        output_tokens=bucket.output_tokens, weight=bucket.weight,
        output_tok_per_s=output_tok_per_s,
        interval=Interval(output_tok_per_s - half, output_tok_per_s + half),
        accept_length=None, ttft_ms=1.0, ttft_p99_ms=1.0, tpot_ms=1.0, tpot_p99_ms=1.0,
        chunk_gap_ms=1.0, chunk_tokens=1.0, prompt_tokens=float(bucket.context_tokens),
        cached_tokens=None, server_tokens=None, client_cpu=0.0, loop_lag_ms=0.0,
        warm_up_s=STEADY_S
        + bucket.context_tokens * bucket.concurrency / PREFILL_TOKENS_PER_S,
        windows_s=WINDOWS_S, windows=12, requests=12, errors=0, valid=True,
    )  # fmt: skip


def stopped_after(order: Sequence[Bucket], rates: dict[str, float], rule: PruneRule) -> float:
    """Seconds of buckets until the start is hopeless, or all of them."""
    spent, got = 0.0, list[BucketMeasurement]()
    for bucket in order:
        got.append(_measured(bucket, rates[bucket.key]))
        spent += got[-1].warm_up_s + got[-1].windows_s
        if rule.hopeless(tuple(got)):
            break
    return spent


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--surfaces", type=int, default=24, help="random truths")
    parser.add_argument("--points", type=int, default=60, help="of each")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(options.seed)
    spent: dict[str, list[float]] = {"as in the file": [], "by weight": [], "by information": []}
    for number in range(options.surfaces):
        truth = Truth.named(f"r{number}")
        buckets = truth.workload.buckets
        keys = [bucket.key for bucket in buckets]
        best = int(np.nanargmax(truth.score))
        deployed, top = (
            dict(zip(keys, map(float, truth.throughput[row]), strict=True))
            for row in (truth.deployed, best)
        )
        rule = PruneRule(
            {bucket.key: bucket.weight for bucket in buckets},
            {key: max(deployed[key], top[key]) for key in keys},
            incumbent=sum(bucket.weight * top[bucket.key] for bucket in buckets),
        )
        fullest = bucket_order(buckets)[0]
        seen = [_measured(bucket, deployed[bucket.key]) for bucket in buckets]
        orders = {
            "as in the file": (fullest, *(b for b in buckets if b is not fullest)),
            "by weight": bucket_order(buckets),
            "by information": bucket_order(buckets, seen),
        }
        score = truth.throughput @ truth.weights
        behind = ~np.isnan(truth.score) & (score < (1 - BEHIND) * score[best])
        for row in rng.choice(np.flatnonzero(behind), options.points):
            rates = dict(zip(keys, map(float, truth.throughput[row]), strict=True))
            for name, order in orders.items():
                spent[name].append(stopped_after(order, rates, rule))
    by_weight = np.array(spent["by weight"])
    print(f"{options.surfaces} truths, {options.points} points each, the fullest bucket first")
    for name, seconds in spent.items():
        taken = np.array(seconds)
        print(
            f"{name:<15} stopped after {taken.mean():6.1f} s on average, "
            f"{100 * (taken.mean() / by_weight.mean() - 1):+5.1f} % against by weight; sooner in "
            f"{np.mean(taken < by_weight):.0%}, later in {np.mean(taken > by_weight):.0%}"
        )


if __name__ == "__main__":
    main()
