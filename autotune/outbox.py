"""Endings on their way into the database: spooled first, saved, told, and only then forgotten."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from autotune.endings import settle, take_late, trial_attributes
from autotune.errors import StorageAway, StorageError
from autotune.measurement import BucketMeasurement
from autotune.mirror import Mirror
from autotune.raw import RawRequests
from autotune.repository import Repository
from autotune.spool import Spool, Spooled
from autotune.stored import Role
from autotune.study import TrialStudy
from autotune.trial import TrialSpec

__all__ = ["Flight", "Outbox", "replay"]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Flight:
    """A start that was handed out.

    Attributes:
        heard_s: When its worker was heard of last, on the driver's clock.
        buckets: Measured and not saved yet: the database was away.
        requests: Of its buckets, written when it ends.
    """

    spec: TrialSpec
    role: Role
    round: int
    heard_s: float
    buckets: list[BucketMeasurement] = field(default_factory=list)
    requests: list[RawRequests] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Entry:
    flight: Flight
    ended: Spooled


class Outbox:
    """Takes endings and brings them into the database in their order, now or when it is back.

    Every step may be repeated: a database that goes away within one gets it again.
    """

    def __init__(
        self, repository: Repository, study: TrialStudy, mirror: Mirror, spool: Spool | None
    ) -> None:
        self._repository = repository
        self._study = study
        self._mirror = mirror
        self._spool = spool
        self._entries: list[_Entry] = []

    def __contains__(self, claim_id: object) -> bool:
        return any(entry.ended.claim_id == claim_id for entry in self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, flight: Flight, ended: Spooled) -> None:
        """Keep one ending, durably on this machine."""
        if self._spool is not None:
            try:
                self._spool.put(ended)
            except StorageError as error:  # the database may take it nevertheless
                log.warning("%s", error)
        self._entries.append(_Entry(flight, ended))

    def bucket(self, flight: Flight, bucket: BucketMeasurement) -> None:
        """Save one bucket, with those that could not be saved before."""
        flight.buckets.append(bucket)
        while flight.buckets:
            self._repository.add_bucket(flight.spec.claim_id, flight.buckets[0])
            del flight.buckets[0]

    def flush(self) -> None:
        """Bring everything into the database.

        Raises:
            StorageAway: It does not answer; what is left stays in the outbox.
        """
        while self._entries:
            self._save(self._entries[0])
            entry = self._entries.pop(0)
            if self._spool is not None:
                self._spool.remove(entry.ended.claim_id)

    def _save(self, entry: _Entry) -> None:
        spec, record, score = entry.flight.spec, entry.ended.record, entry.ended.score
        self._mirror.refresh()
        trial = self._mirror.trial(spec.number)
        self._repository.end_start(spec.claim_id, record, score)
        if entry.flight.role is Role.FINAL:
            return
        if trial.told:  # a repeat of a reference, or a start whose trial had been given up
            self._mirror.refresh()
            take_late(self._study, self._repository, spec.study, self._mirror.trial(spec.number))
            return
        saved = (score.ratio, score.violations) if score is not None else None
        notes = trial_attributes(spec, record, score)
        trials = self._mirror.stored.trials
        state = settle(self._study, trial, record, saved, notes=notes, trials=trials)
        self._repository.end_trial(spec.study, spec.number, state)


def replay(spool: Spool, repository: Repository) -> int:
    """Save what an earlier run on this machine could not; telling it is `reconcile`'s part.

    Returns:
        How many results were saved.
    """
    saved = 0
    for entry in spool.waiting():
        try:
            repository.end_start(entry.claim_id, entry.record, entry.score)
        except StorageAway:
            raise
        except StorageError as error:
            log.warning("the spooled result %s was not saved: %s", entry.claim_id, error)
            continue
        spool.remove(entry.claim_id)
        saved += 1
    return saved
