"""What a stored study makes one believe: finalists, what more trials would bring, what matters.

Everything here is computed from stored starts by the models of the search, whichever sampler made
the suggestions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from autotune.config import StudyConfig
from autotune.fingerprint import free_gib
from autotune.measurement import Ending
from autotune.parameter import ParameterValue, canonical, value_to_file
from autotune.search.candidates import Candidates
from autotune.search.history import BucketFigures, History, Outcome
from autotune.search.sampler import GridGaussianProcessSampler
from autotune.search.surrogate import Aggregate, Belief, believe
from autotune.space import Values
from autotune.stored import Role, StoredStart, StoredStudy
from autotune.workload import Bucket, Workload

__all__ = ["Outlook", "belief_of", "findings", "history_of", "outlook"]

LEAST_SCORED = 6
"""Scored points below which nothing is said about what matters or what more trials would bring."""
_DRAWS = 4000


def history_of(config: StudyConfig, stored: StoredStudy) -> History:
    """Every start of the search and the references as observations; final rounds are left out."""
    outcomes = []
    for trial in stored.trials:
        values = config.space.effective(trial.parameters)
        for start in trial.starts:
            if start.role is not Role.FINAL and (one := _outcome(config, values, start)):
                outcomes.append(one)
    return History(tuple(outcomes), {}, {})


def _outcome(config: StudyConfig, values: Values, start: StoredStart) -> Outcome | None:
    """One start; None where it says nothing about its parameters."""
    ending = start.record.ending if start.record is not None else Ending.FAILED
    if ending is Ending.FAILED:
        return None
    ran = ending is not Ending.INFEASIBLE and not start.violations
    ratio = start.score.ratio if start.score is not None and ran else None
    buckets = {
        bucket.key: BucketFigures(bucket.output_tok_per_s, bucket.accept_length)
        for bucket in start.buckets
        if bucket.valid and bucket.output_tok_per_s > 0
    }
    told = ratio if ratio is not None and ratio > 0 else None
    free = free_gib(start.record.fingerprint) if start.record is not None else None
    return Outcome(canonical(values), values, told, ran, buckets, start.host, free)


def belief_of(config: StudyConfig, history: History) -> Belief | None:
    """The models of the search on this history; None without any score."""
    return _searching(config).belief(history)


def _searching(config: StudyConfig) -> GridGaussianProcessSampler:
    return GridGaussianProcessSampler(
        config.space,
        seed=config.study.seed,
        workload=config.workload,
        aggregate=Aggregate.called(config.score.aggregate),
    )


# -- is another trial worth it --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outlook:
    """What one more trial is expected to bring and to cost.

    Attributes:
        gain: Expected rise of the best believed score, as a share of it.
        left: Expected distance of the best believed tested point from the best of all points.
        gpu_hours: Mean cost of a start so far.
    """

    gain: float
    left: float
    gpu_hours: float

    def sentence(self) -> str:
        return (
            f"another trial costs {self.gpu_hours:.1f} GPU-hours for an expected "
            f"{100 * self.gain:+.1f} %; at most {100 * self.left:.1f} % are expected to be left"
        )


def outlook(config: StudyConfig, stored: StoredStudy) -> Outlook | None:
    """What another trial is worth; None while too little is known."""
    history = history_of(config, stored)
    if len({outcome.key for outcome in history.scored}) < LEAST_SCORED:
        return None
    searching = _searching(config)
    belief = searching.belief(history)
    if belief is None or not belief.scale.logarithmic:
        return None
    rows, gains, covariance = searching.worth(belief)
    rng = np.random.default_rng(config.study.seed)
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    draws = belief.mean[rows][:, None] + root @ rng.normal(size=(len(rows), _DRAWS // 10))
    named = int(np.argmax(np.where(np.isin(rows, belief.tested), belief.mean[rows], -np.inf)))
    left = float(np.mean(draws.max(0) - draws[named]))
    spent = [
        start.record.ended_at_s - start.record.started_at_s
        for trial in stored.trials
        for start in trial.starts
        if start.record is not None and start.record.ended_at_s
    ]
    hours = sum(spent) / len(spent) / 3600 if spent else 0.0
    return Outlook(
        math.expm1(float(gains.max())), math.expm1(left), hours * config.service.gpus_per_host
    )


# -- what matters ---------------------------------------------------------------------------------


def findings(config: StudyConfig, stored: StoredStudy) -> Mapping[str, Any]:
    """Importance of each parameter, what moves nothing, and the best values for each concurrency.

    Plain values for JSON; empty while too little is known.
    """
    history = history_of(config, stored)
    if len({outcome.key for outcome in history.scored}) < LEAST_SCORED:
        return {}
    return {
        "parameters": _parameters(config, history),
        "concurrencies": _concurrencies(config, history),
    }


def _parameters(config: StudyConfig, history: History) -> list[dict[str, Any]]:
    """How far each parameter alone moves the believed score, the others at their best."""
    belief = belief_of(config, history)
    if belief is None or not belief.scale.logarithmic:
        return []
    space = config.space
    best = belief.candidates.points[max(belief.tested, key=lambda row: belief.mean[row])]
    axes: dict[str, list[dict[str, ParameterValue]]] = {}
    for parameter in space.parameters:
        points = [space.effective({**best, parameter.name: v}) for v in parameter.levels()]
        axes[parameter.name] = [point for point in points if not space.violations(point)]
    listed = [point for points in axes.values() for point in points]
    tested = [outcome.values for outcome in history.outcomes]
    along = believe(
        space,
        history,
        Candidates.of(space, [*tested, *listed]),
        workload=config.workload,
        aggregate=Aggregate.called(config.score.aggregate),
        everything=True,
    )
    assert along is not None
    found = []
    for name, points in axes.items():
        rows = [along.candidates.rows[space.key(point)] for point in points]
        runs = [row for row in rows if along.log_feasible[row] > math.log(0.5)] or rows
        low, high = (float(f(along.mean[runs])) for f in (np.min, np.max))
        doubt = float(np.median(along.deviation[runs]))
        bound = max(belief.noise, doubt)
        found.append((name, high - low, high - low <= 2 * bound))
    whole = sum(spread for _, spread, _ in found) or 1.0
    return [
        {
            "parameter": name,
            "moves": math.expm1(spread),
            "share": spread / whole,
            "within_noise": quiet,
            "sentence": f"{name} moves nothing beyond the noise"
            if quiet
            else f"{name} moves the score by up to {100 * math.expm1(spread):.0f} %",
        }
        for name, spread, quiet in sorted(found, key=lambda one: -one[1])
    ]


def _concurrencies(config: StudyConfig, history: History) -> list[dict[str, Any]]:
    """The tested point that is believed to be best for each concurrency alone."""
    found = []
    for streams in sorted({bucket.concurrency for bucket in config.workload.buckets}):
        own = [b for b in config.workload.buckets if b.concurrency == streams and b.weight > 0]
        if not own:
            continue
        total = sum(bucket.weight for bucket in own)
        workload = Workload(tuple(_reweighted(own, total)))
        part = partial(_share, config=config, own=own, history=history)
        outcomes = tuple(replace(one, score=part(one)) for one in history.outcomes)
        narrowed = replace(config, workload=workload)
        belief = belief_of(narrowed, replace(history, outcomes=outcomes))
        if belief is None:
            continue
        row = max(belief.tested, key=belief.mean.__getitem__)
        deployed = belief.candidates.rows.get(config.space.key(config.space.deployed()))
        gain = float(belief.mean[row] - belief.mean[deployed]) if deployed is not None else 0.0
        point = belief.candidates.points[row]
        found.append(
            {
                "concurrency": streams,
                "parameters": {name: value_to_file(value) for name, value in point.items()},
                "expected_gain": math.expm1(gain),
            }
        )
    return found


def _reweighted(buckets: list[Bucket], total: float) -> list[Bucket]:
    shares = [bucket.weight / total for bucket in buckets[:-1]]
    shares.append(1.0 - math.fsum(shares))
    return [
        replace(bucket, weight=max(0.0, share))
        for bucket, share in zip(buckets, shares, strict=True)
    ]


def _share(
    outcome: Outcome, *, config: StudyConfig, own: list[Bucket], history: History
) -> float | None:
    """Throughput of these buckets over the host's references, with the outcome's own gate lost."""
    if outcome.score is None:
        return None
    reference = config.space.key(config.space.deployed())
    base = [
        one
        for one in history.outcomes
        if one.key == reference and one.host == outcome.host and one.score is not None
    ]
    keys = [bucket.key for bucket in own]
    if not base or not all(key in one.buckets for one in (*base, outcome) for key in keys):
        return None

    def speed(one: Outcome) -> float:
        return sum(b.weight * one.buckets[b.key].output_tok_per_s for b in own)

    return speed(outcome) / (sum(speed(one) for one in base) / len(base))
