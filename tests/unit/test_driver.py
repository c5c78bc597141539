"""Which start comes next and what its ending means; sessions and results made by hand."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from optuna.samplers import RandomSampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial

from autotune.answers import Answers
from autotune.concluding import conclude, contenders
from autotune.config import StudyConfig
from autotune.definition_files import ServiceSection, StudySection
from autotune.driver import Driver, Nothing
from autotune.endings import reconcile
from autotune.errors import (
    AutotuneError,
    FailureRateExceeded,
    StorageAway,
    StorageError,
    StudyError,
    TargetError,
)
from autotune.hosts import HostPlan
from autotune.judging import silent_most_s
from autotune.launch import Recipe
from autotune.measurement import (
    BucketMeasurement,
    BucketQuality,
    CodingResult,
    Ending,
    Evidence,
    FailureRecord,
    StartRecord,
)
from autotune.objective import Score
from autotune.objective_file import CodingSection, LosslessSection, MeasureSection, ScoreSection
from autotune.outage import AWAY_MOST_S
from autotune.outbox import replay
from autotune.raw import raw_requests
from autotune.raw_store import MB, RawStore
from autotune.repository import Repository, Role, StoredStudy, StoredTrial
from autotune.search.history import History
from autotune.session import HostSession
from autotune.space import Values
from autotune.spool import Spool
from autotune.storage import connect, open_optuna
from autotune.study import TrialStudy
from autotune.supervisors.base import Lease, Owner
from autotune.trial import TrialSpec
from autotune.verdict import VerdictKind
from tests.builders import a_bucket
from tests.databases import copied, template
from tests.scripted import (
    DEPLOYED,
    OWNER,
    WORKLOAD,
    Clock,
    a_plan,
    a_recipe,
    a_space,
    some_answers,
)

NAME = "made-up"
SPEED = {"a": 100.0, "b": 250.0}
"""Throughput of the deployed point in every bucket, by host: hosts differ."""


# -- a world without machines ---------------------------------------------------------------------


@dataclass
class FakeSession:
    """What the driver needs of a host."""

    plan: HostPlan
    lease: Lease
    recipe: Recipe
    lost: AutotuneError | None = None

    @property
    def usable(self) -> bool:
        return self.lost is None

    def lose(self, reason: AutotuneError) -> None:
        self.lost = self.lost or reason


def a_config(
    *,
    trials: int | None = 4,
    hosts: tuple[str, ...] = ("a",),
    enqueue: tuple[Values, ...] = (),
    score: Mapping[str, Any] | None = None,
    **study: Any,
) -> StudyConfig:
    sections: dict[str, Any] = {"finalists": 0, "final_rounds": 0, "reference_every": 99}
    return StudyConfig(
        name=NAME,
        path=Path("made-up.toml"),
        objective_path=Path("made-up.toml"),
        study=StudySection(objective="made-up", trials=trials, **{**sections, **study}),
        service=ServiceSection(
            supervisor="process",
            hosts=hosts,
            base_url="http://127.0.0.1:30000",
            command="serve",
        ),
        space=a_space(),
        workload=WORKLOAD,
        score=ScoreSection(**(score or {})),
        coding=CodingSection(samples=0),
        suite=None,
        lossless=LosslessSection(prompts=0),
        measure=MeasureSection(),
        enqueue=enqueue,
        definition={},
    )


def points(count: int) -> tuple[Values, ...]:
    """Different points, none the deployed one; the first is the slowest."""
    budgets = [9, 10, 11, 12, 13, 14, 15, 16, 17, 18][:count]
    return tuple({"budget": budget, "topk": 4, "window": None} for budget in budgets)


def speed(host: str, values: Values) -> float:
    """The deployed budget 8 is the slowest, each node more gives 2 %."""
    budget = values["budget"]
    assert isinstance(budget, int)
    return SPEED[host] * (1 + 0.02 * (budget - 8))


def good(
    spec: TrialSpec, *, factor: float = 1.0, coding: CodingResult | None = None
) -> StartRecord:
    """A measured start, as fast as `speed` says."""
    values = {intent.name: intent.value for intent in spec.intents}
    rate = speed(spec.plan.host, values) * factor
    return StartRecord(
        Ending.COMPLETE,
        proof=(Evidence("argv", "x", "x", ok=True, at_s=1.0),),
        buckets=tuple(
            a_bucket(b.context_tokens, b.concurrency, rate, weight=b.weight) for b in spec.buckets
        ),
        coding=coding,
        texts={"greedy/0": f"text of {spec.plan.host}"},
        ended_at_s=2.0,
    )


def bad(
    ending: Ending, kind: str = "NotReady", *, link: str = "", message: str = "why"
) -> StartRecord:
    return StartRecord(ending, failure=FailureRecord(kind, message, link), ended_at_s=2.0)


def broken_link(link: str = "window: log") -> StartRecord:
    return bad(Ending.FAILED, "SettingsNotApplied", link=link, message=f"link {link!r} is broken")


class World:
    """One database; a new driver on it is what a new process would be."""

    def __init__(self, url: str, config: StudyConfig) -> None:
        self.config = config
        self.engine = connect(url)
        self.repository = Repository(self.engine)
        self.repository.open_study(NAME, definition={}, fingerprint="f", provenance={})
        self.optuna: RDBStorage = open_optuna(url)
        self.pids = itertools.count(5000)
        self.sessions: dict[str, FakeSession] = {}
        self.study = self._study()

    def close(self) -> None:
        self.engine.dispose()
        self.optuna.engine.dispose()

    def _study(self) -> TrialStudy:
        study = TrialStudy(NAME, self.optuna, space=self.config.space)
        study.use(RandomSampler(seed=3))
        return study

    def driver(
        self,
        *,
        repository: Repository | None = None,
        study: TrialStudy | None = None,
        reconciling: bool = True,
        clock: Clock | None = None,
        spool: Spool | None = None,
        raw: RawStore | None = None,
    ) -> Driver:
        """A new process: new owner, new sessions, what was left behind repaired."""
        self.study = self._study()
        if reconciling:
            reconcile(self.study, self.repository, self.stored, lives=lambda start: False)
        owner = replace(OWNER, pid=next(self.pids))
        recipe = a_recipe()
        self.sessions = {
            host: FakeSession(a_plan(host), Lease("l" * 32, host, owner, 300.0), recipe)
            for host in self.config.service.hosts
        }
        return Driver(
            self.config,
            study=study or self.study,
            repository=repository or self.repository,
            sessions=cast(Mapping[str, HostSession], self.sessions),
            owner=owner,
            answers=_no_answers(),
            finalists=lambda stored: contenders(self.config, stored),
            clock=clock or time.monotonic,
            spool=spool,
            raw=raw,
        )

    @property
    def stored(self) -> StoredStudy:
        return self.repository.load(NAME)

    def trial(self, number: int) -> StoredTrial:
        return next(t for t in self.stored.trials if t.number == number)

    def frozen(self, number: int) -> FrozenTrial:
        return next(t for t in self.study.trials() if t.number == number)


def _no_answers() -> Answers:
    return some_answers(greedy={}, reference={})


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return template(tmp_path_factory.mktemp("template"))


@dataclass
class Worlds:
    """Makes worlds and closes them."""

    empty: Path
    folder: Path
    made: list[World] = field(default_factory=list)

    def __call__(self, **config: Any) -> World:
        folder = self.folder / str(len(self.made))
        folder.mkdir()
        world = World(copied(self.empty, folder), a_config(**config))
        self.made.append(world)
        return world


@pytest.fixture
def make(empty: Path, tmp_path: Path) -> Iterator[Worlds]:
    worlds = Worlds(empty, tmp_path)
    yield worlds
    for world in worlds.made:
        world.close()


Result = Callable[[TrialSpec], StartRecord]


def step(driver: Driver, host: str) -> TrialSpec:
    spec = driver.next(host)
    assert isinstance(spec, TrialSpec), spec
    return spec


def once(driver: Driver, host: str = "a", result: Result = good) -> TrialSpec:
    """One start from beginning to end."""
    spec = step(driver, host)
    driver.finish(spec.claim_id, result(spec))
    return spec


def serial(driver: Driver, result: Result = good, *, most: int = 200) -> list[TrialSpec]:
    """The plain executor."""
    done: list[TrialSpec] = []
    while isinstance(spec := driver.take(), TrialSpec):
        for bucket in result(spec).buckets:
            driver.bucket(spec.claim_id, bucket)
        driver.finish(spec.claim_id, result(spec))
        done.append(spec)
        assert len(done) < most, "the study does not end"
    assert spec is Nothing.DONE
    return done


def parallel(driver: Driver, result: Result = good, *, most: int = 200) -> list[TrialSpec]:
    """Every free host gets a start, the oldest ends first."""
    done: list[TrialSpec] = []
    flying: list[TrialSpec] = []
    while True:
        while isinstance(spec := driver.take(), TrialSpec):
            flying.append(spec)
        if not flying:
            assert spec is Nothing.DONE
            return done
        assert spec is Nothing.WAIT
        ended = flying.pop(0)
        driver.finish(ended.claim_id, result(ended))
        done.append(ended)
        assert len(done) < most, "the study does not end"


def values_of(spec: TrialSpec) -> dict[str, Any]:
    return {intent.name: intent.value for intent in spec.intents}


def roles(world: World) -> list[Role]:
    return [start.role for trial in world.stored.trials for start in trial.starts]


# -- references -----------------------------------------------------------------------------------


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


# -- order of the search --------------------------------------------------------------------------


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


# -- endings --------------------------------------------------------------------------------------


def search_start(world: World, result: StartRecord | None = None) -> tuple[Driver, TrialSpec]:
    """A driver after its reference and one search start with this result."""
    driver = world.driver()
    once(driver)
    spec = step(driver, "a")
    driver.finish(spec.claim_id, result or good(spec))
    return driver, spec


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
    driver = world.driver()
    once(driver)
    spec = step(driver, "a")
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
    driver = world.driver()
    once(driver)
    spec = step(driver, "a")
    record = replace(good(spec), ending=Ending.PRUNED, buckets=good(spec).buckets[:1])
    driver.finish(spec.claim_id, record)
    trial, frozen = world.trial(spec.number), world.frozen(spec.number)
    assert (trial.state, frozen.state.name, frozen.value) == ("pruned", "PRUNED", None)
    assert list(frozen.user_attrs["buckets"]) == ["1024x8"]
    assert [b.key for b in trial.starts[0].buckets] == ["1024x8"]
    assert trial.starts[0].score is None


def test_an_invalid_bucket_makes_no_score(make: Worlds) -> None:
    world = make(enqueue=points(1))
    driver = world.driver()
    once(driver)
    spec = step(driver, "a")
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
    driver = world.driver()
    once(driver)
    spec = step(driver, "a")
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


# -- when the study stops -------------------------------------------------------------------------


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
    driver = world.driver()
    once(driver)
    spec = step(driver, "a")
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


# -- hosts that go away ---------------------------------------------------------------------------


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


# -- a clock that jumps ---------------------------------------------------------------------------


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


# -- a database that cannot be written -------------------------------------------------------------


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


# -- abandon --------------------------------------------------------------------------------------


def test_abandon_ends_everything_in_flight_and_queues_it_again(make: Worlds) -> None:
    world = make(trials=6, hosts=("a", "b"), enqueue=points(4))
    driver = world.driver()
    once(driver, "a")
    once(driver, "b")
    flying = [step(driver, "a"), step(driver, "b")]
    driver.abandon("the study was stopped")
    assert world.study.running() == ()
    assert [world.trial(s.number).state for s in flying] == ["failed", "failed"]
    parallel(world.driver())
    assert world.study.ended() == 6
    assert scored_points(world) == Counter(_key(p) for p in points(4))


def test_abandon_of_nothing_is_nothing(make: Worlds) -> None:
    world = make()
    world.driver().abandon("the study was stopped")
    assert world.study.trials() == []


def test_abandon_does_not_judge(make: Worlds) -> None:
    world = make(hosts=("a", "b"), same_failure_most=1, enqueue=points(2))
    driver = world.driver()
    once(driver, "a")
    once(driver, "b")
    step(driver, "a")
    step(driver, "b")
    driver.abandon("the study was stopped")
    assert world.study.running() == ()


def test_an_abandoned_retry_is_queued_again_too(make: Worlds) -> None:
    world = make(trials=3, enqueue=points(1))
    driver, first = search_start(world, bad(Ending.FAILED))
    retry = step(driver, "a")
    assert values_of(retry) == values_of(first)
    driver.abandon("the study was stopped")
    driver = world.driver()
    once(driver)  # a fresh reference
    assert values_of(step(driver, "a")) == values_of(first)


# -- final rounds ---------------------------------------------------------------------------------


def finals(world: World) -> list[tuple[int, int, str]]:
    """(round, trial, host) of the final starts in the order in which they were made."""
    starts = [
        (start.started_at_s, start.round, trial.number, start.host)
        for trial in world.stored.trials
        for start in trial.starts
        if start.role is Role.FINAL
    ]
    return [entry[1:] for entry in sorted(starts)]


def test_finals_alternate_and_conclude_names_the_winner(make: Worlds) -> None:
    world = make(trials=4, enqueue=points(3), finalists=2, final_rounds=3)
    noise = itertools.cycle([1.0, 1.002, 0.999, 1.001])
    serial(world.driver(), lambda s: good(s, factor=next(noise)))
    assert finals(world) == [
        *((0, 0, "a"), (0, 3, "a"), (0, 2, "a")),
        *((1, 2, "a"), (1, 3, "a"), (1, 0, "a")),
        *((2, 0, "a"), (2, 3, "a"), (2, 2, "a")),
    ]
    conclusion = conclude(world.config, world.stored)
    assert conclusion.kind is VerdictKind.BETTER
    assert (conclusion.trial, conclusion.parameters["budget"]) == (3, 11)
    assert conclusion.ratio == pytest.approx(1.06, abs=0.01)
    assert conclusion.score == pytest.approx(106.0, abs=0.5)
    assert conclusion.reference_score == pytest.approx(100.0, abs=0.5)
    assert conclusion.interval is not None
    assert conclusion.interval.low < 106.0 < conclusion.interval.high
    assert [entry["trial"] for entry in conclusion.finalists] == [3, 2]


def test_no_difference_keeps_the_deployed_configuration(make: Worlds) -> None:
    world = make(trials=3, enqueue=points(2), finalists=2, final_rounds=2)
    noise = itertools.cycle([1.02, 0.98])

    def same(spec: TrialSpec) -> StartRecord:
        return good(spec, factor=SPEED["a"] / speed("a", values_of(spec)) * next(noise))

    serial(world.driver(), same)
    conclusion = conclude(world.config, world.stored)
    assert conclusion.kind is VerdictKind.NO_SIGNIFICANT_DIFFERENCE
    assert (conclusion.trial, dict(conclusion.parameters)) == (0, DEPLOYED)
    assert conclusion.interval is None


def test_without_finals_there_is_no_winner(make: Worlds) -> None:
    world = make(trials=3, enqueue=points(2))
    serial(world.driver())
    conclusion = conclude(world.config, world.stored)
    assert conclusion.kind is VerdictKind.NOT_ENOUGH_DATA
    assert (conclusion.trial, dict(conclusion.parameters)) == (0, DEPLOYED)


def test_a_stop_in_the_final_rounds_names_no_winner_and_the_next_run_goes_on(make: Worlds) -> None:
    world = make(trials=2, enqueue=points(1), finalists=1, final_rounds=3)
    driver = world.driver()
    for _ in range(3):
        once(driver)
    driver.stop()
    assert driver.take() is Nothing.DONE
    assert not driver.concludes
    again = world.driver()
    serial(again)
    assert again.concludes
    assert len(finals(world)) == 1 + 3 * 2, "whole rounds, whatever was cut"
    again.stop()
    assert again.take() is Nothing.DONE
    assert again.concludes, "it was done before it was stopped"


def test_a_finalist_that_was_hardly_measured_is_out_and_the_others_are_judged(make: Worlds) -> None:
    world = make(trials=4, enqueue=points(3), finalists=2, final_rounds=3)
    noise = itertools.cycle([1.0, 1.002, 0.999, 1.001])
    starts: dict[str, int] = {}

    def often_fails(spec: TrialSpec) -> StartRecord:
        starts.setdefault(spec.claim_id, spec.number)
        own = [claim for claim, number in starts.items() if number == 2]
        if spec.claim_id in own[2:]:  # all but its search start and one final
            return bad(Ending.FAILED)
        return good(spec, factor=next(noise))

    serial(world.driver(), often_fails)
    conclusion = conclude(world.config, world.stored)
    assert conclusion.kind is VerdictKind.BETTER
    assert conclusion.trial == 3
    assert "trial 2 is out: it was measured again 1 time, 2 are needed" in conclusion.sentence


def test_finals_do_not_change_what_was_told(make: Worlds) -> None:
    world = make(trials=3, enqueue=points(2), finalists=1, final_rounds=2)
    driver = world.driver()
    for _ in range(3):
        once(driver)
    before = [(t.number, t.value) for t in world.study.trials()]
    serial(driver, lambda s: good(s, factor=1.5))
    assert [(t.number, t.value) for t in world.study.trials()] == before


def test_conclude_survives_a_final_score_of_zero(make: Worlds) -> None:
    world = make(trials=2, enqueue=points(1), finalists=1, final_rounds=2)
    passed = CodingResult({f"t/{n}": "passed" for n in range(100)}, 100, 0, {"passed": 100})
    wrong = CodingResult({f"t/{n}": "wrong" for n in range(100)}, 0, 100, {"wrong": 100})
    driver = world.driver()
    once(driver, result=lambda s: good(s, coding=passed))
    once(driver, result=lambda s: good(s, coding=passed))
    serial(driver, lambda s: good(s, coding=passed if s.number == 0 else wrong))
    assert conclude(world.config, world.stored).trial == 0


def test_finals_on_two_hosts_play_whole_rounds(make: Worlds) -> None:
    world = make(trials=6, hosts=("a", "b"), enqueue=points(4), finalists=2, final_rounds=4)
    parallel(world.driver())
    rounds: dict[int, list[tuple[int, str]]] = {}
    for round_, number, host in finals(world):
        rounds.setdefault(round_, []).append((number, host))
    assert sorted(rounds) == [0, 1, 2, 3]
    for played in rounds.values():
        assert len({host for _, host in played}) == 1
        references = [n for n, _ in played if world.trial(n).reference]
        assert (len(played), len(references)) == (3, 1)
    assert conclude(world.config, world.stored).kind is VerdictKind.BETTER


def test_a_final_start_is_compared_with_its_own_hosts_reference(make: Worlds) -> None:
    world = make(trials=3, hosts=("a", "b"), enqueue=points(1), finalists=1, final_rounds=2)
    driver = world.driver()
    once(driver, "a")
    once(driver, "b")
    once(driver, "a")
    assert step(driver, "a").number == 0  # round 0 begins with the reference
    first_b = step(driver, "b")  # round 1 begins with the finalist, on the other host
    assert first_b.number == 2
    (running_a,) = [c for c in driver._flying if c != first_b.claim_id]
    driver.finish(running_a, good(driver._flying[running_a].spec))
    second_a = step(driver, "a")
    assert second_a.number == 2
    driver.finish(first_b.claim_id, good(first_b))
    (start,) = [s for s in world.trial(2).starts if s.claim_id == first_b.claim_id]
    assert start.score is not None
    assert start.score.ratio == pytest.approx(1.02)


def test_a_lost_hosts_round_begins_again(make: Worlds) -> None:
    world = make(trials=4, hosts=("a", "b"), enqueue=points(2), finalists=1, final_rounds=2)
    driver = world.driver()
    while not any(role is Role.FINAL for role in roles(world)):
        for host in driver.free_hosts():
            spec = driver.next(host)
            if not isinstance(spec, TrialSpec):
                continue
            is_final = roles(world).count(Role.FINAL) > 0
            record = bad(Ending.FAILED, "ConnectError") if is_final else good(spec)
            driver.finish(spec.claim_id, record)
            if is_final:
                break
    assert [h for h, s in world.sessions.items() if s.usable] == ["b"]
    parallel(driver)
    complete = {
        round_
        for round_, played in itertools.groupby(sorted(finals(world)), key=lambda entry: entry[0])
        if len([p for p in played if p[2] == "b"]) == 2
    }
    assert complete == {0, 1}


# -- killed anywhere ------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for kill -9: nobody may catch it."""


