"""The ways to search, behind one protocol: propose a point, see what it gave, name the best."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Protocol

import optuna

from autotune.parameter import Values
from autotune.search import make_sampler
from autotune.search.history import BUCKETS_ATTRIBUTE, FREE_ATTRIBUTE, History
from autotune.search.sampler import GridGaussianProcessSampler
from autotune.space import SearchSpace
from autotune.testing.surfaces import Observation
from benchmarks.search.problem import Problem
from benchmarks.search.prototype import Prototype
from benchmarks.search.sweep import sweep
from benchmarks.search.truths import Truth

__all__ = ["METHODS", "OURS", "Method", "missing"]

OURS = "auto"


class Method(Protocol):
    """One search; the deployed point is measured before it is asked."""

    def propose(self) -> Values: ...
    def observe(self, values: Values, observed: Observation) -> None: ...
    def named(self) -> Values | None:
        """The tested point that its model believes in most; None without a model."""
        ...


class OptunaMethod:
    """A sampler through plain ask and tell, as a study does it."""

    def __init__(self, problem: Problem, sampler: optuna.samplers.BaseSampler) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = problem.space
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._study.enqueue_trial(problem.space.deployed())
        self.trial = self._study.ask(problem.space.distributions())

    def again(self, point: Values) -> optuna.Trial:
        """One more trial of a point, for another host."""
        self._study.enqueue_trial(dict(point))
        return self._study.ask(self._space.distributions())

    def resume(self, trial: optuna.Trial) -> None:
        """The next observation belongs to this trial."""
        self.trial = trial

    def propose(self) -> Values:
        self.trial = self._study.ask(self._space.distributions())
        return self._space.effective(self.trial.params)

    def observe(self, values: Values, observed: Observation) -> None:
        trial = self.trial
        trial.set_constraint("infeasible", 1.0 if observed.infeasible else -1.0)
        if observed.score_ratio is None:
            told = [t.value for t in self._study.get_trials(deepcopy=False) if t.value is not None]
            self._study.tell(trial, min(told, default=0.0))
            return
        trial.set_user_attr(BUCKETS_ATTRIBUTE, dict(observed.buckets))
        trial.set_user_attr(FREE_ATTRIBUTE, observed.free_gib)
        self._study.tell(trial, observed.score_ratio)

    def named(self) -> Values | None:
        sampler = self._study.sampler
        if not isinstance(sampler, GridGaussianProcessSampler):
            return None
        history = History.of(self._study.get_trials(deepcopy=False), self._space)
        return sampler.named(history)


class PrototypeMethod:
    def __init__(self, truth: Problem) -> None:
        assert isinstance(truth, Truth)
        self._truth, self._search = truth, Prototype(truth)

    def propose(self) -> Values:
        return self._search.propose()

    def observe(self, values: Values, observed: Observation) -> None:
        self._search.observe(values, observed)

    def named(self) -> Values | None:
        return self._truth.points[self._search.named()]


class SweepMethod:
    """A person's sweep: each parameter in turn, the best kept."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self._space = problem.space
        self._scores: dict[str, float] = {}
        self._plan: Iterator[Values] = sweep(self._space, self._scores, seed)

    def propose(self) -> Values:
        return next(self._plan)

    def observe(self, values: Values, observed: Observation) -> None:
        score = -1.0 if observed.score_ratio is None else observed.score_ratio
        self._scores.setdefault(self._space.key(values), score)

    def named(self) -> Values | None:
        return None


class GridMethod:
    """Nested loops over a coarse grid, the last parameter outermost, as a script would do."""

    def __init__(self, problem: Problem) -> None:
        self._plan = self._loops(problem.space)

    @staticmethod
    def _loops(space: SearchSpace) -> Iterator[Values]:
        import itertools

        wanted = {"budget": (4, 8, 12, 16, 24, 32, 48, 64), "topk": (1, 2, 4, 8, 16)}
        levels = [wanted.get(p.name, p.levels()) for p in reversed(space.parameters)]
        deployed = space.deployed()
        for place, parameter in enumerate(reversed(space.parameters)):
            if parameter.name not in wanted:  # the deployed value first
                own = deployed[parameter.name]
                levels[place] = (own, *(v for v in levels[place] if v != own))
        names = [p.name for p in reversed(space.parameters)]
        for values in itertools.cycle(itertools.product(*levels)):
            point = dict(zip(names, values, strict=True))
            if not space.violations(point) and point != deployed:
                yield space.effective(point)

    def propose(self) -> Values:
        return next(self._plan)

    def observe(self, values: Values, observed: Observation) -> None:
        """The order does not depend on results."""

    def named(self) -> Values | None:
        return None


def _auto(problem: Problem, seed: int) -> Method:
    return OptunaMethod(
        problem,
        make_sampler(OURS, space=problem.space, seed=seed, workload=problem.workload),
    )


def _gp(problem: Problem, seed: int) -> Method:
    return OptunaMethod(
        problem, optuna.samplers.GPSampler(seed=seed, warn_independent_sampling=False)
    )


def _ax(problem: Problem, seed: int) -> Method:
    from benchmarks.search.ax_method import AxMethod

    warnings.simplefilter("ignore")
    return AxMethod(problem, seed)


METHODS: dict[str, Callable[[Problem, int], Method]] = {
    OURS: _auto,
    "prototype": lambda problem, seed: PrototypeMethod(problem),
    "one at a time": lambda problem, seed: SweepMethod(problem, seed),
    "grid": lambda problem, seed: GridMethod(problem),
    "random": lambda problem, seed: OptunaMethod(problem, optuna.samplers.RandomSampler(seed=seed)),
    "optuna tpe": lambda problem, seed: OptunaMethod(
        problem, optuna.samplers.TPESampler(seed=seed)
    ),
    "optuna gp": _gp,
    "ax": _ax,
}
_NEEDS = {"optuna gp": "torch", "ax": "ax"}


def missing(method: str) -> str:
    """The package that a method needs and that is not installed; empty when it can run."""
    package = _NEEDS.get(method, "")
    return package if package and find_spec(package) is None else ""
