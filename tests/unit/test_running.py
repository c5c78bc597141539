"""How a run ends: hosts come first, no thread ends unseen.  Hosts in memory, a real SQLite."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import autotune.running
from autotune.audience import Audience, Watcher
from autotune.config import StudyConfig, load_study
from autotune.driver import Driver
from autotune.errors import StudyError
from autotune.measurement import StartRecord
from autotune.objective import Score
from autotune.repository import Repository, StoredStudy
from autotune.roster import Roster
from autotune.running import run_study
from autotune.storage import open_engine
from autotune.supervisors.base import Owner
from autotune.trial import TrialSpec
from tests.fleets import Hosts

PATIENCE_S = 60.0


class Scripted:
    """A runner that makes one start and does what the test wants while it is under way."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._meanwhile = meanwhile

    def run(self, driver: Driver, watcher: Watcher) -> None:
        assert isinstance(driver.take(), TrialSpec)
        self._meanwhile()


class Silent:
    """Nobody looks at the run."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **options: None


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    return Hosts(monkeypatch, "a", "b")


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AUTOTUNE_DATA", str(tmp_path))
    return f"sqlite:///{tmp_path}/run.db"


def a_config() -> StudyConfig:
    config = load_study("demo").replace_budget(trials=None, hours=None, hosts=("a", "b"))
    quick = config.study.model_copy(update={"driver_grace_s": 0.05})
    return replace(config, study=quick, suite=None)


def run(url: str, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
    monkeypatch.setattr(autotune.running, "_runner", lambda *how: Scripted(meanwhile))
    run_study(
        a_config(), storage=url, executor="serial", ray_address="", live=cast(Audience, Silent())
    )


def stored(url: str) -> StoredStudy:
    engine = open_engine(url, create=False)
    try:
        return Repository(engine).load("demo")
    finally:
        engine.dispose()


def beating() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("heartbeat-")]


def interrupted() -> None:
    raise KeyboardInterrupt


def test_a_storage_that_hangs_does_not_hold_up_the_hosts(
    hosts: Hosts, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every write of an ending hangs until all hosts are being restored."""
    back = {name: threading.Event() for name in hosts}
    for name, event in back.items():
        hosts.within[name]["restore"] = event.set

    class Hanging(Repository):
        def end_start(self, claim_id: str, record: StartRecord, score: Score | None) -> None:
            for name, event in back.items():
                assert event.wait(PATIENCE_S), f"{name} waits for the database"
            super().end_start(claim_id, record, score)

    monkeypatch.setattr(autotune.running, "Repository", Hanging)
    with pytest.raises(KeyboardInterrupt):
        run(url, monkeypatch, interrupted)
    assert hosts.held() == []
    assert not beating()
    (start,) = [start for trial in stored(url).trials for start in trial.starts]
    assert start.record is not None
    assert start.record.failure is not None
    assert start.record.failure.kind == "Interrupted", "saved when the database was back"


def test_notes_on_a_host_that_cannot_be_saved_now_do_not_hold_up_another(
    hosts: Hosts, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first restored host's note hangs until the other one is back."""
    noted: list[str] = []
    back = {name: threading.Event() for name in hosts}
    for name, event in back.items():
        hosts.within[name]["restore"] = event.set

    class Hanging(Roster):
        def restored(self, host: str) -> None:
            for name, event in back.items():
                assert event.wait(PATIENCE_S), f"{name} waits for the database"
            noted.append(host)
            super().restored(host)

    monkeypatch.setattr(autotune.running, "Roster", Hanging)
    with pytest.raises(KeyboardInterrupt):
        run(url, monkeypatch, interrupted)
    assert hosts.held() == []
    assert not beating()
    assert sorted(noted) == ["a", "b"]
    assert all(host.restored_at_s is not None for host in stored(url).hosts)


def test_a_heartbeat_that_ends_by_a_defect_ends_the_run_and_restores_every_host(
    hosts: Hosts, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way = threading.Event()

    class Broken(Roster):
        def beat(self, owner: Owner) -> None:
            if under_way.is_set():
                raise RuntimeError("made up by a test")
            super().beat(owner)

    def wait() -> None:
        under_way.set()
        threading.Event().wait(PATIENCE_S)

    monkeypatch.setattr(autotune.running, "Roster", Broken)
    with pytest.raises(StudyError, match=r"the thread 'presence' .*made up by a test"):
        run(url, monkeypatch, wait)
    assert hosts.held() == []
    assert not beating()
    (trial,) = stored(url).trials
    assert trial.told, "what was under way is ended in order"


def test_a_heartbeat_that_ends_while_hosts_are_opened_leaves_none_held(
    hosts: Hosts, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt comes as the threads of the opening begin, or soon after."""
    failing = threading.Event()

    class Broken(Roster):
        def beat(self, owner: Owner) -> None:
            if hosts.held():
                failing.set()
                raise RuntimeError("made up by a test")
            super().beat(owner)

    hosts.within["b"]["take_lease"] = lambda: failing.wait(PATIENCE_S)
    monkeypatch.setattr(autotune.running, "Roster", Broken)
    with pytest.raises(StudyError, match=r"the thread 'presence' .*made up by a test"):
        run(url, monkeypatch, lambda: threading.Event().wait(PATIENCE_S))
    assert hosts.held() == []
    assert not beating()
