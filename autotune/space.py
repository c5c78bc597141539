"""What is tuned: parameters, constraints, and the valid points they span.

A *point* maps every parameter's name to a value.  Several points can be the same server (a top-k
cap above the tree's budget never binds): `SearchSpace.effective` maps each to one representative,
and everything that is stored, compared or searched uses that one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from autotune.errors import SearchSpaceError
from autotune.parameter import (
    PROOF_PLACES,
    FloatArray,
    Parameter,
    ParameterKind,
    ParameterValue,
    Values,
    canonical,
    value_from_file,
    value_to_file,
)

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = [
    "PROOF_PLACES",
    "Constraint",
    "FloatArray",
    "Parameter",
    "ParameterKind",
    "ParameterValue",
    "SearchSpace",
    "Values",
    "canonical",
    "value_from_file",
    "value_to_file",
]

_EXHAUSTIVE_PRODUCT = 60_000  # above this many combinations points are drawn, not listed


def _unchanged(values: Values) -> dict[str, ParameterValue]:
    return dict(values)


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule over several parameters, known by its name.

    Attributes:
        violations: Sentences for what is wrong with a point; empty when nothing is.
        parameters: Names that a space must have for the rule to apply to it.
        clamp: Maps a point to the one that the same server would run; must be idempotent.
    """

    name: str
    violations: Callable[[Values], tuple[str, ...]] = field(compare=False)
    parameters: tuple[str, ...] = field(default=(), compare=False)
    clamp: Callable[[Values], dict[str, ParameterValue]] = field(default=_unchanged, compare=False)


