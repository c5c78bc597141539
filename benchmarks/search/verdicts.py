"""How often a verdict is wrong, and by how much a reported gain is off: the final rounds alone.

    python -m benchmarks.search.verdicts --studies 2000
    python -m benchmarks.search.verdicts --rounds 2 --finalists 1

Every final start is measured with the noise of the search's surfaces, and hosts drift: a level of
each round, and a slope over the starts of a round that the alternating order has to undo.

`no effect`: nothing that is tuned changes anything; whatever the search chose, its finalists equal
the deployed configuration.  `deployed is best`: the finalists are the truth's second and third best
points, the hardest that any search could choose, since a worse finalist is mistaken for a winner
less often.  Wrong is every winner.  `better by g`: the share of studies that find it and, among
them, mean and mean absolute reported minus true gain, for the gain as it is reported and as it was
measured.  `all winners` takes the winners of every g together.  `coverage`: how often the intervals
of both finalists hold the truth, whatever the verdict.
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
GAINS = (0.03, 0.05, 0.08, 0.12, 0.20)
UPPER_MOST = 0.07
BIAS_MOST = 0.01


@dataclass(frozen=True, slots=True)
class Study:
    """Final rounds of finalists with known true ratios.

    Attributes:
        claimed, measured, true: Ratio of the winner; None without one.
        covered: Whether the intervals of all finalists hold the truth; None without intervals.
        width: Of the best finalist's interval, as a ratio; None without one.
    """

    claimed: float | None = None
    measured: float | None = None
    true: float | None = None
    covered: bool | None = None
    width: float | None = None


def judged(ratios: Sequence[float], rng: np.random.Generator, *, rounds: int) -> Study:
    contenders = tuple(range(len(ratios)))
    starts = []
    for turn in range(rounds):
        level, slope = rng.normal(0, ROUND_SD), rng.normal(0, SLOPE_SD)
        order = round_order(contenders, turn)
        for place, contender in enumerate(order):
            truth = 1.0 if contender == REFERENCE else ratios[contender]
            drift = level + slope * (place / max(1, len(order) - 1) - 0.5)
            noise = rng.normal(0, SHARED_SD) + rng.normal(0, BUCKETS_SD)
            score = 100 * truth * float(np.exp(drift + noise))
            starts.append(Remeasured(str(contender), "host", turn, score))
    said = verdict(
        starts, reference=str(REFERENCE), changes={str(one): 1 + one for one in contenders}
    )
    if not said.finalists:
        return Study()
    covered = all(one.interval.low <= ratios[int(one.key)] <= one.interval.high
                  for one in said.finalists)  # fmt: skip
    width = said.finalists[0].interval.high / said.finalists[0].interval.low
    if said.kind is not VerdictKind.BETTER or said.winner is None:
        return Study(covered=covered, width=width)
    measured = next(one.ratio for one in said.finalists if one.key == said.winner)
    return Study(said.ratio, measured, ratios[int(said.winner)], covered, width)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=1000, help="of each kind")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--finalists", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    rng = np.random.default_rng([options.seed, 90_125])
    print(
        f"{options.studies} studies each, {options.rounds} rounds of {options.finalists} "
        f"finalist(s), seed {options.seed}"
    )
    _wrong(options, rng)
    _gains(options, rng)


def _wrong(options: argparse.Namespace, rng: np.random.Generator) -> None:
    names = [f"r{number}" for number in range(24)]
    for name in ("no effect", "deployed is best"):
        wrong, studies = 0, []
        for study in range(options.studies):
            ratios = [1.0] * options.finalists
            if name != "no effect":
                scores = np.sort(Truth.named(names[study % len(names)]).score)
                scores = scores[~np.isnan(scores)][::-1]
                ratios = [float(scores[1 + n] / scores[0]) for n in range(options.finalists)]
            studies.append(judged(ratios, rng, rounds=options.rounds))
            wrong += studies[-1].claimed is not None
        low, high = wilson(wrong, options.studies)
        met = "met" if high <= UPPER_MOST else "MISS"
        print(
            f"{name:<17} wrong verdicts {wrong}/{options.studies} = {wrong / options.studies:.2%} "
            f"[{low:.2%}, {high:.2%}], upper bound at most {UPPER_MOST:.0%}: {met}"
        )
        print(f"{'':<17} {_coverage(studies)}")


def _coverage(studies: Sequence[Study]) -> str:
    known = [study.covered for study in studies if study.covered is not None]
    if not known:
        return "coverage: no study had intervals"
    low, high = wilson(sum(known), len(known))
    widths = [study.width for study in studies if study.width is not None]
    return (
        f"coverage {np.mean(known):.1%} [{low:.1%}, {high:.1%}] of 95 %, median interval "
        f"{100 * (float(np.median(widths)) - 1):.0f} % wide, "
        f"{len(studies) - len(known)} not enough data"
    )


def _gains(options: argparse.Namespace, rng: np.random.Generator) -> None:
    winners = []
    for gain in GAINS:
        ratios = [1 + gain / (1 + n) for n in range(options.finalists)]
        studies = [judged(ratios, rng, rounds=options.rounds) for _ in range(options.studies)]
        found = [study for study in studies if study.claimed is not None]
        winners += found
        print(f"better by {gain:4.0%}    found {len(found) / len(studies):6.1%}, {_errors(found)}")
    print(f"{'all winners':<31} {_errors(winners)}")


def _errors(found: Sequence[Study]) -> str:
    if not found:
        return "no winner"
    true = np.array([study.true for study in found], dtype=np.float64)
    words = []
    for name in ("claimed", "measured"):
        off = np.array([getattr(study, name) for study in found], dtype=np.float64) - true
        words.append(f"{100 * off.mean():+5.2f} ({100 * np.abs(off).mean():4.2f})")
    met = "met" if words and abs(float(words[0].split()[0])) <= 100 * BIAS_MOST else "MISS"
    return f"reported - true {words[0]}, as measured {words[1]} points; at most 1: {met}"


if __name__ == "__main__":
    main()
