"""Whether a point's server will run: from crashes, and from the memory that others left free."""

from __future__ import annotations

import numpy as np

from autotune.parameter import FloatArray
from autotune.search.candidates import Candidates
from autotune.search.history import History
from autotune.search.memory import MemoryModel
from autotune.search.model import FeasibilityModel
from autotune.search.physics import round_shape
from autotune.space import SearchSpace
from autotune.workload import Workload

__all__ = ["log_feasible"]

_FREE_TRIALS = 2  # the fewest starts whose free memory is believed to follow the law


def log_feasible(
    space: SearchSpace,
    history: History,
    candidates: Candidates,
    *,
    workload: Workload | None = None,
) -> FloatArray:
    """Log of the probability that each candidate's server runs, shape (m,)."""
    result = _log_fits(history, candidates, workload)
    if all(outcome.feasible for outcome in history.outcomes):
        return result
    x = np.array([space.encode(outcome.values) for outcome in history.outcomes])
    feasible = np.array([outcome.feasible for outcome in history.outcomes])
    return result + FeasibilityModel.fit(x, feasible).log_probability(candidates.encoded)


def _log_fits(history: History, candidates: Candidates, workload: Workload | None) -> FloatArray:
    """What the memory that was left free says; zeros where too little is known."""
    told = [one for one in history.outcomes if one.free_gib is not None]
    shape = round_shape([one.values for one in told])
    if workload is None or candidates.shape is None or shape is None or len(told) < _FREE_TRIALS:
        return np.zeros(len(candidates.points))
    longest = max(bucket.context_tokens for bucket in workload.buckets)
    free = [one.free_gib for one in told if one.free_gib is not None]
    model = MemoryModel(shape, free, longest_tokens=float(longest))
    return model.log_probability(candidates.shape)
