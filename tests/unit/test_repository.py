"""Whole values in, the same out (one piece: one contract on SQLite and on PostgreSQL)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from autotune.coding.lossless import Comparison, Losslessness
from autotune.errors import StorageError, StudyMismatch, UnknownStudy
from autotune.measurement import (
    BucketQuality,
    CodingResult,
    Ending,
    Evidence,
    FailureRecord,
    Interval,
    StartRecord,
)
from autotune.mirror import Mirror
from autotune.objective import Score
from autotune.reading import load_shown
from autotune.repository import Repository
from autotune.roster import Roster, owner_key
from autotune.storage import connect, open_engine, storage_url, upgrade
from autotune.stored import Role, StoredStart, Wanted
from tests.builders import a_bucket, a_definition, proof_links
from tests.databases import copied, postgres_server, template
from tests.scripted import OWNER, an_original

NAME = "made-up"
POINT = {"budget": 16, "topk": 4, "window": None}
SCORE = Score(312.5, Interval(308.25, 316.75), 1.04, 1.0, 0, ())


def a_record(**changes: Any) -> StartRecord:
    """A record with something in every field."""
    record = StartRecord(
        ending=Ending.COMPLETE,
        proof=(*proof_links(), Evidence("window: log", "a", "b", ok=False, at_s=3.5, raw="r")),
        buckets=(
            a_bucket(60, 1, 101.25, weight=0.4),
            a_bucket(
                1024,
                8,
                402.5,
                weight=0.6,
                accept_length=None,
                cached_tokens=None,
                server_tokens=12_345,
                valid=False,
                marks=(BucketQuality.QUEUED, BucketQuality.WIDE_INTERVAL),
                reason="7 requests ended",
            ),
        ),
        coding=CodingResult(
            {"a/0": "passed", "a/1": "wrong"},
            1,
            1,
            {"passed": 1, "wrong": 1},
            9.5,
            {"a/0": "named_block", "a/1": "last_block"},
            "bubblewrap",
        ),
        lossless=Comparison(Losslessness.DRIFTING, False, {"greedy/0": 3, "greedy/1": None}, 0.01),
        texts={"greedy/0": "def add(a, b):\n    return 'ü ✓'\n"},
        failure=FailureRecord("NotReady", "no", "argv", ("line 1", "line 2")),
        invocation_id="0123456789abcdef" * 2,
        fingerprint={"model": "kimi-k26"},
        stop_s=1.5,
        load_s=361.25,
        measure_s=903.0,
        ended_at_s=1_767_227_000.5,
    )
    return replace(record, **changes)


class Study:
    """A study in a database, and short ways to fill it."""

    def __init__(self, url: str) -> None:
        self.engine = connect(url)
        self.repository = Repository(self.engine)
        self.repository.open_study(
            NAME, definition=a_definition(), fingerprint="f" * 64, provenance={"autotune": "0.1.0"}
        )
        self.roster = Roster(self.repository, NAME)

    def begin(self, number: int, claim_id: str, **changes: Any) -> None:
        arguments = {"role": Role.SEARCH, "round_": 0, "host": "gpu-a", **changes}
        self.repository.begin_start(
            NAME,
            number,
            claim_id=claim_id,
            nonce=f"nonce-{claim_id}",
            owner=OWNER,
            argv=("serve", "--port", "30000"),
            **arguments,
        )

    def trial(self, number: int, *, reference: bool = False, retry_of: int | None = None) -> None:
        self.repository.begin_trial(
            NAME, number, parameters=POINT, reference=reference, retry_of=retry_of
        )

    def start(self) -> StoredStart:
        return self.repository.load(NAME).trials[0].starts[0]


class RepositoryContract:
    """What holds on every database."""

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def study(self, url: str) -> Iterator[Study]:
        study = Study(url)
        yield study
        study.engine.dispose()

    def test_a_study_comes_back_whole(self, study: Study) -> None:
        stored = study.repository.load(NAME)
        assert (stored.name, stored.fingerprint) == (NAME, "f" * 64)
        assert stored.definition == a_definition()
        assert stored.provenance == {"autotune": "0.1.0"}
        assert (stored.drivers, stored.verdict, stored.hosts, stored.trials) == ((), None, (), ())
        assert stored.created_at_s > 1_700_000_000

    def test_a_verdict_is_kept(self, study: Study) -> None:
        verdict = {"kind": "better", "interval": {"low": 1.0, "high": 1.25}}
        study.repository.set_verdict(NAME, verdict)
        assert study.repository.load(NAME).verdict == verdict

    def test_drivers_come_are_heard_of_and_leave(self, study: Study) -> None:
        other = replace(OWNER, machine="driver-2")
        study.roster.beat(OWNER)
        study.roster.beat(other)
        study.roster.beat(OWNER)
        assert [driver.owner for driver in study.roster.drivers()] == [OWNER, other]
        silent_s = study.roster.silent_s()
        assert set(silent_s) == {owner_key(OWNER), owner_key(other)}
        assert all(0 <= seconds < 600 for seconds in silent_s.values())
        study.roster.leave(OWNER)
        assert set(study.roster.silent_s()) == {owner_key(other)}
        assert study.repository.load(NAME).drivers[0].left_at_s is not None

    def test_one_driver_concludes_and_the_next_only_after_its_death(self, study: Study) -> None:
        other = replace(OWNER, machine="driver-2")
        assert study.roster.conclude_by(OWNER, alive=lambda owner: True) == OWNER
        second = study.roster.conclude_by(other, alive=lambda owner: True)
        assert second == (OWNER if study.roster.shared else other)
        assert study.roster.conclude_by(other, alive=lambda owner: False) == other
        assert study.repository.load(NAME).concluding == other

    def test_only_what_has_changed_is_read_again(self, study: Study) -> None:
        study.trial(0)
        study.trial(1)
        revision, _ = study.repository.load_since(NAME, -1)
        assert study.repository.load_since(NAME, revision)[1].trials == ()
        study.begin(1, "c1")
        study.repository.end_start("c1", a_record(), SCORE)
        newer, changed = study.repository.load_since(NAME, revision)
        assert [trial.number for trial in changed.trials] == [1]
        (start,) = changed.trials[0].starts
        assert start.buckets == a_record().buckets
        study.repository.end_trial(NAME, 0, Ending.FAILED)
        assert [t.number for t in study.repository.load_since(NAME, newer)[1].trials] == [0]

    def test_a_report_reads_the_proof_of_the_trial_that_it_shows(self, study: Study) -> None:
        for number, score in enumerate((SCORE, replace(SCORE, ratio=1.5), SCORE)):
            study.trial(number)
            study.begin(number, f"c{number}")
            study.repository.end_start(f"c{number}", a_record(), score)
            study.repository.end_trial(NAME, number, Ending.COMPLETE)
        stored = load_shown(study.repository, NAME)
        whole = study.repository.load(NAME)
        assert stored.trials[1] == whole.trials[1]
        assert [trial.number for trial in stored.trials] == [0, 1, 2]
        proofs = [one.starts[0].record.proof for one in stored.trials if one.starts[0].record]
        assert [len(proof) for proof in proofs] == [0, len(a_record().proof), 0]

    def test_a_study_is_read_without_the_raw_texts_of_its_proofs(self, study: Study) -> None:
        study.trial(0)
        study.begin(0, "c0")
        study.repository.end_start("c0", a_record(), SCORE)
        record = study.repository.load(NAME, raw=False).trials[0].starts[0].record
        assert record is not None
        assert record.proof == tuple(replace(link, raw="") for link in a_record().proof)

    def test_a_mirror_sees_hosts_without_the_services_that_were_found(self, study: Study) -> None:
        mirror = Mirror(study.repository, NAME)
        study.roster.took("gpu-a", original=an_original(), lease_id="l" * 32, owner=OWNER)
        (seen,), (whole,) = mirror.refresh().hosts, study.repository.load(NAME).hosts
        assert whole.original["argv"]
        assert seen == replace(whole, original={})

    def test_a_record_comes_back_whole(self, study: Study) -> None:
        record = a_record()
        study.trial(0)
        study.begin(0, "c0")
        study.repository.end_start("c0", record, SCORE)
        start = study.start()
        assert start.record == replace(record, started_at_s=start.started_at_s)
        assert start.buckets == record.buckets
        assert start.score is not None
        assert (start.score.value, start.score.interval, start.score.ratio) == (
            SCORE.value,
            SCORE.interval,
            SCORE.ratio,
        )
        assert start.violations == ()
        assert (start.role, start.round, start.host) == (Role.SEARCH, 0, "gpu-a")
        assert (start.claim_id, start.nonce, start.owner) == ("c0", "nonce-c0", OWNER)
        assert start.argv == ("serve", "--port", "30000")

    @pytest.mark.parametrize("ending", list(Ending))
    def test_every_ending_comes_back(self, study: Study, ending: Ending) -> None:
        study.trial(0)
        study.begin(0, "c0")
        study.repository.end_start("c0", StartRecord(ending, ended_at_s=5.0), None)
        start = study.start()
        assert start.record is not None
        assert start.record.ending is ending
        assert (start.record.coding, start.record.failure, start.score) == (None, None, None)

    def test_a_start_that_runs_has_no_record_but_its_buckets(self, study: Study) -> None:
        first, second = a_record().buckets
        study.trial(0)
        study.begin(0, "c0")
        study.repository.add_bucket("c0", first)
        assert study.start().record is None
        assert study.start().buckets == (first,)
        study.repository.add_bucket("c0", first)
        study.repository.end_start("c0", a_record(buckets=(first, second)), None)
        assert study.start().buckets == (first, second)

    def test_buckets_survive_a_record_without_them(self, study: Study) -> None:
        """The worker died: its record is empty, its buckets were saved as they ended."""
        study.trial(0)
        study.begin(0, "c0")
        study.repository.add_bucket("c0", a_record().buckets[0])
        study.repository.end_start("c0", StartRecord(Ending.FAILED), None)
        start = study.start()
        assert start.record is not None
        assert start.record.buckets == start.buckets == a_record().buckets[:1]

    def test_violations_come_back(self, study: Study) -> None:
        study.trial(0)
        study.begin(0, "c0")
        score = replace(SCORE, violations=("bucket 60x1: TTFT p99 180 ms is above the limit",))
        study.repository.end_start("c0", a_record(), score)
        assert study.start().violations == score.violations

    def test_trials_and_starts_keep_their_order(self, study: Study) -> None:
        study.trial(0, reference=True)
        study.trial(2, retry_of=1)
        study.trial(1)
        study.begin(0, "a", role=Role.REFERENCE)
        study.begin(0, "b", role=Role.FINAL, round_=1, host="gpu-b")
        study.begin(0, "c", role=Role.FINAL, round_=2)
        trials = study.repository.load(NAME).trials
        assert [(t.number, t.reference, t.retry_of) for t in trials] == [
            (0, True, None),
            (1, False, None),
            (2, False, 1),
        ]
        assert [(s.claim_id, s.role, s.round, s.host) for s in trials[0].starts] == [
            ("a", Role.REFERENCE, 0, "gpu-a"),
            ("b", Role.FINAL, 1, "gpu-b"),
            ("c", Role.FINAL, 2, "gpu-a"),
        ]
        assert trials[1].parameters == POINT
        assert (trials[1].state, trials[1].told) == ("running", False)

    def test_states_are_kept(self, study: Study) -> None:
        study.trial(0)
        study.repository.end_trial(NAME, 0, Ending.INFEASIBLE)
        (trial,) = study.repository.load(NAME).trials
        assert (trial.state, trial.told) == ("infeasible", True)

    def test_hosts_are_recorded_without_the_values_of_their_environment(self, study: Study) -> None:
        original = an_original(environ={"HF_TOKEN": "hf-verysecret", "PATH": "/bin"})
        study.roster.took("gpu-a", original=original, lease_id="l1", owner=OWNER)
        (host,) = study.repository.load(NAME).hosts
        assert (host.host, host.lease_id, host.restored_at_s) == ("gpu-a", "l1", None)
        assert host.original["live_environ"] == ["HF_TOKEN", "PATH"]
        assert "hf-verysecret" not in repr(host)
        study.roster.restored("gpu-a")
        assert study.repository.load(NAME).hosts[0].restored_at_s is not None
        study.roster.took("gpu-a", original=original, lease_id="l2", owner=OWNER)
        (host,) = study.repository.load(NAME).hosts
        assert (host.lease_id, host.restored_at_s) == ("l2", None)

    def test_two_studies_do_not_see_each_other(self, study: Study) -> None:
        study.repository.open_study("other", definition={}, fingerprint="0", provenance={})
        study.trial(0)
        assert study.repository.names() == (NAME, "other")
        assert study.repository.load("other").trials == ()

    def test_what_operators_want_of_hosts(self, study: Study) -> None:
        study.roster.took("gpu-a", original=an_original(), lease_id="l1", owner=OWNER)
        study.roster.want("gpu-a", Wanted.DRAIN)
        study.roster.want("gpu-b", Wanted.ADD)
        assert study.roster.wanted() == {"gpu-a": Wanted.DRAIN, "gpu-b": Wanted.ADD}
        study.roster.restored("gpu-a")
        study.roster.say("gpu-b", "away", "no route to host")
        first, second = study.repository.load(NAME).hosts
        assert (first.state, first.driver) == ("drained", OWNER)
        assert (second.state, second.why, second.taken_at_s) == ("away", "no route to host", None)

    def test_a_write_that_is_repeated_changes_nothing(self, study: Study) -> None:
        """A database that goes away within a write gets it again."""
        for _ in range(2):
            study.trial(0)
            study.begin(0, "c0")
            study.repository.add_bucket("c0", a_record().buckets[0])
            study.repository.end_start("c0", a_record(), SCORE)
            study.repository.end_trial(NAME, 0, Ending.COMPLETE)
        (trial,) = study.repository.load(NAME).trials
        assert len(trial.starts) == 1
        assert trial.starts[0].buckets == a_record().buckets

    def test_deleting_a_study_takes_everything_along(self, study: Study) -> None:
        study.trial(0)
        study.begin(0, "c0")
        study.repository.end_start("c0", a_record(), SCORE)
        study.roster.took("gpu-a", original=an_original(), lease_id="l1", owner=OWNER)
        study.roster.beat(OWNER)
        with study.engine.begin() as connection:
            connection.execute(sa.text("DELETE FROM autotune_study"))
            for table in ("host", "driver", "trial", "start", "bucket", "evidence", "coding"):
                rows = connection.execute(sa.text(f"SELECT count(*) FROM autotune_{table}"))
                assert rows.scalar() == 0, table

    def test_long_texts_are_kept_whole(self, study: Study) -> None:
        record = a_record(texts={"greedy/0": "x" * 100_000})
        study.trial(0)
        study.begin(0, "c0")
        study.repository.end_start("c0", record, None)
        start = study.start()
        assert start.record is not None
        assert start.record.texts == record.texts

    def test_a_nul_in_an_answer_is_stored(self, study: Study) -> None:
        """PostgreSQL knows no NUL in text, and a broken tree may write one."""
        study.trial(0)
        study.begin(0, "c0")
        links = (Evidence("generation", "w", "s", ok=True, at_s=0.0, raw="x\x00y"),)
        study.repository.end_start("c0", a_record(proof=links, texts={"k": "a\x00b"}), None)
        start = study.start()
        assert start.record is not None
        (link,) = start.record.proof
        assert (link.raw[0], link.raw[-1]) == ("x", "y")

    def test_half_a_surrogate_pair_in_an_answer_is_stored(self, study: Study) -> None:
        """JSON may escape half a pair, and a broken tree may write one."""
        study.trial(0)
        study.begin(0, "c0")
        links = (Evidence("generation", "w", "s", ok=True, at_s=0.0, raw="x\ud83dy"),)
        study.repository.end_start("c0", a_record(proof=links), None)
        assert study.start().record is not None


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return template(tmp_path_factory.mktemp("template"))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A PostgreSQL database with our tables."""
    for uri in postgres_server():
        url = storage_url(uri)
        engine = connect(url)
        upgrade(engine)
        engine.dispose()
        yield url


