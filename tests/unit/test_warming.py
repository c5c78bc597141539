"""A new study that begins with what an earlier one measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from optuna.storages import InMemoryStorage

from autotune.ddtree import CONSTRAINTS
from autotune.errors import ConfigError
from autotune.measurement import Ending
from autotune.parameter import Parameter, ParameterKind
from autotune.repository import Role
from autotune.search import make_sampler
from autotune.search.history import History
from autotune.search.model import GaussianProcess
from autotune.space import SearchSpace
from autotune.study import TrialStudy
from autotune.warming import warm
from tests.builders import a_start, a_study, a_trial


def a_space(*, budget: int = 64, deployed: int = 8) -> SearchSpace:
    return SearchSpace(
        (
            Parameter(
                "budget", ParameterKind.INT, low=1, high=budget, log=True, deployed=deployed,
                flag="--b",
            ),
            Parameter("topk", ParameterKind.INT, low=1, high=8, log=True, deployed=4, flag="--k"),
            Parameter(
                "window", ParameterKind.CATEGORICAL, choices=(512, None), deployed=None, flag="--w"
            ),
        ),
        (CONSTRAINTS["topk-within-budget"],),
    )  # fmt: skip


def old() -> Any:
    return a_study(
        a_trial(0, a_start(1.0, role=Role.REFERENCE), reference=True),
        a_trial(1, a_start(1.1, at_h=1), budget=16),
        a_trial(2, a_start(1.2, at_h=2), budget=24),
        a_trial(3, a_start(0.9, at_h=3), budget=32),
        a_trial(4, a_start(None, at_h=4, ending=Ending.INFEASIBLE), budget=60),
        a_trial(5, a_start(None, at_h=5, ending=Ending.FAILED), budget=20),
        a_trial(6, a_start(1.3, at_h=6), budget=12, window=2048),
        name="before",
    )


def a_trial_study(space: SearchSpace) -> TrialStudy:
    study = TrialStudy("new", InMemoryStorage(), space=space)
    study.use(make_sampler("auto", space=space, seed=1))
    return study


def test_trials_that_fit_are_taken_and_the_rest_is_named() -> None:
    study = a_trial_study(a_space())
    warmed = warm(study, old())
    assert warmed.taken == 5
    assert warmed.left == (
        "trial 5 gave nothing",
        "trial 6 does not fit: parameter 'window': 2048 is not one of 512, none",
    )


def test_a_smaller_range_leaves_out_what_lies_beyond() -> None:
    warmed = warm(a_trial_study(a_space(budget=30)), old())
    assert warmed.taken == 3
    assert sum("outside [1, 30]" in reason for reason in warmed.left) == 2


def test_they_are_no_part_of_the_budget_and_come_once() -> None:
    study = a_trial_study(a_space())
    warm(study, old())
    assert study.ended() == 0
    assert warm(study, old()).taken == 0
    assert len(study.trials()) == 5 + 2


def test_the_best_earlier_points_are_measured_first() -> None:
    study = a_trial_study(a_space())
    warm(study, old())
    assert [study.ask().values["budget"] for _ in range(2)] == [24, 16]


def test_the_sampler_knows_them_as_earlier_and_crashes_too() -> None:
    study = a_trial_study(a_space())
    warm(study, old())
    history = History.of(study.trials(), a_space())
    assert all(outcome.earlier for outcome in history.outcomes)
    assert [outcome.feasible for outcome in history.outcomes].count(False) == 1
    assert {outcome.host for outcome in history.outcomes} == {"before/gpu-a"}


def test_their_weight_falls_with_own_trials() -> None:
    study = a_trial_study(a_space())
    warm(study, old())
    for _ in range(2):
        study.tell_complete(study.ask().number, 1.1, violated=False)
    history = History.of(study.trials(), a_space())
    vague = dict(zip([o.earlier for o in history.scored], history.vagueness(history.scored),
                     strict=True))  # fmt: skip
    assert vague == {True: 3.0, False: 1.0}


def test_a_vague_observation_pulls_less() -> None:
    x, y = np.array([[0.5], [0.5]]), np.array([0.0, 0.3])
    even = GaussianProcess.fit(x, y).predict(x[:1])[0][0]
    doubted = GaussianProcess.fit(x, y, vagueness=np.array([1.0, 50.0])).predict(x[:1])[0][0]
    assert doubted < even - 0.05


def test_another_deployed_configuration_is_no_common_scale() -> None:
    with pytest.raises(ConfigError, match="budget 8, here 16"):
        warm(a_trial_study(a_space(deployed=16)), old())


def test_a_study_of_which_nothing_fits_is_refused() -> None:
    with pytest.raises(ConfigError, match="no trial of study 'before' fits"):
        warm(a_trial_study(a_space(budget=6, deployed=4)), old())
