"""What is started next while the search goes on."""

from __future__ import annotations

from autotune.driver import Driver, Nothing
from autotune.repository import Role
from autotune.trial import TrialSpec
from tests.scripted import (
    DEPLOYED,
    OWNER,
)
from tests.unit.driver.world import (
    NAME,
    Worlds,
    _no_answers,
    once,
    parallel,
    points,
    serial,
    step,
    values_of,
)


def test_queued_points_come_before_the_samplers(make: Worlds) -> None:
    world = make(trials=5, enqueue=points(2))
    done = serial(world.driver())
    assert [values_of(spec) for spec in done[1:3]] == list(points(2))
    assert len({spec.number for spec in done}) == 5


def test_every_start_is_saved_before_it_is_made(make: Worlds) -> None:
    world = make()
    spec = step(world.driver(), "a")
    (start,) = world.trial(0).starts
    assert (start.claim_id, start.record) == (spec.claim_id, None)
    assert start.nonce == spec.nonce.value
    assert start.argv == spec.launch.texts()
    assert f"{NAME}-0-" in spec.nonce.value


def test_claims_and_nonces_are_never_the_same(make: Worlds) -> None:
    world = make(trials=5, enqueue=points(4), reference_every=2)
    done = serial(world.driver())
    assert len({spec.claim_id for spec in done}) == len(done)
    assert len({spec.nonce.value for spec in done}) == len(done)


def test_the_fullest_bucket_is_measured_first_and_prompts_stay_the_same(make: Worlds) -> None:
    done = serial(make(trials=3, enqueue=points(2)).driver())
    assert {tuple(b.key for b in spec.buckets) for spec in done} == {("1024x8", "60x1")}
    assert len({spec.prompts_seed for spec in done}) == 1


def test_only_the_search_is_pruned(make: Worlds) -> None:
    world = make(trials=3, enqueue=points(2), finalists=1, final_rounds=1)
    for spec in serial(world.driver()):
        start = next(
            s for t in world.stored.trials for s in t.starts if s.claim_id == spec.claim_id
        )
        assert (spec.prune is not None) is (start.role is Role.SEARCH)


def test_a_busy_host_gets_no_second_start(make: Worlds) -> None:
    world = make(hosts=("a", "b"))
    driver = world.driver()
    first, second = driver.take(), driver.take()
    assert isinstance(first, TrialSpec)
    assert isinstance(second, TrialSpec)
    assert {first.plan.host, second.plan.host} == {"a", "b"}
    assert (driver.free_hosts(), driver.take()) == ((), Nothing.WAIT)


def test_the_total_is_reached_exactly(make: Worlds) -> None:
    for hosts in (("a",), ("a", "b")):
        world = make(trials=7, hosts=hosts, enqueue=points(2))
        parallel(world.driver())
        assert world.study.ended() == 7
        assert len(world.stored.trials) == 7
        assert all(trial.told for trial in world.stored.trials)
        assert world.study.running() == ()


def test_the_serial_executor_over_two_hosts_keeps_to_the_total(make: Worlds) -> None:
    world = make(trials=4, hosts=("a", "b"), enqueue=points(3))
    serial(world.driver())
    assert world.study.ended() == 4


def test_hours_end_the_search(make: Worlds) -> None:
    world = make(trials=None, hours=1.0, enqueue=points(2))
    now = [0.0]
    driver = world.driver()
    timed = Driver(
        world.config,
        study=world.study,
        repository=world.repository,
        sessions=driver.sessions,
        owner=OWNER,
        answers=_no_answers(),
        finalists=lambda stored: (),
        clock=lambda: now[0],
    )
    once(timed)
    once(timed)
    now[0] = 3601.0
    assert values_of(step(timed, "a")) == DEPLOYED  # the last word is the reference's
