"""From a stored study to the next start's specification.  Pure but for the drawn claim id."""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Mapping
from dataclasses import replace

from autotune.answers import Answers
from autotune.config import StudyConfig
from autotune.measurement import BucketMeasurement
from autotune.objective import Reference, Rule
from autotune.objective_file import ScoreSection
from autotune.ordering import bucket_order
from autotune.pruning import PruneRule
from autotune.session import HostSession
from autotune.space import Values
from autotune.standing import as_reference, references_of
from autotune.stored import Role, StoredStudy
from autotune.trial import TrialSpec

__all__ = ["last_reference", "make_spec", "rule_of"]


def make_spec(
    config: StudyConfig,
    stored: StoredStudy,
    session: HostSession,
    *,
    number: int,
    values: Values,
    reference: bool,
    role: Role,
    round_: int,
    answers: Answers,
) -> TrialSpec:
    """The start of one trial's parameters on one host.

    Args:
        round_: Number of the final round, or of the repeat of the reference.
        reference: Whether the trial is a host's reference: it is compared with the first one.
    """
    host = session.plan.host
    claim_id = secrets.token_hex(16)
    nonce = session.recipe.nonce(f"{config.name}-{number}-{claim_id[:8]}")
    texts, fingerprint, seen = _first_reference_start(stored, host)
    last = None if reference else last_reference(stored, host)
    return TrialSpec(
        study=config.name,
        number=number,
        claim_id=claim_id,
        plan=session.plan,
        lease=session.lease,
        launch=session.recipe.launch(values, nonce),
        intents=session.recipe.intents(values),
        nonce=nonce,
        buckets=bucket_order(config.workload.buckets, seen),
        measure=replace(config.measure.settings(), ttft_p99_most_ms=config.score.ttft_p99_ms),
        answers=replace(
            answers.of_start(round_ if role is Role.FINAL else None),
            reference=texts,
            own=_own_positions(stored, host),
            own_texts=reference,
        ),
        prompts_seed=zlib.crc32(f"{config.name}/{config.study.seed}".encode()),
        prune=_prune_rule(config, stored, host, last) if role is Role.SEARCH else None,
        fingerprint={} if reference else fingerprint,
        role=str(Role.REFERENCE if reference else role),
    )


def last_reference(stored: StoredStudy, host: str) -> Reference | None:
    """The host's last reference with a score; see `as_reference` for its coding answers."""
    reference = None
    for _, start in references_of(stored, host):
        assert start.score is not None
        reference = as_reference(start, start.score.value, before=reference)
    return reference


def rule_of(section: ScoreSection) -> Rule:
    """The scoring rule of an objective."""
    return Rule(
        aggregate=section.aggregate,
        penalty=section.penalty,
        floor=section.floor,
        ttft_p99_ms=section.ttft_p99_ms,
        tpot_p99_ms=section.tpot_p99_ms,
    )


def _first_reference_start(
    stored: StoredStudy, host: str
) -> tuple[Mapping[str, str], Mapping[str, str], tuple[BucketMeasurement, ...]]:
    """Greedy texts, fingerprint and buckets of the host's first reference; empty without one."""
    for _, start in references_of(stored, host):
        if start.record is not None:
            return start.record.texts, start.record.fingerprint, start.buckets
    return {}, {}, ()


def _own_positions(stored: StoredStudy, host: str) -> tuple[int | None, ...]:
    """Where the host's references parted from the first one, and that from its second answers."""
    return tuple(
        at
        for _, start in references_of(stored, host)
        if start.record is not None and start.record.lossless is not None
        for at in start.record.lossless.positions.values()
    )


def _prune_rule(
    config: StudyConfig, stored: StoredStudy, host: str, reference: Reference | None
) -> PruneRule | None:
    """Arithmetic scores only: their optimistic end is a plain sum."""
    if reference is None or config.score.aggregate != "arithmetic":
        return None
    starts = [s for t in stored.trials for s in t.starts if s.host == host]
    # A start of a final round is not gated by itself, so it sets no mark for others.
    gated = [s for s in starts if s.role is not Role.FINAL and not s.violations]
    scored = [s.score.value for s in gated if s.score is not None]
    best: dict[str, float] = {}
    for bucket in (b for s in starts for b in s.buckets if b.valid):
        best[bucket.key] = max(best.get(bucket.key, 0.0), bucket.output_tok_per_s)
    return PruneRule(
        weights={b.key: b.weight for b in config.workload.buckets},
        best=best,
        incumbent=max(scored, default=0.0),
    )
