"""Buckets in the order of what they tell in a second."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.measurement import BucketMeasurement
from autotune.ordering import bucket_order
from autotune.pruning import PruneRule
from autotune.workload import Bucket
from tests.builders import a_bucket

RATES = {"60x1": 30.0, "60x8": 400.0, "1024x8": 300.0, "1024x32": 700.0, "8192x32": 350.0}
SECONDS = {"60x1": 20.0, "60x8": 20.0, "1024x8": 30.0, "1024x32": 60.0, "8192x32": 140.0}
BUCKETS = (
    Bucket(60, 1, 128, 0.30),
    Bucket(60, 8, 128, 0.20),
    Bucket(1024, 8, 128, 0.20),
    Bucket(1024, 32, 128, 0.20),
    Bucket(8192, 32, 128, 0.10),
)


def measured(buckets: Sequence[Bucket], *, of: float = 1.0) -> tuple[BucketMeasurement, ...]:
    """As the reference of a host would show them, at this share of its throughput."""
    return tuple(
        a_bucket(
            bucket.context_tokens,
            bucket.concurrency,
            RATES[bucket.key] * of,
            weight=bucket.weight,
            warm_up_s=SECONDS[bucket.key] / 2,
            windows_s=SECONDS[bucket.key] / 2,
        )
        for bucket in buckets
    )


def keys(buckets: Sequence[Bucket]) -> list[str]:
    return [bucket.key for bucket in buckets]


def test_the_fullest_comes_first_then_what_tells_most_in_a_second() -> None:
    # w T / s: 60x1 0.45, 60x8 4.0, 1024x8 2.0, 1024x32 2.33
    assert keys(bucket_order(BUCKETS, measured(BUCKETS))) == [
        "8192x32", "60x8", "1024x32", "1024x8", "60x1",
    ]  # fmt: skip


def test_before_the_first_reference_the_weights_decide() -> None:
    by_weight = ["8192x32", "60x1", "60x8", "1024x8", "1024x32"]
    assert keys(bucket_order(BUCKETS)) == by_weight
    assert keys(bucket_order(BUCKETS, measured(BUCKETS[:3]))) == by_weight


def test_every_bucket_is_measured_once() -> None:
    assert sorted(keys(bucket_order(BUCKETS, measured(BUCKETS)))) == sorted(RATES)
    assert keys(bucket_order(BUCKETS[:1])) == ["60x1"]


def test_hopeless_starts_are_stopped_sooner_on_average() -> None:
    """Starts at half to nine tenths of the best; the bound has to fall below the incumbent."""
    best = measured(BUCKETS)
    rule = PruneRule(
        weights={bucket.key: bucket.weight for bucket in BUCKETS},
        best={one.key: one.output_tok_per_s for one in best},
        incumbent=sum(one.weight * one.output_tok_per_s for one in best),
    )

    def until_stopped(order: Sequence[Bucket], of: float) -> float:
        spent = 0.0
        for count in range(1, len(order) + 1):
            spent += SECONDS[order[count - 1].key]
            if rule.hopeless(measured(order[:count], of=of)):
                return spent
        raise AssertionError("never stopped")

    shares = [0.5, 0.6, 0.7, 0.8, 0.9]
    informed, by_weight = (
        sum(until_stopped(order, of) for of in shares)
        for order in (bucket_order(BUCKETS, best), bucket_order(BUCKETS))
    )
    assert informed < 0.95 * by_weight
