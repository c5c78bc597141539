"""A run that is killed or interrupted: the host comes back, and no measurement is lost."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.systemd.agent import sudoers_lines
from tests.host.services import (
    argv,
    found,
    install,
    is_back,
    listeners,
    require_as_found,
    restoring,
    until,
)
from tests.host.studies import StudyOnHost, active_trial, deploy, require_proof
from tests.testhost import UNIT, SystemdHost

LOAD_S = 2.0
RESTORE_AFTER_S = 8
REFERENCE = (8, 4, None)


def in_a_load(study: StudyOnHost, number: int) -> bool:
    """The server of this trial runs and does not listen yet."""
    runs = f"{study.name}-{number}-" in " ".join(argv(study.host))
    return runs and active_trial(study) == number and listeners(study.host) == ""


def in_a_bucket(study: StudyOnHost, number: int) -> bool:
    """This trial has one bucket behind it and another one before it."""
    query = (
        "SELECT count(*) FROM autotune_bucket b JOIN autotune_start s ON s.id = b.start_id "
        "JOIN autotune_trial t ON t.id = s.trial_id "
        f"WHERE s.ending IS NULL AND t.number = {number}"
    )
    return study.rows(query) == [(1,)]


def in_the_restore(study: StudyOnHost, number: int) -> bool:
    """The trial is over, the way back has begun, and the original does not serve yet."""
    return restoring(study.host)


def scored(study: StudyOnHost) -> dict[str, tuple[int, float]]:
    """Invocation of every scored start: its trial and score."""
    query = (
        "SELECT s.invocation_id, t.number, s.score FROM autotune_start s "
        "JOIN autotune_trial t ON t.id = s.trial_id WHERE s.score IS NOT NULL"
    )
    return {invocation: (number, score) for invocation, number, score in study.rows(query)}


def require_whole(study: StudyOnHost, points: list[Any]) -> None:
    """Every point was told exactly once, whatever happened in between."""
    ended = [trial for trial in study.trials() if trial["state"] in ("complete", "pruned")]
    told = sorted(str(tuple(trial["parameters"].values())) for trial in ended)
    assert told == sorted(str(tuple(point)) for point in (REFERENCE, *points))
    states = study.optuna_states()
    assert {trial["number"] for trial in ended} == {
        number for number, state in states.items() if state in ("COMPLETE", "PRUNED")
    }
    assert "RUNNING" not in states.values()
    query = "SELECT count(*) FROM autotune_start WHERE role = 'search' AND score IS NOT NULL"
    assert study.rows(query)[0][0] + sum(t["state"] == "pruned" for t in ended) == len(points)
    require_proof(study)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "points", "alone"),
    [
        (in_a_load, [[16, 4, 2048]], True),
        (in_a_bucket, [[16, 4, 2048], [12, 6, 512]], False),
        (in_the_restore, [[16, 4, 2048]], False),
        (in_the_restore, [[16, 4, 2048]], True),
    ],
    ids=["load, left alone", "bucket, at once", "restore, at once", "restore, left alone"],
)
def test_killed_and_started_again(
    host: SystemdHost,
    tmp_path: Path,
    moment: Callable[[StudyOnHost, int], bool],
    points: list[Any],
    alone: bool,
) -> None:
    install(host, load_s=LOAD_S)
    lines = {
        "enqueue": f"enqueue = {points}",
        "trials": f"trials = {1 + len(points)}",
        "restore_after_s": f"restore_after_s = {RESTORE_AFTER_S}",
    }
    study = deploy(host, tmp_path, lines=lines)
    before = found(host)
    last = len(points)
    with study.start() as process:
        process.until(lambda: moment(study, last), moment.__doc__ or "")
        process.kill()
    kept = scored(study)
    assert {number for number, _ in kept.values()} >= set(range(last))
    if alone:
        until(lambda: is_back(host, before), "the host restores itself")
        require_as_found(host, before)
    again = study.run("run")
    assert again.returncode == 0, again.stderr
    require_as_found(host, before)
    require_whole(study, points)
    assert scored(study).items() >= kept.items()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_in_a_load(host: SystemdHost, tmp_path: Path, number: signal.Signals) -> None:
    install(host, load_s=LOAD_S)
    study = deploy(host, tmp_path)
    before = found(host)

    def loads() -> bool:
        return f"{study.name}-0-" in " ".join(argv(host)) and not listeners(host)

    with study.start() as process:
        process.until(loads, "the reference loads")
        process.signal(number)
        assert process.wait() == 130, process.stderr
        assert process.stderr.splitlines()[-1] == "interrupted"
    require_as_found(host, before)
    assert [trial["state"] for trial in study.trials()] == ["failed"]
    assert study.optuna_values() == {}


def test_a_tuner_that_stands_still_loses_its_host(host: SystemdHost, tmp_path: Path) -> None:
    """Stopped, as by a debugger or a machine that sleeps, and continued when it is too late."""
    install(host, load_s=LOAD_S)
    study = deploy(host, tmp_path, lines={"restore_after_s": "restore_after_s = 5"})
    before = found(host)
    with study.start() as process:
        process.until(lambda: in_a_load(study, 1), "a trial loads")
        process.signal(signal.SIGSTOP)
        until(lambda: is_back(host, before), "the host restores itself")
        process.signal(signal.SIGCONT)
        assert process.wait() == 1, process.stderr
    require_as_found(host, before)
    assert {number for number, _ in scored(study).values()} == {0}


def test_reverted_with_nothing_but_the_host(host: SystemdHost, tmp_path: Path) -> None:
    """The tuner and its disk are gone; another user, with rights of his own, puts it back."""
    install(host, load_s=LOAD_S)
    study = deploy(host, tmp_path)
    before = found(host)
    with study.start() as process:
        process.until(lambda: in_a_load(study, 1), "a trial loads")
        process.kill()
    rules = "\n".join(sudoers_lines(UNIT, host.limited_user)) + "\n"
    host.write("/etc/sudoers.d/another", rules, mode=0o440)
    config = study.ssh_config(User=host.limited_user)
    for path in tmp_path.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path != config:
            path.unlink()
    words = ["revert", "--host", host.name, "--unit", UNIT, "--ssh-config", str(config)]
    ended = subprocess.run(
        [sys.executable, "-m", "autotune", *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"{host.name}: restored; it was left by study 'small' on ")
    until(lambda: is_back(host, before), "the original serves")
    require_as_found(host, before)
