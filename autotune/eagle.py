"""What the EAGLE knobs mean: the rules between them, by the names that definitions use.

EAGLE drafts `steps` levels, keeps `topk` branches of each, and verifies the `draft_tokens` best
nodes of that tree in one pass of the target model; the verified token is one of them.  EAGLE3,
NEXTN and STANDALONE have the same knobs.  Source: SGLang, srt/server_args.py and
srt/speculative/eagle_utils.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from autotune.space import Constraint, ParameterValue, Values

__all__ = ["CONSTRAINTS", "most_draft_tokens"]


def most_draft_tokens(steps: int, topk: int) -> int:
    """Nodes of the whole tree: `topk` of the first level, `topk` squared of each later one, and
    the verified token."""
    return topk + (steps - 1) * topk * topk + 1


def _numbers(values: Values) -> tuple[int, int, int] | None:
    steps, topk, tokens = values["steps"], values["topk"], values["draft_tokens"]
    if isinstance(steps, int) and isinstance(topk, int) and isinstance(tokens, int):
        return steps, topk, tokens
    return None


def _tree_violations(values: Values) -> tuple[str, ...]:
    numbers = _numbers(values)
    if numbers is None:
        return ()
    steps, topk, tokens = numbers
    most = most_draft_tokens(steps, topk)
    if topk == 1 and tokens != steps + 1:
        return (f"topk 1 is a chain: the engine makes draft_tokens {steps + 1} of {tokens}",)
    if tokens > most:
        return (f"draft_tokens {tokens} is above the {most} nodes of {steps} steps, topk {topk}",)
    return ()


def _clamp_tree(values: Values) -> dict[str, ParameterValue]:
    """A chain has `steps` + 1 tokens whatever is asked for; a larger tree than there is does not
    start, so the whole tree stands for it."""
    point = dict(values)
    numbers = _numbers(values)
    if numbers is not None:
        steps, topk, tokens = numbers
        point["draft_tokens"] = (
            steps + 1 if topk == 1 else min(tokens, most_draft_tokens(steps, topk))
        )
    return point


def _chain_violations(values: Values) -> tuple[str, ...]:
    steps, tokens = values["steps"], values["draft_tokens"]
    if isinstance(steps, int) and isinstance(tokens, int) and tokens != steps + 1:
        return (f"a chain of {steps} steps has draft_tokens {steps + 1}, not {tokens}",)
    return ()


def _clamp_chain(values: Values) -> dict[str, ParameterValue]:
    point = dict(values)
    steps = point["steps"]
    if isinstance(steps, int) and isinstance(point["draft_tokens"], int):
        point["draft_tokens"] = steps + 1
    return point


CONSTRAINTS: Mapping[str, Constraint] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            Constraint(
                "eagle-tree", _tree_violations, ("steps", "topk", "draft_tokens"), _clamp_tree
            ),
            Constraint("eagle-chain", _chain_violations, ("steps", "draft_tokens"), _clamp_chain),
        )
    }
)
"""Every constraint between EAGLE's knobs that a definition may name."""
