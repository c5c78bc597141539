"""Leaving a study restores every host, whatever else fails, and says which it could not."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

import autotune.running
from autotune.audience import Audience, Watcher
from autotune.cli import main
from autotune.config import load_study
from autotune.driver import Driver
from autotune.errors import ConnectError, RestoreFailed, StorageError, StudyError
from autotune.fleet import Fleet
from autotune.running import run_study
from tests.fleets import Hosts, Notes, a_fleet

NAMES = ("a", "b", "c")


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    return Hosts(monkeypatch, *NAMES)


def ended(notes: Notes, by: BaseException | None = None) -> Fleet:
    """A run over all hosts that came to its end, or was ended."""
    fleet = a_fleet(notes, *NAMES)
    with fleet.accounted(), fleet.open():
        if by is not None:
            raise by
    return fleet


def test_a_storage_that_fails_keeps_no_host_from_being_restored(hosts: Hosts) -> None:
    notes = Notes()
    fleet = a_fleet(notes, *NAMES)
    with fleet.accounted(), fleet.open():
        notes.refuses = StorageError("disk full")
    assert hosts.held() == []


@pytest.mark.parametrize("error", [ConnectError("a is gone"), OSError(28, "No space left")])
def test_a_host_that_fails_keeps_no_other_from_being_restored(
    hosts: Hosts, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    hosts["a"].fail("restore", cast(ConnectError, error))
    hosts["c"].fail("restore", ConnectError("c is gone"))
    with pytest.raises(RestoreFailed, match="c is gone") as caught:
        ended(Notes())
    assert hosts.held() == ["a", "c"]
    assert "autotune revert" in caught.value.hint
    told = [line.getMessage() for line in caplog.records if line.levelno == logging.ERROR]
    assert sorted(line.split()[1] for line in told) == ["a", "c"]


@pytest.mark.parametrize(
    ("by", "said"),
    [
        (StudyError("the link broke"), "the link broke; a is gone"),
        (KeyboardInterrupt(), "interrupted; a is gone"),
        (ZeroDivisionError(), r"ZeroDivisionError\(\); a is gone"),
    ],
)
def test_why_the_study_ended_is_told_with_a_restore_that_fails(
    hosts: Hosts, by: BaseException, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    hosts["a"].fail("restore", ConnectError("a is gone"))
    with pytest.raises(RestoreFailed, match=said):
        ended(Notes(), by)
    assert "a is gone" in caplog.text


def test_an_interrupt_after_which_every_host_is_restored_stays_one(hosts: Hosts) -> None:
    with pytest.raises(KeyboardInterrupt):
        ended(Notes(), KeyboardInterrupt())
    assert hosts.held() == []


class Runner:
    """Ends at once, as it is told."""

    def __init__(self, ending: BaseException | None) -> None:
        self._ending = ending

    def run(self, driver: Driver, watcher: Watcher) -> None:
        if self._ending is not None:
            raise self._ending


@pytest.mark.parametrize("where", ["runner", "conclude", "report"])
def test_a_run_that_is_interrupted_anywhere_tells_of_a_host_it_left(
    where: str, hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts["b"].fail("restore", ConnectError("b is gone"))

    def interrupt(*anything: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    runner = Runner(KeyboardInterrupt() if where == "runner" else None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOTUNE_DATA", str(tmp_path))
    monkeypatch.setattr(autotune.running, "require_sandbox", lambda answers: None)
    monkeypatch.setattr(autotune.running, "_runner", lambda *anything: runner)
    monkeypatch.setattr(Driver, "concludes", property(lambda driver: True))
    if where == "conclude":
        monkeypatch.setattr(autotune.running, "conclude", interrupt)
    else:
        monkeypatch.setattr(autotune.running, "conclude", lambda *anything: Mock())
        monkeypatch.setattr(autotune.running, "asdict", lambda verdict: {})
        monkeypatch.setattr(autotune.running, "_report", interrupt)
    with pytest.raises(RestoreFailed, match="interrupted; b is gone"):
        run_study(
            load_study("demo").replace_budget(trials=1, hours=None, hosts=NAMES),
            storage=f"sqlite:///{tmp_path}/study.db",
            executor="serial",
            ray_address="",
            live=cast(Audience, Mock()),
        )
    assert hosts.held() == ["b"]


def test_the_command_that_was_interrupted_tells_of_the_host_and_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def left(*anything: Any, **options: Any) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RestoreFailed("interrupted; b is gone", hint="`autotune revert` does it now")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(autotune.running, "run_study", left)
    monkeypatch.setattr("sys.argv", ["autotune", "run", "--study", "demo"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.splitlines() == [
        "autotune: interrupted; b is gone",
        "          `autotune revert` does it now",
    ]
