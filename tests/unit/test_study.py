"""What Optuna is told, and in which order it is asked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from optuna.samplers import BaseSampler, RandomSampler
from optuna.storages import BaseStorage, InMemoryStorage
from optuna.trial import FrozenTrial, TrialState

from autotune.errors import StudyError
from autotune.parameter import Parameter, ParameterKind
from autotune.search import make_sampler
from autotune.space import SearchSpace
from autotune.storage import open_optuna
from autotune.study import TrialStudy
from tests.databases import copied, template
from tests.scripted import DEPLOYED, a_space

POINTS = (
    {"budget": 16, "topk": 4, "window": None},
    {"budget": 8, "topk": 4, "window": 2048},
)


def a_study(storage: BaseStorage | None = None, sampler: BaseSampler | None = None) -> TrialStudy:
    study = TrialStudy("made-up", storage or InMemoryStorage(), space=a_space())
    study.use(sampler or RandomSampler(seed=1))
    return study


@pytest.fixture
def study() -> TrialStudy:
    return a_study()


def frozen(study: TrialStudy, number: int) -> FrozenTrial:
    return next(trial for trial in study.trials() if trial.number == number)


def state(study: TrialStudy, number: int) -> str:
    return frozen(study, number).state.name


def keys(study: TrialStudy, number: int) -> tuple[float | None, Any]:
    """The constraint for samplers, and the dashboard's older key (which Optuna reads as well)."""
    trial = frozen(study, number)
    assert len(set(trial.constraints.values())) <= 1
    return trial.constraints.get("infeasible"), trial.system_attrs.get("constraints")


