"""How often a fast configuration with spoilt answers wins the final rounds, and a good one is out.

    python -m benchmarks.gate_finals --studies 1000

Two finalists and the deployed configuration play three rounds.  The first finalist is faster by
`--gain` and spoils a share of its answers; the second is faster by 10 % and good.  Each answer
fails by chance at the flakiness; the same prompt gets the same answer in every start of one
configuration, as greedy answers nearly do.  Judged by the functions that judge a study:

    alone       each final start against the reference on the same samples, its score lowered
    together    the answers of all rounds once, other samples in each and at least
                `--final-samples` in all, a finalist out or not

`wins` is the spoilt finalist's share of verdicts, `next` the good one's, `refused` how often any
finalist is out; of good finalists (0 %) at most 2 % of the studies may refuse one.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.coding.gate import excess_failures, gate_factor
from autotune.coding.pooling import Pooled, judge_pooled, pool
from autotune.objective_file import CodingSection
from autotune.verdict import Remeasured, verdict

__all__ = ["main"]

SAMPLES = (20, 60, 200)
SPOILT = (0.0, 0.05, 0.10, 1 / 6)
REFUSED_MOST = 0.02
_REFERENCE, _FAST, _GOOD = "reference", "fast", "good"
_GOOD_GAIN, _PENALTY = 0.10, 1.5
_NOISE_SD = 0.015  # of ln score, of one start; as the surface of the simulated server

Outcomes = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Design:
    """One row: what is asked of how spoilt a finalist."""

    samples: int
    in_final: int
    spoilt: float
    gain: float
    rounds: int
    flakiness: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where good finalists are refused too often."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--studies", type=int, default=1000, help="of each row")
    parser.add_argument("--samples", type=int, nargs="*", default=SAMPLES)
    parser.add_argument("--spoilt", type=float, nargs="*", default=SPOILT, help="shares of answers")
    parser.add_argument("--gain", type=float, default=0.4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--final-samples", type=int, default=CodingSection().final_samples)
    parser.add_argument("--flakiness", type=float, default=0.03)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    print(
        f"{options.studies} studies a row, {options.rounds} rounds, the spoilt finalist "
        f"{options.gain:+.0%}, {options.flakiness:.0%} flakiness, seed {options.seed}"
    )
    print("                      each start alone       together")
    print("samples   spoilt       wins     next       wins     next   refused")
    met = True
    for samples in options.samples:
        for spoilt in options.spoilt:
            finals = max(samples, -(-options.final_samples // options.rounds))
            design = Design(
                samples, finals, spoilt, options.gain, options.rounds, options.flakiness
            )
            chance = random.Random(f"{options.seed}/{samples}/{spoilt}")
            alone, together, refused = _row(design, chance, options.studies)
            goal = ""
            if spoilt == 0:
                reached = refused <= REFUSED_MOST
                met = met and reached
                goal = f"   refused at most {REFUSED_MOST:.0%}: {'met' if reached else 'MISSED'}"
            figures = "   ".join(
                f"{named[_FAST] / options.studies:8.1%} {named[_GOOD] / options.studies:8.1%}"
                for named in (alone, together)
            )
            print(f"{samples:7d} {spoilt:8.1%}   {figures} {refused:9.2%}{goal}", flush=True)
    return 0 if met else 1


def _row(
    design: Design, chance: random.Random, studies: int
) -> tuple[Counter[str], Counter[str], float]:
    """Winners by each way of judging, and the share of studies in which any finalist was out."""
    alone, together, refused = Counter[str](), Counter[str](), 0
    for _ in range(studies):
        speeds = _speeds(design, chance)
        pooled = _pooled(design, chance)
        out = {key for key, one in pooled.items() if one.refused}
        refused += bool(out)
        together[_winner(speeds, out)] += 1
        factors = _factors(design, chance)
        gated = [(key, turn, speed * factors.get(key, 1.0)) for key, turn, speed in speeds]
        alone[_winner([one for one in gated if one[2] > 0], set())] += 1
    return alone, together, refused / studies


def _speeds(design: Design, chance: random.Random) -> list[tuple[str, int, float]]:
    """(configuration, round, score without a gate) of every final start."""
    truth = {_REFERENCE: 1.0, _FAST: 1 + design.gain, _GOOD: 1 + _GOOD_GAIN}
    return [
        (key, turn, ratio * math.exp(chance.gauss(0, _NOISE_SD)))
        for turn in range(design.rounds)
        for key, ratio in truth.items()
    ]


def _winner(scores: Sequence[tuple[str, int, float]], barred: set[str]) -> str:
    said = verdict(
        [Remeasured(key, "host", turn, score) for key, turn, score in scores],
        reference=_REFERENCE,
        changes={_FAST: 1, _GOOD: 1},
        barred=barred,
    )
    return said.winner or ""


def _answers(
    design: Design, chance: random.Random, spoilt: float, *, turn: int, count: int
) -> Outcomes:
    return {
        f"{turn}/{n}": "wrong" if chance.random() < spoilt + design.flakiness else "passed"
        for n in range(count)
    }


def _pooled(design: Design, chance: random.Random) -> Mapping[str, Pooled]:
    """The judgement on all rounds, with other samples in each."""

    def answers(spoilt: float) -> list[Outcomes]:
        return [
            _answers(design, chance, spoilt, turn=turn, count=design.in_final)
            for turn in range(design.rounds)
        ]

    reference = answers(0.0)
    return judge_pooled(
        {
            key: pool(zip(reference, answers(spoilt), strict=True))
            for key, spoilt in ((_FAST, design.spoilt), (_GOOD, 0.0))
        }
    )


def _factors(design: Design, chance: random.Random) -> Mapping[str, float]:
    """G of each finalist's starts, which were all asked the same: one draw does for all."""
    reference = _answers(design, chance, 0.0, turn=0, count=design.samples)
    factors = {}
    for key, spoilt in ((_FAST, design.spoilt), (_GOOD, 0.0)):
        own = _answers(design, chance, spoilt, turn=0, count=design.samples)
        excess = excess_failures(
            [reference[sample] == "passed" for sample in own],
            [outcome == "passed" for outcome in own.values()],
        )
        factors[key] = gate_factor(excess, penalty=_PENALTY)
    return factors


if __name__ == "__main__":
    raise SystemExit(main())
