"""The driver: which start comes next on which host, and what its ending means.

Drivers alone write Optuna's tables and ours.  Runners pull: `take` gives a start for a free host,
`bucket` and `finish` take what it gave, `lost` says that its worker is gone.  Everything is saved
before it is told, so that a crash between the two is repaired by telling what was saved.  Several
drivers may share a study: what comes next is decided by one at a time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum

from autotune.answers import Answers
from autotune.config import StudyConfig
from autotune.endings import interrupted, reconcile, unscored
from autotune.errors import StorageAway, StudyError
from autotune.finals import Finals
from autotune.judging import Judge, gone, require_room, silent_most_s
from autotune.measurement import BucketMeasurement, Ending, FailureRecord, StartRecord
from autotune.metrics import Figures, figures_of
from autotune.mirror import Mirror
from autotune.objective import Score, score_start
from autotune.outage import Outage
from autotune.outbox import Flight, Outbox
from autotune.raw import RawRequests
from autotune.raw_store import RawStore
from autotune.repository import Repository
from autotune.roster import Roster
from autotune.rounds import REFERENCE
from autotune.session import HostSession
from autotune.spool import Spool, Spooled
from autotune.standing import references_of, search_left, starts_since_reference, time_is_up
from autotune.starting import last_reference, rule_of
from autotune.starts import Starts
from autotune.stored import Role, StoredStart, StoredStudy, StoredTrial
from autotune.study import TrialStudy
from autotune.supervisors.base import Owner
from autotune.surroundings import ALONE, Surroundings
from autotune.trial import TrialSpec

__all__ = ["Driver", "Nothing"]

log = logging.getLogger(__name__)

REVIEW_S = 15.0
"""How often a driver that is not alone looks for trials of dead ones."""


class Nothing(Enum):
    """Why a host gets no start now."""

    WAIT = "something else must end first"
    DONE = "there is nothing left for this host"


class Driver:
    """One run of one study over its hosts.

    Args:
        sessions: Hosts that this driver holds, by name; may change between two calls of `take`.
        surroundings: Hosts that come and go, and the other drivers.
        spool: Where results wait for the database; None keeps them in memory.
        raw: Where the requests of each start are kept; None keeps none.
    """

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
        enough: Callable[[StoredStudy], str] = lambda stored: "",
        mirror: Mirror | None = None,
        surroundings: Surroundings = ALONE,
        spool: Spool | None = None,
        raw: RawStore | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.sessions = sessions
        self.stopped = False
        """Whether no further start may begin."""
        self._study = study
        self._repository = repository
        self._owner = owner
        self._around = surroundings
        self._enough = enough
        self._searched = False
        self._done = False
        self._clock = clock
        self._began_s = clock()
        self._roster = Roster(repository, config.name)
        self._mirror = mirror or Mirror(repository, config.name)
        self._raw = raw
        self._outbox = Outbox(repository, study, self._mirror, spool)
        self._made = Starts(
            config,
            study=study,
            repository=repository,
            mirror=self._mirror,
            roster=self._roster,
            sessions=sessions,
            owner=owner,
            answers=answers,
            clock=clock,
        )
        self._flying = self._made.flying
        self._silent: dict[str, Flight] = {}
        self._judge = Judge(config.study.same_failure_most)
        self._finals = Finals(config, owner, finalists)
        # Hosts that had nothing to do, and the revision of the study that they had nothing in.
        self._idle: dict[str, Nothing] = {}
        self._idle_revision = -1
        self._outage = Outage(clock)
        self._reviewed_s = self._began_s

    # -- what comes next --------------------------------------------------------------------------
    @property
    def stored(self) -> StoredStudy:
        """The study as it was at the last look."""
        return self._mirror.stored

    @property
    def concludes(self) -> bool:
        """Whether this driver names the winner: it measured the final rounds, to their end."""
        return self._finals.ours and self._done

    def figures(self) -> Figures:
        """One look at the run, from any thread."""
        return figures_of(
            self._mirror.stored,
            list(self.sessions.values()),
            flying=len(self._flying),
            starts=self._made.count(),
            waiting=len(self._outbox),
            storage_away=self._outage.on,
        )

    def flying(self) -> tuple[int, ...]:
        """Numbers of the trials whose end will be told from here."""
        return tuple(f.spec.number for f in list(self._flying.values()) if f.role is not Role.FINAL)

    def free_hosts(self) -> tuple[str, ...]:
        """Usable hosts on which nothing runs, the one with the fewest starts first."""
        busy = self._busy()
        free = [h for h, s in self.sessions.items() if s.usable and h not in busy]
        return tuple(sorted(free, key=lambda host: self._made.on(host)))

    def stop(self) -> None:
        """Begin no further start; those under way end as they do."""
        self.stopped = True

    def take(self) -> TrialSpec | Nothing:
        """The next start for whichever host is free.

        Raises:
            StudyError: No host is left, or the study cannot go on.
            StorageAway: The database was away for too long.
        """
        self._around.step(self._busy())
        self._lose_silent()
        try:
            self._outbox.flush()
            self._mirror.refresh()
            self._review()
            step = self._nothing() if self.stopped else self._take()
            if not self.stopped:  # what is stopped before its end is no basis for a verdict
                self._done = step is Nothing.DONE
        except StorageAway as error:
            self._outage.met(error)
            return Nothing.WAIT
        self._outage.over()
        return step

    def next(self, host: str) -> TrialSpec | Nothing:
        """The next start for a free host.

        Raises:
            StudyError: The study cannot go on.
        """
        self._mirror.refresh()
        return self._next(host)

    def _next(self, host: str) -> TrialSpec | Nothing:
        own = references_of(self.stored, host)
        if not own:
            return self._made.first_reference(host) or Nothing.DONE
        if search_left(self.stored, self.config, hours=self._hours()) and not self._settled():
            stale = all(start.owner != self._owner for _, start in own)  # of an earlier run
            since = starts_since_reference(self.stored, host)
            if stale or since >= self.config.study.reference_every:
                return self._made.reference_again(host) or Nothing.DONE
            with self._roster.turn():
                if search_left(self._mirror.refresh(), self.config, hours=self._hours()):
                    return self._made.search(host)
        if any(flight.role is not Role.FINAL for flight in self._flying.values()):
            return Nothing.WAIT
        if any(not trial.told for trial in self.stored.trials):
            # Of another driver, living or dead: what comes of it is not known yet.
            return (
                Nothing.DONE
                if time_is_up(self.stored, self.config, hours=self._hours())
                else Nothing.WAIT
            )
        return self._final(host, own[0][0])

    # -- what came back ---------------------------------------------------------------------------
    def heard(self, claim_id: str) -> None:
        """The worker of a start gave a sign of life."""
        if claim_id in self._flying:
            self._flying[claim_id].heard_s = self._clock()

    def bucket(self, claim_id: str, bucket: BucketMeasurement) -> None:
        """Save a bucket at once."""
        self.heard(claim_id)
        if claim_id in self._flying:
            try:
                self._outbox.bucket(self._flying[claim_id], bucket)
            except StorageAway as error:
                self._outage.met(error)

    def requests(self, claim_id: str, requests: RawRequests) -> None:
        """Keep the requests of a bucket until their start ends."""
        self.heard(claim_id)
        if self._raw is not None and claim_id in self._flying:
            self._flying[claim_id].requests.append(requests)

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
        flight = self._flying.get(claim_id) or self._silent.pop(claim_id, None)
        if flight is None:
            self._repository.end_start(claim_id, record, None)
            return record, None
        late = claim_id not in self._flying  # given up as silent, and yet it has ended
        host, reference = flight.spec.plan.host, flight.spec.role == Role.REFERENCE
        score = None
        if record.ending is Ending.COMPLETE:
            score = self._score(record, host, role=flight.role, reference=reference)
            if score is None:
                record = replace(record, ending=Ending.FAILED, failure=unscored(record))
        self._outbox.put(flight, Spooled(claim_id, record, score))
        self._flying.pop(claim_id, None)
        if self._raw is not None:
            self._raw.keep(
                flight.spec.number, host=host, claim_id=claim_id, measured=flight.requests
            )
        self._idle.clear()
        try:
            self._outbox.flush()
        except StorageAway as error:
            self._outage.met(error)
        if late:  # the host and the study were judged when it was given up
            return record, score
        if host in self.sessions and (reason := gone(record.failure)) is not None:
            self.sessions[host].lose(reason)
        if reference and score is not None and not stopping:
            require_room(self.config.workload.largest_concurrency, host, record)
        if not stopping:
            self._judge.judge(record, starts=self._made.count())
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

    # -- inside: looking around -------------------------------------------------------------------
    def _busy(self) -> frozenset[str]:
        return frozenset(flight.spec.plan.host for flight in self._flying.values())

    def _take(self) -> TrialSpec | Nothing:
        if self._idle_revision != self._mirror.revision:
            self._idle.clear()
            self._idle_revision = self._mirror.revision
        for host in self.free_hosts():
            if host in self._idle:
                continue
            step = self._next(host)
            if isinstance(step, TrialSpec):
                return step
            if self.sessions[host].usable:
                self._idle[host] = step
            else:  # given up just now: others may take over what was its own
                self._idle.clear()
                return self._take()
        free = self.free_hosts()
        if self._flying or any(self._idle.get(host) is Nothing.WAIT for host in free):
            return Nothing.WAIT
        if not free:
            if self._around.expecting():
                return Nothing.WAIT
            reasons = "; ".join(str(s.lost) for s in self.sessions.values() if s.lost)
            raise StudyError(f"no host is left: {reasons or 'every host was drained'}")
        return Nothing.DONE

    def _nothing(self) -> Nothing:
        return Nothing.WAIT if self._flying else Nothing.DONE

    def _lose_silent(self) -> None:
        """A worker that says nothing for longer than everything it waits for hangs."""
        most_s = silent_most_s(self.config)
        for claim_id, flight in list(self._flying.items()):
            silent_s = self._clock() - flight.heard_s
            if silent_s > most_s:
                self._silent[claim_id] = flight
                self.lost(claim_id, f"nothing was heard of its worker for {silent_s:.0f} s")

    def _review(self) -> None:
        """Free the trials of dead drivers, once; nobody else decides meanwhile."""
        if self._clock() - self._reviewed_s < REVIEW_S and not self._outage.on:
            return
        self._reviewed_s = self._clock()
        others = any(start.owner != self._owner for start in self._mirror.open_starts())
        # What was under way when the database went away is looked at when it is back.
        if not others and not self._outage.on:
            return
        alive = self._around.living()

        def lives(start: StoredStart) -> bool:
            if start.owner == self._owner:
                return start.claim_id in self._flying or start.claim_id in self._outbox
            return alive(start.owner)

        with self._roster.turn():
            stored = self._mirror.refresh()
            again = reconcile(self._study, self._repository, stored, lives=lives)
        if again:
            log.warning("%d trials of a dead driver are queued again", again)
        self._mirror.refresh()

    # -- inside: deciding -------------------------------------------------------------------------
    def _settled(self) -> bool:
        """Whether another trial is not worth its cost; then the search is over for this run."""
        if self.config.study.least_gain and not self._searched and not self._study.waiting():
            reason = self._enough(self.stored)
            if reason:
                log.info("the search ends: %s", reason)
                self._searched = True
        return self._searched

    def _hours(self) -> float:
        return (self._clock() - self._began_s) / 3600

    def _final(self, host: str, reference: StoredTrial) -> TrialSpec | Nothing:
        found = self._finals.next(
            self.stored,
            host,
            usable=[h for h, s in self.sessions.items() if s.usable],
            conclude_by=lambda: self._roster.conclude_by(self._owner, alive=self._around.living()),
        )
        if found is not None:
            round_, contender = found
            trial = reference if contender == REFERENCE else self._mirror.trial(contender)
            return self._made.again(trial, host, Role.FINAL, round_)
        if starts_since_reference(self.stored, host) > 0:
            return self._made.reference_again(host) or Nothing.DONE
        return self._nothing()

    def _score(
        self, record: StartRecord, host: str, *, role: Role, reference: bool
    ) -> Score | None:
        return score_start(
            record.buckets,
            # The answers of the final rounds are judged together, by the verdict.
            record.coding if role is not Role.FINAL else None,
            workload=self.config.workload,
            rule=rule_of(self.config.score),
            reference=None if reference else last_reference(self.stored, host),
            lossless=record.lossless,
        )
