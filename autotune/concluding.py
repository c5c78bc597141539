"""From stored starts to finalists, and from the final rounds to a conclusion."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from autotune.believing import belief_of, findings, history_of, outlook
from autotune.coding.pooling import Pooled
from autotune.config import StudyConfig
from autotune.gate_caveats import final_caveat, gate_caveats, pooled_answers
from autotune.measurement import Ending, Interval
from autotune.objective import in_tok_per_s
from autotune.repository import Role, StoredStart, StoredStudy, StoredTrial
from autotune.space import ParameterValue, Values
from autotune.verdict import (
    LEAST_REPEATS,
    NONE_LEFT,
    PointEstimate,
    Remeasured,
    Verdict,
    VerdictKind,
    finalists,
    verdict,
)
from autotune.views import main_start

__all__ = ["Conclusion", "conclude", "contenders", "enough", "spent"]

_TOLD = ("complete", "infeasible", "pruned")


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a study came to.

    Attributes:
        trial: Number of the trial whose parameters are to be used: the winner's, or the
            reference's where nothing is proven better.
        score: Mean of its fresh measurements, tok/s; None without any.
        interval: 95 % interval of its score: the verdict's ratio interval times the reference's
            mean; None without a verdict.
        reference_score: Mean of the reference's fresh measurements, tok/s.
        findings: What matters, as `autotune.believing.findings`.
        finalists: Each with its ratio, interval, trial and parameters, and under "coding" the
            judgement on its pooled answers (`autotune.coding.pooling.Pooled`), None without any.
        outlook: What another trial would cost and bring, in words; empty where it is not known.
        starts: Ended starts of the study that it knows of: with more, it is of yesterday.
    """

    kind: VerdictKind
    sentence: str
    trial: int | None
    parameters: Mapping[str, ParameterValue]
    score: float | None
    interval: Interval | None
    ratio: float | None
    ratio_interval: Interval | None
    reference_score: float | None
    finalists: tuple[Mapping[str, Any], ...]
    findings: Mapping[str, Any] = field(default_factory=dict)
    outlook: str = ""
    starts: int = 0


def contenders(config: StudyConfig, stored: StoredStudy) -> tuple[int, ...]:
    """Trial numbers of the finalists, best first; trials of one point count together.

    Ranked by what the models of the search believe; by the mean observed ratio where they have
    nothing to say of a point.
    """
    space = config.space
    ratios: dict[str, list[float]] = defaultdict(list)
    numbers: dict[str, int] = {}
    for trial in stored.trials:
        start = main_start(trial)
        if trial.reference or trial.state != "complete" or start is None or start.score is None:
            continue
        key = space.key(trial.parameters)
        ratios[key].append(start.score.ratio)
        numbers.setdefault(key, trial.number)
    if not numbers or config.study.finalists == 0:
        return ()
    belief = belief_of(config, history_of(config, stored))
    believed = dict[str, float]()
    if belief is not None and belief.scale.logarithmic:
        believed = {key: float(belief.mean[row]) for key, row in belief.candidates.rows.items()}
    points = [
        PointEstimate(
            key,
            believed.get(key, sum(math.log(r) for r in seen) / len(seen)),
            space.changes(_values(stored, numbers[key])),
        )
        for key, seen in ratios.items()
        if min(seen) > 0
    ]
    chosen = finalists(points, config.study.finalists, reference=space.key(space.deployed()))
    return tuple(numbers[key] for key in chosen)


def conclude(config: StudyConfig, stored: StoredStudy) -> Conclusion:
    """Judge the final rounds; nothing measured during the search enters.

    A finalist that broke a limit or proved infeasible in any of its final starts is out, whatever
    its other starts gave.  So is one that was measured too rarely where another was not: it must
    not keep the others from a verdict.  One whose coding answers of all rounds together fail more
    than chance explains cannot win, however fast it is (`autotune.coding.pooling`).
    """
    space = config.space
    deployed = space.effective(space.deployed())
    reference = space.key(deployed)
    finals = [
        (space.key(trial.parameters), trial, start)
        for trial in stored.trials
        for start in trial.starts
        if start.role is Role.FINAL
    ]
    out = {
        key: (trial.number, reason)
        for key, trial, start in finals
        if key != reference and (reason := _disqualified(start))
    }
    scored = [
        (key, trial, start)
        for key, trial, start in finals
        if key not in out and start.score is not None and start.score.value > 0
    ]
    rare = _rare([key for key, _, _ in scored if key != reference])
    out |= {key: (trial.number, rare[key]) for key, trial, _ in scored if key in rare}
    scored = [one for one in scored if one[0] not in rare]
    pooled = pooled_answers([(key, start) for key, _, start in scored], reference=reference)
    refused = {key for key, one in pooled.items() if one.refused and config.score.penalty > 0}
    out |= {
        key: (trial.number, pooled[key].sentence()) for key, trial, _ in scored if key in refused
    }
    judged = verdict(
        [Remeasured(key, s.host, s.round, _absolute(s, config)) for key, _, s in scored],
        reference=reference,
        changes={key: space.changes(trial.parameters) for key, trial, _ in scored},
        barred=refused,
    )
    none_left = out and {key for key, _, _ in scored} - refused == {reference}
    nothing = NONE_LEFT if none_left else _nothing_to_compare(stored)
    if judged.kind is VerdictKind.NOT_ENOUGH_DATA and (reason := nothing):
        judged = replace(judged, kind=VerdictKind.NO_SIGNIFICANT_DIFFERENCE, sentence=reason)
    prospect = outlook(config, stored)
    winner = judged.winner or reference
    own = [(trial, start) for key, trial, start in scored if key == winner]
    baseline = _mean([start for key, _, start in scored if key == reference])
    won = judged.winner is not None
    excluded = "".join(f"; trial {n} is out: {reason}" for n, reason in sorted(out.values()))
    number = min((trial.number for trial, _ in own), default=_reference_number(stored))
    caveats = list(gate_caveats(stored, trial=number))
    if won and (pooled or config.coding.samples) and (caveat := final_caveat(pooled.get(winner))):
        caveats.append(caveat)
    blind = "".join(f"; {caveat}" for caveat in caveats)
    return Conclusion(
        kind=judged.kind,
        sentence=judged.sentence + excluded + blind,
        trial=number,
        parameters=own[0][0].parameters if own else deployed,
        score=_mean([start for _, start in own]),
        interval=_scaled(judged.interval, baseline) if won else None,
        ratio=judged.ratio,
        ratio_interval=judged.interval,
        reference_score=baseline,
        # What is stored says who was barred; without a penalty the answers bar nobody.
        finalists=tuple(
            _finalist(
                judged,
                scored,
                reference,
                {key: replace(one, refused=key in refused) for key, one in pooled.items()},
            )
        ),
        findings=findings(config, stored),
        outlook=prospect.sentence() if prospect is not None else "",
        starts=_ended_starts(stored),
    )


