"""How often the gate finds corrupted answers, and how often it blames chance.

    python -m benchmarks.gate_power --trials 1000

A reference and a trial answer the same samples (tasks in several wordings); each answer fails by
chance at the flakiness, and all answers to the corrupted tasks fail.  Their greedy texts part at
the share at which the reference parts from itself (`A/A`), and those of corrupted prompts early.
Judged by the functions that judge a study: `coding` at its own level, `together` with the level
that holds where the texts drift.  Goals: at 10 % of the tasks at least 95 % found, without
corruption at most 2 % blamed, for every share of A/A.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.coding.gate import ALPHA, DRIFTING_ALPHA, excess_failures
from autotune.coding.lossless import Losslessness, losslessness

__all__ = ["main"]

RATES = (0.0, 0.05, 0.10, 0.20)
OWN_SHARES = (0.0, 0.3, 0.7, 1.0)
FOUND_LEAST, BLAMED_MOST = 0.95, 0.02
_EARLY, _ANYWHERE = (5, 40), (20, 600)  # characters


@dataclass(frozen=True, slots=True)
class Design:
    """What is asked; the same for reference and trial."""

    tasks: int
    samples: int
    prompts: int
    flakiness: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=63)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--flakiness", type=float, default=0.03)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    design = Design(options.tasks, options.samples, options.prompts, options.flakiness)
    print(
        f"{options.trials} trials a row, {design.samples} samples of {design.tasks} tasks, "
        f"{design.prompts} greedy prompts, {design.flakiness:.0%} flakiness, seed {options.seed}"
    )
    print("corrupted tasks    A/A   coding   drift   together   goal")
    met = True
    for rate in RATES:
        for own_share in OWN_SHARES:
            chance = random.Random(f"{options.seed}/{rate}/{own_share}")
            seen = [_trial(design, rate, own_share, chance) for _ in range(options.trials)]
            coding, drift, together = (
                sum(one[place] for one in seen) / options.trials for place in range(3)
            )
            goal, reached = _goal(rate, together)
            met = met and reached
            figures = f"{coding:8.1%} {drift:7.1%} {together:10.1%}"
            print(f"{rate:15.0%} {own_share:6.0%} {figures}   {goal}", flush=True)
    return 0 if met else 1


def _trial(
    design: Design, rate: float, own_share: float, chance: random.Random
) -> tuple[bool, bool, bool]:
    """Whether one trial is blamed by coding alone, drifts, is blamed by both together."""
    corrupted = set(chance.sample(range(design.tasks), round(rate * design.tasks)))
    reference = [chance.random() >= design.flakiness for _ in range(design.samples)]
    trial = [
        number % design.tasks not in corrupted and chance.random() >= design.flakiness
        for number in range(design.samples)
    ]

    def parts() -> int | None:
        return chance.randint(*_ANYWHERE) if chance.random() < own_share else None

    spoilt = round(rate * design.prompts)
    own = [parts() for _ in range(2 * design.prompts)]
    texts = [
        chance.randint(*_EARLY) if number < spoilt else parts() for number in range(design.prompts)
    ]
    drifting = losslessness(own, texts) is Losslessness.DRIFTING
    coding = excess_failures(reference, trial, alpha=ALPHA).penalised > 0
    level = DRIFTING_ALPHA if drifting else ALPHA
    return coding, drifting, excess_failures(reference, trial, alpha=level).penalised > 0


def _goal(rate: float, found: float) -> tuple[str, bool]:
    if rate == 0:
        met = found <= BLAMED_MOST
        return f"at most {BLAMED_MOST:.0%}: {'met' if met else 'MISSED'}", met
    if rate == 0.10:
        met = found >= FOUND_LEAST
        return f"at least {FOUND_LEAST:.0%}: {'met' if met else 'MISSED'}", met
    return "", True


if __name__ == "__main__":
    raise SystemExit(main())
