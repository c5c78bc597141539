"""The first points: what a careful person would try round the deployed configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping

from autotune.parameter import Parameter, ParameterKind, ParameterValue
from autotune.space import SearchSpace

__all__ = ["axis_design"]


def axis_design(space: SearchSpace) -> list[dict[str, ParameterValue]]:
    """Valid effective points round the deployed one, which comes first; no two the same server.

    In this order, so that a cut anywhere keeps the most telling ones: the first parameter doubled,
    all ratio parameters doubled, then quadrupled (a diagonal, since trees grow in breadth and
    size together), every other parameter one move up and down, all ratio parameters halved.
    A move is a factor of 2 where ratios matter, a quarter of the range for other numbers, one
    choice for a categorical.
    """
    reference = space.effective(space.deployed())
    ratios = [p for p in space.parameters if p.log]
    others = [p for p in space.parameters if not p.log]
    moves: list[Mapping[str, ParameterValue]] = []
    moves += [{p.name: _moved(p, reference[p.name], 1)} for p in ratios[:1]]
    for steps in (1, 2):
        moves.append({p.name: _moved(p, reference[p.name], steps) for p in ratios})
    for steps in (-1, 1):
        moves += [{p.name: _moved(p, reference[p.name], steps)} for p in others]
    moves.append({p.name: _moved(p, reference[p.name], -1) for p in ratios})
    moves += [{p.name: _moved(p, reference[p.name], 1)} for p in ratios[1:]]
    points = [reference]
    for move in moves:
        point = space.effective({**reference, **move})
        if point not in points and not space.violations(point):
            points.append(point)
    return points


def _moved(parameter: Parameter, value: ParameterValue, steps: int) -> ParameterValue:
    """`value` moved by so many steps along its axis, held inside the range."""
    if parameter.kind is ParameterKind.CATEGORICAL:
        ordered = parameter.levels()
        index = ordered.index(value) + steps
        if parameter.ordinal:
            return ordered[min(max(index, 0), len(ordered) - 1)]
        return ordered[index % len(ordered)]
    assert isinstance(value, int | float)
    assert parameter.low is not None
    assert parameter.high is not None
    if parameter.log:
        wanted = value * 2.0**steps
    else:
        wanted = value + steps * (parameter.high - parameter.low) / 4
    if parameter.step is not None or parameter.kind is ParameterKind.INT:
        step = parameter.step or 1
        wanted = parameter.low + round((wanted - parameter.low) / step) * step
    wanted = min(max(wanted, parameter.low), parameter.high)
    if parameter.kind is ParameterKind.INT:
        return math.floor(wanted)
    return float(wanted)
