"""The driver: which start comes next on which host, and what its ending means.

The driver alone writes Optuna's tables and ours.  Runners pull: `next` gives a start for a free
host, `bucket` and `finish` take what it gave, `lost` says that its worker is gone.  Everything is
saved before it is told, so that a crash between the two is repaired by telling what was saved.
"""

from __future__ import annotations

import logging
import secrets
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from enum import Enum
from typing import Any

from autotune.answers import Answers
from autotune.benchmark.measure import MeasureSettings
from autotune.config import StudyConfig
from autotune.errors import (
    ConnectError,
    DropInConflict,
    FailureRateExceeded,
    LeaseLost,
    StudyError,
    TargetError,
)
from autotune.fingerprint import LIMIT
from autotune.measurement import BucketMeasurement, Ending, FailureRecord, StartRecord
from autotune.objective import Reference, Rule, Score, score_start
from autotune.pruning import PruneRule
from autotune.repository import Repository, Role, StoredStart, StoredStudy, StoredTrial
from autotune.rounds import REFERENCE, FinalStart, next_final
from autotune.session import HostSession
from autotune.space import Values
from autotune.study import TrialStudy
from autotune.supervisors.base import Owner
from autotune.trial import TrialSpec
from autotune.workload import Bucket

__all__ = ["Driver", "Nothing", "reconcile"]

log = logging.getLogger(__name__)

SAME_LINK_MOST = 2
"""A proof link broken this often stops the study: going on would only cost GPU time."""


class Nothing(Enum):
    """Why a host gets no start now."""

    WAIT = "something else must end first"
    DONE = "there is nothing left for this host"


