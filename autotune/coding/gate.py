"""When failures of the coding eval count; pure.

    N       task-samples, the same for reference and trial
    F, F0   samples that the trial failed, that the reference failed
    b, c    discordant pairs: only the trial failed, only the reference failed
    p       P(X >= b), X ~ Binomial(b + c, 1/2): the exact one-sided test of McNemar (1947,
            Psychometrika 12, 153-157) for "the trial fails more often"
    alpha   0.02; 0.04 where the trial's greedy texts drift
    E       max(0, F - F0) if p <= alpha, else 0
    G       max(0, 1 - penalty * E / N), the factor on the score

Greedy answers are not the same from run to run under batching, so a raw difference of failures
would punish chance: the test lets through what chance does at most once in 1 / alpha studies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

__all__ = ["ALPHA", "DRIFTING_ALPHA", "Excess", "excess_failures", "gate_factor", "paired_p_value"]

ALPHA = 0.02  # one false alarm in fifty trials; a study has some dozens
# Where the greedy texts drift as well (see `lossless`). By itself the exact test keeps to half of
# its level (200 samples, 3 % chance failures), so even if every trial drifted harmlessly the false
# alarms would stay below one in fifty; it finds half as many again of the smallest corruptions.
DRIFTING_ALPHA = 0.04


@dataclass(frozen=True, slots=True)
class Excess:
    """What the paired test says.

    Attributes:
        failures: F, of the trial.
        reference_failures: F0.
        p_value: p; 1 where no pair is discordant.
        penalised: E, the failures that count.
        samples: N.
        only_trial_failed: b.
        only_reference_failed: c.
    """

    failures: int
    reference_failures: int
    p_value: float
    penalised: int
    samples: int
    only_trial_failed: int
    only_reference_failed: int


def paired_p_value(only_trial_failed: int, only_reference_failed: int) -> float:
    """p for b and c; exact, by integers.

    Raises: ValueError for negative counts.
    """
    if only_trial_failed < 0 or only_reference_failed < 0:
        raise ValueError("discordant pairs are counts")
    pairs = only_trial_failed + only_reference_failed
    return sum(comb(pairs, k) for k in range(only_trial_failed, pairs + 1)) / (1 << pairs)


def excess_failures(
    reference: Sequence[bool], trial: Sequence[bool], *, alpha: float = ALPHA
) -> Excess:
    """Compares two runs over the same task-samples, True = passed, in the same order.

    Raises: ValueError if they do not have the same length or are empty.
    """
    if len(reference) != len(trial) or not reference:
        raise ValueError(
            f"the paired test needs the same samples: {len(reference)} of the reference, "
            f"{len(trial)} of the trial"
        )
    if not 0 < alpha < 1:
        raise ValueError(f"alpha between 0 and 1, not {alpha}")
    pairs = list(zip(reference, trial, strict=True))
    only_trial = sum(before and not now for before, now in pairs)
    only_reference = sum(now and not before for before, now in pairs)
    failures = sum(not now for now in trial)
    reference_failures = sum(not before for before in reference)
    p_value = paired_p_value(only_trial, only_reference)
    return Excess(
        failures=failures,
        reference_failures=reference_failures,
        p_value=p_value,
        penalised=max(0, failures - reference_failures) if p_value <= alpha else 0,
        samples=len(pairs),
        only_trial_failed=only_trial,
        only_reference_failed=only_reference,
    )


def gate_factor(excess: Excess, *, penalty: float) -> float:
    """G, between 0 and 1.

    Raises: ValueError for a negative penalty.
    """
    if penalty < 0:
        raise ValueError(f"a penalty is not negative: {penalty}")
    return max(0.0, 1.0 - penalty * excess.penalised / excess.samples)