class Dying:
    """Stands in front of repository or study; the process ends before a chosen call."""

    def __init__(self, subject: object, fuse: Fuse, methods: frozenset[str]) -> None:
        self._subject = subject
        self._fuse = fuse
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._subject, name)
        if name not in self._methods:
            return found

        def burning(*arguments: Any, **named: Any) -> Any:
            self._fuse.burn(name)
            return found(*arguments, **named)

        return burning


@dataclass
class Fuse:
    """Counts writes; the one numbered `at` is never made."""

    at: int | None = None
    made: list[str] = field(default_factory=list)

    def burn(self, name: str) -> None:
        if self.at is not None and len(self.made) == self.at:
            raise Killed(name)
        self.made.append(name)


REPOSITORY_WRITES = frozenset(
    {"begin_trial", "begin_start", "add_bucket", "end_start", "end_trial"}
)
STUDY_WRITES = frozenset(
    {
        *("ask", "add_reference", "enqueue_once", "queue_again", "note"),
        *("tell_complete", "tell_infeasible", "tell_failed", "tell_pruned"),
    }
)
KILL_CONFIG: dict[str, Any] = {
    "trials": 4,
    "enqueue": points(3),
    "reference_every": 2,
    "finalists": 1,
    "final_rounds": 1,
}


def first_fails(spec: TrialSpec) -> StartRecord:
    """The first attempt at budget 10 fails, budget 11 never runs, everything else is measured."""
    budget = values_of(spec)["budget"]
    if budget == 10 and spec.number == 2:
        return bad(Ending.FAILED)
    if budget == 11:
        return bad(Ending.INFEASIBLE, "ServerStartError")
    return good(spec)


