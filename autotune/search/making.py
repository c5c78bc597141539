"""From a sampler's name in a study file to the sampler."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from optuna import Study, samplers
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, TrialState

from autotune.errors import ConfigError
from autotune.parameter import Parameter, ParameterKind, ParameterValue
from autotune.plugins import Group, function, names
from autotune.search.sampler import GridGaussianProcessSampler
from autotune.search.surrogate import Aggregate
from autotune.space import SearchSpace
from autotune.workload import Workload

__all__ = ["SAMPLERS", "make_sampler", "sampler_of"]

if TYPE_CHECKING:
    from autotune.config import StudyConfig

_GRID_LEVELS = 8


def make_sampler(
    name: str,
    *,
    space: SearchSpace,
    seed: int,
    workload: Workload | None = None,
    aggregate: str = Aggregate.ARITHMETIC,
) -> samplers.BaseSampler:
    """The sampler called `name`: one of `SAMPLERS`, or a plug-in's.

    Args:
        workload: Buckets of the score; "auto" learns from them.
        aggregate: How the score is made of them: "arithmetic", "geometric" or a plug-in's name.

    Raises:
        ConfigError: No such sampler, or it needs a package that is not installed.
    """
    if name == "auto":
        return GridGaussianProcessSampler(
            space, seed=seed, workload=workload, aggregate=Aggregate.called(aggregate)
        )
    if name in _SHIPPED:
        return _SHIPPED[name](space, seed)
    given = names(Group.SAMPLERS)
    if name not in given:
        known = ", ".join((*SAMPLERS, *given))
        raise ConfigError(f"unknown sampler {name!r}", hint=f"known: {known}")
    made = function(Group.SAMPLERS, name)(space, seed)
    if not isinstance(made, samplers.BaseSampler):
        raise ConfigError(
            f"the plug-in sampler {name!r} makes a {type(made).__name__}, no sampler of Optuna",
            hint="its function must return an optuna.samplers.BaseSampler",
        )
    return made


def sampler_of(config: StudyConfig, *, seed: int) -> samplers.BaseSampler:
    """The sampler that a study's definition names; see `make_sampler` for what it raises."""
    return make_sampler(
        config.study.sampler,
        space=config.space,
        seed=seed,
        workload=config.workload,
        aggregate=config.score.aggregate,
    )


def _tpe(space: SearchSpace, seed: int) -> samplers.BaseSampler:
    return samplers.TPESampler(seed=seed)


def _gp(space: SearchSpace, seed: int) -> samplers.BaseSampler:
    _require("gp", "torch")
    return samplers.GPSampler(seed=seed)


def _cmaes(space: SearchSpace, seed: int) -> samplers.BaseSampler:
    _require("cmaes", "cmaes")
    return samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)


def _qmc(space: SearchSpace, seed: int) -> samplers.BaseSampler:
    with warnings.catch_warnings():  # it is experimental: a choice of the user, not news
        warnings.simplefilter("ignore", ExperimentalWarning)
        return samplers.QMCSampler(seed=seed, scramble=True, warn_independent_sampling=False)


def _random(space: SearchSpace, seed: int) -> samplers.BaseSampler:
    return samplers.RandomSampler(seed=seed)


class _LastingGrid(samplers.GridSampler):
    """A grid that may come to its end under ask and tell: points are repeated afterwards."""

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Nothing: Optuna's own stops the study, which only `optimize` can."""


def _grid(space: SearchSpace, seed: int) -> samplers.BaseSampler:
    """Every combination in random order; about eight values of a parameter that has many."""
    return _LastingGrid(
        {parameter.name: list(_grid_levels(parameter)) for parameter in space.parameters},
        seed=seed,
    )


_SHIPPED: Mapping[str, Callable[[SearchSpace, int], samplers.BaseSampler]] = MappingProxyType(
    {"tpe": _tpe, "gp": _gp, "cmaes": _cmaes, "qmc": _qmc, "random": _random, "grid": _grid}
)
SAMPLERS = ("auto", *_SHIPPED)
"""Names that a study file may give."""


def _grid_levels(parameter: Parameter) -> list[ParameterValue]:
    """The deployed value and, of an ordered parameter with many, about eight others."""
    levels = parameter.levels()
    if len(levels) <= _GRID_LEVELS or parameter.kind is ParameterKind.CATEGORICAL:
        return list(levels)
    spaced = np.geomspace if parameter.log else np.linspace
    places = {round(place) - 1 for place in spaced(1, len(levels), _GRID_LEVELS)}
    if parameter.deployed in levels:
        places.add(levels.index(parameter.deployed))
    return [levels[place] for place in sorted(places)]


def _require(sampler: str, package: str) -> None:
    if find_spec(package) is None:
        raise ConfigError(
            f"sampler {sampler!r} needs the package {package}, which is not installed",
            hint=f'pip install {package}, or use sampler = "auto"',
        )