class Interrupted(RandomSampler):
    """Ctrl-C while the models are fitted."""

    def sample_independent(self, *_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt


def test_an_interrupted_suggestion_leaves_nothing_to_repeat_and_no_obstacle() -> None:
    storage = InMemoryStorage()
    with pytest.raises(KeyboardInterrupt):
        a_study(storage, Interrupted()).ask()
    again = a_study(storage)
    (left,) = again.running()
    assert frozen(again, left).params == {}
    again.tell_failed(left)
    again.queue_again(left)
    assert again.waiting() == 0
    again.enqueue_once(POINTS)
    assert [dict(again.ask().values) for _ in POINTS] == list(POINTS)


def test_a_queued_point_that_was_taken_and_no_more_is_queued_again() -> None:
    storage = InMemoryStorage()
    study = a_study(storage)
    study.enqueue_once(POINTS[:1])
    study._study.ask()  # popped, and killed before its parameters were written
    again = a_study(storage)
    (left,) = again.running()
    again.tell_failed(left)
    again.queue_again(left)
    again.enqueue_once(POINTS[:1])
    assert again.waiting() == 1
    asked = again.ask()
    assert (dict(asked.values), asked.retry_of) == (POINTS[0], left)


# -- tell -----------------------------------------------------------------------------------------


def test_a_complete_trial_is_told_its_ratio_and_that_it_is_feasible(study: TrialStudy) -> None:
    number = study.ask().number
    study.tell_complete(number, 1.125, violated=False)
    assert (state(study, number), frozen(study, number).value) == ("COMPLETE", 1.125)
    assert keys(study, number) == (-1.0, [-1.0])


def test_a_broken_limit_keeps_its_value_and_is_not_feasible(study: TrialStudy) -> None:
    number = study.ask().number
    study.tell_complete(number, 1.5, violated=True)
    assert (state(study, number), frozen(study, number).value) == ("COMPLETE", 1.5)
    assert keys(study, number) == (1.0, [1.0])


def test_infeasible_is_complete_with_the_worst_value_seen(study: TrialStudy) -> None:
    for ratio in (1.0, 0.75, 1.25):
        study.tell_complete(study.ask().number, ratio, violated=False)
    number = study.ask().number
    study.tell_infeasible(number)
    assert (state(study, number), frozen(study, number).value) == ("COMPLETE", 0.75)
    assert keys(study, number) == (1.0, [1.0])


def test_the_first_trial_may_be_infeasible(study: TrialStudy) -> None:
    number = study.ask().number
    study.tell_infeasible(number)
    assert (state(study, number), frozen(study, number).value) == ("COMPLETE", 0.0)


def test_a_failed_trial_has_no_value_and_no_constraint(study: TrialStudy) -> None:
    number = study.ask().number
    study.tell_failed(number)
    assert (state(study, number), frozen(study, number).value) == ("FAIL", None)
    assert keys(study, number) == (None, None)


def test_a_pruned_trial_has_no_value_and_is_feasible(study: TrialStudy) -> None:
    number = study.ask().number
    study.note(number, {"buckets": {"60x1": {"output_tok_per_s": 90.0}}})
    study.tell_pruned(number)
    assert (state(study, number), frozen(study, number).value) == ("PRUNED", None)
    assert keys(study, number) == (-1.0, [-1.0])
    assert "60x1" in frozen(study, number).user_attrs["buckets"]


@pytest.mark.parametrize("ratio", [math.nan, math.inf, -math.inf, -0.1])
def test_what_is_no_score_is_not_told(study: TrialStudy, ratio: float) -> None:
    number = study.ask().number
    with pytest.raises(StudyError, match=f"trial {number}"):
        study.tell_complete(number, ratio, violated=False)
    assert state(study, number) == "RUNNING"


def test_the_budget_counts_verdicts_about_parameters(study: TrialStudy) -> None:
    numbers = [study.ask().number for _ in range(5)]
    assert (study.ended(), study.running()) == (0, tuple(numbers))
    study.tell_complete(numbers[0], 1.0, violated=False)
    study.tell_infeasible(numbers[1])
    study.tell_pruned(numbers[2])
    study.tell_failed(numbers[3])
    assert (study.ended(), study.running()) == (3, (numbers[4],))


def test_every_suggestion_is_effective(study: TrialStudy) -> None:
    space = a_space()
    for _ in range(20):
        values = study.ask().values
        assert values == space.effective(values)
        space.validate(values)


# -- enqueue --------------------------------------------------------------------------------------


def test_queued_points_come_first_and_in_order(study: TrialStudy) -> None:
    study.enqueue_once(POINTS)
    assert [study.ask().values for _ in POINTS] == list(POINTS)


def test_points_that_told_something_are_not_queued_by_the_next_run() -> None:
    storage = InMemoryStorage()
    first = a_study(storage)
    first.enqueue_once(POINTS)
    for _ in POINTS:
        first.tell_complete(first.ask().number, 1.0, violated=False)
    again = a_study(storage)
    again.enqueue_once(POINTS)
    assert not any(trial.state is TrialState.WAITING for trial in again.trials())


def test_points_whose_every_try_failed_are_queued_again_by_the_next_run() -> None:
    storage = InMemoryStorage()
    first = a_study(storage)
    first.enqueue_once(POINTS)
    for _ in POINTS:
        first.tell_failed(first.ask().number)
    first.enqueue_once(POINTS)
    assert first.waiting() == 0
    again = a_study(storage)
    again.enqueue_once(POINTS)
    assert again.waiting() == len(POINTS)


def test_a_kill_while_points_are_queued_repeats_none() -> None:
    storage = InMemoryStorage()

    class Killed(Exception):
        """Stands for the end of the process."""

    def half() -> Iterator[dict[str, Any]]:
        yield POINTS[0]
        raise Killed

    with pytest.raises(Killed):
        a_study(storage).enqueue_once(half())
    again = a_study(storage)
    again.enqueue_once(POINTS)
    assert [again.ask().values for _ in POINTS] == list(POINTS)
    assert not any(trial.state is TrialState.WAITING for trial in again.trials())


def test_a_point_that_the_reference_runs_is_left_out(study: TrialStudy) -> None:
    study.add_reference(DEPLOYED, host="gpu-a")
    study.enqueue_once([DEPLOYED, *POINTS])
    assert study.ask().values == POINTS[0]


# -- references -----------------------------------------------------------------------------------


def test_the_reference_comes_before_what_is_queued(study: TrialStudy) -> None:
    first = study.add_reference(DEPLOYED, host="gpu-a")
    assert (first.number, first.values, first.retry_of) == (0, DEPLOYED, None)
    study.enqueue_once(POINTS)
    second = study.add_reference(DEPLOYED, host="gpu-b")
    assert second.values == DEPLOYED
    assert frozen(study, second.number).user_attrs == {"host": "gpu-b", "reference": True}
    assert set(study.running()) == {first.number, second.number}
    assert study.ask().values == POINTS[0]


def test_a_reference_can_be_told(study: TrialStudy) -> None:
    number = study.add_reference(DEPLOYED, host="gpu-a").number
    study.note(number, {"buckets": {}})
    study.tell_complete(number, 1.0, violated=False)
    assert (state(study, number), frozen(study, number).value) == ("COMPLETE", 1.0)


# -- again ----------------------------------------------------------------------------------------


def test_a_failed_trial_is_queued_again_and_knows_what_it_repeats(study: TrialStudy) -> None:
    asked = study.ask()
    study.tell_failed(asked.number)
    study.queue_again(asked.number)
    again = study.ask()
    assert (again.values, again.retry_of) == (asked.values, asked.number)
    assert study.ask().retry_of is None


def test_a_clamped_point_is_repeated_as_it_ran(study: TrialStudy) -> None:
    study.enqueue_once([{"budget": 4, "topk": 16, "window": None}])
    asked = study.ask()
    assert asked.values["topk"] == 4
    study.tell_failed(asked.number)
    study.queue_again(asked.number)
    assert study.ask().values == asked.values


# -- a sampler that fails -------------------------------------------------------------------------


class Failing(RandomSampler):
    """Gives up at every parameter."""

    def __init__(self, error: Exception) -> None:
        super().__init__(seed=0)
        self.error = error

    def sample_independent(self, *arguments: Any, **named: Any) -> Any:
        raise self.error


def test_a_failing_sampler_leaves_nothing_running(study: TrialStudy) -> None:
    before = study.ask().number
    study.use(Failing(ValueError("the matrix is singular")))
    with pytest.raises(StudyError, match="the matrix is singular"):
        study.ask()
    assert study.running() == (before,)


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("division by zero"), RuntimeError("no convergence")]
)
def test_whatever_a_sampler_raises_leaves_nothing_running(
    study: TrialStudy, error: Exception
) -> None:
    study.use(Failing(error))
    with pytest.raises(StudyError):
        study.ask()
    assert study.running() == ()