def run_until_killed(world: World, at: int | None) -> Fuse:
    """One process that dies before its write number `at`."""
    fuse = Fuse(at)
    driver = world.driver(
        repository=cast(Repository, Dying(world.repository, fuse, REPOSITORY_WRITES)),
        study=cast(TrialStudy, Dying(world._study(), fuse, STUDY_WRITES)),
    )
    if at is None:
        serial(driver, first_fails)
        return fuse
    with pytest.raises(Killed):
        serial(driver, first_fails)
    return fuse


def _search(*told: str, buckets: int = 2) -> tuple[str, ...]:
    begun = ("enqueue_once", "ask", "begin_trial", "begin_start", *(("add_bucket",) * buckets))
    return (*begun, "end_start", "note", *told, "end_trial")


REPEAT = ("begin_start", "add_bucket", "add_bucket", "end_start")
WRITES = (
    *("add_reference", "begin_trial", "begin_start", "add_bucket", "add_bucket", "end_start"),
    *("note", "tell_complete", "end_trial"),
    *_search("tell_complete"),
    *_search("tell_failed", "queue_again", buckets=0),
    *REPEAT,  # the reference again
    *_search("tell_infeasible", buckets=0),
    *_search("tell_complete"),  # the failed point again
    *(REPEAT * 2),  # the final round
    *REPEAT,  # the reference, last
)
"""Every write of `KILL_CONFIG`, in order."""


