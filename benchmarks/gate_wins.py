"""Does a corrupted but fast configuration ever win a simulated study?

    python -m benchmarks.gate_wins --seeds 100
    python -m benchmarks.gate_wins --seeds 100 --samples 20 --bait 0.167

The study is the demo's on its surface, on one host and with the default number of coding samples,
or with `--samples`; the fastest corrupted configurations are enqueued, or with `--bait` the fastest
ones near these rates of corruption, so that each study measures them.  A study is won by what its
export would put into service.  Goal: never by a configuration that corrupts more than `--rate` of
the answers.  Good finalists that the verdict calls out for their coding answers are counted too.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context

import optuna

from autotune.config import StudyConfig, load_study
from autotune.exporting import choose
from autotune.objective_file import CodingSection
from autotune.space import Values
from autotune.storage import open_engine
from autotune.testing.sglang_server.ranking import Ranked, grid, rank
from autotune.testing.sglang_server.surface import Surface
from autotune.testing.simulated_study import SimulatedStudy

__all__ = ["main"]

_SURFACE, _HOST = "demo", "demo-a"
_BAITS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what won; 1 where a corrupted configuration did."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=1, help="number of the first seed")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--sampler", default="random")
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--samples", type=int, default=CodingSection().samples)
    parser.add_argument("--bait", type=float, nargs="*", default=[], help="rates of corruption")
    options = parser.parse_args(arguments)
    config = load_study(_SURFACE)
    clean, corrupted = _truth(config, options.rate)
    baits = [_near(corrupted, rate) for rate in options.bait] or _baits(corrupted)
    print(
        f"fastest clean {clean[0].tok_per_s:.0f} tok/s; "
        f"{sum(one.tok_per_s > clean[0].tok_per_s for one in corrupted)} corrupted are faster, "
        f"up to {corrupted[0].tok_per_s:.0f} tok/s; enqueued: "
        + ", ".join(
            f"{_point(one)} ({one.corruption_rate:.0%} corrupted, {one.tok_per_s:.0f} tok/s)"
            for one in baits
        )
    )
    bad = {tuple(_point(one).values()) for one in corrupted}
    deployed = tuple(config.space.deployed().values())
    seeds = range(options.first, options.first + options.seeds)
    job = partial(
        _named,
        baits=tuple(_point(one) for one in baits),
        trials=options.trials,
        sampler=options.sampler,
        samples=options.samples,
    )
    won, wrong, judged, refused = 0, 0, 0, 0
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for seed, (named, finals) in zip(seeds, pool.map(job, seeds), strict=True):
            good = [out for point, out in finals if tuple(point.values()) not in bad]
            judged += len(good)
            refused += sum(good)
            won += tuple(named.values()) != deployed
            if tuple(named.values()) in bad:
                wrong += 1
                print(f"seed {seed}: a corrupted configuration won: {named}", flush=True)
    print(
        f"{options.seeds} studies of {options.trials} trials ({options.sampler}), "
        f"{options.samples} coding samples: {won} named a better configuration, {wrong} a "
        f"corrupted one; goal 0 {'met' if not wrong else 'MISSED'}; {refused} of {judged} good "
        "finalists refused"
    )
    return 1 if wrong else 0


def _truth(config: StudyConfig, rate: float) -> tuple[list[Ranked], list[Ranked]]:
    """Clean and corrupted configurations that fit, the fastest first."""
    buckets = config.workload.buckets
    ranked = rank(
        Surface.named(_SURFACE),
        grid(max_running_requests=48),
        contexts_tokens=tuple(sorted({b.context_tokens for b in buckets})),
        concurrencies=tuple({b.concurrency: b.weight for b in buckets}),
        output_tokens=buckets[0].output_tokens,
        weights=tuple({b.concurrency: b.weight for b in buckets}.values()),
    )
    fitting = sorted((one for one in ranked if one.fits), key=lambda one: -one.tok_per_s)
    return (
        [one for one in fitting if one.corruption_rate <= rate],
        [one for one in fitting if one.corruption_rate > rate],
    )


def _baits(corrupted: Sequence[Ranked]) -> list[Ranked]:
    """The fastest of all, of those that corrupt less than half, and less than an eighth."""
    found: list[Ranked] = []
    for most in (1.0, 0.5, 0.125):
        one = next((c for c in corrupted if c.corruption_rate < most and c not in found), None)
        if one is not None:
            found.append(one)
    return found[:_BAITS]


def _near(corrupted: Sequence[Ranked], rate: float) -> Ranked:
    """The fastest of those whose corruption is nearest to a rate."""
    return min(corrupted, key=lambda one: (abs(one.corruption_rate - rate), -one.tok_per_s))


def _point(one: Ranked) -> Values:
    return {
        "budget": one.setting.budget,
        "topk": one.setting.topk,
        "window": one.setting.window,
    }


def _named(
    seed: int, *, baits: tuple[Values, ...], trials: int, sampler: str, samples: int
) -> tuple[Values, list[tuple[Values, bool]]]:
    """What the export of one study would put into service; who of its finalists was refused."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    config = load_study(_SURFACE).replace_budget(trials=trials, hours=None, hosts=(_HOST,))
    config = replace(
        config,
        study=config.study.model_copy(update={"seed": seed, "sampler": sampler}),
        coding=config.coding.model_copy(update={"samples": samples}),
        enqueue=baits,
    )
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/study.db"
        open_engine(url, create=True).dispose()
        study = SimulatedStudy(config, url, surface=_SURFACE, speeds={})
        try:
            verdict = study.run()
            finals = [
                (one["parameters"], bool((one.get("coding") or {}).get("refused")))
                for one in verdict.finalists
            ]
            return dict(choose(study.stored).parameters), finals
        finally:
            study.close()


if __name__ == "__main__":
    raise SystemExit(main())
