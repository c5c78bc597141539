"""What an ending means for its trial."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.endings import reconcile
from autotune.measurement import (
    BucketQuality,
    Ending,
    StartRecord,
)
from autotune.raw import raw_requests
from autotune.raw_store import MB, RawStore
from tests.builders import a_bucket
from tests.unit.driver.world import (
    Worlds,
    bad,
    good,
    once,
    points,
    search_start,
    serial,
    step,
    under_way,
    values_of,
)


def test_complete_is_told_with_what_the_dashboard_shows(make: Worlds) -> None:
    world = make(enqueue=points(1))
    _, spec = search_start(world)
    trial, frozen = world.trial(spec.number), world.frozen(spec.number)
    assert (trial.state, trial.told, frozen.state.name) == ("complete", True, "COMPLETE")
    assert frozen.value == pytest.approx(1.02)
    assert frozen.user_attrs["host"] == "a"
    assert frozen.user_attrs["buckets"]["60x1"]["output_tok_per_s"] == pytest.approx(102.0)
    assert frozen.user_attrs["tok/s 1024x8"] == pytest.approx(102.0)


def test_infeasible_is_told_complete_with_the_worst_value(make: Worlds) -> None:
    world = make(enqueue=points(1))
    _, spec = search_start(world, bad(Ending.INFEASIBLE, "ServerStartError"))
    trial, frozen = world.trial(spec.number), world.frozen(spec.number)
    assert (trial.state, frozen.state.name) == ("infeasible", "COMPLETE")
    assert frozen.value == 1.0
    assert frozen.constraints["infeasible"] > 0
    assert not any(t.state.name == "WAITING" for t in world.study.trials())


def test_a_broken_limit_is_infeasible_with_its_own_value(make: Worlds) -> None:
    world = make(enqueue=points(1), score={"floor": 1.0})
    driver = world.driver()
    once(driver)
    spec = once(driver, result=lambda s: good(s, factor=0.5))
    trial, frozen = world.trial(spec.number), world.frozen(spec.number)
    assert (trial.state, frozen.state.name) == ("infeasible", "COMPLETE")
    assert frozen.value == pytest.approx(0.51)
    assert frozen.constraints["infeasible"] > 0
    assert trial.starts[0].violations != ()


def test_failed_is_queued_again_once(make: Worlds) -> None:
    world = make(trials=4, enqueue=points(1))
    driver, spec = search_start(world, bad(Ending.FAILED))
    assert (world.trial(spec.number).state, world.frozen(spec.number).state.name) == (
        "failed",
        "FAIL",
    )
    again = once(driver, result=lambda s: bad(Ending.FAILED))
    assert values_of(again) == values_of(spec)
    assert world.trial(again.number).retry_of == spec.number
    other = step(driver, "a")
    assert world.trial(other.number).retry_of is None


def slow_client() -> StartRecord:
    bucket = a_bucket(valid=False, marks=(BucketQuality.CLIENT_BOTTLENECK,), reason="slow client")
    return replace(bad(Ending.FAILED, "InvalidBucket"), buckets=(bucket,))


@pytest.mark.parametrize("first", ["interrupted", "killed", "slow client"])
def test_what_says_nothing_about_the_trial_is_no_try_of_it(make: Worlds, first: str) -> None:
    world = make(trials=4, enqueue=points(1))
    driver = world.driver()
    once(driver)
    begun = step(driver, "a")
    if first == "interrupted":
        driver.abandon("the study was stopped")
    elif first == "killed":
        reconcile(world.study, world.repository, world.stored, lives=lambda start: False)
    else:
        driver.finish(begun.claim_id, slow_client())
    driver = world.driver()
    once(driver)  # a fresh reference
    tries = [once(driver, result=lambda s: bad(Ending.FAILED)) for _ in range(2)]
    assert [values_of(spec) for spec in tries] == [values_of(begun)] * 2
    assert values_of(step(driver, "a")) != values_of(begun)


def test_an_interrupted_start_says_so(make: Worlds) -> None:
    world = make(trials=4, enqueue=points(1))
    driver, spec = under_way(world)
    driver.abandon("the study was stopped")
    record = world.trial(spec.number).starts[0].record
    assert record is not None
    assert record.failure is not None
    assert (record.failure.kind, record.failure.message) == ("Interrupted", "the study was stopped")


def test_a_retry_that_goes_well_is_a_trial_like_others(make: Worlds) -> None:
    world = make(trials=2, enqueue=points(1))
    driver, spec = search_start(world, bad(Ending.FAILED))
    serial(driver)
    assert world.study.ended() == 2
    assert [t.state for t in world.stored.trials] == ["complete", "failed", "complete"]
    assert world.stored.trials[2].retry_of == spec.number


def test_pruned_keeps_its_buckets(make: Worlds) -> None:
    world = make(enqueue=points(1))
    driver, spec = under_way(world)
    record = replace(good(spec), ending=Ending.PRUNED, buckets=good(spec).buckets[:1])
    driver.finish(spec.claim_id, record)
    trial, frozen = world.trial(spec.number), world.frozen(spec.number)
    assert (trial.state, frozen.state.name, frozen.value) == ("pruned", "PRUNED", None)
    assert list(frozen.user_attrs["buckets"]) == ["1024x8"]
    assert [b.key for b in trial.starts[0].buckets] == ["1024x8"]
    assert trial.starts[0].score is None


def test_an_invalid_bucket_makes_no_score(make: Worlds) -> None:
    world = make(enqueue=points(1))
    driver, spec = under_way(world)
    whole = good(spec)
    buckets = (whole.buckets[0], replace(whole.buckets[1], valid=False, reason="3 requests"))
    driver.finish(spec.claim_id, replace(whole, buckets=buckets))
    trial = world.trial(spec.number)
    assert (trial.state, world.frozen(spec.number).value) == ("failed", None)
    record = trial.starts[0].record
    assert record is not None
    assert record.failure is not None
    assert "60x1" in record.failure.message
    assert "3 requests" in record.failure.message


def test_a_lost_worker_is_nobodys_fault(make: Worlds) -> None:
    world = make(trials=3, enqueue=points(1))
    driver, spec = under_way(world)
    driver.bucket(spec.claim_id, good(spec).buckets[0])
    driver.lost(spec.claim_id, "the worker process died")
    driver.lost(spec.claim_id, "and its death is told twice")
    trial = world.trial(spec.number)
    assert (trial.state, len(trial.starts[0].buckets)) == ("failed", 1)
    again = step(driver, "a")
    assert (values_of(again), world.trial(again.number).retry_of) == (
        values_of(spec),
        spec.number,
    )


def test_the_requests_of_a_start_are_kept_when_it_ends(make: Worlds, tmp_path: Path) -> None:
    world = make(trials=3, enqueue=points(1))
    store = RawStore(tmp_path / "requests", most_bytes=MB)
    driver = world.driver(raw=store)
    spec = step(driver, "a")
    for bucket in ("60x1", "1024x8"):
        driver.requests(spec.claim_id, raw_requests(bucket, []))
    assert store.files() == []
    driver.finish(spec.claim_id, good(spec))
    driver.requests(spec.claim_id, raw_requests("60x1", []))
    lost = step(driver, "a")
    driver.requests(lost.claim_id, raw_requests("60x1", []))
    driver.lost(lost.claim_id, "the worker process died")
    assert [file.path.name for file in store.files()] == [
        f"{one.number:06d}-{one.claim_id}.parquet" for one in (spec, lost)
    ]