def _key(values: Values) -> str:
    return a_space().key(values)


def scored_points(world: World) -> Counter[str]:
    """How often each point of the search got a score that counts."""
    return Counter(
        _key(trial.parameters)
        for trial in world.stored.trials
        for start in trial.starts
        if start.role is Role.SEARCH and start.score is not None and trial.state == "complete"
    )


def assert_whole(world: World) -> None:
    """The study came to its end: nothing lost, nothing twice, both sides of the database agree."""
    assert world.study.ended() == 4
    assert world.study.running() == ()
    told = {"complete": "COMPLETE", "infeasible": "COMPLETE", "failed": "FAIL", "pruned": "PRUNED"}
    for trial in world.stored.trials:
        assert trial.told, trial.number
        assert told[trial.state] == world.frozen(trial.number).state.name, trial.number
    known = {trial.number for trial in world.stored.trials}
    for frozen in world.study.trials():
        assert frozen.state.name in ("FAIL", "COMPLETE", "PRUNED"), frozen.number
        assert frozen.number in known or frozen.state.name == "FAIL", frozen.number
    assert scored_points(world) == Counter(_key(p) for p in points(2))
    assert finals_played(world) == Counter({"reference": 1, _key(points(2)[1]): 1})


def finals_played(world: World) -> Counter[str]:
    return Counter(
        "reference" if trial.reference else _key(trial.parameters)
        for trial in world.stored.trials
        for start in trial.starts
        if start.role is Role.FINAL and start.score is not None
    )