class TestSqlite(RepositoryContract):
    @pytest.fixture
    def url(self, empty: Path, tmp_path: Path) -> str:
        return copied(empty, tmp_path)


class TestPostgres(RepositoryContract):
    @pytest.fixture
    def url(self, server: str) -> str:
        engine = connect(server)
        with engine.begin() as connection:
            connection.execute(sa.text("TRUNCATE autotune_study CASCADE"))
        engine.dispose()
        return server


# -- what needs no second database ----------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    engine = open_engine(f"sqlite:///{tmp_path / 'autotune.db'}", create=True)
    yield Repository(engine)
    engine.dispose()


def opened(
    repository: Repository, definition: dict[str, Any], fingerprint: str, name: str = NAME
) -> bool:
    return repository.open_study(
        name, definition=definition, fingerprint=fingerprint, provenance={}
    )


def test_a_study_is_created_once(repository: Repository) -> None:
    assert opened(repository, {"a": 1}, "1") is True
    assert opened(repository, {"a": 1}, "1") is False


def test_a_moved_definition_names_every_difference(repository: Repository) -> None:
    old = a_definition()
    new = a_definition()
    new["study"] = {**new["study"], "seed": 8}
    new["parameters"] = {**new["parameters"]}
    new["parameters"]["budget"] = {**new["parameters"]["budget"], "high": 128}
    del new["parameters"]["topk"]
    new["parameters"]["depth"] = {"kind": "int"}
    new["objective"] = {**new["objective"], "buckets": new["objective"]["buckets"][:1]}
    opened(repository, old, "1")
    with pytest.raises(StudyMismatch) as caught:
        opened(repository, new, "2")
    message = caught.value.message
    assert NAME in message
    for part in (
        "study.seed: 7 became 8",
        "parameters.budget.high: 64 became 128",
        "parameters.topk",
        "parameters.depth",
        "objective.buckets",
    ):
        assert part in message
    assert "parameters.window" not in message
    assert repository.load(NAME).definition == old


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"service": {}}, {"service": {"unit": None}}),
        ({"service": {"unit": None}}, {"service": {}}),
    ],
)
def test_a_key_that_is_null_is_a_difference_too(
    repository: Repository, old: dict[str, Any], new: dict[str, Any]
) -> None:
    opened(repository, old, "1")
    with pytest.raises(StudyMismatch) as caught:
        opened(repository, new, "2")
    assert "service.unit" in caught.value.message


def test_an_unknown_study_names_those_that_are_there(repository: Repository) -> None:
    with pytest.raises(UnknownStudy, match="none"):
        repository.load("nowhere")
    opened(repository, {}, "1")
    with pytest.raises(UnknownStudy) as caught:
        repository.load("nowhere")
    assert "nowhere" in caught.value.message
    assert NAME in caught.value.hint


def test_a_database_that_went_away_is_a_storage_error(tmp_path: Path) -> None:
    path = tmp_path / "autotune.db"
    engine = open_engine(f"sqlite:///{path}", create=True)
    engine.dispose()
    path.write_bytes(b"not a database any more " * 100)
    with pytest.raises(StorageError, match="not a database"):
        Repository(engine).names()
    engine.dispose()
