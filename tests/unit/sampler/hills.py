"""Small spaces and what was observed in them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import optuna

from autotune.ddtree import CONSTRAINTS
from autotune.parameter import Parameter, ParameterKind, ParameterValue, Values
from autotune.search import GridGaussianProcessSampler
from autotune.search.history import BUCKETS_ATTRIBUTE
from autotune.space import SearchSpace
from autotune.testing.surfaces import Observation

optuna.logging.set_verbosity(optuna.logging.ERROR)


Measure = Callable[[Values, int], Observation]


SPACE = SearchSpace(
    (
        Parameter("budget", ParameterKind.INT, low=1, high=32, log=True, deployed=4, flag="--b"),
        Parameter("topk", ParameterKind.INT, low=1, high=8, log=True, deployed=2, flag="--k"),
        Parameter(
            "window", ParameterKind.CATEGORICAL, choices=(512, 2048, None), deployed=512, flag="--w"
        ),
    ),
    (CONSTRAINTS["topk-within-budget"],),
)


def hill(values: Values, _: int = 0) -> Observation:
    """A smooth score with its top at 14/5/2048; seeded noise of one percent."""
    budget, topk, window = (values[name] for name in SPACE.names)
    assert isinstance(budget, int)
    assert isinstance(topk, int)
    loss = 0.3 * math.log2(budget / 14) ** 2 / 4 + 0.2 * math.log2(topk / 5) ** 2 / 4
    loss += {512: 0.08, 2048: 0.0, None: 0.05}[window]  # type: ignore[index]
    return Observation(1.5 * math.exp(-loss))


def noisy_hill(values: Values, number: int) -> Observation:
    score = hill(values).score_ratio
    assert score is not None
    return Observation(score * math.exp(np.random.default_rng([11, number]).normal(0, 0.01)))


def new_study(sampler: optuna.samplers.BaseSampler) -> optuna.Study:
    return optuna.create_study(direction="maximize", sampler=sampler)


def step(study: optuna.Study, space: SearchSpace, measure: Measure) -> dict[str, ParameterValue]:
    """One trial, told as a study tells it."""
    trial = study.ask(space.distributions())
    observed = measure(space.effective(trial.params), trial.number)
    trial.set_constraint("infeasible", 1.0 if observed.infeasible else -1.0)
    trial.set_user_attr(BUCKETS_ATTRIBUTE, dict(observed.buckets))
    told = [t.value for t in study.get_trials(deepcopy=False) if t.value is not None]
    worst = min(told, default=0.0)
    study.tell(trial, worst if observed.score_ratio is None else observed.score_ratio)
    return dict(trial.params)


def auto(seed: int = 1) -> GridGaussianProcessSampler:
    return GridGaussianProcessSampler(SPACE, seed=seed)
