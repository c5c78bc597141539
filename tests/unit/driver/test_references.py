"""The reference: first on every host, again and again, and what is compared with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.errors import (
    StudyError,
    TargetError,
)
from autotune.measurement import Ending
from autotune.repository import Role
from tests.scripted import DEPLOYED
from tests.unit.driver.world import (
    SPEED,
    Worlds,
    bad,
    good,
    once,
    parallel,
    points,
    serial,
    speed,
    step,
    values_of,
)


def test_the_reference_comes_first_on_every_host(make: Worlds) -> None:
    world = make(trials=6, hosts=("a", "b"), enqueue=points(4))
    done = parallel(world.driver())
    first = {host: next(s for s in done if s.plan.host == host) for host in ("a", "b")}
    assert [values_of(spec) for spec in first.values()] == [DEPLOYED, DEPLOYED]
    assert {first["a"].number, first["b"].number} == {0, 1}
    assert [(t.reference, t.starts[0].host) for t in world.stored.trials[:2]] == [
        (True, "a"),
        (True, "b"),
    ]
    assert world.frozen(1).user_attrs["host"] == "b"
    for trial in world.stored.trials[:2]:
        assert trial.starts[0].score is not None
        assert trial.starts[0].score.ratio == 1.0


def test_a_ratio_is_to_the_reference_of_its_own_host(make: Worlds) -> None:
    world = make(trials=6, hosts=("a", "b"), enqueue=points(4))
    parallel(world.driver())
    for trial in world.stored.trials[2:]:
        start = trial.starts[0]
        assert start.score is not None
        expected = speed(start.host, trial.parameters)
        assert start.score.value == pytest.approx(expected)
        assert start.score.ratio == pytest.approx(expected / SPEED[start.host])
        assert world.frozen(trial.number).value == pytest.approx(start.score.ratio)


def test_the_reference_is_repeated_every_few_starts_and_at_the_end(make: Worlds) -> None:
    world = make(trials=6, enqueue=points(5), reference_every=2)
    done = serial(world.driver())
    assert [spec.number == 0 for spec in done] == [
        *(True, False, False),
        *(True, False, False),
        *(True, False, True),
    ]
    assert len(world.trial(0).starts) == 4
    assert [s.role for s in world.trial(0).starts] == [Role.REFERENCE] * 4
    assert [s.round for s in world.trial(0).starts] == [0, 1, 2, 3]
    assert world.study.ended() == 6


def test_a_later_reference_is_the_one_that_counts(make: Worlds) -> None:
    """The host became slower: what follows is compared with the slower reference."""
    world = make(trials=3, enqueue=points(2), reference_every=1)
    driver = world.driver()
    once(driver)
    once(driver)
    spec = once(driver, result=lambda s: good(s, factor=0.5))
    assert spec.number == 0
    last = once(driver, result=lambda s: good(s, factor=0.5))
    start = world.trial(last.number).starts[0]
    assert start.score is not None
    assert start.score.ratio == pytest.approx(speed("a", values_of(last)) / 100.0)


def test_texts_are_compared_with_the_hosts_first_reference(make: Worlds) -> None:
    world = make(trials=4, hosts=("a", "b"), enqueue=points(2))
    seen: set[str] = set()
    for spec in parallel(world.driver()):
        host = spec.plan.host
        wanted = {"greedy/0": f"text of {host}"} if host in seen else {}
        assert spec.answers.reference == wanted
        seen.add(host)


def test_a_reference_that_fails_is_tried_again_then_the_host_is_lost(make: Worlds) -> None:
    world = make(hosts=("a",))
    driver = world.driver()
    for _ in range(2):
        spec = once(driver, result=lambda s: bad(Ending.FAILED, "NotReady", message="no GPU"))
        assert values_of(spec) == DEPLOYED
    with pytest.raises(StudyError, match=r"no host is left.*no GPU"):
        driver.take()
    assert isinstance(world.sessions["a"].lost, TargetError)
    assert world.study.ended() == 0
    assert not any(t.state.name == "WAITING" for t in world.study.trials())


def test_a_second_attempt_at_the_reference_may_do(make: Worlds) -> None:
    world = make(trials=2, enqueue=points(1))
    driver = world.driver()
    once(driver, result=lambda s: bad(Ending.FAILED))
    done = serial(driver)
    assert [values_of(spec) for spec in done] == [DEPLOYED, points(1)[0], DEPLOYED]
    assert world.study.ended() == 2


def test_a_reference_that_crashes_in_mid_study_does_not_go_on_for_ever(make: Worlds) -> None:
    world = make(trials=8, enqueue=points(4), reference_every=1)
    driver = world.driver()
    once(driver)
    once(driver)
    for _ in range(2):
        spec = step(driver, "a")
        assert spec.number == 0
        driver.finish(spec.claim_id, bad(Ending.INFEASIBLE, "ServerCrashed"))
    with pytest.raises(StudyError, match="the reference could not be measured"):
        driver.take()


@pytest.mark.parametrize(("limit", "fits"), [("7", False), ("8", True), (None, True)])
def test_the_reference_must_admit_the_largest_bucket(
    make: Worlds, limit: str | None, fits: bool
) -> None:
    world = make(enqueue=points(1))
    driver = world.driver()
    spec = step(driver, "a")
    shown = {} if limit is None else {"max_running_requests": limit}
    record = replace(good(spec), fingerprint=shown)
    if fits:
        driver.finish(spec.claim_id, record)
        assert step(driver, "a").fingerprint == shown
        return
    with pytest.raises(StudyError, match="asks for 8 requests") as caught:
        driver.finish(spec.claim_id, record)
    assert "--max-running-requests" in caught.value.hint
    assert world.trial(0).told
