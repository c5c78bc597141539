"""The points that a search may propose, with everything that is computed from them once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotune.parameter import FloatArray, Parameter, ParameterValue, Values, canonical
from autotune.search.physics import Shape, round_shape
from autotune.space import SearchSpace

__all__ = ["Candidates", "neighbours"]

_MOVES = (-4, -2, -1, 1, 2, 4)  # levels that a neighbour is away


@dataclass(frozen=True, slots=True)
class Candidates:
    """Valid effective points, no two the same server.

    Attributes:
        encoded: Shape (m, d).
        shape: The points as the round model sees them; None without a numeric budget.
        rows: Row of each key.
    """

    points: tuple[Mapping[str, ParameterValue], ...]
    encoded: FloatArray
    shape: Shape | None
    rows: Mapping[str, int]

    @classmethod
    def of(cls, space: SearchSpace, points: Iterable[Values]) -> Candidates:
        """Effective points in the given order; later ones that are the same server are dropped."""
        unique: dict[str, Mapping[str, ParameterValue]] = {}
        for point in points:
            unique.setdefault(canonical(point), dict(point))
        kept = tuple(unique.values())
        encoded = np.array([space.encode(point) for point in kept], dtype=np.float64)
        rows = {key: row for row, key in enumerate(unique)}
        return cls(kept, encoded, round_shape(kept), rows)

    def joined(self, space: SearchSpace, points: Mapping[str, Values]) -> Candidates:
        """With effective points, by their keys, at the end; those that it has are dropped."""
        fresh = [point for key, point in points.items() if key not in self.rows]
        if not fresh:
            return self
        more = Candidates.of(space, fresh)
        size = len(self.points)
        return Candidates(
            (*self.points, *more.points),
            np.vstack([self.encoded, more.encoded]),
            None if self.shape is None or more.shape is None else self.shape.joined(more.shape),
            {**self.rows, **{key: size + row for key, row in more.rows.items()}},
        )

    def some(self, rows: npt.NDArray[np.int_]) -> Candidates:
        """The candidates of these rows."""
        points = tuple(self.points[row] for row in rows)
        keys = list(self.rows)
        shape = None if self.shape is None else self.shape[rows]
        return Candidates(
            points, self.encoded[rows], shape, {keys[row]: i for i, row in enumerate(rows)}
        )


def neighbours(space: SearchSpace, point: Values) -> list[dict[str, ParameterValue]]:
    """Valid effective points that differ from an effective point by one move of one parameter.

    Where a space has too many points to list, these let the search descend between those drawn.
    """
    found = []
    for parameter in space.parameters:
        for value in _moves(parameter, point[parameter.name]):
            near = space.effective({**point, parameter.name: value})
            if not space.violations(near):
                found.append(near)
    return found


def _moves(parameter: Parameter, value: ParameterValue) -> list[ParameterValue]:
    levels = parameter.levels()
    if not parameter.ordinal:
        return [level for level in levels if level != value]
    if value in levels:
        place = levels.index(value)
    else:  # a continuous value between two levels
        numbers = [level for level in levels if isinstance(level, int | float)]
        assert isinstance(value, int | float)
        place = sum(level < value for level in numbers)
    targets = sorted({min(max(place + move, 0), len(levels) - 1) for move in _MOVES})
    return [levels[target] for target in targets if levels[target] != value]
