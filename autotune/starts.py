"""The starts of one driver: made for a host, and in the database before anybody can run them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from autotune.answers import Answers
from autotune.config import StudyConfig
from autotune.errors import TargetError
from autotune.mirror import Mirror
from autotune.outbox import Flight
from autotune.repository import Repository
from autotune.roster import Roster
from autotune.session import HostSession
from autotune.space import Values
from autotune.standing import failed_references, references_of
from autotune.starting import make_spec
from autotune.stored import Role, StoredStart, StoredTrial
from autotune.study import TrialStudy
from autotune.supervisors.base import Owner
from autotune.trial import TrialSpec

__all__ = ["REFERENCE_TRIES", "Starts"]

REFERENCE_TRIES = 2
"""Starts of a reference in a row that may fail before its host is given up."""


class Starts:
    """Makes starts and remembers those under way.

    Attributes:
        flying: Starts that have not ended, by claim id; who ends one takes it out.
    """

    def __init__(
        self,
        config: StudyConfig,
        *,
        study: TrialStudy,
        repository: Repository,
        mirror: Mirror,
        roster: Roster,
        sessions: Mapping[str, HostSession],
        owner: Owner,
        answers: Answers,
        clock: Callable[[], float],
    ) -> None:
        self.flying: dict[str, Flight] = {}
        self._config = config
        self._study = study
        self._repository = repository
        self._mirror = mirror
        self._roster = roster
        self._sessions = sessions
        self._owner = owner
        self._answers = answers
        self._clock = clock
        self._made: Counter[str] = Counter()

    def count(self) -> int:
        """Starts that were made so far; from any thread."""
        return sum(list(self._made.values()))

    def on(self, host: str) -> int:
        """Those of one host."""
        return self._made[host]

    def search(self, host: str) -> TrialSpec:
        """The next queued or suggested point."""
        self._study.enqueue_once(self._config.enqueue)
        asked = self._study.ask()
        self._repository.begin_trial(
            self._config.name,
            asked.number,
            parameters=asked.values,
            reference=False,
            retry_of=asked.retry_of,
        )
        return self._start(asked.number, asked.values, host, Role.SEARCH, 0)

    def first_reference(self, host: str) -> TrialSpec | None:
        """The host's reference trial; None when the host was given up."""
        failed = failed_references(self._mirror.stored, host, since=0, owner=self._owner)
        if len(failed) >= REFERENCE_TRIES:
            self._give_up(host, failed[-1])
            return None
        values = self._config.space.effective(self._config.space.deployed())
        with self._roster.turn():
            asked = self._study.add_reference(values, host=host)
            self._repository.begin_trial(
                self._config.name, asked.number, parameters=values, reference=True, retry_of=None
            )
            return self._start(asked.number, values, host, Role.REFERENCE, 0, is_reference=True)

    def reference_again(self, host: str) -> TrialSpec | None:
        """A repeat of the reference; None when it failed twice in a row: the host is given up."""
        own = references_of(self._mirror.stored, host)
        since = own[-1][1].order
        failed = failed_references(self._mirror.stored, host, since=since, owner=self._owner)
        if len(failed) >= REFERENCE_TRIES:
            self._give_up(host, failed[-1])
            return None
        return self.again(own[0][0], host, Role.REFERENCE, len(own))

    def again(self, trial: StoredTrial, host: str, role: Role, round_: int) -> TrialSpec:
        """One more start of a stored trial."""
        return self._start(
            trial.number, trial.parameters, host, role, round_, is_reference=trial.reference
        )

    def _give_up(self, host: str, last: StoredStart) -> None:
        failure = last.record.failure if last.record else None
        reason = failure.message if failure else "no score"
        self._sessions[host].lose(
            TargetError(f"the reference could not be measured on {host}: {reason}")
        )

    def _start(
        self,
        number: int,
        values: Values,
        host: str,
        role: Role,
        round_: int,
        *,
        is_reference: bool = False,
    ) -> TrialSpec:
        spec = make_spec(
            self._config,
            self._mirror.stored,
            self._sessions[host],
            number=number,
            values=values,
            reference=is_reference,
            role=role,
            round_=round_,
            answers=self._answers,
        )
        self._repository.begin_start(
            self._config.name,
            number,
            role=role,
            round_=round_,
            host=host,
            claim_id=spec.claim_id,
            nonce=spec.nonce.value,
            owner=self._owner,
            argv=spec.launch.texts(),
        )
        self.flying[spec.claim_id] = Flight(spec, role, round_, self._clock())
        self._made[host] += 1
        return spec
