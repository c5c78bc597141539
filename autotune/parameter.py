"""One tuned setting of the server: its values, its flag, and its place in a search space."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from autotune.errors import SearchSpaceError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = [
    "PROOF_PLACES",
    "FloatArray",
    "Parameter",
    "ParameterKind",
    "ParameterValue",
    "Values",
    "canonical",
    "value_from_file",
    "value_to_file",
]

ParameterValue: TypeAlias = int | float | str | None
"""A value of a parameter; None leaves the flag out and is written "none" in files."""
Values: TypeAlias = Mapping[str, ParameterValue]
FloatArray: TypeAlias = npt.NDArray[np.float64]

PROOF_PLACES = ("argv", "environ", "server_info", "log")
"""Where a parameter's value can be seen in a running server."""

_CONTINUOUS_LEVELS = 33  # values that stand for a continuous parameter when points are listed
_STEP_TOLERANCE = 1e-9  # of a step: binary fractions such as 0.1 are never exactly on it
_RANGE = "for example low = 1 and high = 64"
_CHOICES = 'for example choices = [512, 2048, "none"]'


class ParameterKind(StrEnum):
    """What the values of a parameter are."""

    INT = "int"
    FLOAT = "float"
    CATEGORICAL = "categorical"


def value_from_file(value: int | float | str) -> ParameterValue:
    """The value that a definition file or a command line means: "none" is None."""
    return None if value == "none" else value


def value_to_file(value: ParameterValue) -> int | float | str:
    """The inverse of `value_from_file`."""
    return "none" if value is None else value


