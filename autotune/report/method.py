"""How the study measured, in words, from its stored definition.  Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autotune.report.tables import Table
from autotune.report.words import clock, number, plain, share
from autotune.repository import StoredStudy

__all__ = ["Method", "describe"]

_FORMULAS = {
    "arithmetic": (
        "S = Σ w_b · T_b",
        "S, in tok/s, is the sum over the buckets of weight times output throughput.",
    ),
    "geometric": (
        "S = exp(Σ w_b · ln(T_b / R_b))",
        "S, without a unit, is the weighted geometric mean of the buckets' throughputs, each over "
        "that of the host's last reference.",
    ),
}


@dataclass(frozen=True, slots=True)
class Method:
    """How it was measured.

    Attributes:
        formulas: (formula, the same in words).
        facts: (name, value).
    """

    buckets: Table
    formulas: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]


def describe(study: StoredStudy) -> Method:
    """Everything of the definition that gives the numbers their meaning."""
    objective = study.definition.get("objective", {})
    score = objective.get("score", {})
    measure = objective.get("measure", {})
    return Method(
        buckets=_buckets(objective.get("buckets", [])),
        formulas=(
            _formula(str(score.get("aggregate", "arithmetic"))),
            (
                f"score = S · max(0, 1 − {score.get('penalty', 0)} · E / N)",
                "N is the number of coding samples; E is how many more of them fail than for the "
                "reference, and 0 unless an exact one-sided paired test finds p ≤ 0.02, "
                "or 0.04 where greedy texts drift.",
            ),
            (
                "ratio = score / reference score",
                "The reference is the deployed configuration, measured first on every host, again "
                "during the search and last; a ratio uses the last one of the same host.",
            ),
        ),
        words=_words(score, measure),
        facts=_facts(study),
    )


def _buckets(buckets: list[dict[str, Any]]) -> Table:
    total = sum(bucket["weight"] for bucket in buckets) or 1.0
    reasons = any(bucket.get("why") for bucket in buckets)
    rows = [
        (
            str(bucket["context_tokens"]),
            str(bucket["concurrency"]),
            str(bucket["output_tokens"]),
            share(bucket["weight"] / total),
            *((plain(bucket.get("why", "")),) if reasons else ()),
        )
        for bucket in buckets
    ]
    columns = ("Context tokens", "Concurrency", "Output tokens", "Weight")
    return Table(
        "Buckets and their weights",
        (*columns, "Why") if reasons else columns,
        tuple(rows),
        frozenset(range(4)),
    )


def _words(score: dict[str, Any], measure: dict[str, Any]) -> tuple[str, ...]:
    found = [
        "In each bucket as many requests run at once as its concurrency says; when one ends, the "
        "next begins. After a warm-up until throughput is steady, output tokens are counted in the "
        "windows in which they arrived, by the server's own token counts."
    ]
    if measure:
        found.append(
            f"Windows of {measure.get('window_s')} s follow each other, at least "
            f"{measure.get('least_windows')} and at most {measure.get('most_windows')}, until the "
            f"95 % interval is within ±{share(measure.get('target_half_width', 0))} of the mean."
        )
    limits = []
    if score.get("floor"):
        limits.append(f"no bucket may fall below {share(score['floor'])} of the reference")
    for key, name in (("ttft_p99_ms", "time to first token"), ("tpot_p99_ms", "time per token")):
        if score.get(key):
            limits.append(f"the 99th percentile of {name} may reach {number(score[key], 0)} ms")
    if limits:
        found.append(f"Limits: {'; '.join(limits)}. A start beyond a limit is infeasible.")
    return tuple(found)


def _facts(study: StoredStudy) -> tuple[tuple[str, str], ...]:
    service = study.definition.get("service", {})
    search = study.definition.get("study", {})
    coding = study.definition.get("objective", {}).get("coding", {})
    fixed = " ".join(
        f"{flag['flag']}{' ' + flag['value'] if flag.get('value') else ''}"
        for flag in service.get("fixed_flags", ())
    )
    facts = (
        ("Study made", f"{clock(study.created_at_s)} UTC"),
        ("Engine", service.get("engine")),
        ("Supervisor", service.get("supervisor")),
        ("Unit", service.get("unit")),
        ("Fixed flags", fixed),
        ("Sampler", f"{search.get('sampler')}, seed {search.get('seed')}"),
        ("Constraints", ", ".join(search.get("constraints", ()))),
        ("Coding samples", coding.get("samples")),
        *((f"Version of {k}", v) for k, v in study.provenance.items() if k == "autotune"),
        ("Python", study.provenance.get("python")),
        ("Definition", study.fingerprint),
    )
    engine = next(
        (
            start.record.fingerprint
            for trial in study.trials
            for start in trial.starts
            if start.record is not None and start.record.fingerprint
        ),
        {},
    )
    return tuple(
        (plain(str(name)), plain(str(value))) for name, value in (*facts, *engine.items()) if value
    )


def _formula(aggregate: str) -> tuple[str, str]:
    """How S is made; of a plug-in only its name is known here."""
    own = (f"S = {plain(aggregate)}(T)", "A function of an installed package, in tok/s.")
    return _FORMULAS.get(aggregate, own)
