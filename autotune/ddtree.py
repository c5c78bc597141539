"""What the DDTree knobs mean: the rules between them, by the names that definitions use.

DDTree drafts a block of tokens at once, keeps the `budget` most probable nodes of the tree of
candidates, at most `topk` of them for each position, and verifies them in one pass of the target
model.  `window` bounds the tokens that the drafter attends to.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from autotune.errors import SearchSpaceError
from autotune.space import Constraint, ParameterValue, Values

__all__ = ["BLOCK_TOKENS", "CONSTRAINTS", "constraint"]

BLOCK_TOKENS = 8
"""Tokens that the drafter proposes at once, the verified one among them (its `block_size`)."""


def _topk_violations(values: Values) -> tuple[str, ...]:
    budget, topk = values["budget"], values["topk"]
    if isinstance(budget, int) and isinstance(topk, int) and topk > budget:
        return (f"topk {topk} is above budget {budget}: the same server as topk {budget}",)
    return ()


def _clamp_topk(values: Values) -> dict[str, ParameterValue]:
    """A top-k cap at or above the budget never binds.

    Source: DDTree paper (arXiv 2604.12989), Lemma 1: a sibling of rank r enters the tree only
    after the ranks 1..r-1, so a tree of `budget` nodes holds no rank above `budget`.
    """
    point = dict(values)
    budget, topk = point["budget"], point["topk"]
    if isinstance(budget, int) and isinstance(topk, int):
        point["topk"] = min(topk, budget)
    return point


def _window_violations(values: Values) -> tuple[str, ...]:
    """Source: SGLang's argument check refuses a draft window below the number of draft tokens."""
    window = values["window"]
    if isinstance(window, int) and window < BLOCK_TOKENS:
        return (f"window {window} is below the drafter's block of {BLOCK_TOKENS} tokens",)
    return ()


CONSTRAINTS: Mapping[str, Constraint] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            Constraint("topk-within-budget", _topk_violations, ("budget", "topk"), _clamp_topk),
            Constraint("window-covers-block", _window_violations, ("window",)),
        )
    }
)
"""Every constraint that a definition may name."""


def constraint(name: str) -> Constraint:
    """The constraint of this name.

    Raises:
        SearchSpaceError: There is none.
    """
    try:
        return CONSTRAINTS[name]
    except KeyError:
        known = ", ".join(sorted(CONSTRAINTS))
        raise SearchSpaceError(f"unknown constraint {name!r}", hint=f"known: {known}") from None