def test_a_study_without_a_kill_is_whole(make: Worlds) -> None:
    world = make(**KILL_CONFIG)
    fuse = run_until_killed(world, None)
    assert tuple(fuse.made) == WRITES
    assert_whole(world)


# Every search trial begins alike, the last one ends like the first, and one repeat like another.
ALIKE = {14, *range(19, 23), 29, 30, *range(32, 36), *range(40, 50), 51, 52, *range(54, 58), 59, 60}
KILL_POINTS = [
    pytest.param(at, id=f"{at}-{name}") for at, name in enumerate(WRITES) if at not in ALIKE
]


@pytest.mark.parametrize("at", KILL_POINTS)
def test_nothing_is_lost_or_repeated_after_a_kill(make: Worlds, at: int) -> None:
    world = make(**KILL_CONFIG)
    fuse = run_until_killed(world, at)
    assert tuple(fuse.made) == WRITES[:at]
    serial(world.driver(), first_fails)
    assert_whole(world)


def test_a_kill_within_the_repair_loses_nothing(make: Worlds) -> None:
    world = make(**KILL_CONFIG)
    run_until_killed(world, WRITES.index("ask") + 3)
    dying = cast(TrialStudy, Dying(world.study, Fuse(0), frozenset({"queue_again"})))
    with pytest.raises(Killed):
        reconcile(dying, world.repository, world.stored, lives=lambda start: False)
    serial(world.driver(), first_fails)
    assert_whole(world)


