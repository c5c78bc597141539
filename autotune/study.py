"""The Optuna study: open or resume, ask, tell.  The only module that writes Optuna's tables.

How an ending is told decides what the sampler learns:

============ ===================================================================================
complete     COMPLETE with the score ratio
infeasible   COMPLETE with the worst value seen and the constraint `infeasible` > 0: FAIL would be
             invisible to samplers, which then go back to the same place
failed       FAIL, no value: it says nothing about the parameters
pruned       PRUNED, no value; the buckets that were measured are kept
============ ===================================================================================
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.attributes import put_attributes, state_of
from autotune.errors import StorageAway, StorageError, StudyError
from autotune.measurement import Ending
from autotune.search.history import EARLIER_ATTRIBUTE
from autotune.space import ParameterValue, SearchSpace, Values

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

__all__ = [
    "Asked",
    "Earlier",
    "TrialStudy",
    "optuna_errors",
]

RETRY_OF = "retry_of"
LATE_OF = "late_of"
# Where Optuna keeps the parameters of an enqueued trial.
FIXED = "fixed_params"
# The dashboard shows feasibility from this older key only; samplers accept both.
DASHBOARD_CONSTRAINTS = "constraints"
# What numerical code of a sampler may raise; none of it may leave a trial running.
SAMPLER_ERRORS = (ValueError, ArithmeticError, RuntimeError, LookupError, TypeError)
# Told for an infeasible trial while nothing better is known: far below any reference (ratio 1).
NOTHING_SEEN = 0.0
METRIC = "score / reference"
"""What the dashboard calls the value."""
CONSTRAINT_KEY = "constraints:infeasible"


@dataclass(frozen=True, slots=True)
class Asked:
    """One trial that was asked for.

    Attributes:
        values: Effective parameter values.
        retry_of: Number of the failed trial that this one repeats, None otherwise.
    """

    number: int
    values: Mapping[str, ParameterValue]
    retry_of: int | None


@dataclass(frozen=True, slots=True)
class Earlier:
    """A trial of another study.

    Attributes:
        ending: Complete, infeasible or pruned.
        ratio: Its score over its own reference; None without a score.
        host: Where it ran, with the study's name: no host of this study.
    """

    values: Values
    ending: Ending
    ratio: float | None
    host: str
    buckets: Mapping[str, Any]


@contextmanager
def optuna_errors() -> Iterator[None]:
    """Turn what Optuna's storage raises into StorageError; also used as a decorator."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    from autotune.storage import is_away

    try:
        yield
    except (StorageInternalError, SQLAlchemyError, KeyError) as error:  # KeyError: a deleted record
        cause = error.__cause__ or error
        kind = StorageAway if isinstance(cause, DBAPIError) and is_away(cause) else StorageError
        raise kind(f"Optuna's storage failed: {str(cause).splitlines()[0]}") from error


