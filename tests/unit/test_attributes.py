"""State and attributes of Optuna's trials, written past its storage: as if they had not been."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage, InMemoryStorage
from optuna.trial import TrialState

from autotune.attributes import put_attributes, state_of
from autotune.storage import open_optuna, storage_url
from tests.databases import copied, emptied, postgres_server, template

USER = {"host": "gpu-a", "buckets": {"60x1": {"output_tok_per_s": 1.5}}, "free": None}
SYSTEM = {"constraints": [1.0]}


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    yield from postgres_server()


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BaseStorage]:
    if request.param == "memory":
        yield InMemoryStorage()
        return
    if request.param == "sqlite":
        url = copied(template(tmp_path), tmp_path)
    else:
        url = storage_url(request.getfixturevalue("postgres_url"))
        emptied(url)
    opened = open_optuna(url)
    yield opened
    opened.engine.dispose()


@pytest.fixture
def study(storage: BaseStorage) -> optuna.Study:
    return optuna.create_study(storage=storage)


def test_attributes_are_set_and_replaced(storage: BaseStorage, study: optuna.Study) -> None:
    trial = study.ask()
    put_attributes(storage, trial._trial_id, user={"host": "old", "kept": 1})
    put_attributes(storage, trial._trial_id, user=USER, system=SYSTEM)
    put_attributes(storage, trial._trial_id)
    (read,) = study.get_trials()
    assert read.user_attrs == {**USER, "kept": 1}
    assert {key: read.system_attrs[key] for key in SYSTEM} == SYSTEM


def test_other_trials_keep_theirs(storage: BaseStorage, study: optuna.Study) -> None:
    first, second = study.ask(), study.ask()
    put_attributes(storage, first._trial_id, user={"host": "a"})
    put_attributes(storage, second._trial_id, user={"host": "b"})
    assert [trial.user_attrs for trial in study.get_trials()] == [{"host": "a"}, {"host": "b"}]


def test_a_trial_that_has_ended_is_refused(storage: BaseStorage, study: optuna.Study) -> None:
    trial = study.ask()
    study.tell(trial, 1.0)
    with pytest.raises(UpdateFinishedTrialError):
        put_attributes(storage, trial._trial_id, user=USER)
    assert study.get_trials()[0].user_attrs == {}


def test_a_trial_that_is_not_there_is_an_error(storage: BaseStorage, study: optuna.Study) -> None:
    with pytest.raises(KeyError):
        put_attributes(storage, 4711, user=USER)


def test_states(storage: BaseStorage, study: optuna.Study) -> None:
    study.enqueue_trial({"x": 1.0})
    assert state_of(storage, study._study_id, 0) == "WAITING"
    trial = study.ask()
    assert state_of(storage, study._study_id, trial.number) == "RUNNING"
    study.tell(trial, state=TrialState.FAIL)
    assert state_of(storage, study._study_id, trial.number) == "FAIL"
    assert state_of(storage, study._study_id, 4711) == ""
    other = optuna.create_study(storage=storage, study_name="other")
    assert state_of(storage, other._study_id, 0) == ""
