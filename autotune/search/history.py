"""What a study has told so far, as plain values for the search models."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.errors import SearchSpaceError
from autotune.parameter import FloatArray, ParameterValue
from autotune.space import SearchSpace

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

__all__ = [
    "BUCKETS_ATTRIBUTE",
    "EARLIER_ATTRIBUTE",
    "FREE_ATTRIBUTE",
    "HOST_ATTRIBUTE",
    "BucketFigures",
    "History",
    "Outcome",
]

BUCKETS_ATTRIBUTE = "buckets"
"""User attribute: bucket key -> {"output_tok_per_s": tok/s, "accept_length": tokens or None}."""
HOST_ATTRIBUTE = "host"
EARLIER_ATTRIBUTE = "from"
"""User attribute: the study that measured the trial, when it was another one."""
FREE_ATTRIBUTE = "free_gib"
"""User attribute: GPU memory that was left once the server was ready, GiB, or None."""

_FIXED = "fixed_params"  # where Optuna keeps the parameters of an enqueued trial


@dataclass(frozen=True, slots=True)
class BucketFigures:
    """What the search learns of a bucket: output tokens per second, tokens per verify step."""

    output_tok_per_s: float
    accept_length: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One trial that ended with knowledge of its parameters.

    Attributes:
        values, key: The effective point.
        score: What was told, larger is better; None when it was infeasible or pruned.
        feasible: Whether the server ran.
        buckets: What was measured, all or (pruned) some.
        free_gib: GPU memory left once the server was ready; None where it is not known.
        earlier: Whether another study measured it.
    """

    key: str
    values: Mapping[str, ParameterValue]
    score: float | None
    feasible: bool
    buckets: Mapping[str, BucketFigures]
    host: str
    free_gib: float | None = None
    earlier: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """Everything the sampler may depend on; trials in the order of their numbers.

    Attributes:
        pending: Points that run or wait for their turn, by key.
        failures: How often each point ended without saying anything about it, by key.
    """

    outcomes: tuple[Outcome, ...]
    pending: Mapping[str, Mapping[str, ParameterValue]]
    failures: Mapping[str, int]

    @classmethod
    def of(
        cls,
        trials: Sequence[FrozenTrial],
        space: SearchSpace,
        *,
        maximize: bool = True,
        without: int | None = None,
        known: dict[int, Outcome] | None = None,
    ) -> History:
        """Read trials; those whose parameters are not points of `space` are left out.

        Args:
            without: Number of a trial to leave out (the one that asks).
            known: Outcomes by the number of their trial, for the next call: what has ended does
                not change.
        """
        from optuna.trial import TrialState

        outcomes: list[Outcome] = []
        pending: dict[str, Mapping[str, ParameterValue]] = {}
        failures: Counter[str] = Counter()
        known = {} if known is None else known
        for trial in sorted(trials, key=lambda trial: trial.number):
            if trial.number == without:
                continue
            if trial.number in known:
                outcomes.append(known[trial.number])
                continue
            given = {**trial.system_attrs.get(_FIXED, {}), **trial.params}
            try:
                values = space.effective(given)
            except SearchSpaceError:
                continue
            key = space.key(values)
            if trial.state in (TrialState.RUNNING, TrialState.WAITING):
                pending[key] = values
            elif trial.state is TrialState.FAIL:
                failures[key] += 1
            else:
                feasible = all(value <= 0 for value in trial.constraints.values())
                told = trial.value if trial.state is TrialState.COMPLETE and feasible else None
                score = None if told is None or not math.isfinite(told) else float(told)
                outcome = Outcome(
                    key,
                    values,
                    score if maximize or score is None else -score,
                    feasible,
                    _buckets(trial.user_attrs.get(BUCKETS_ATTRIBUTE)),
                    str(trial.user_attrs.get(HOST_ATTRIBUTE, "")),
                    _number(trial.user_attrs.get(FREE_ATTRIBUTE)),
                    EARLIER_ATTRIBUTE in trial.user_attrs,
                )
                outcomes.append(outcome)
                known[trial.number] = outcome
        return cls(tuple(outcomes), pending, dict(failures))

    def vagueness(self, outcomes: Sequence[Outcome]) -> FloatArray:
        """Noise variance of each outcome as a multiple of a fresh one's.

        What another study measured counts like a fresh trial at first, and less with every trial
        of this study's own.
        """
        own = sum(not outcome.earlier for outcome in self.scored)
        return np.array([1.0 + own if outcome.earlier else 1.0 for outcome in outcomes])

    def within(self, most: int, *, reference: str) -> History:
        """The same with at most `most` outcomes: the work of the models grows with their cube.

        A half are the newest; of the other half, a quarter are the newest infeasible ones, and the
        rest belong to the points of the highest mean score.  Beyond `most`, the newest outcome of
        the reference on each host that is left is kept: it says how fast that host is.

        Args:
            reference: Key of the deployed point.
        """
        if len(self.outcomes) <= most:
            return self
        newest = range(len(self.outcomes) - 1, -1, -1)
        kept = set(newest[: most // 2])
        kept.update([i for i in newest if not self.outcomes[i].feasible][: most // 8])
        scores: defaultdict[str, list[float]] = defaultdict(list)
        for outcome in self.scored:
            scores[outcome.key].append(outcome.score or 0.0)
        mean = {key: sum(seen) / len(seen) for key, seen in scores.items()}
        best = sorted(
            (i for i in newest if self.outcomes[i].score is not None),
            key=lambda i: -mean[self.outcomes[i].key],
        )
        for i in best:
            if len(kept) >= most:
                break
            kept.add(i)
        hosts = {self.outcomes[i].host for i in kept}
        for i in newest:
            if self.outcomes[i].key == reference and self.outcomes[i].host in hosts:
                hosts.remove(self.outcomes[i].host)
                kept.add(i)
        return replace(self, outcomes=tuple(self.outcomes[i] for i in sorted(kept)))

    @property
    def scored(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.score is not None)


def _number(stored: object) -> float | None:
    return float(stored) if isinstance(stored, int | float) else None


def _buckets(stored: object) -> dict[str, BucketFigures]:
    """The attribute as values; entries without a usable throughput are left out."""
    figures: dict[str, BucketFigures] = {}
    for key, entry in stored.items() if isinstance(stored, Mapping) else ():
        throughput = entry.get("output_tok_per_s") if isinstance(entry, Mapping) else None
        if not isinstance(throughput, int | float) or not throughput > 0:
            continue
        accept = entry.get("accept_length")
        figures[str(key)] = BucketFigures(
            float(throughput), float(accept) if isinstance(accept, int | float) else None
        )
    return figures