def enough(config: StudyConfig, stored: StoredStudy) -> str:
    """Why another trial is not worth its cost; empty while it is, or nobody knows."""
    prospect = outlook(config, stored)
    if prospect is None or prospect.gain >= config.study.least_gain:
        return ""
    return prospect.sentence()


def _rare(keys: Sequence[str]) -> dict[str, str]:
    """Those that were measured too rarely to be judged, with the reason; none if that is all."""
    counts = Counter(keys)
    rare = {
        key: f"it was measured again {n} time, {LEAST_REPEATS} are needed"
        for key, n in counts.items()
        if n < LEAST_REPEATS
    }
    return rare if len(rare) < len(counts) else {}


def spent(config: StudyConfig, stored: StoredStudy, *, left: int) -> str:
    """That the budget in trials is spent and the verdict stands, in words; empty otherwise.

    A verdict that does not know of every start does not stand: a run was stopped before its end.
    Neither is a study over that has left a host.

    Args:
        left: Trials that are queued.
    """
    done = sum(trial.state in _TOLD for trial in stored.trials)
    budget = config.study.trials
    if stored.verdict is None or budget is None or left or done < budget:
        return ""
    away = any(host.restored_at_s is None and host.taken_at_s for host in stored.hosts)
    if away or stored.verdict.get("starts") != _ended_starts(stored):
        return ""
    return (
        f"the budget of {budget} trials is spent ({done} done) and the verdict stands, so no host "
        f"was touched: {stored.verdict['sentence']}"
    )


def _ended_starts(stored: StoredStudy) -> int:
    return sum(start.record is not None for trial in stored.trials for start in trial.starts)


def _nothing_to_compare(stored: StoredStudy) -> str:
    """Why the deployed configuration stays although no finalist was measured again.

    Empty where a finalist could have been, or too little was measured to say so.
    """
    others = [trial for trial in stored.trials if not trial.reference]
    measured = any(
        start.score is not None
        for trial in stored.trials
        if trial.reference
        for start in trial.starts
    )
    ended = Counter(trial.state for trial in others)
    told = ended["pruned"] + ended["infeasible"]
    if not measured or not told or ended["complete"]:
        return ""
    return (
        f"nothing better than the deployed configuration: {ended['pruned']} other(s) were stopped "
        f"because they could not reach it, {ended['infeasible']} did not run"
    )


def _disqualified(start: StoredStart) -> str:
    """Why a final start rules its finalist out; empty when it does not."""
    if start.violations:
        return start.violations[0]
    record = start.record
    if record is not None and record.ending is Ending.INFEASIBLE:
        return record.failure.message if record.failure else "infeasible"
    return ""


def _absolute(start: StoredStart, config: StudyConfig) -> float:
    """The score of one start by itself: a ratio to an earlier reference would bring that
    reference's noise into another round."""
    throughput = {bucket.key: bucket.output_tok_per_s for bucket in start.buckets}
    parts = {bucket: throughput[bucket.key] for bucket in config.workload.buckets}
    if config.score.aggregate == "geometric":
        return math.exp(sum(b.weight * math.log(t) for b, t in parts.items()))
    return in_tok_per_s(config.score.aggregate, parts)


def _finalist(
    judged: Verdict,
    finals: list[tuple[str, StoredTrial, StoredStart]],
    reference: str,
    pooled: Mapping[str, Pooled],
) -> list[dict[str, Any]]:
    parameters = {key: (trial.number, dict(trial.parameters)) for key, trial, _ in finals}
    return [
        {
            **asdict(one),
            "trial": parameters[one.key][0],
            "parameters": parameters[one.key][1],
            "coding": asdict(pooled[one.key]) if one.key in pooled else None,
        }
        for one in judged.finalists
        if one.key != reference
    ]


def _reference_number(stored: StoredStudy) -> int | None:
    return next((trial.number for trial in stored.trials if trial.reference), None)


def _values(stored: StoredStudy, number: int) -> Values:
    return next(trial.parameters for trial in stored.trials if trial.number == number)


def _mean(starts: list[StoredStart]) -> float | None:
    scores = [start.score.value for start in starts if start.score is not None]
    return sum(scores) / len(scores) if scores else None


def _scaled(interval: Interval | None, by: float | None) -> Interval | None:
    if interval is None or by is None:
        return None
    return Interval(interval.low * by, interval.high * by)
