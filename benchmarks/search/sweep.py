"""A careful person's sweep: each parameter in turn over a few values, the best kept."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

import numpy as np

from autotune.parameter import Values
from autotune.space import SearchSpace

__all__ = ["sweep"]


def sweep(space: SearchSpace, scores: Mapping[str, float], seed: int) -> Iterator[Values]:
    """Points in the order of the sweep; `scores` is filled by the caller before the next."""
    rng = np.random.default_rng(seed)
    best: Values = space.effective(space.deployed())
    for coarse in itertools.chain([True], itertools.repeat(False)):
        before = best
        for parameter in space.parameters:
            levels = parameter.levels()
            if coarse:
                wanted = _spread(len(levels), log=parameter.log)
            else:
                place = levels.index(best[parameter.name])
                reach = max(1, round(place * 0.3)) if parameter.log else 1
                wanted = [place + math.ceil(reach * f) for f in (-1, -0.5, 0.5, 1)]
            options = [best]
            for index in wanted:
                if not 0 <= index < len(levels):
                    continue
                point = space.effective({**best, parameter.name: levels[index]})
                if point in options or space.violations(point):
                    continue
                options.append(point)
                if space.key(point) not in scores:
                    yield point
            best = max(options, key=lambda point: scores[space.key(point)])
        while not coarse and best == before:  # settled: look about at random
            near = {
                p.name: p.levels()[
                    int(
                        np.clip(
                            p.levels().index(best[p.name]) + rng.integers(-3, 4),
                            0,
                            len(p.levels()) - 1,
                        )
                    )
                ]
                for p in space.parameters
            }
            point = space.effective(near)
            if not space.violations(point):
                yield point


def _spread(count: int, *, log: bool) -> list[int]:
    """Up to eight places among `count` levels, by ratio or evenly."""
    if count <= 8:
        return list(range(count))
    spaced = np.geomspace(1, count, 8) if log else np.linspace(1, count, 8)
    return sorted({round(place) - 1 for place in spaced})