_ALL_OF_THEM = "a point has a value of every parameter, in its range and by every rule"


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The parameters of a study and the rules between them; equal by value."""

    parameters: tuple[Parameter, ...]
    constraints: tuple[Constraint, ...] = ()

    def __post_init__(self) -> None:
        names = [parameter.name for parameter in self.parameters]
        if not names:
            raise SearchSpaceError(
                "the search space has no parameter", hint="for example [parameters.budget]"
            )
        if len(set(names)) < len(names):
            raise SearchSpaceError(
                f"parameter {max(names, key=names.count)!r} is defined twice",
                hint="give each a name of its own",
            )
        rules = [constraint.name for constraint in self.constraints]
        if len(set(rules)) < len(rules):
            raise SearchSpaceError(
                f"constraint {max(rules, key=rules.count)!r} is named twice", hint="name it once"
            )
        for constraint in self.constraints:
            for name in constraint.parameters:
                if name not in names:
                    raise SearchSpaceError(
                        f"constraint {constraint.name!r} needs the parameter {name!r}, "
                        f"the space has {', '.join(names)}",
                        hint="take the rule out of constraints, or call the parameter so",
                    )
        broken = self.violations(self.deployed())
        if broken:
            raise SearchSpaceError(
                f"the deployed point is not valid: {'; '.join(broken)}",
                hint="deployed is what runs today: mend it, or take the rule out of constraints",
            )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    @property
    def finite(self) -> bool:
        return all(parameter.finite for parameter in self.parameters)

    def deployed(self) -> dict[str, ParameterValue]:
        """The point in use before the study."""
        return {parameter.name: parameter.deployed for parameter in self.parameters}

    def domain_problems(self, values: Values) -> tuple[str, ...]:
        """What is wrong with the names and single values of a point, constraints left aside."""
        problems = [f"unknown parameter {name!r}" for name in values if name not in self.names]
        for parameter in self.parameters:
            if parameter.name not in values:
                problems.append(f"parameter {parameter.name!r} is missing")
            elif text := parameter.problem(values[parameter.name]):
                problems.append(f"parameter {parameter.name!r}: {text}")
        return tuple(problems)

    def violations(self, values: Values) -> tuple[str, ...]:
        """The constraints that a point breaks, as sentences."""
        return tuple(itertools.chain.from_iterable(c.violations(values) for c in self.constraints))

    def validate(self, values: Values) -> None:
        """Raise SearchSpaceError unless the point is valid as it stands.

        A point that only `effective` makes valid is not: clamp first where clamping is meant.
        """
        problems = self.domain_problems(values) or self.violations(values)
        if problems:
            raise SearchSpaceError("; ".join(problems), hint=_ALL_OF_THEM)

    def effective(self, values: Values) -> dict[str, ParameterValue]:
        """The point that a server given `values` really runs, in the order of the parameters.

        Raises:
            SearchSpaceError: A name or a single value is wrong.
        """
        problems = self.domain_problems(values)
        if problems:
            raise SearchSpaceError("; ".join(problems), hint=_ALL_OF_THEM)
        point: dict[str, ParameterValue] = {}
        for parameter in self.parameters:
            value = values[parameter.name]
            if parameter.kind is ParameterKind.FLOAT and value is not None:
                value = float(value)
            elif parameter.kind is ParameterKind.CATEGORICAL:
                value = parameter.choices[parameter.choices.index(value)]
            point[parameter.name] = value
        for _ in range(len(self.constraints)):  # one clamp may wake another
            before = dict(point)
            for constraint in self.constraints:
                point = constraint.clamp(point)
            if point == before:
                break
        return point

    def key(self, values: Values) -> str:
        """Canonical JSON of the effective point: equal for points that are the same server."""
        return canonical(self.effective(values))

    def changes(self, values: Values) -> int:
        """How many parameters differ from the deployed point."""
        point, deployed = self.effective(values), self.effective(self.deployed())
        return sum(point[name] != deployed[name] for name in point)

    def distributions(self) -> dict[str, BaseDistribution]:
        """Optuna's distribution for each parameter; the same for every trial of a study."""
        return {parameter.name: parameter.distribution() for parameter in self.parameters}

    def enumerate(self, limit: int, *, seed: int = 0) -> list[dict[str, ParameterValue]]:
        """Valid effective points, no two the same server.

        All of them where there are at most `limit`, else `limit` taken without preference, always
        with the deployed one.  More than 60 000 combinations are not listed: points are drawn, 20
        for each that is wanted, which may find fewer.  The result depends on the arguments alone.
        """
        if limit < 1:
            raise ValueError(f"limit is {limit}, must be >= 1")
        levels = [parameter.levels() for parameter in self.parameters]
        rng = np.random.default_rng([seed, 0])
        points = [self.effective(self.deployed())]
        seen = {canonical(points[0])}
        total = math.prod(len(values) for values in levels)
        drawn = total > _EXHAUSTIVE_PRODUCT
        source = _drawn(levels, rng, draws=20 * limit) if drawn else itertools.product(*levels)
        for values in source:
            point = self.effective(dict(zip(self.names, values, strict=True)))
            key = canonical(point)
            if key in seen or self.violations(point):
                continue
            seen.add(key)
            points.append(point)
            if drawn and len(points) >= limit:
                break
        if len(points) > limit:
            kept = rng.choice(len(points) - 1, size=limit - 1, replace=False) + 1
            points = [points[0], *(points[int(index)] for index in np.sort(kept))]
        return points

    def fingerprint(self) -> str:
        """SHA-256 over what decides which points exist and what they mean; texts left out."""
        definition = {
            "parameters": [
                {
                    "name": p.name,
                    "kind": p.kind.value,
                    "range": [p.low, p.high, p.step, p.log],
                    "choices": p.choices,
                    "carrier": [p.flag, p.env],
                    "deployed": p.deployed,
                }
                for p in self.parameters
            ],
            "constraints": [constraint.name for constraint in self.constraints],
        }
        text = json.dumps(definition, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def encode(self, values: Values) -> FloatArray:
        """A point in [0, 1]^d, shape (d,).

        A number is its place in the range (its logarithm's where `log`), a categorical of numbers
        its rank with None on top, any other categorical one coordinate for each choice.
        """
        return np.fromiter(
            itertools.chain.from_iterable(p.encode(values[p.name]) for p in self.parameters),
            dtype=np.float64,
        )


def _drawn(
    levels: Sequence[tuple[ParameterValue, ...]], rng: np.random.Generator, *, draws: int
) -> Iterator[tuple[ParameterValue, ...]]:
    sizes = [len(values) for values in levels]
    for row in rng.integers(0, sizes, size=(draws, len(sizes))):
        yield tuple(values[int(index)] for values, index in zip(levels, row, strict=True))
