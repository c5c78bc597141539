"""Scores computed again from stored records, by the study's rule or by another.  Pure.

Nothing is written: what was told to the search stays told.  A start is compared with the reference
that was its host's last one when it ended, as it was then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autotune.measurement import Ending
from autotune.objective import Reference, Rule, Score, score_start
from autotune.objective_file import ObjectiveFile
from autotune.standing import as_reference
from autotune.stored import Role, StoredScore, StoredStart, StoredStudy, StoredTrial
from autotune.workload import Workload

__all__ = ["Rescored", "objective_of", "rescore"]

# Starts whose proof held and whose numbers alone were not enough for a score.
_NUMBERS_ONLY = "InvalidBucket"
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Rescored:
    """One start with its scores.

    Attributes:
        stored: As it was saved when the start ended; None when it had none.
        score: By the rule, now; None when a bucket is missing or invalid.
        arithmetic_tok_per_s: sum w_b T_b, without the coding gate; None as `score`.
        geometric: exp(sum w_b ln(T_b / R_b)), without the gate; 1 for a reference.
    """

    trial: int
    reference: bool
    role: Role
    round: int
    host: str
    stored: StoredScore | None
    score: Score | None
    arithmetic_tok_per_s: float | None
    geometric: float | None

    @property
    def same(self) -> bool:
        """Whether the stored score is what the rule gives."""
        if self.stored is None or self.score is None:
            return self.stored is None and self.score is None
        return all(
            math.isclose(old, new, rel_tol=_SAME)
            for old, new in (
                (self.stored.value, self.score.value),
                (self.stored.ratio, self.score.ratio),
            )
        )


def objective_of(study: StoredStudy) -> ObjectiveFile:
    """Buckets and rule that a study was started with, as they are stored."""
    stored = study.definition["objective"]
    return ObjectiveFile.model_validate({key: stored[key] for key in ("buckets", "score")})


def rescore(study: StoredStudy, *, workload: Workload, rule: Rule) -> list[Rescored]:
    """Every start whose numbers count, in order of time."""
    starts = sorted(
        ((trial, start) for trial in study.trials for start in trial.starts if _counts(start)),
        key=lambda pair: pair[1].order,
    )
    references: dict[str, Reference] = {}
    found = []
    for trial, start in starts:
        one = _one(trial, start, references.get(start.host), workload=workload, rule=rule)
        found.append(one)
        if trial.reference and one.score is not None:
            before = references.get(start.host)
            references[start.host] = as_reference(start, one.score.value, before=before)
    return found


def _counts(start: StoredStart) -> bool:
    record = start.record
    if record is None:
        return False
    failure = record.failure
    return record.ending is Ending.COMPLETE or (
        failure is not None and failure.kind == _NUMBERS_ONLY
    )


def _one(
    trial: StoredTrial,
    start: StoredStart,
    last: Reference | None,
    *,
    workload: Workload,
    rule: Rule,
) -> Rescored:
    # A reference is compared with itself; without one nothing else has a score.
    reference = None if trial.reference else last
    comparable = trial.reference or reference is not None

    def by(rule: Rule) -> Score | None:
        if not comparable:
            return None
        record = start.record
        return score_start(
            start.buckets,
            # The answers of the final rounds are judged together, by the verdict.
            record.coding if record and start.role is not Role.FINAL else None,
            workload=workload,
            rule=rule,
            reference=reference,
            lossless=record.lossless if record else None,
        )

    plain = {name: by(replace(rule, aggregate=name)) for name in ("arithmetic", "geometric")}
    raw = {
        name: score.value / score.gate if score is not None and score.gate > 0 else None
        for name, score in plain.items()
    }
    return Rescored(
        trial=trial.number,
        reference=trial.reference,
        role=start.role,
        round=start.round,
        host=start.host,
        stored=start.score,
        score=by(rule),
        arithmetic_tok_per_s=raw["arithmetic"],
        geometric=raw["geometric"],
    )
