"""What an earlier study knows, given to a new one with another space, host or workload."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.endings import bucket_figures
from autotune.errors import ConfigError, SearchSpaceError
from autotune.measurement import Ending
from autotune.space import SearchSpace, Values
from autotune.stored import StoredStudy
from autotune.study import Earlier, TrialStudy
from autotune.views import main_start

__all__ = ["Fitting", "Warmed", "fitting", "warm"]

_MEASURED_AGAIN = 2  # the best earlier points that the new study tries first


@dataclass(frozen=True, slots=True)
class Fitting:
    """Trials of an earlier study that are points of a space.

    Attributes:
        left: Why each of the others is not, a sentence each.
    """

    taken: tuple[Earlier, ...]
    left: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Warmed:
    """What was taken over.

    Attributes:
        taken: Earlier trials that the sampler now knows.
        left: Why each of the others was not, a sentence each.
    """

    taken: int
    left: tuple[str, ...]


def fitting(space: SearchSpace, earlier: StoredStudy) -> Fitting:
    """What of an earlier study a space can use.

    A score is a ratio to the deployed configuration of its own host and hour, so it may be
    compared.

    Raises:
        ConfigError: Nothing of it fits, or it had another deployed configuration.
    """
    left = []
    taken: list[Earlier] = []
    reference: Values | None = None
    for trial in earlier.trials:
        start = main_start(trial)
        if trial.reference:
            reference = trial.parameters
        if (
            start is None
            or start.record is None
            or trial.state not in ("complete", "infeasible", "pruned")
        ):
            left.append(f"trial {trial.number} gave nothing")
            continue
        try:
            values = space.effective(trial.parameters)
        except SearchSpaceError as error:
            left.append(f"trial {trial.number} does not fit: {error.message}")
            continue
        if broken := space.violations(values):
            left.append(f"trial {trial.number} does not fit: {'; '.join(broken)}")
            continue
        ratio = start.score.ratio if start.score is not None else None
        taken.append(
            Earlier(values, Ending(trial.state), ratio, f"{earlier.name}/{start.host}",
                    bucket_figures(start.buckets))
        )  # fmt: skip
    if reference is not None and taken:
        _require_same_reference(space.deployed(), reference, earlier.name)
    if not taken:
        raise ConfigError(
            f"no trial of study {earlier.name!r} fits this search space",
            hint="; ".join(left[:3]) or "it has no trial that ended",
        )
    return Fitting(tuple(taken), tuple(left))


def warm(study: TrialStudy, earlier: StoredStudy) -> Warmed:
    """Give the sampler the earlier trials that are points of the new space; once in a study.

    What they say counts less with every trial of the new study.  The best earlier points are
    queued, since a winner must have been measured here.

    Raises:
        ConfigError: As `fitting`.
    """
    if study.warmed():
        return Warmed(0, ())
    found = fitting(study.space, earlier)
    study.add_earlier(earlier.name, found.taken)
    scored = [one for one in found.taken if one.ending is Ending.COMPLETE and one.ratio is not None]
    best = sorted(scored, key=lambda one: -(one.ratio or 0.0))
    study.enqueue_points([one.values for one in best[:_MEASURED_AGAIN]])
    return Warmed(len(found.taken), found.left)


def _require_same_reference(deployed: Values, reference: Values, name: str) -> None:
    """Ratios to different deployed configurations are no common scale.

    Raises:
        ConfigError: The earlier study had another deployed point.
    """
    differing = [key for key in deployed if reference.get(key, deployed[key]) != deployed[key]]
    if differing:
        raise ConfigError(
            f"study {name!r} compared with another deployed configuration: "
            + ", ".join(f"{key} {reference[key]}, here {deployed[key]}" for key in differing),
            hint="its ratios cannot be compared with this study's",
        )
