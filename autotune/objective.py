"""Measurement -> score.  Pure: a score can be computed again from old records.

========  ======================================================  ============
symbol    meaning                                                 unit
========  ======================================================  ============
T_b       output throughput of bucket b                           tok/s
w_b       weight of bucket b, sum 1                               -
R_b       T_b of the host's last reference                        tok/s
S         arithmetic: sum w_b T_b                                 tok/s
          geometric: exp(sum w_b ln(T_b / R_b))                   -
          a plug-in's: its function of all T_b                    tok/s
N         task-samples judged on both the trial and its reference -
F, F_ref  failed task-samples of the trial, of its reference      -
E         max(0, F - F_ref) if the paired test has p <= alpha     -
alpha     0.02; 0.04 where the greedy texts drift                 -
G         max(0, 1 - penalty E / N)                               -
score     G S                                                     as S
ratio     score / score of the host's last reference              -
========  ======================================================  ============

For the reference itself E is 0, so G is 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from types import MappingProxyType

from autotune.coding.evaluate import Outcome
from autotune.coding.gate import ALPHA, DRIFTING_ALPHA, excess_failures, gate_factor
from autotune.coding.lossless import Comparison, Losslessness
from autotune.errors import ObjectiveError
from autotune.measurement import BucketMeasurement, BucketQuality, CodingResult, Interval
from autotune.plugins import Group, function
from autotune.workload import Bucket, Workload

__all__ = ["Reference", "Rule", "Score", "in_tok_per_s", "score_start"]

# Half-width of a 95 % interval in standard errors.
Z95 = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class Rule:
    """How buckets become one number; from the objective's `[score]`.

    Attributes:
        aggregate: "arithmetic", "geometric" or a plug-in's name.
        penalty: Weight of the share of excess coding failures.
        floor: Least T_b / R_b of every bucket; below it the start violates a constraint.
        ttft_p99_ms, tpot_p99_ms: Upper limits in every bucket, ms; None without.
    """

    aggregate: str = "arithmetic"
    penalty: float = 1.5
    floor: float = 0.0
    ttft_p99_ms: float | None = None
    tpot_p99_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """What a start is compared with: its host's last reference.

    Attributes:
        throughput: R_b by bucket key, tok/s.
        score: Its own score, in the unit of S.
        samples: Outcome of each task-sample of its coding answers; empty without.
    """

    throughput: Mapping[str, float]
    score: float
    samples: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one start.

    Attributes:
        value: tok/s (arithmetic) or a ratio to the reference (geometric).
        interval: 95 % interval of `value`, from the buckets' intervals as independent normal
            errors: the shared error of one start is not in it.
        ratio: value / the reference's value; 1 for a reference.
        gate: G, 0..1.
        excess_failures: E.
        violations: Limits that this start breaks, one sentence each; empty when it may win.
    """

    value: float
    interval: Interval
    ratio: float
    gate: float
    excess_failures: int
    violations: tuple[str, ...]


def score_start(
    buckets: tuple[BucketMeasurement, ...],
    coding: CodingResult | None,
    *,
    workload: Workload,
    rule: Rule,
    reference: Reference | None,
    lossless: Comparison | None = None,
) -> Score | None:
    """Score one start; None when a bucket is missing or invalid.

    Args:
        reference: None for the reference itself, which is compared with itself.
        lossless: The judgement on its greedy texts; where they drift, less has to speak against
            its coding answers.
    """
    measured = {bucket.key: bucket for bucket in buckets if bucket.valid}
    if any(bucket.key not in measured for bucket in workload.buckets):
        return None
    parts = [(bucket.weight, measured[bucket.key]) for bucket in workload.buckets]
    if any(not (math.isfinite(m.output_tok_per_s) and m.output_tok_per_s > 0) for _, m in parts):
        return None
    own = {m.key: m.output_tok_per_s for _, m in parts}
    base = reference.throughput if reference is not None else own
    if rule.aggregate == "geometric":
        raw = math.exp(sum(w * math.log(m.output_tok_per_s / base[m.key]) for w, m in parts))
        relative = math.sqrt(
            sum((w * m.interval.half_width / Z95 / m.output_tok_per_s) ** 2 for w, m in parts)
        )
        error = raw * relative
    elif rule.aggregate == "arithmetic":
        raw = sum(w * m.output_tok_per_s for w, m in parts)
        error = math.sqrt(sum((w * m.interval.half_width / Z95) ** 2 for w, m in parts))
    else:
        seen = {bucket: measured[bucket.key] for bucket in workload.buckets}
        raw, error = _by_plugin(rule.aggregate, seen)
    drifting = lossless is not None and lossless.verdict is Losslessness.DRIFTING
    excess, gate = _gate(coding, reference, rule, alpha=DRIFTING_ALPHA if drifting else ALPHA)
    value = gate * raw
    return Score(
        value=value,
        interval=Interval(gate * (raw - Z95 * error), gate * (raw + Z95 * error)),
        ratio=value / reference.score if reference is not None else 1.0,
        gate=gate,
        excess_failures=excess,
        violations=_violations(parts, base, rule),
    )


