"""What ends a study, or keeps it waiting: failures, lost hosts, a clock, a full disk."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from autotune.driver import Driver, Nothing
from autotune.endings import reconcile
from autotune.errors import (
    FailureRateExceeded,
    StorageAway,
    StorageError,
    StudyError,
)
from autotune.measurement import (
    BucketMeasurement,
    Ending,
    StartRecord,
)
from autotune.objective import Score
from autotune.outage import AWAY_MOST_S
from autotune.outbox import replay
from autotune.repository import Repository
from autotune.space import Values
from autotune.spool import Spool
from autotune.trial import TrialSpec
from tests.scripted import (
    DEPLOYED,
    Clock,
)
from tests.unit.driver.world import (
    World,
    Worlds,
    bad,
    good,
    once,
    parallel,
    points,
    search_start,
    step,
    under_way,
    values_of,
)


def broken_link(link: str = "window: log") -> StartRecord:
    return bad(Ending.FAILED, "SettingsNotApplied", link=link, message=f"link {link!r} is broken")


def test_the_same_link_broken_twice_stops_the_study(make: Worlds) -> None:
    world = make(enqueue=points(2))
    driver, first = search_start(world, broken_link())
    second = step(driver, "a")
    with pytest.raises(FailureRateExceeded) as caught:
        driver.finish(second.claim_id, broken_link())
    assert "window: log" in caught.value.message
    for spec in (first, second):
        assert world.frozen(spec.number).state.name == "FAIL"
        assert world.frozen(spec.number).value is None
        assert world.trial(spec.number).told


def test_two_different_links_do_not_stop_it(make: Worlds) -> None:
    driver, _ = search_start(make(enqueue=points(2)), broken_link("window: log"))
    once(driver, result=lambda s: broken_link("nonce"))
    assert isinstance(driver.take(), TrialSpec)


def test_a_good_trial_in_between_does_not_excuse_a_broken_link(make: Worlds) -> None:
    driver, _ = search_start(make(trials=9, enqueue=points(4)), broken_link())
    once(driver)
    spec = step(driver, "a")
    with pytest.raises(FailureRateExceeded):
        driver.finish(spec.claim_id, broken_link())


def test_the_same_failure_in_a_row_stops_the_study(make: Worlds) -> None:
    world = make(trials=9, enqueue=points(3), same_failure_most=3)
    driver, _ = search_start(world, bad(Ending.FAILED, "NotSteady"))
    once(driver, result=lambda s: bad(Ending.FAILED, "NotSteady"))
    spec = step(driver, "a")
    with pytest.raises(FailureRateExceeded, match="3 starts in a row"):
        driver.finish(spec.claim_id, bad(Ending.FAILED, "NotSteady"))


def test_a_foreign_edit_of_the_unit_stops_the_study(make: Worlds) -> None:
    world = make(enqueue=points(1))
    driver, spec = under_way(world)
    with pytest.raises(StudyError, match="changed by hand"):
        driver.finish(
            spec.claim_id, bad(Ending.FAILED, "DropInConflict", message="changed by hand")
        )
    assert world.trial(spec.number).told


def test_infeasible_trials_do_not_stop_the_study(make: Worlds) -> None:
    world = make(trials=6, enqueue=points(5), same_failure_most=2)
    driver = world.driver()
    once(driver)
    for _ in range(5):
        once(driver, result=lambda s: bad(Ending.INFEASIBLE, "ServerStartError"))
    assert world.study.ended() == 6


@pytest.mark.parametrize("kind", ["LeaseLost", "ConnectError", "HostKeyError", "CommandTimeout"])
def test_a_lost_hosts_trial_goes_to_another(make: Worlds, kind: str) -> None:
    world = make(trials=4, hosts=("a", "b"), enqueue=points(2))
    driver = world.driver()
    once(driver, "a")
    once(driver, "b")
    spec = step(driver, "a")
    driver.finish(spec.claim_id, bad(Ending.FAILED, kind))
    assert driver.free_hosts() == ("b",)
    again = driver.take()
    assert isinstance(again, TrialSpec)
    while values_of(again) != values_of(spec):
        driver.finish(again.claim_id, good(again))
        again = driver.take()
        assert isinstance(again, TrialSpec)
    assert again.plan.host == "b"
    assert world.trial(again.number).retry_of == spec.number
    driver.finish(again.claim_id, good(again))
    parallel(driver)
    assert world.study.ended() == 4


def test_no_host_left_is_an_error_that_says_why(make: Worlds) -> None:
    world = make(hosts=("a", "b"), enqueue=points(2))
    driver = world.driver()
    for host in ("a", "b"):
        once(driver, host)
        once(
            driver,
            host,
            lambda s: bad(Ending.FAILED, "ConnectError", message=f"no {s.plan.host}"),
        )
    with pytest.raises(StudyError) as caught:
        driver.take()
    assert "no a" in caught.value.message
    assert "no b" in caught.value.message


def test_nothing_is_said_while_something_still_runs(make: Worlds) -> None:
    world = make(hosts=("a", "b"))
    driver = world.driver()
    flying = step(driver, "b")
    once(driver, "a", lambda s: bad(Ending.FAILED, "ConnectError"))
    assert driver.take() is Nothing.WAIT
    driver.finish(flying.claim_id, good(flying))
    assert isinstance(driver.take(), TrialSpec)


@pytest.mark.parametrize("jump_s", [-36_000.0, 36_000.0, 0.0])
def test_a_clock_that_jumps_changes_nothing(
    make: Worlds, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    """The wall clock is set while the first search trial runs, and set back after the third."""
    world = make(trials=6, enqueue=points(5), reference_every=2, gpu_hours=1.0)
    driver, real = world.driver(), time.time
    done: list[Values] = []

    def measured(spec: TrialSpec) -> StartRecord:
        done.append(values_of(spec))
        monkeypatch.setattr(time, "time", lambda: real() + jump_s * (2 <= len(done) <= 4))
        return good(spec)

    while isinstance(spec := driver.take(), TrialSpec):
        driver.finish(spec.claim_id, measured(spec))
    first, second, third, fourth, fifth = points(5)
    expected = [DEPLOYED, first, second, DEPLOYED, third, fourth, DEPLOYED, fifth, DEPLOYED]
    assert done == expected


class FullDisk(Repository):
    """A database whose disk is full until it was asked `refusals` times."""

    def __init__(self, repository: Repository, *, refusals: int) -> None:
        super().__init__(repository.engine)
        self.refusals = refusals

    def _refuse(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise StorageAway("database or disk is full")

    def add_bucket(self, claim_id: str, bucket: BucketMeasurement) -> None:
        self._refuse()
        super().add_bucket(claim_id, bucket)

    def end_start(self, claim_id: str, record: StartRecord, score: Score | None) -> None:
        self._refuse()
        super().end_start(claim_id, record, score)


def measured_on_a_full_disk(
    world: World, *, refusals: int
) -> tuple[Driver, FullDisk, TrialSpec, Clock]:
    """A driver in the middle of its first search start, from then on without space."""
    repository, clock = FullDisk(world.repository, refusals=0), Clock()
    driver = world.driver(repository=repository, clock=clock)
    once(driver)
    spec = step(driver, "a")
    repository.refusals = refusals
    return driver, repository, spec, clock


def test_what_was_measured_waits_for_space_on_the_disk(make: Worlds) -> None:
    world = make(enqueue=points(1))
    driver, _, spec, _ = measured_on_a_full_disk(world, refusals=5)
    record = good(spec)
    for bucket in record.buckets:
        driver.bucket(spec.claim_id, bucket)
    _, score = driver.finish(spec.claim_id, record)
    assert score is not None
    assert world.trial(spec.number).told is False
    while driver.take() is Nothing.WAIT:
        pass
    (start,) = world.trial(spec.number).starts
    assert start.score is not None
    assert {b.key for b in start.buckets} == {b.key for b in record.buckets}
    assert world.frozen(spec.number).state.name == "COMPLETE"


def test_a_disk_that_stays_full_ends_the_study_after_a_while(make: Worlds) -> None:
    world = make(enqueue=points(1))
    driver, repository, spec, clock = measured_on_a_full_disk(world, refusals=10**6)
    driver.finish(spec.claim_id, good(spec))
    clock.wait(AWAY_MOST_S - 1)
    assert driver.take() is Nothing.WAIT
    clock.wait(2)
    with pytest.raises(StorageError):
        driver.take()
    repository.refusals = 0
    driver = world.driver()
    once(driver)  # a fresh reference
    assert values_of(step(driver, "a")) == values_of(spec)


def test_a_result_that_could_not_be_saved_is_saved_by_the_next_run(
    make: Worlds, tmp_path: Path
) -> None:
    world = make(enqueue=points(1))
    spool = Spool(tmp_path / "spool")
    repository = FullDisk(world.repository, refusals=0)
    driver = world.driver(repository=repository, spool=spool)
    once(driver)
    spec = step(driver, "a")
    repository.refusals = 10**6
    _, score = driver.finish(spec.claim_id, good(spec))
    assert replay(spool, world.repository) == 1
    assert list(spool.waiting()) == []
    reconcile(world.study, world.repository, world.stored, lives=lambda start: False)
    trial = world.trial(spec.number)
    assert trial.state == "complete"
    assert trial.starts[0].score is not None
    assert score is not None
    assert trial.starts[0].score.value == score.value


def test_an_interrupted_study_does_not_wait_for_a_full_disk(make: Worlds) -> None:
    world = make(enqueue=points(1))
    driver, _, _, clock = measured_on_a_full_disk(world, refusals=10**6)
    began_s = clock.now_s
    driver.abandon("the study was stopped")
    assert clock.now_s == began_s