# -- reconcile ------------------------------------------------------------------------------------


def left_behind(world: World, record: StartRecord | None) -> TrialSpec:
    """A search trial whose driver died: after its result was saved, or before there was one."""
    driver = world.driver()
    once(driver)
    spec = step(driver, "a")
    if record is not None:
        world.repository.end_start(spec.claim_id, record, None)
    return spec


def repaired(world: World, alive: Callable[[Owner], bool] = lambda owner: False) -> int:
    return reconcile(
        world.study, world.repository, world.stored, lives=lambda start: alive(start.owner)
    )


def late_ones(world: World, number: int) -> list[FrozenTrial]:
    return [t for t in world.study.trials() if t.user_attrs.get("late_of") == number]


def test_what_comes_after_a_trial_was_given_up_is_told_once(make: Worlds) -> None:
    world = make(trials=9, enqueue=points(1))
    driver = world.driver()
    once(driver)
    spec = step(driver, "a")
    assert repaired(world) == 1
    assert (world.trial(spec.number).state, late_ones(world, spec.number)) == ("failed", [])
    record, score = driver.finish(spec.claim_id, good(spec))
    assert score is not None
    trial = world.trial(spec.number)
    assert (trial.state, trial.starts[0].score and trial.starts[0].score.ratio) == (
        "complete",
        score.ratio,
    )
    for _ in range(2):
        repaired(world)
    (late,) = late_ones(world, spec.number)
    assert late.state.name == "COMPLETE"
    assert late.value == pytest.approx(1.02)
    assert late.params == world.frozen(spec.number).params
    assert world.frozen(spec.number).state.name == "FAIL"
    assert late.user_attrs["host"] == "a"
    assert set(late.user_attrs["buckets"]) == {b.key for b in record.buckets}
    history = History.of(world.study.trials(), world.config.space)
    assert [o.score for o in history.outcomes] == pytest.approx([1.0, 1.02])