class Driver:
    """One run of one study over its hosts."""

    def __init__(
        self,
        config: StudyConfig,
        *,
        study: TrialStudy,
        repository: Repository,
        sessions: Mapping[str, HostSession],
        owner: Owner,
        answers: Answers,
        finalists: Callable[[StoredStudy], tuple[int, ...]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.sessions = sessions
        self._study = study
        self._repository = repository
        self._owner = owner
        self._answers = answers
        self._finalists = finalists
        self._clock = clock
        self._began_s = clock()
        self._flying: dict[str, tuple[TrialSpec, Role, int]] = {}
        self._failures: list[FailureRecord] = []
        self._contenders: tuple[int, ...] | None = None
        # Hosts that had nothing to do; nothing can change that before a start has ended.
        self._waiting: set[str] = set()

    # -- what comes next --------------------------------------------------------------------------
    @property
    def stored(self) -> StoredStudy:
        return self._repository.load(self.config.name)

    def free_hosts(self) -> tuple[str, ...]:
        """Usable hosts on which nothing runs."""
        busy = {spec.plan.host for spec, _, _ in self._flying.values()}
        return tuple(h for h, s in self.sessions.items() if s.usable and h not in busy)

    def next(self, host: str) -> TrialSpec | Nothing:
        """The next start for a free host.

        Raises:
            StudyError: The study cannot go on.
        """
        stored = self.stored
        own = _references_of(stored, host)
        if not any(start.score is not None for _, start in own):
            return self._first_reference(stored, host)
        if self._search_left():
            if _starts_since_reference(stored, host) >= self.config.study.reference_every:
                return self._repeat(own[0][0], host, Role.REFERENCE, len(own))
            self._study.enqueue_once(self.config.enqueue)
            asked = self._study.ask()
            self._repository.begin_trial(
                self.config.name,
                asked.number,
                parameters=asked.values,
                reference=False,
                retry_of=asked.retry_of,
            )
            return self._start(asked.number, asked.values, host, Role.SEARCH, 0)
        if any(role is not Role.FINAL for _, role, _ in self._flying.values()):
            return Nothing.WAIT
        return self._final(stored, host, own[0][0])

    def take(self) -> TrialSpec | Nothing:
        """The next start for whichever host is free.

        Raises:
            StudyError: No host is left, or the study cannot go on.
        """
        for host in self.free_hosts():
            if host in self._waiting:
                continue
            step = self.next(host)
            if isinstance(step, TrialSpec):
                return step
            self._waiting.add(host)
        if self._flying:
            return Nothing.WAIT
        if not self.free_hosts():
            reasons = "; ".join(str(s.lost) for s in self.sessions.values())
            raise StudyError(f"no host is left: {reasons}")
        return Nothing.DONE

    # -- what came back ---------------------------------------------------------------------------
    def bucket(self, claim_id: str, bucket: BucketMeasurement) -> None:
        """Save a bucket at once."""
        self._repository.add_bucket(claim_id, bucket)

    def finish(
        self, claim_id: str, record: StartRecord, *, stopping: bool = False
    ) -> tuple[StartRecord, Score | None]:
        """Save how a start ended, then tell it.

        Args:
            stopping: The study stops anyway: the ending is not judged.

        Returns:
            The record as it was saved: a complete start without a score is a failed one.

        Raises:
            StudyError: The ending stops the study; it is saved and told nevertheless.
        """
        spec, role, _ = self._flying.pop(claim_id)
        self._waiting.clear()
        trial = self._trial(spec.number)
        score = self._score(trial, record) if record.ending is Ending.COMPLETE else None
        if record.ending is Ending.COMPLETE and score is None:
            record = replace(record, ending=Ending.FAILED, failure=_unscored(record))
        self._repository.end_start(claim_id, record, score)
        if role is not Role.FINAL and not trial.told:
            self._tell(trial, spec, record, score)
        self._judge_host(spec.plan.host, record)
        if trial.reference and score is not None and not stopping:
            self._require_room(spec.plan.host, record)
        if not stopping:
            self._judge_study(record)
        return record, score

    def lost(self, claim_id: str, reason: str, *, stopping: bool = False) -> None:
        """The worker of a start is gone: nobody's fault, queued again once."""
        if claim_id in self._flying:
            failure = FailureRecord(kind="WorkerLost", message=reason)
            record = StartRecord(Ending.FAILED, failure=failure, ended_at_s=time.time())
            self.finish(claim_id, record, stopping=stopping)

    def abandon(self, reason: str) -> None:
        """The study is stopped: everything in flight is ended and queued again."""
        for claim_id in list(self._flying):
            self.lost(claim_id, reason, stopping=True)

    # -- inside: making starts --------------------------------------------------------------------
    def _search_left(self) -> bool:
        budget = self.config.study
        hours = (self._clock() - self._began_s) / 3600
        if budget.hours is not None and hours >= budget.hours:
            return False
        spent = budget.gpu_hours is not None and self._gpu_hours() >= budget.gpu_hours
        if spent or budget.trials is None:
            return not spent
        flying = {
            spec.number for spec, _, _ in self._flying.values() if not self._trial(spec.number).told
        }
        return self._study.ended() + len(flying) < budget.trials

    def _gpu_hours(self) -> float:
        seconds = sum(
            start.record.ended_at_s - start.record.started_at_s
            for trial in self.stored.trials
            for start in trial.starts
            if start.record is not None and start.record.ended_at_s
        )
        return seconds / 3600 * self.config.service.gpus_per_host

    def _first_reference(self, stored: StoredStudy, host: str) -> TrialSpec | Nothing:
        failed = [
            start
            for trial in stored.trials
            if trial.reference
            for start in trial.starts
            if start.host == host and start.owner == self._owner
        ]
        if len(failed) >= 2:
            failure = failed[-1].record.failure if failed[-1].record else None
            reason = failure.message if failure else "no score"
            self.sessions[host].lose(
                TargetError(f"the reference could not be measured on {host}: {reason}")
            )
            return Nothing.DONE
        values = self.config.space.effective(self.config.space.deployed())
        asked = self._study.add_reference(values, host=host)
        self._repository.begin_trial(
            self.config.name, asked.number, parameters=values, reference=True, retry_of=None
        )
        return self._start(asked.number, values, host, Role.REFERENCE, 0)

    def _final(self, stored: StoredStudy, host: str, reference: StoredTrial) -> TrialSpec | Nothing:
        if self._contenders is None:
            self._contenders = self._finalists(stored)
        finals = [
            FinalStart(
                start.round,
                REFERENCE if trial.reference else trial.number,
                start.host,
                _scored(start),
            )
            for trial in stored.trials
            for start in trial.starts
            if start.role is Role.FINAL and (start.record is not None or self._mine(start))
        ]
        found = (
            next_final(
                self._contenders,
                self.config.study.final_rounds,
                finals,
                host=host,
                usable_hosts=[h for h, s in self.sessions.items() if s.usable],
            )
            if self._contenders
            else None
        )
        if found is not None:
            round_, contender = found
            trial = reference if contender == REFERENCE else self._trial(contender)
            return self._repeat(trial, host, Role.FINAL, round_)
        if _starts_since_reference(stored, host) > 0:
            own = _references_of(stored, host)
            return self._repeat(reference, host, Role.REFERENCE, len(own))
        return Nothing.WAIT if self._flying else Nothing.DONE

    def _mine(self, start: StoredStart) -> bool:
        return start.claim_id in self._flying

    def _repeat(self, trial: StoredTrial, host: str, role: Role, round_: int) -> TrialSpec:
        return self._start(trial.number, trial.parameters, host, role, round_)

    def _start(self, number: int, values: Values, host: str, role: Role, round_: int) -> TrialSpec:
        session = self.sessions[host]
        claim_id = secrets.token_hex(16)
        nonce = session.recipe.nonce(f"{self.config.name}-{number}-{claim_id[:8]}")
        trial = self._trial(number)
        reference = None if trial.reference else self._reference(host)
        spec = TrialSpec(
            study=self.config.name,
            number=number,
            claim_id=claim_id,
            plan=session.plan,
            lease=session.lease,
            launch=session.recipe.launch(values, nonce),
            intents=session.recipe.intents(values),
            nonce=nonce,
            buckets=_order(self.config.workload.buckets),
            measure=_settings(self.config),
            answers=replace(self._answers, reference=self._first_reference_start(host, trial)[0]),
            prompts_seed=zlib.crc32(f"{self.config.name}/{self.config.study.seed}".encode()),
            prune=self._prune_rule(host, reference) if role is Role.SEARCH else None,
            fingerprint=self._first_reference_start(host, trial)[1],
            role=str(Role.REFERENCE if trial.reference else role),
        )
        self._repository.begin_start(
            self.config.name,
            number,
            role=role,
            round_=round_,
            host=host,
            claim_id=claim_id,
            nonce=nonce.value,
            owner=self._owner,
            argv=spec.launch.texts(),
        )
        self._flying[claim_id] = (spec, role, round_)
        return spec

    def _trial(self, number: int) -> StoredTrial:
        return next(t for t in self.stored.trials if t.number == number)

    def _reference(self, host: str) -> Reference | None:
        """The host's last reference."""
        scored = [
            start for _, start in _references_of(self.stored, host) if start.score is not None
        ]
        return _as_reference(scored[-1]) if scored else None

    def _first_reference_start(
        self, host: str, trial: StoredTrial
    ) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Greedy texts and fingerprint of the host's first reference; empty for a reference."""
        if not trial.reference:
            for _, start in _references_of(self.stored, host):
                if start.record is not None:
                    return start.record.texts, start.record.fingerprint
        return {}, {}

    def _prune_rule(self, host: str, reference: Reference | None) -> PruneRule | None:
        """Arithmetic scores only: their optimistic end is a plain sum."""
        if reference is None or self.config.score.aggregate != "arithmetic":
            return None
        starts = [s for t in self.stored.trials for s in t.starts if s.host == host]
        scored = [s.score.value for s in starts if s.score is not None and not s.violations]
        best: dict[str, float] = {}
        for bucket in (b for s in starts for b in s.buckets if b.valid):
            best[bucket.key] = max(best.get(bucket.key, 0.0), bucket.output_tok_per_s)
        return PruneRule(
            weights={b.key: b.weight for b in self.config.workload.buckets},
            best=best,
            incumbent=max(scored, default=0.0),
        )

    # -- inside: taking endings -------------------------------------------------------------------
    def _score(self, trial: StoredTrial, record: StartRecord) -> Score | None:
        host = self._flying_host(record, trial)
        return score_start(
            record.buckets,
            record.coding,
            workload=self.config.workload,
            rule=rule_of(self.config),
            reference=None if trial.reference else self._reference(host),
        )

    @staticmethod
    def _flying_host(record: StartRecord, trial: StoredTrial) -> str:
        return trial.starts[-1].host

    def _tell(
        self, trial: StoredTrial, spec: TrialSpec, record: StartRecord, score: Score | None
    ) -> None:
        self._study.note(trial.number, _attributes(spec, record, score))
        number, state = trial.number, record.ending
        if state is Ending.COMPLETE and score is not None:
            violated = bool(score.violations)
            state = Ending.INFEASIBLE if violated else Ending.COMPLETE
            self._study.tell_complete(number, score.ratio, violated=violated)
        elif state is Ending.INFEASIBLE:
            self._study.tell_infeasible(number)
        elif state is Ending.PRUNED:
            self._study.tell_pruned(number)
        else:
            self._study.tell_failed(number)
            if trial.retry_of is None and not trial.reference:
                self._study.queue_again(number)
        self._repository.end_trial(self.config.name, number, state)
        self._repository.mark_told(self.config.name, number)

    def _require_room(self, host: str, record: StartRecord) -> None:
        """The largest bucket must fit into what the reference admits at once."""
        largest = self.config.workload.largest_concurrency
        limit = int(record.fingerprint.get(LIMIT, largest))
        if largest > limit:
            raise StudyError(
                f"a bucket asks for {largest} requests at once, but the reference on {host} "
                f"admits {limit}",
                hint="add --max-running-requests to the fixed flags, or drop the bucket",
            )

    def _judge_host(self, host: str, record: StartRecord) -> None:
        """A host that cannot be reached or is no longer ours gets no further start."""
        if record.failure is not None and record.failure.kind in _HOST_IS_GONE:
            self.sessions[host].lose(TargetError(record.failure.message))

    def _judge_study(self, record: StartRecord) -> None:
        """The same failure again and again would only cost GPU time."""
        if record.failure is None or record.ending is not Ending.FAILED:
            self._failures.clear() if record.ending is Ending.COMPLETE else None
            return
        failure = record.failure
        if failure.kind == DropInConflict.__name__:
            raise StudyError(f"the study stops: {failure.message}")
        self._failures.append(failure)
        if failure.link:
            same = [f for f in self._failures if f.link == failure.link]
            if len(same) >= SAME_LINK_MOST:
                raise FailureRateExceeded(
                    f"the study stops: the same proof link broke twice: {failure.message}",
                    hint="the server does not run what it is told; no such trial was scored",
                )
        most = self.config.study.same_failure_most
        if [f.kind for f in self._failures[-most:]] == [failure.kind] * most:
            raise FailureRateExceeded(
                f"the study stops: {most} starts in a row failed alike: {failure.message}"
            )


_HOST_IS_GONE = frozenset(
    {
        *(LeaseLost.__name__, ConnectError.__name__, "HostKeyError", "AuthenticationError"),
        *("CommandTimeout", "RestoreFailed"),
    }
)


def reconcile(
    study: TrialStudy, repository: Repository, name: str, *, alive: Callable[[Owner], bool]
) -> int:
    """Repair what a killed driver left: tell what was saved, free what was not.

    Args:
        alive: Whether the owner of a start still lives.

    Returns:
        How many trials were queued again.
    """
    stored = {trial.number: trial for trial in repository.load(name).trials}
    again = 0
    for number in study.running():
        trial = stored.get(number)
        last = trial.starts[-1] if trial is not None and trial.starts else None
        if last is not None and last.record is None and alive(last.owner):
            continue
        if trial is not None and last is not None and last.record is not None:
            again += _tell_saved(study, repository, name, trial, last)
            continue
        study.tell_failed(number)
        if trial is not None:
            repository.end_trial(name, number, Ending.FAILED)
            repository.mark_told(name, number)
        if trial is None or not trial.reference:
            study.queue_again(number)
            again += 1
    return again


def _tell_saved(
    study: TrialStudy, repository: Repository, name: str, trial: StoredTrial, start: StoredStart
) -> int:
    """Tell a result that was saved but not told; returns 1 when the trial is queued again."""
    record, again = start.record, 0
    assert record is not None
    state = record.ending
    if state is Ending.COMPLETE and start.score is not None:
        study.note(trial.number, {"host": start.host, "buckets": _bucket_figures(start.buckets)})
        study.tell_complete(trial.number, start.score.ratio, violated=bool(start.violations))
        state = Ending.INFEASIBLE if start.violations else state
    elif state is Ending.INFEASIBLE:
        study.tell_infeasible(trial.number)
    elif state is Ending.PRUNED:
        study.tell_pruned(trial.number)
    else:
        study.tell_failed(trial.number)
        if not trial.reference and trial.retry_of is None:
            study.queue_again(trial.number)
            again = 1
    repository.end_trial(name, trial.number, state)
    repository.mark_told(name, trial.number)
    return again


def rule_of(config: StudyConfig) -> Rule:
    """The scoring rule of an objective."""
    section = config.score
    return Rule(
        aggregate=section.aggregate,
        penalty=section.penalty,
        floor=section.floor,
        ttft_p99_ms=section.ttft_p99_ms,
        tpot_p99_ms=section.tpot_p99_ms,
    )


def _settings(config: StudyConfig) -> MeasureSettings:
    return MeasureSettings(**config.measure.model_dump())


def _order(buckets: tuple[Bucket, ...]) -> tuple[Bucket, ...]:
    """The fullest bucket first: it shows an out-of-memory before the others are paid for.

    Then by weight: the score is decided, and a hopeless start stopped, after the fewest buckets.
    """
    fullest = max(buckets, key=lambda b: (b.context_tokens * b.concurrency, b.weight))
    rest = sorted((b for b in buckets if b is not fullest), key=lambda b: -b.weight)
    return (fullest, *rest)


def _references_of(stored: StoredStudy, host: str) -> list[tuple[StoredTrial, StoredStart]]:
    """Reference starts of a host that ended with a score, oldest first."""
    found = [
        (trial, start)
        for trial in stored.trials
        if trial.reference
        for start in trial.starts
        if start.host == host and start.score is not None
    ]
    return sorted(found, key=lambda pair: pair[1].started_at_s)


def _starts_since_reference(stored: StoredStudy, host: str) -> int:
    """Starts of other parameters on a host since its last scored reference."""
    own = _references_of(stored, host)
    since = own[-1][1].started_at_s if own else 0.0
    return sum(
        start.host == host and start.started_at_s > since and not trial.reference
        for trial in stored.trials
        for start in trial.starts
    )


def _as_reference(start: StoredStart) -> Reference:
    assert start.score is not None
    coding = start.record.coding if start.record else None
    return Reference(
        throughput={b.key: b.output_tok_per_s for b in start.buckets},
        score=start.score.value,
        samples=coding.samples if coding else {},
    )


def _scored(start: StoredStart) -> bool | None:
    return None if start.record is None else start.score is not None


def _unscored(record: StartRecord) -> FailureRecord:
    bad = [bucket for bucket in record.buckets if not bucket.valid]
    if bad:
        return FailureRecord("InvalidBucket", f"bucket {bad[0].key} is not valid: {bad[0].reason}")
    return FailureRecord("InvalidBucket", "a bucket is missing")


def _bucket_figures(buckets: tuple[BucketMeasurement, ...]) -> dict[str, dict[str, Any]]:
    return {
        b.key: {"output_tok_per_s": b.output_tok_per_s, "accept_length": b.accept_length}
        for b in buckets
        if b.valid
    }


def _attributes(spec: TrialSpec, record: StartRecord, score: Score | None) -> dict[str, Any]:
    """What the dashboard shows beside a trial."""
    attributes: dict[str, Any] = {
        "host": spec.plan.host,
        "ending": str(record.ending),
        "buckets": _bucket_figures(record.buckets),
        "parameters": {intent.name: intent.value for intent in spec.intents},
        "proof_links": len(record.proof),
    }
    for bucket in record.buckets:
        attributes[f"tok/s {bucket.key}"] = round(bucket.output_tok_per_s, 2)
    if score is not None:
        attributes["score"] = score.value
        attributes["score_interval"] = [score.interval.low, score.interval.high]
        attributes["violations"] = list(score.violations)
    if record.coding is not None:
        attributes["coding"] = {"passed": record.coding.passed, "failed": record.coding.failed}
    if record.failure is not None:
        attributes["failure"] = asdict(record.failure)
    return attributes