def test_a_grid_may_come_to_its_end() -> None:
    """Afterwards its points come again; Optuna's own grid would stop the study, or fail."""
    window = Parameter(
        "w", ParameterKind.CATEGORICAL, choices=(512, None), deployed=None, flag="-w"
    )
    space = SearchSpace((window,))
    study = TrialStudy("made-up", InMemoryStorage(), space=space)
    study.use(make_sampler("grid", space=space, seed=0))
    reference = study.add_reference({"w": None}, host="gpu-a")
    study.tell_complete(reference.number, 1.0, violated=False)
    seen = []
    for _ in range(5):
        asked = study.ask()
        seen.append(asked.values["w"])
        study.tell_complete(asked.number, 1.0, violated=False)
    assert set(seen) == {512, None}


# -- in a database --------------------------------------------------------------------------------


def test_a_study_is_resumed_from_its_database(tmp_path: Path) -> None:
    folder = tmp_path / "template"
    folder.mkdir()
    url = copied(template(folder), tmp_path)
    storage = open_optuna(url)
    first = a_study(storage)
    number = first.add_reference(DEPLOYED, host="gpu-a").number
    first.tell_complete(number, 1.0, violated=False)
    first.enqueue_once(POINTS)
    asked = first.ask()
    storage.engine.dispose()
    storage = open_optuna(url)
    again = a_study(storage)
    assert (again.ended(), again.running()) == (1, (asked.number,))
    assert keys(again, number) == (-1.0, [-1.0])
    assert again.ask().values == POINTS[1]
    storage.engine.dispose()