@pytest.mark.parametrize(
    ("ending", "told"), [(Ending.INFEASIBLE, "COMPLETE"), (Ending.PRUNED, "PRUNED")]
)
def test_a_late_verdict_without_a_score_is_told_too(
    make: Worlds, ending: Ending, told: str
) -> None:
    world = make(trials=9, enqueue=points(1))
    driver = world.driver()
    once(driver)
    spec = step(driver, "a")
    repaired(world)
    driver.finish(spec.claim_id, bad(ending))
    (late,) = late_ones(world, spec.number)
    violated = ending is Ending.INFEASIBLE
    assert late.state.name == told
    assert (late.constraints["infeasible"] > 0) is violated
    assert world.trial(spec.number).state == ending


def test_a_late_failure_changes_nothing(make: Worlds) -> None:
    world = make(trials=9, enqueue=points(1))
    driver = world.driver()
    once(driver)
    spec = step(driver, "a")
    repaired(world)
    known = len(world.study.trials())
    driver.finish(spec.claim_id, bad(Ending.FAILED))
    assert len(world.study.trials()) == known
    assert world.trial(spec.number).state == "failed"


def test_a_late_result_that_waited_on_the_disk_is_told_by_the_next_run(make: Worlds) -> None:
    world = make(trials=9, enqueue=points(1))
    driver = world.driver()
    once(driver)
    spec = step(driver, "a")
    repaired(world)
    record = good(spec)
    world.repository.end_start(spec.claim_id, record, driver._score(record, "a", reference=False))
    assert world.trial(spec.number).state == "failed"
    repaired(world)
    assert world.trial(spec.number).state == "complete"
    assert len(late_ones(world, spec.number)) == 1


def test_the_end_of_a_worker_that_was_silent_is_scored_and_told(make: Worlds) -> None:
    clock = Clock()
    world = make(trials=9, enqueue=points(1))
    driver = world.driver(clock=clock)
    once(driver)
    spec = step(driver, "a")
    clock.wait(silent_most_s(world.config) + 1)
    again = driver.take()
    assert isinstance(again, TrialSpec)
    assert world.trial(again.number).retry_of == spec.number
    _, score = driver.finish(spec.claim_id, good(spec))
    assert score is not None
    assert world.trial(spec.number).state == "complete"
    assert len(late_ones(world, spec.number)) == 1
    assert driver.flying() == (again.number,)


