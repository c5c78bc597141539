"""The true order of all settings of a surface, and the command that prints it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from autotune.testing.sglang_server.surface import Setting, Surface

__all__ = [
    "BUDGET_MOST",
    "CLEAN_RATE",
    "CONCURRENCIES",
    "CONTEXTS_TOKENS",
    "TOPK_MOST",
    "WINDOWS_TOKENS",
    "Ranked",
    "grid",
    "main",
    "rank",
]

BUDGET_MOST, TOPK_MOST = 64, 16
CONTEXTS_TOKENS = (60, 1024, 4096, 8192)
CONCURRENCIES = {1: 0.4, 8: 0.3, 32: 0.2, 64: 0.1}
"""Concurrency and its weight in the ranking; contexts weigh the same."""
WINDOWS_TOKENS: tuple[int | None, ...] = (None, 512, 1024, 2048, 4096, 8192)
CLEAN_RATE = 0.02
"""A setting counts as clean, and can be the best, up to this corruption rate."""
RANK_OUTPUT_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Ranked:
    """One setting of the grid with its true throughput.

    Attributes:
        setting: The setting.
        tok_per_s: Weighted arithmetic mean of the buckets' output throughput, tok/s.
        memory_gib: Memory of one GPU that it needs, GiB.
        corruption_rate: Share of corrupted answers, 0..1.
        fits: Whether it survives its start.
    """

    setting: Setting
    tok_per_s: float
    memory_gib: float
    corruption_rate: float
    fits: bool

    @property
    def clean(self) -> bool:
        """Whether the setting starts and writes what the model writes."""
        return self.fits and self.corruption_rate <= CLEAN_RATE


def grid(*, max_running_requests: int = 64) -> Iterator[Setting]:
    """Budget 1..64 x top-k 1..16 up to the budget x window: 5,424 settings."""
    for budget in range(1, BUDGET_MOST + 1):
        for topk, window in product(range(1, min(TOPK_MOST, budget) + 1), WINDOWS_TOKENS):
            yield Setting(
                budget=budget,
                topk=topk,
                window=window,
                max_running_requests=max_running_requests,
            )


def rank(
    surface: Surface,
    settings: Iterable[Setting],
    *,
    contexts_tokens: tuple[int, ...] = CONTEXTS_TOKENS,
    concurrencies: tuple[int, ...] = tuple(CONCURRENCIES),
    output_tokens: int | None = RANK_OUTPUT_TOKENS,
    weights: tuple[float, ...] | None = None,
) -> tuple[Ranked, ...]:
    """The settings by true throughput, best first; unusable ones are kept and marked.

    Args:
        weights: Weight of each concurrency; by default those of `CONCURRENCIES`.
    """
    shares = weights or tuple(CONCURRENCIES.get(c, 0.25) for c in concurrencies)
    total = sum(shares) * len(contexts_tokens)
    ranked = []
    for setting in settings:
        value = sum(
            share
            * surface.output_tok_per_s(
                setting, context_tokens=context, concurrency=c, output_tokens=output_tokens
            )
            for context in contexts_tokens
            for c, share in zip(concurrencies, shares, strict=True)
        )
        ranked.append(
            Ranked(
                setting=setting,
                tok_per_s=value / total,
                memory_gib=surface.memory_gib(setting),
                corruption_rate=surface.corruption_rate(budget=setting.budget, topk=setting.topk),
                fits=surface.fits(setting),
            )
        )
    return tuple(sorted(ranked, key=lambda entry: -entry.tok_per_s))


def main(argv: list[str] | None = None) -> int:
    """Print the true best settings of a surface."""
    parser = argparse.ArgumentParser(prog="python -m autotune.testing.sglang_server.ranking")
    parser.add_argument("--surface", default="demo", help="demo or kimi-k26")
    parser.add_argument("--top", type=int, default=10, help="rows to print")
    parser.add_argument("--contexts", default="60,1024,4096,8192", help="prompt lengths, tokens")
    parser.add_argument("--concurrencies", default="1,8,32,64", help="requests in flight")
    parser.add_argument("--max-running-requests", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=RANK_OUTPUT_TOKENS)
    options = parser.parse_args(argv)
    surface = Surface.named(options.surface)
    ranked = rank(
        surface,
        grid(max_running_requests=options.max_running_requests),
        contexts_tokens=tuple(int(c) for c in options.contexts.split(",")),
        concurrencies=tuple(int(c) for c in options.concurrencies.split(",")),
        output_tokens=options.output_tokens,
    )
    usable = [entry for entry in ranked if entry.clean]
    reference = next(
        e for e in ranked if (e.setting.budget, e.setting.topk, e.setting.window) == (8, 4, None)
    )
    print("| rank | budget | top-k | window | tok/s | over 8/4/none | GiB | corrupted |")
    print("|---|---|---|---|---|---|---|---|")
    for position, entry in enumerate(usable[: options.top], start=1):
        print(_row(str(position), entry, reference))
    print(_row("reference", reference, reference))
    fast = next((e for e in ranked if e.fits and not e.clean), None)
    if fast is not None:
        print(_row("fastest garbling", fast, reference))
    refused = sum(not e.fits for e in ranked) / len(ranked)
    garbling = sum(e.fits and not e.clean for e in ranked) / len(ranked)
    near = [sum(e.tok_per_s >= s * usable[0].tok_per_s for e in usable) for s in (0.98, 0.95)]
    print(
        f"\n{len(ranked)} settings: {refused:.1%} do not start, {garbling:.1%} garble, "
        f"{near[0]} within 2 % of the best, {near[1]} within 5 %."
    )
    return 0


def _row(label: str, entry: Ranked, reference: Ranked) -> str:
    setting = entry.setting
    gain = entry.tok_per_s / reference.tok_per_s - 1
    return (
        f"| {label} | {setting.budget} | {setting.topk} | {setting.window or 'none'} "
        f"| {entry.tok_per_s:.1f} | {gain:+.1%} | {entry.memory_gib:.1f} "
        f"| {entry.corruption_rate:.2f} |"
    )


if __name__ == "__main__":
    raise SystemExit(main())