class TrialStudy:
    """One Optuna study with the fixed search space of its definition."""

    def __init__(self, name: str, storage: BaseStorage, *, space: SearchSpace) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._distributions = space.distributions()
        self._storage = storage
        self._enqueued = False
        self._study = optuna.create_study(
            study_name=name, storage=storage, direction="maximize", load_if_exists=True
        )
        if self._study.metric_names is None:
            from optuna.exceptions import ExperimentalWarning

            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                self._study.set_metric_names([METRIC])

    # -- state ------------------------------------------------------------------------------------
    @optuna_errors()
    def trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def running(self) -> tuple[int, ...]:
        """Numbers of the trials that nobody has told an end yet; the others are not read."""
        return self._in_state("RUNNING")

    def waiting(self) -> int:
        """Trials that are queued and not asked for yet."""
        return len(self._in_state("WAITING"))

    def knows(self, number: int) -> bool:
        """Whether there is a trial of this number."""
        return self.state(number) != ""

    @optuna_errors()
    def _in_state(self, name: str) -> tuple[int, ...]:
        from optuna.trial import TrialState

        found = self._storage.get_all_trials(
            self._study._study_id, deepcopy=False, states=(TrialState[name],)
        )
        return tuple(trial.number for trial in found)

    @optuna_errors()
    def state(self, number: int) -> str:
        """Optuna's state of a trial, "" when it does not know the number."""
        return state_of(self._storage, self._study._study_id, number)

    @optuna_errors()
    def is_reference(self, number: int) -> bool:
        """Whether the trial was added as a host's reference."""
        return bool(self._trial(number).user_attrs.get("reference"))

    def ended(self) -> int:
        """Trials with a verdict about their parameters: complete, infeasible or pruned."""
        return sum(
            t.state.name in ("COMPLETE", "PRUNED") and EARLIER_ATTRIBUTE not in t.user_attrs
            for t in self.trials()
        )

    def warmed(self) -> bool:
        """Whether another study's trials were taken over."""
        return any(EARLIER_ATTRIBUTE in trial.user_attrs for trial in self.trials())

    @property
    def space(self) -> SearchSpace:
        return self._space

    # -- ask --------------------------------------------------------------------------------------
    def use(self, sampler: BaseSampler) -> None:
        """Suggest by this sampler from now on."""
        self._study.sampler = sampler

    @optuna_errors()
    def enqueue_once(self, points: Iterable[Values]) -> None:
        """Measure these points before the sampler's own; those already known are left out.

        Once in each run, and after the references, so that trial 0 is a reference.  A point whose
        every try failed in earlier runs said nothing yet: it is queued again.
        """
        if self._enqueued:
            return
        self._enqueued = True
        seen = {
            self._space.key(known)
            for trial in self.trials()
            if trial.state.name != "FAIL" and EARLIER_ATTRIBUTE not in trial.user_attrs
            if (known := self._point(trial)) is not None
        }
        for point in points:
            if self._space.key(point) not in seen:
                self._study.enqueue_trial(dict(point))

    @optuna_errors()
    def enqueue_points(self, points: Iterable[Values]) -> None:
        """Measure these points before the sampler's own."""
        for point in points:
            self._study.enqueue_trial(dict(point))

    @optuna_errors()
    def add_earlier(self, name: str, trials: Iterable[Earlier]) -> None:
        """Trials of another study, as if they had been told; they are no part of the budget."""
        from optuna.trial import TrialState, create_trial

        trials = list(trials)
        told = [one.ratio for one in trials if one.ratio is not None]
        worst = min(told, default=NOTHING_SEEN)
        for one in trials:
            pruned = one.ending is Ending.PRUNED
            violated = 1.0 if one.ending is Ending.INFEASIBLE else -1.0
            self._study.add_trial(
                create_trial(
                    state=TrialState.PRUNED if pruned else TrialState.COMPLETE,
                    value=None if pruned else (worst if one.ratio is None else one.ratio),
                    params=dict(one.values),
                    distributions=dict(self._distributions),
                    user_attrs={
                        EARLIER_ATTRIBUTE: name, "host": one.host, "buckets": dict(one.buckets),
                    },
                    system_attrs={CONSTRAINT_KEY: violated, DASHBOARD_CONSTRAINTS: [violated]},
                )
            )  # fmt: skip

    @optuna_errors()
    def queue_again(self, number: int) -> None:
        """Queue the parameters of a failed trial again; once, however often it is asked.

        A trial whose suggestion was interrupted has no parameters yet: there is nothing to repeat.
        """
        point = self._point(self._trial(number))
        if point is None or any(t.user_attrs.get(RETRY_OF) == number for t in self.trials()):
            return
        self._study.enqueue_trial(point, user_attrs={RETRY_OF: number})

    def _point(self, trial: FrozenTrial) -> dict[str, Any] | None:
        """Its parameters, queued or suggested; None while they are not all there."""
        point = {**trial.system_attrs.get(FIXED, {}), **trial.params}
        return point if self._distributions.keys() <= point.keys() else None

    @optuna_errors()
    def ask(self) -> Asked:
        """The next trial: a queued one, else the sampler's.

        Raises:
            StudyError: The sampler failed; no trial is left running.
        """
        from optuna.exceptions import OptunaError, StorageInternalError
        from optuna.trial import TrialState

        before = set(self.running())
        try:
            trial = self._study.ask(fixed_distributions=self._distributions)
        except StorageInternalError:
            raise
        except (OptunaError, *SAMPLER_ERRORS) as error:
            for number in set(self.running()) - before:
                self._study.tell(number, state=TrialState.FAIL)
            raise StudyError(f"the sampler gave no suggestion: {error}") from error
        values = self._space.effective({name: trial.params[name] for name in self._distributions})
        retry_of = trial.user_attrs.get(RETRY_OF)
        return Asked(trial.number, values, None if retry_of is None else int(retry_of))

    @optuna_errors()
    def add_reference(self, values: Values, *, host: str) -> Asked:
        """A running trial for a host's reference: it comes before everything that is queued."""
        from optuna.trial import TrialState, create_trial

        trial = create_trial(
            state=TrialState.RUNNING,
            params=dict(values),
            distributions=dict(self._distributions),
            user_attrs={"host": host, "reference": True},
        )
        # As `Study.add_trial`, which does not say the number that the trial got.
        added = self._storage.create_new_trial(self._study._study_id, template_trial=trial)
        number = self._storage.get_trial_number_from_id(added)
        return Asked(number, dict(values), None)

    # -- tell -------------------------------------------------------------------------------------
    @optuna_errors()
    def note(self, number: int, attributes: Mapping[str, Any]) -> None:
        """Attach attributes to a trial; only possible before it is told."""
        put_attributes(self._storage, self._trial_id(number), user=attributes)

    @optuna_errors()
    def tell_complete(self, number: int, ratio: float, *, violated: bool) -> None:
        """Tell a measured score.

        Raises:
            StudyError: The value is not a finite positive number.
        """
        if not (math.isfinite(ratio) and ratio >= 0):
            raise StudyError(f"trial {number}: score ratio {ratio} cannot be told")
        self._constrain(number, 1.0 if violated else -1.0)
        self._study.tell(number, ratio)

    @optuna_errors()
    def tell_infeasible(self, number: int) -> None:
        """Tell that the parameters cannot run."""
        seen = [
            t.value for t in self.trials() if t.state.name == "COMPLETE" and t.value is not None
        ]
        self._constrain(number, 1.0)
        self._study.tell(number, min(seen, default=NOTHING_SEEN))

    @optuna_errors()
    def tell_failed(self, number: int) -> None:
        """Tell an end that says nothing about the parameters."""
        from optuna.trial import TrialState

        self._study.tell(number, state=TrialState.FAIL)

    @optuna_errors()
    def tell_pruned(self, number: int) -> None:
        """Tell that the rest of the matrix was not worth its time."""
        from optuna.trial import TrialState

        self._constrain(number, -1.0)
        self._study.tell(number, state=TrialState.PRUNED)

    @optuna_errors()
    def add_late(
        self, number: int, ending: Ending, ratio: float | None, notes: Mapping[str, Any]
    ) -> None:
        """An end that came after its trial was told FAIL: Optuna changes no trial that has ended,
        so the sampler learns it from a trial of its own; once, however often it is asked.

        Args:
            number: Of the trial that was given up.
            ending: Complete, infeasible or pruned.
            ratio: Score ratio; None unless it is complete.
            notes: User attributes.
        """
        from optuna.trial import TrialState, create_trial

        trials = self.trials()
        if any(t.user_attrs.get(LATE_OF) == number for t in trials):
            return
        told = [t.value for t in trials if t.state.name == "COMPLETE" and t.value is not None]
        pruned, violated = ending is Ending.PRUNED, 1.0 if ending is Ending.INFEASIBLE else -1.0
        value = min(told, default=NOTHING_SEEN) if ratio is None else ratio
        self._study.add_trial(
            create_trial(
                state=TrialState.PRUNED if pruned else TrialState.COMPLETE,
                value=None if pruned else value,
                params=dict(self._trial(number).params),
                distributions=dict(self._distributions),
                user_attrs={**notes, LATE_OF: number},
                system_attrs={CONSTRAINT_KEY: violated, DASHBOARD_CONSTRAINTS: [violated]},
            )
        )

    @optuna_errors()
    def beat(self, numbers: Iterable[int]) -> None:
        """Write Optuna's heartbeat of running trials, so that its own tools know which are dead."""
        from optuna.storages import RDBStorage

        if isinstance(self._storage, RDBStorage):
            for number in numbers:
                self._storage.record_heartbeat(self._trial_id(number))

    # -- inside -----------------------------------------------------------------------------------
    def _trial_id(self, number: int) -> int:
        """Key of a trial in the storage; the other trials are not read.

        Raises:
            KeyError: There is no such trial.
        """
        study = self._study
        return study._storage.get_trial_id_from_study_id_trial_number(study._study_id, number)

    def _trial(self, number: int) -> FrozenTrial:
        return self._study._storage.get_trial(self._trial_id(number))

    def _constrain(self, number: int, value: float) -> None:
        told = {CONSTRAINT_KEY: value, DASHBOARD_CONSTRAINTS: [value]}
        put_attributes(self._storage, self._trial_id(number), system=told)