def canonical(values: Values) -> str:
    """JSON with sorted names and no spaces: equal text for equal points."""
    return json.dumps(dict(values), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tuned setting of the server.

    Attributes:
        name: The name in files, tables and constraints.
        low, high: Inclusive range of an int or float, both on the step.
        step: Distance between values; an int without one has 1, a float without one is continuous.
        log: Whether ratios matter rather than differences; excludes a step.
        choices: Values of a categorical; None leaves the flag out.
        flag, env: What carries the value: the server's flag or an environment variable.
        aliases: Other spellings of the flag.
        deployed: The value in use before the study.
        why, source: For people: why it is tuned, and where its meaning is written down.
        proof: Places of `PROOF_PLACES` that must show the value; empty means at least one of the
            engine's own, and no other that contradicts it.
    """

    name: str
    kind: ParameterKind
    _: KW_ONLY
    deployed: ParameterValue
    low: int | float | None = None
    high: int | float | None = None
    step: int | float | None = None
    log: bool = False
    choices: tuple[ParameterValue, ...] = ()
    flag: str = ""
    aliases: tuple[str, ...] = ()
    env: str = ""
    why: str = ""
    source: str = ""
    proof: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise SearchSpaceError(
                f"parameter {self.name!r}: the name is not an identifier",
                hint="letters, digits and _, no digit first",
            )
        if bool(self.flag) == bool(self.env):
            raise self._error(
                "give either a flag or an environment variable that carries it",
                'for example flag = "--max-running-requests"',
            )
        if self.flag and not self.flag.startswith("-"):
            raise self._error(
                f"flag {self.flag!r} does not begin with a dash", f"for example --{self.flag}"
            )
        for place in self.proof:
            if place not in PROOF_PLACES:
                raise self._error(
                    f"proof {place!r} is none of {', '.join(PROOF_PLACES)}",
                    "leave it out, and what can show the value must",
                )
        if self.kind is ParameterKind.CATEGORICAL:
            self._check_choices()
        else:
            self._check_range()
        problem = self.problem(self.deployed)
        if problem:
            raise self._error(
                f"deployed {problem}", "deployed is what runs today: mend it, or widen the range"
            )

    def _error(self, text: str, hint: str) -> SearchSpaceError:
        return SearchSpaceError(f"parameter {self.name!r}: {text}", hint=hint)

    def _check_choices(self) -> None:
        if self.low is not None or self.high is not None or self.step is not None or self.log:
            raise self._error("a categorical has choices, not low, high, step or log", _CHOICES)
        if not self.choices:
            raise self._error("a categorical needs choices", _CHOICES)
        for choice in self.choices:
            if choice == "none":
                raise self._error('the choice "none" is read as leaving the flag out', "use None")
            if choice is not None and not isinstance(choice, str) and not _is_number(choice):
                raise self._error(
                    f"choice {choice!r} is neither text nor a finite number", _CHOICES
                )
        if len(set(self.choices)) < len(self.choices):
            raise self._error("a choice stands twice", "keep one of them")

    def _check_range(self) -> None:
        if self.choices:
            raise self._error(
                f"an {self.kind} has low and high, not choices",
                'give them, or kind = "categorical"',
            )
        if self.low is None or self.high is None:
            raise self._error("needs low and high", _RANGE)
        for name in ("low", "high", "step"):
            value = getattr(self, name)
            if value is not None and not _is_number(value):
                raise self._error(f"{name} {value!r} is not a finite number", _RANGE)
            if value is not None and self.kind is ParameterKind.INT and not isinstance(value, int):
                raise self._error(
                    f"{name} {value!r} is not an integer", 'a whole number, or kind = "float"'
                )
        if self.low > self.high:
            raise self._error(
                f"low {self.low} is above high {self.high}", "low is the least, high the greatest"
            )
        if self.step is not None and self.step <= 0:
            raise self._error(f"step {self.step} is not above 0", "leave it out, or for example 1")
        if self.log and self.low <= 0:
            raise self._error(
                f"log needs low above 0, it is {self.low}", "raise low, or take log out"
            )
        if self.log and self.step not in (None, 1 if self.kind is ParameterKind.INT else None):
            raise self._error("log and step exclude each other", "take one of them out")
        if not self._on_step(self.high):
            raise self._error(
                f"high {self.high} is not low {self.low} plus steps of {self.step}",
                "move high, or take step out",
            )

    def _on_step(self, value: int | float) -> bool:
        if self.step is None or self.low is None:
            return True
        steps = (value - self.low) / self.step
        return abs(steps - round(steps)) <= _STEP_TOLERANCE * max(1.0, abs(steps))

    def problem(self, value: ParameterValue) -> str:
        """Why `value` is not one of this parameter's, as words to follow its name; "" if it is."""
        shown = value_to_file(value)
        if self.kind is ParameterKind.CATEGORICAL:
            if isinstance(value, bool) or value not in self.choices:
                listed = ", ".join(str(value_to_file(choice)) for choice in self.choices)
                return f"{shown!r} is not one of {listed}"
            return ""
        if isinstance(value, str) or value is None or not _is_number(value):
            return f"{shown!r} is not a number"
        if self.kind is ParameterKind.INT and not isinstance(value, int):
            return f"{shown!r} is not an integer"
        assert self.low is not None
        assert self.high is not None
        if not self.low <= value <= self.high:
            return f"{shown} is outside [{self.low}, {self.high}]"
        if not self._on_step(value):
            return f"{shown} is not {self.low} plus steps of {self.step}"
        return ""

    @property
    def ordinal(self) -> bool:
        """Whether the values have an order: numbers, with None above the largest."""
        return self.kind is not ParameterKind.CATEGORICAL or not any(
            isinstance(choice, str) for choice in self.choices
        )

    @property
    def finite(self) -> bool:
        return self.kind is not ParameterKind.FLOAT or self.step is not None

    def levels(self) -> tuple[ParameterValue, ...]:
        """All values in order; a continuous parameter gives 33 evenly spaced and the deployed."""
        if self.kind is ParameterKind.CATEGORICAL:
            if not self.ordinal:
                return self.choices
            numbers = sorted(c for c in self.choices if c is not None and not isinstance(c, str))
            return (*numbers, None) if None in self.choices else tuple(numbers)
        assert self.low is not None
        assert self.high is not None
        if self.kind is ParameterKind.INT:
            return tuple(range(int(self.low), int(self.high) + 1, int(self.step or 1)))
        if self.step is not None:
            count = round((self.high - self.low) / self.step) + 1
            return tuple(float(min(self.high, self.low + i * self.step)) for i in range(count))
        spaced = np.geomspace if self.log else np.linspace
        grid = spaced(self.low, self.high, _CONTINUOUS_LEVELS)
        # geomspace may leave the range by a rounding error
        inside = {float(value) for value in np.clip(grid, self.low, self.high)}
        assert isinstance(self.deployed, int | float)
        return tuple(sorted(inside | {float(self.deployed)}))

    def encode(self, value: ParameterValue) -> tuple[float, ...]:
        """`value` as coordinates in [0, 1]: see `SearchSpace.encode`."""
        if self.kind is ParameterKind.CATEGORICAL:
            if not self.ordinal:
                return tuple(float(choice == value) for choice in self.choices)
            ordered = self.levels()
            return (ordered.index(value) / max(1, len(ordered) - 1),)
        assert isinstance(value, int | float)
        assert self.low is not None
        assert self.high is not None
        if self.low == self.high:
            return (0.0,)
        if self.log:
            return (math.log(value / self.low) / math.log(self.high / self.low),)
        return ((value - self.low) / (self.high - self.low),)

    def distribution(self) -> BaseDistribution:
        """The Optuna distribution of this parameter."""
        from optuna import distributions

        if self.kind is ParameterKind.CATEGORICAL:
            return distributions.CategoricalDistribution(self.choices)
        assert self.low is not None
        assert self.high is not None
        if self.kind is ParameterKind.INT:
            return distributions.IntDistribution(
                int(self.low), int(self.high), log=self.log, step=int(self.step or 1)
            )
        return distributions.FloatDistribution(
            float(self.low), float(self.high), log=self.log, step=self.step
        )