def in_tok_per_s(aggregate: str, throughput: Mapping[Bucket, float]) -> float:
    """S of every aggregate but the geometric one, whose S is a ratio.

    Raises:
        ObjectiveError: A plug-in gives no positive number.
    """
    if aggregate == "arithmetic":
        return sum(bucket.weight * speed for bucket, speed in throughput.items())
    value = function(Group.OBJECTIVES, aggregate)(MappingProxyType(throughput))
    if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
        raise ObjectiveError(
            f"the plug-in objective {aggregate!r} makes {value!r} of these throughputs",
            hint="it must return a positive number, tok/s",
        )
    return float(value)


def _by_plugin(aggregate: str, seen: Mapping[Bucket, BucketMeasurement]) -> tuple[float, float]:
    """S of a plug-in's aggregate and its standard error, the buckets' errors as independent.

    Each bucket moves by one standard error to both sides (central difference); the squares add up.
    """
    throughput = {bucket: m.output_tok_per_s for bucket, m in seen.items()}
    raw = in_tok_per_s(aggregate, throughput)
    squares = 0.0
    for bucket, m in seen.items():
        error = min(m.interval.half_width / Z95, m.output_tok_per_s / 2)
        up, down = (
            in_tok_per_s(aggregate, {**throughput, bucket: m.output_tok_per_s + step})
            for step in (error, -error)
        )
        squares += ((up - down) / 2) ** 2
    return raw, math.sqrt(squares)


def _gate(
    coding: CodingResult | None, reference: Reference | None, rule: Rule, *, alpha: float
) -> tuple[int, float]:
    """(E, G) of one start."""
    if coding is None or reference is None or not reference.samples:
        return 0, 1.0
    shared = sorted(set(coding.samples) & set(reference.samples))
    if not shared:
        return 0, 1.0
    excess = excess_failures(
        [reference.samples[key] == Outcome.PASSED for key in shared],
        [coding.samples[key] == Outcome.PASSED for key in shared],
        alpha=alpha,
    )
    return excess.penalised, gate_factor(excess, penalty=rule.penalty)


def _violations(
    parts: list[tuple[float, BucketMeasurement]], base: Mapping[str, float], rule: Rule
) -> tuple[str, ...]:
    found: list[str] = []
    for _, m in parts:
        if m.output_tok_per_s < rule.floor * base[m.key]:
            found.append(
                f"bucket {m.key}: {m.output_tok_per_s:.0f} tok/s is below "
                f"{rule.floor:.0%} of the reference's {base[m.key]:.0f} tok/s"
            )
        for name, limit, seen in (
            ("TTFT", rule.ttft_p99_ms, m.ttft_p99_ms),
            ("TPOT", rule.tpot_p99_ms, m.tpot_p99_ms),
        ):
            if limit is not None and seen > limit:
                found.append(
                    f"bucket {m.key}: {name} p99 {seen:.0f} ms is above the limit {limit:.0f} ms"
                )
        if _ttft_unwatched(m, rule.ttft_p99_ms):
            found.append(
                f"bucket {m.key}: TTFT p99 is at least {m.ttft_p99_ms:.0f} ms; the limit, "
                f"{rule.ttft_p99_ms:.0f} ms, is longer than the {m.windows_s:.0f} s of its windows"
            )
        if _tpot_unwatched(m, rule.tpot_p99_ms):
            found.append(
                f"bucket {m.key}: TPOT p99 is at least {m.tpot_p99_ms:.0f} ms; {m.output_tokens} "
                f"tokens at the limit, {rule.tpot_p99_ms:.0f} ms, take longer than the "
                f"{m.windows_s:.0f} s of its windows, and the tokens of a stream came "
                f"{_between_tokens_ms(m):.0f} ms apart on average"
            )
    return tuple(found)


def _tpot_unwatched(measured: BucketMeasurement, limit_ms: float | None) -> bool:
    """Whether TPOT is within a limit only because no stream was watched for so long.

    Streams that are faster than the limit on average end within the windows; a few that do not are
    no sign of a slow server.
    """
    return (
        limit_ms is not None
        and BucketQuality.TPOT_AT_LEAST in measured.marks
        and measured.tpot_p99_ms <= limit_ms
        and 1000 * measured.windows_s <= limit_ms * (measured.output_tokens - 1)
        and _between_tokens_ms(measured) > limit_ms
    )


def _between_tokens_ms(measured: BucketMeasurement) -> float:
    """Mean time between two tokens of one stream: concurrency / throughput."""
    if measured.output_tok_per_s <= 0:
        return math.inf
    return 1000 * measured.concurrency / measured.output_tok_per_s


def _ttft_unwatched(measured: BucketMeasurement, limit_ms: float | None) -> bool:
    """Whether TTFT is within a limit only because no request was watched for so long."""
    return (
        limit_ms is not None
        and BucketQuality.TTFT_AT_LEAST in measured.marks
        and measured.ttft_p99_ms <= limit_ms
        and 1000 * measured.windows_s <= limit_ms
    )
