"""Stored studies made by hand, a few lines each; every number is chosen by the test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from autotune.concluding import Conclusion
from autotune.measurement import (
    BucketMeasurement,
    CodingResult,
    Ending,
    Evidence,
    FailureRecord,
    Interval,
    StartRecord,
)
from autotune.repository import Role, StoredHost, StoredScore, StoredStart, StoredStudy, StoredTrial
from autotune.supervisors.base import Owner
from autotune.verdict import VerdictKind

__all__ = [
    "BEGUN_S",
    "DEPLOYED",
    "a_bucket",
    "a_conclusion",
    "a_definition",
    "a_failure",
    "a_start",
    "a_study",
    "a_trial",
    "proof_links",
]

BEGUN_S = 1_767_225_600.0  # 2026-01-01 00:00 UTC
DEPLOYED: Mapping[str, Any] = {"budget": 8, "topk": 4, "window": None}
MATRIX = ((60, 1, 0.3), (60, 8, 0.2), (1024, 1, 0.3), (1024, 8, 0.2))
OWNER = Owner(
    study="demo", machine="driver-1", boot_id="boot", pid=4242, started_at_s=9.0, taken_at_s=BEGUN_S
)


def a_bucket(
    context_tokens: int = 60,
    concurrency: int = 1,
    output_tok_per_s: float = 100.0,
    *,
    weight: float = 1.0,
    relative_half_width: float = 0.02,
    accept_length: float | None = 3.0,
    **changes: Any,
) -> BucketMeasurement:
    """One valid bucket."""
    half = output_tok_per_s * relative_half_width
    bucket = BucketMeasurement(
        context_tokens=context_tokens,
        concurrency=concurrency,
        output_tokens=128,
        weight=weight,
        output_tok_per_s=output_tok_per_s,
        interval=Interval(output_tok_per_s - half, output_tok_per_s + half),
        accept_length=accept_length,
        ttft_ms=120.0,
        ttft_p99_ms=180.0,
        tpot_ms=9.0,
        tpot_p99_ms=14.0,
        chunk_gap_ms=27.0,
        chunk_tokens=3.0,
        prompt_tokens=float(context_tokens),
        cached_tokens=0,
        server_tokens=None,
        client_cpu=0.2,
        loop_lag_ms=1.0,
        warm_up_s=5.0,
        windows_s=20.0,
        windows=10,
        requests=40,
        errors=0,
        valid=True,
        started_at_s=BEGUN_S,
    )
    return replace(bucket, **changes)


def proof_links(*, broken: str = "", at_s: float = BEGUN_S) -> tuple[Evidence, ...]:
    """The chain of one start; `broken` names the one link that does not hold."""
    names = ("invocation", "process", "argv", "listener", "bound", "nonce", "budget: server_info")
    return tuple(
        Evidence(
            link=name,
            wanted=f"the {name} that was asked for",
            seen=f"the {name} that was asked for" if name != broken else "something else",
            ok=name != broken,
            at_s=at_s + position,
            raw=f"raw text of {name}",
        )
        for position, name in enumerate((*names, "generation"))
    )


def a_failure(
    kind: str = "ServerStartError",
    message: str = "out of GPU memory while it loaded",
    *,
    link: str = "",
    log_tail: Iterable[str] = ("torch.OutOfMemoryError: CUDA out of memory",),
) -> FailureRecord:
    return FailureRecord(kind, message, link, tuple(log_tail))


def a_start(
    ratio: float | None = 1.0,
    *,
    at_h: float = 0.0,
    host: str = "gpu-a",
    role: Role = Role.SEARCH,
    round_: int = 0,
    ending: Ending | None = Ending.COMPLETE,
    failure: FailureRecord | None = None,
    violations: tuple[str, ...] = (),
    reference_score: float = 100.0,
    accept_length: float | None = 3.0,
    coding: CodingResult | None = None,
    hours: float = 0.5,
    buckets: tuple[BucketMeasurement, ...] | None = None,
    proof: tuple[Evidence, ...] | None = None,
) -> StoredStart:
    """One start that began `at_h` hours after the study and took `hours`.

    Args:
        ratio: Score over the reference's `reference_score`; None: it gave no score.
        ending: None: it still runs.
    """
    begun = BEGUN_S + at_h * 3600
    claim = f"{host}-{role}-{round_}-{at_h}-{ratio}"
    if buckets is None:
        buckets = tuple(
            a_bucket(
                context,
                concurrency,
                ratio * reference_score * concurrency**0.7,
                weight=weight,
                accept_length=accept_length,
            )
            for context, concurrency, weight in MATRIX
            if ratio is not None
        )
    record = None
    if ending is not None:
        record = StartRecord(
            ending=ending,
            proof=proof_links(at_s=begun) if proof is None else proof,
            buckets=buckets,
            coding=coding,
            failure=failure,
            invocation_id="0123456789abcdef" * 2,
            stop_s=20.0,
            load_s=360.0,
            measure_s=max(0.0, hours * 3600 - 380),
            started_at_s=begun,
            ended_at_s=begun + hours * 3600,
        )
    score = None
    if ratio is not None and ending is Ending.COMPLETE:
        value = ratio * reference_score
        score = StoredScore(value, Interval(value * 0.985, value * 1.015), ratio)
    return StoredStart(
        order=int(begun),
        role=role,
        round=round_,
        host=host,
        claim_id=claim,
        nonce=claim,
        owner=OWNER,
        argv=("python", "-m", "sglang.launch_server", "--port", "30000"),
        started_at_s=begun,
        record=record,
        score=score,
        violations=violations,
        buckets=buckets,
    )


def a_trial(
    number: int,
    *starts: StoredStart,
    state: str | None = None,
    reference: bool = False,
    retry_of: int | None = None,
    **parameters: Any,
) -> StoredTrial:
    """A trial with the deployed parameters, but for those that are given."""
    first = starts[0].record if starts else None
    return StoredTrial(
        number=number,
        parameters={**DEPLOYED, **parameters},
        reference=reference,
        retry_of=retry_of,
        state=state or (str(first.ending) if first else "running"),
        told=first is not None,
        starts=starts,
    )


def a_definition(
    *, command: str | None = None, sandbox: str = "strict", gpus_per_host: int = 8
) -> dict[str, Any]:
    """A definition as it is stored: plain JSON, reasons and what may change on resume left out."""
    return {
        "study": {
            "objective": "demo",
            "sampler": "auto",
            "seed": 7,
            "constraints": ["topk-within-budget"],
            "reference_every": 8,
            "finalists": 2,
            "final_rounds": 2,
        },
        "service": {
            "engine": "sglang",
            "supervisor": "process" if command else "systemd",
            "unit": None if command else "sglang.service",
            "command": command,
            "fixed_flags": [{"flag": "--max-running-requests", "value": "64"}],
            "gpus_per_host": gpus_per_host,
        },
        "parameters": {
            "budget": _range(1, 64, "--speculative-ddtree-budget", 8),
            "topk": _range(1, 16, "--speculative-ddtree-topk-cap", 4),
            "window": {
                "kind": "categorical",
                "choices": [512, 2048, "none"],
                "log": False,
                "flag": "--speculative-draft-window-size",
                "env": None,
                "deployed": "none",
            },
        },
        "objective": {
            "buckets": [
                {"context_tokens": c, "concurrency": n, "output_tokens": 128, "weight": w}
                for c, n, w in MATRIX
            ],
            "score": {"aggregate": "arithmetic", "penalty": 1.5, "floor": 0.85},
            "coding": {"suite": "coding", "samples": 200, "sandbox": sandbox},
            "lossless": {"prompts": 8, "max_tokens": 128},
            "measure": {
                "target_half_width": 0.02,
                "least_windows": 8,
                "most_windows": 40,
                "window_s": 2.0,
            },
        },
    }


def _range(low: int, high: int, flag: str, deployed: int) -> dict[str, Any]:
    return {
        "kind": "int",
        "low": low,
        "high": high,
        "log": True,
        "choices": [],
        "flag": flag,
        "env": None,
        "deployed": deployed,
    }


def a_conclusion(
    kind: VerdictKind = VerdictKind.BETTER,
    *,
    trial: int | None = 1,
    ratio: float | None = 1.12,
    half_width: float = 0.03,
    sentence: str = "better by 12.0 % [9.0, 15.0] than the deployed configuration",
    parameters: Mapping[str, Any] | None = None,
    reference_score: float = 100.0,
) -> dict[str, Any]:
    """A conclusion as it is stored."""
    chosen = dict(DEPLOYED if parameters is None else parameters)
    interval = None if ratio is None else Interval(ratio - half_width, ratio + half_width)
    scaled = (
        Interval(interval.low * reference_score, interval.high * reference_score)
        if interval is not None and kind is VerdictKind.BETTER
        else None
    )
    finalists: tuple[Mapping[str, Any], ...] = ()
    if ratio is not None:
        finalists = (
            {
                "key": "one",
                "ratio": ratio,
                "interval": interval and asdict(interval),
                "changes": 2,
                "repeats": 2,
                "trial": trial or 1,
                "parameters": chosen,
            },
        )
    return asdict(
        Conclusion(
            kind=kind,
            sentence=sentence,
            trial=trial,
            parameters=chosen,
            score=None if ratio is None else ratio * reference_score,
            interval=scaled,
            ratio=ratio,
            ratio_interval=interval,
            reference_score=None if ratio is None else reference_score,
            finalists=finalists,
        )
    )


def a_study(
    *trials: StoredTrial,
    name: str = "demo",
    verdict: Mapping[str, Any] | None = None,
    definition: Mapping[str, Any] | None = None,
    restored: bool = True,
) -> StoredStudy:
    """A study of these trials on the hosts that they name."""
    hosts = sorted({start.host for trial in trials for start in trial.starts})
    return StoredStudy(
        name=name,
        definition=a_definition() if definition is None else definition,
        fingerprint="f" * 64,
        provenance={"autotune": "0.1.0", "python": "3.11.7"},
        created_at_s=BEGUN_S,
        verdict=verdict,
        hosts=tuple(
            StoredHost(host, {}, "lease", BEGUN_S, BEGUN_S + 86_400 if restored else None)
            for host in hosts
        ),
        trials=trials,
    )
