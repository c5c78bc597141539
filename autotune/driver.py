"""The driver: which start comes next on which host, and what its ending means.

The driver alone writes Optuna's tables and ours.  Runners pull: `next` gives a start for a free
host, `bucket` and `finish` take what it gave, `lost` says that its worker is gone.  Everything is
saved before it is told, so that a crash between the two is repaired by telling what was saved.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum

from autotune.answers import Answers
from autotune.config import StudyConfig
from autotune.endings import interrupted, tell_ending, trial_attributes, unscored
from autotune.errors import StorageError, StudyError, TargetError
from autotune.judging import Judge, host_is_gone, require_room
from autotune.measurement import BucketMeasurement, Ending, FailureRecord, StartRecord
from autotune.objective import Score, score_start
from autotune.repository import Repository
from autotune.rounds import REFERENCE, next_final, plan_rounds
from autotune.session import HostSession
from autotune.space import Values
from autotune.standing import (
    failed_references,
    final_starts,
    references_of,
    starts_since_reference,
)
from autotune.starting import last_reference, make_spec, rule_of
from autotune.stored import Role, StoredStart, StoredStudy, StoredTrial
from autotune.study import TrialStudy
from autotune.supervisors.base import Owner
from autotune.trial import TrialSpec

__all__ = ["Driver", "Nothing"]

REFERENCE_TRIES = 2
"""Starts of a reference in a row that may fail before its host is given up."""


log = logging.getLogger(__name__)

SAVE_PATIENCE_S, SAVE_EVERY_S = 600.0, 5.0
"""How long the end of a start is tried to be saved: about what making it again would cost."""


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
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.config = config
        self.sessions = sessions
        self._study = study
        self._repository = repository
        self._owner = owner
        self._answers = answers
        self._finalists = finalists
        self._clock = clock
        self._pause = pause
        self._began_s = clock()
        self._flying: dict[str, tuple[TrialSpec, Role, int]] = {}
        self._judge = Judge(config.study.same_failure_most)
        self._starts: Counter[str] = Counter()
        self._contenders: tuple[int, ...] | None = None
        self._rounds = range(0)
        # Hosts that had nothing to do; nothing can change that before a start has ended.
        self._waiting: set[str] = set()

    # -- what comes next --------------------------------------------------------------------------
    @property
    def stored(self) -> StoredStudy:
        return self._repository.load(self.config.name)

    def free_hosts(self) -> tuple[str, ...]:
        """Usable hosts on which nothing runs, the one with the fewest starts first."""
        busy = {spec.plan.host for spec, _, _ in self._flying.values()}
        free = [h for h, s in self.sessions.items() if s.usable and h not in busy]
        return tuple(sorted(free, key=lambda host: self._starts[host]))

    def next(self, host: str) -> TrialSpec | Nothing:
        """The next start for a free host.

        Raises:
            StudyError: The study cannot go on.
        """
        stored = self.stored
        own = references_of(stored, host)
        if not own:
            return self._first_reference(stored, host)
        if self._search_left():
            if starts_since_reference(stored, host) >= self.config.study.reference_every:
                return self._reference_again(stored, host, own)
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
            if self.sessions[host].usable:
                self._waiting.add(host)
            else:  # given up just now: others may take over what was its own
                self._waiting.clear()
                return self.take()
        if self._flying:
            return Nothing.WAIT
        if not self.free_hosts():
            reasons = "; ".join(str(s.lost) for s in self.sessions.values())
            raise StudyError(f"no host is left: {reasons}")
        return Nothing.DONE

    # -- what came back ---------------------------------------------------------------------------
    def bucket(self, claim_id: str, bucket: BucketMeasurement) -> None:
        """Save a bucket at once; one that cannot be saved is saved with the end of its start."""
        try:
            self._repository.add_bucket(claim_id, bucket)
        except StorageError as error:
            log.warning("bucket %s is not saved yet: %s", bucket.key, error)

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
        complete = record.ending is Ending.COMPLETE
        score = self._score(trial, record, spec.plan.host) if complete else None
        if record.ending is Ending.COMPLETE and score is None:
            record = replace(record, ending=Ending.FAILED, failure=unscored(record))
        self._save(claim_id, record, score, patience_s=0.0 if stopping else SAVE_PATIENCE_S)
        if role is not Role.FINAL and not trial.told:
            self._tell(trial, spec, record, score)
        if host_is_gone(record.failure) and record.failure is not None:
            self.sessions[spec.plan.host].lose(TargetError(record.failure.message))
        if trial.reference and score is not None and not stopping:
            require_room(self.config.workload.largest_concurrency, spec.plan.host, record)
        if not stopping:
            self._judge.judge(record, starts=sum(self._starts.values()))
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
            self.finish(claim_id, interrupted(reason, at_s=time.time()), stopping=True)

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
            start.record.stop_s + start.record.load_s + start.record.measure_s
            for trial in self.stored.trials
            for start in trial.starts
            if start.record is not None and start.record.ended_at_s
        )
        return seconds / 3600 * self.config.service.gpus_per_host

    def _first_reference(self, stored: StoredStudy, host: str) -> TrialSpec | Nothing:
        failed = failed_references(stored, host, since=0, owner=self._owner)
        if len(failed) >= REFERENCE_TRIES:
            return self._give_up(host, failed[-1])
        values = self.config.space.effective(self.config.space.deployed())
        asked = self._study.add_reference(values, host=host)
        self._repository.begin_trial(
            self.config.name, asked.number, parameters=values, reference=True, retry_of=None
        )
        return self._start(asked.number, values, host, Role.REFERENCE, 0)

    def _reference_again(
        self, stored: StoredStudy, host: str, own: list[tuple[StoredTrial, StoredStart]]
    ) -> TrialSpec | Nothing:
        """A repeat of the reference; a host on which it fails twice in a row is of no use."""
        failed = failed_references(stored, host, since=own[-1][1].order, owner=self._owner)
        if len(failed) >= REFERENCE_TRIES:
            return self._give_up(host, failed[-1])
        return self._repeat(own[0][0], host, Role.REFERENCE, len(own))

    def _give_up(self, host: str, last: StoredStart) -> Nothing:
        failure = last.record.failure if last.record else None
        reason = failure.message if failure else "no score"
        self.sessions[host].lose(
            TargetError(f"the reference could not be measured on {host}: {reason}")
        )
        return Nothing.DONE

    def _final(self, stored: StoredStudy, host: str, reference: StoredTrial) -> TrialSpec | Nothing:
        if self._contenders is None:
            self._contenders = self._finalists(stored)
            self._rounds = plan_rounds(
                self._contenders, self.config.study.final_rounds, final_starts(stored)
            )
        usable = [h for h, s in self.sessions.items() if s.usable]
        found = next_final(
            self._contenders,
            self._rounds,
            final_starts(stored, owner=self._owner),
            host=host,
            usable_hosts=usable,
        )
        if found is not None:
            round_, contender = found
            trial = reference if contender == REFERENCE else self._trial(contender)
            return self._repeat(trial, host, Role.FINAL, round_)
        if starts_since_reference(stored, host) > 0:
            return self._reference_again(stored, host, references_of(stored, host))
        return Nothing.WAIT if self._flying else Nothing.DONE

    def _repeat(self, trial: StoredTrial, host: str, role: Role, round_: int) -> TrialSpec:
        return self._start(trial.number, trial.parameters, host, role, round_)

    def _start(self, number: int, values: Values, host: str, role: Role, round_: int) -> TrialSpec:
        spec = make_spec(
            self.config,
            self.stored,
            self.sessions[host],
            number=number,
            values=values,
            reference=self._trial(number).reference,
            role=role,
            answers=self._answers,
        )
        self._repository.begin_start(
            self.config.name,
            number,
            role=role,
            round_=round_,
            host=host,
            claim_id=spec.claim_id,
            nonce=spec.nonce.value,
            owner=self._owner,
            argv=spec.launch.texts(),
        )
        self._flying[spec.claim_id] = (spec, role, round_)
        self._starts[host] += 1
        return spec

    def _trial(self, number: int) -> StoredTrial:
        return next(t for t in self.stored.trials if t.number == number)

    # -- inside: taking endings -------------------------------------------------------------------
    def _save(
        self, claim_id: str, record: StartRecord, score: Score | None, *, patience_s: float
    ) -> None:
        """Save the end of a start; what was measured for minutes waits for a full disk to be freed.

        Raises:
            StorageError: It could not be saved for so long.
        """
        ends_s = self._clock() + patience_s
        while True:
            try:
                self._repository.end_start(claim_id, record, score)
            except StorageError as error:
                if self._clock() >= ends_s:
                    raise
                log.warning("a measured start cannot be saved, trying again: %s", error)
                self._pause(SAVE_EVERY_S)
            else:
                return

    def _score(self, trial: StoredTrial, record: StartRecord, host: str) -> Score | None:
        return score_start(
            record.buckets,
            record.coding,
            workload=self.config.workload,
            rule=rule_of(self.config.score),
            reference=None if trial.reference else last_reference(self.stored, host),
            lossless=record.lossless,
        )

    def _tell(
        self,
        trial: StoredTrial,
        spec: TrialSpec,
        record: StartRecord,
        score: Score | None,
    ) -> None:
        self._study.note(trial.number, trial_attributes(spec, record, score))
        saved = (score.ratio, score.violations) if score is not None else None
        trials = self.stored.trials
        state = tell_ending(self._study, trial, record, saved, trials=trials)
        self._repository.end_trial(self.config.name, trial.number, state)
        self._repository.mark_told(self.config.name, trial.number)
