"""How often a verdict is wrong, and by how much a reported gain is off: the final rounds alone.

    python -m benchmarks.search.verdicts --studies 2000

Every final start is measured with the noise of the search's surfaces, and hosts drift: a level of
each round, and a slope over the starts of a round that the alternating order has to undo.

`no effect`: nothing that is tuned changes anything; whatever the search chose, its finalists equal
the deployed configuration.  `deployed is best`: the finalists are the truth's second and third best
points, the hardest that any search could choose, since a worse finalist is mistaken for a winner
less often.  Wrong is every winner.  `better by g`: the share of studies that find it, and the mean
of reported minus true gain among them and over all studies (a study without a winner reports 0).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.rounds import REFERENCE, round_order
from autotune.verdict import Remeasured, VerdictKind, verdict
from benchmarks.search.tables import wilson
from benchmarks.search.truths import Truth

__all__ = ["main"]

SHARED_SD, BUCKETS_SD = 0.028, 0.01
"""Of one start's score: what the start shares, and what its 16 buckets leave together."""
ROUND_SD, SLOPE_SD = 0.03, 0.01
"""Of a round's level, and of what a host gains or loses over one round."""
UPPER_MOST = 0.07
BIAS_MOST = 0.01


@dataclass(frozen=True, slots=True)
class Study:
    """Final rounds of finalists with these true ratios; `winner` is the true ratio claimed for."""

    claimed: float | None
    true: float | None


def judged(ratios: Sequence[float], rng: np.random.Generator, *, rounds: int) -> Study:
    contenders = tuple(range(len(ratios)))
    measured = []
    for turn in range(rounds):
        level, slope = rng.normal(0, ROUND_SD), rng.normal(0, SLOPE_SD)
        order = round_order(contenders, turn)
        for place, contender in enumerate(order):
            truth = 1.0 if contender == REFERENCE else ratios[contender]
            drift = level + slope * (place / max(1, len(order) - 1) - 0.5)
            noise = rng.normal(0, SHARED_SD) + rng.normal(0, BUCKETS_SD)
            score = 100 * truth * float(np.exp(drift + noise))
            measured.append(Remeasured(str(contender), "host", turn, score))
    said = verdict(
        measured, reference=str(REFERENCE), changes={str(one): 1 + one for one in contenders}
    )
    if said.kind is not VerdictKind.BETTER or said.winner is None:
        return Study(None, None)
    return Study(said.ratio, ratios[int(said.winner)])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=1000, help="of each kind")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    rng = np.random.default_rng([options.seed, 90_125])
    print(
        f"{options.studies} studies each, {options.rounds} rounds of 2 finalists, "
        f"seed {options.seed}"
    )
    names = [f"r{number}" for number in range(24)]
    for name in ("no effect", "deployed is best"):
        wrong = 0
        for study in range(options.studies):
            ratios = [1.0, 1.0]
            if name != "no effect":
                scores = np.sort(Truth.named(names[study % len(names)]).score)
                scores = scores[~np.isnan(scores)]
                ratios = [float(scores[-2] / scores[-1]), float(scores[-3] / scores[-1])]
            wrong += judged(ratios, rng, rounds=options.rounds).claimed is not None
        low, high = wilson(wrong, options.studies)
        met = "met" if high <= UPPER_MOST else "MISS"
        print(
            f"{name:<17} wrong verdicts {wrong}/{options.studies} = {wrong / options.studies:.2%} "
            f"[{low:.2%}, {high:.2%}], upper bound at most {UPPER_MOST:.0%}: {met}"
        )
    for gain in (0.03, 0.05, 0.08, 0.12, 0.20):
        studies = [
            judged([1 + gain, 1 + gain / 2], rng, rounds=options.rounds)
            for _ in range(options.studies)
        ]
        found = [s for s in studies if s.claimed is not None and s.true is not None]
        gaps = [(s.claimed or 0) - (s.true or 0) for s in found]
        bias = float(np.mean(gaps)) if gaps else float("nan")
        met = "met" if abs(bias) <= BIAS_MOST else "MISS"
        print(
            f"better by {gain:4.0%}    found {len(found) / len(studies):6.1%}, reported minus true "
            f"{100 * bias:+.2f} points among winners, at most 1: {met}"
        )


if __name__ == "__main__":
    main()