def test_an_end_that_is_saved_as_another_driver_gives_the_trial_up_is_told(make: Worlds) -> None:
    world = make(trials=9, enqueue=points(1))
    driver = world.driver()
    once(driver)
    spec = step(driver, "a")
    world.study.tell_failed(spec.number)  # the other has come so far
    driver.finish(spec.claim_id, good(spec))
    assert world.trial(spec.number).state == "complete"
    assert [t.value for t in late_ones(world, spec.number)] == [pytest.approx(1.02)]


@pytest.mark.parametrize(
    ("ending", "state", "again"),
    [
        (Ending.INFEASIBLE, "COMPLETE", 0),
        (Ending.PRUNED, "PRUNED", 0),
        (Ending.FAILED, "FAIL", 1),
    ],
)
def test_a_saved_ending_is_told_as_it_would_have_been(
    make: Worlds, ending: Ending, state: str, again: int
) -> None:
    world = make(enqueue=points(1))
    spec = left_behind(world, bad(ending))
    assert repaired(world) == again
    trial = world.trial(spec.number)
    assert (trial.state, trial.told) == (str(ending), True)
    assert world.frozen(spec.number).state.name == state
    assert repaired(world) == 0


def test_a_saved_score_is_told(make: Worlds) -> None:
    world = make(enqueue=points(1))
    driver = world.driver()
    once(driver)
    spec = step(driver, "a")
    record = good(spec)
    world.repository.end_start(spec.claim_id, record, driver._score(record, "a", reference=False))
    assert repaired(world) == 0
    frozen = world.frozen(spec.number)
    assert frozen.state.name == "COMPLETE"
    assert frozen.value == pytest.approx(1.02)
    assert frozen.user_attrs["host"] == "a"
    assert set(frozen.user_attrs["buckets"]) == {"1024x8", "60x1"}


def test_a_saved_pruned_trial_keeps_its_buckets_for_the_sampler(make: Worlds) -> None:
    world = make(enqueue=points(1))
    driver = world.driver()
    once(driver)
    spec = step(driver, "a")
    record = replace(good(spec), ending=Ending.PRUNED, buckets=good(spec).buckets[:1])
    world.repository.end_start(spec.claim_id, record, None)
    repaired(world)
    assert "1024x8" in world.frozen(spec.number).user_attrs.get("buckets", {})


def test_what_was_not_measured_to_its_end_is_made_again(make: Worlds) -> None:
    world = make(enqueue=points(1))
    spec = left_behind(world, None)
    assert repaired(world) == 1
    assert world.trial(spec.number).state == "failed"
    driver = world.driver()
    once(driver)  # the reference, since hours may lie between the runs
    again = step(driver, "a")
    assert (values_of(again), world.trial(again.number).retry_of) == (
        values_of(spec),
        spec.number,
    )


def test_a_resumed_study_measures_a_fresh_reference_first(make: Worlds) -> None:
    world = make(enqueue=points(2))
    left_behind(world, None)
    repaired(world)
    driver = world.driver()
    first = once(driver)
    assert (first.role, values_of(first)) == ("reference", DEPLOYED)
    assert values_of(step(driver, "a")) != DEPLOYED


def test_a_living_owner_keeps_its_trial(make: Worlds) -> None:
    world = make(enqueue=points(1))
    spec = left_behind(world, None)
    assert repaired(world, alive=lambda owner: owner.pid == 5000) == 0
    assert world.study.running() == (spec.number,)
    assert world.trial(spec.number).state == "running"


def test_a_reference_left_behind_is_made_anew_and_not_queued(make: Worlds) -> None:
    world = make(trials=2, enqueue=points(1))
    driver = world.driver()
    step(driver, "a")
    assert repaired(world) == 0
    assert not any(t.state.name == "WAITING" for t in world.study.trials())
    done = serial(world.driver())
    assert [values_of(spec) for spec in done] == [DEPLOYED, points(1)[0], DEPLOYED]
    assert world.study.ended() == 2


def test_a_study_that_is_done_starts_nothing_more(make: Worlds) -> None:
    world = make(**KILL_CONFIG)
    serial(world.driver(), first_fails)
    before = world.stored.trials
    assert world.driver().take() is Nothing.DONE
    assert world.stored.trials == before


def test_a_larger_budget_goes_on_where_it_ended(make: Worlds) -> None:
    world = make(trials=3, enqueue=points(2))
    serial(world.driver())
    world.config = world.config.replace_budget(trials=5, hours=None, hosts=())
    done = serial(world.driver())
    assert world.study.ended() == 5
    assert min(spec.number for spec in done if spec.number) == 3
