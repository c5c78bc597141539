"""The speculative algorithms of SGLang: their knobs, sensible ranges and the rules between them.

Ranges and rules are those of SGLang's argument checks (srt/server_args.py); what a range leaves
out, and why, stands in `why` and goes into the definition that `autotune init` writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from autotune.engine_units import Algorithm, Knob

__all__ = [
    "ALGORITHMS",
    "ALGORITHM_ALIASES",
    "ALGORITHM_FLAG",
    "SPECULATIVE_LIMIT",
    "fitted",
]

ALGORITHM_FLAG = "--speculative-algorithm"
ALGORITHM_ALIASES = ("--speculative-algo",)
SPECULATIVE_LIMIT = 48
"""Requests that SGLang admits under speculation when `--max-running-requests` is left out."""

_WINDOW = Knob(
    name="window",
    flag="--speculative-draft-window-size",
    aliases=("--speculative-dflash-draft-window-size",),
    choices=(512, 1024, 2048, 4096, 8192, None),
    why="tokens of context that the drafter attends to; above what it was trained with it drafts "
    "worse, and no window means all of it. It does not change the memory of the KV pool",
    source="SGLang, srt/speculative/dflash_worker.py; refused below the block size",
)
_EAGLE_KNOBS = (
    Knob(
        name="steps",
        flag="--speculative-num-steps",
        low=1,
        high=8,
        why="levels of the draft tree: each is one more pass of the draft model before a round can "
        "be verified",
        source="SGLang, docs: speculative decoding",
    ),
    Knob(
        name="topk",
        flag="--speculative-eagle-topk",
        low=1,
        high=8,
        why="branches kept on each level; 1 is a chain, and pays off where many requests run at "
        "once",
        source="SGLang, docs: speculative decoding",
    ),
    Knob(
        name="draft_tokens",
        flag="--speculative-num-draft-tokens",
        low=2,
        high=64,
        why="nodes of the tree that the target model verifies in one pass, the verified token among"
        " them; every one is paid for by every request of the batch",
        source="SGLang, srt/server_args.py",
    ),
)

ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {
        one.name: one
        for one in (
            Algorithm(
                "DDTREE",
                "a draft tree over a block drafter (DDTree)",
                (
                    Knob(
                        name="budget",
                        flag="--speculative-ddtree-budget",
                        low=1,
                        high=64,
                        why="nodes of the draft tree; the server verifies budget + 1 tokens per "
                        "request and round, so a large model wants small trees at high concurrency",
                        source="DDTree, arXiv 2604.12989, section 4",
                    ),
                    Knob(
                        name="topk",
                        flag="--speculative-ddtree-topk-cap",
                        low=1,
                        high=16,
                        why="candidates of one position that may enter the tree; 1 is a chain",
                        source="DDTree, arXiv 2604.12989, Lemma 1",
                    ),
                    _WINDOW,
                ),
                ("topk-within-budget",),
                "--speculative-num-draft-tokens is the block size that the drafter was trained "
                "with: another value makes it draft badly",
            ),
            Algorithm(
                "DFLASH",
                "a block drafter (DFlash)",
                (_WINDOW,),
                (),
                "--speculative-num-draft-tokens is the block size that the drafter was trained "
                "with, and DFLASH forces steps and topk to 1",
            ),
            Algorithm("EAGLE", "an EAGLE draft head", _EAGLE_KNOBS, ("eagle-tree",)),
            Algorithm("EAGLE3", "an EAGLE-3 draft head", _EAGLE_KNOBS, ("eagle-tree",)),
            Algorithm("NEXTN", "the model's own next-token head", _EAGLE_KNOBS, ("eagle-tree",)),
            Algorithm(
                "STANDALONE", "a small model of its own as drafter", _EAGLE_KNOBS, ("eagle-tree",)
            ),
            Algorithm(
                "NGRAM",
                "n-grams of the text so far, without a draft model",
                (
                    Knob(
                        name="draft_tokens",
                        flag="--speculative-num-draft-tokens",
                        low=2,
                        high=32,
                        why="nodes of the n-gram tree that are verified in one pass; drafting is "
                        "nearly free, verification is not",
                        source="SGLang, srt/server_args.py: 12 when the flag is left out",
                    ),
                    Knob(
                        name="breadth",
                        flag="--speculative-ngram-max-bfs-breadth",
                        low=1,
                        high=16,
                        why="continuations of one n-gram that may enter the tree; 1 is a chain",
                        source="SGLang, srt/server_args.py: 10 when the flag is left out",
                    ),
                ),
            ),
        )
    }
)
"""By the name that `--speculative-algorithm` takes."""


def fitted(
    algorithm: Algorithm, *, block_tokens: int | None, context_tokens: int | None, trees: bool
) -> Algorithm:
    """The algorithm without the values that this server would refuse.

    Args:
        block_tokens: Tokens of one draft block; a draft window below it is refused.
        context_tokens: Longest context of the server; a window above it changes nothing.
        trees: Whether the attention backend verifies trees: with a page size above 1 only some do.
    """
    knobs: list[Knob] = []
    for knob in algorithm.knobs:
        if knob.name == "window":
            choices = tuple(
                choice
                for choice in knob.choices
                if not isinstance(choice, int)
                or (choice >= (block_tokens or 1) and choice <= (context_tokens or choice))
            )
            knobs.append(replace(knob, choices=choices))
        elif knob.name != "topk" or trees or algorithm.name == "DDTREE":
            knobs.append(knob)
    if len(knobs) < len(algorithm.knobs):
        return replace(
            algorithm,
            knobs=tuple(knobs),
            constraints=("eagle-chain",),
            leaves_alone="--speculative-eagle-topk stays 1: this attention backend refuses trees "
            "with a page size above 1",
        )
    return replace(algorithm, knobs=tuple(knobs))
