"""The rules between the knobs of DDTree and EAGLE: what is refused, and what the same server is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune import ddtree, eagle
from autotune.errors import SearchSpaceError
from autotune.space import Values

TOPK = ddtree.CONSTRAINTS["topk-within-budget"]
WINDOW = ddtree.CONSTRAINTS["window-covers-block"]
TREE = eagle.CONSTRAINTS["eagle-tree"]
CHAIN = eagle.CONSTRAINTS["eagle-chain"]

SMALL = st.integers(1, 12)


def nodes_drawn(steps: int, topk: int) -> int:
    """Nodes of EAGLE's tree, counted as they are drafted: each kept branch has `topk` children."""
    drawn = topk
    for _ in range(steps - 1):
        drawn += topk * topk
    return drawn + 1


@given(SMALL, SMALL)
def test_the_whole_tree_is_what_its_levels_hold(steps: int, topk: int) -> None:
    assert eagle.most_draft_tokens(steps, topk) == nodes_drawn(steps, topk)


def test_rules_name_the_parameters_that_they_need() -> None:
    assert {name: rule.parameters for name, rule in ddtree.CONSTRAINTS.items()} == {
        "topk-within-budget": ("budget", "topk"),
        "window-covers-block": ("window",),
    }
    assert {name: rule.parameters for name, rule in eagle.CONSTRAINTS.items()} == {
        "eagle-tree": ("steps", "topk", "draft_tokens"),
        "eagle-chain": ("steps", "draft_tokens"),
    }


def test_a_name_that_is_no_rule_is_told_with_those_there_are() -> None:
    assert ddtree.constraint("window-covers-block") is WINDOW
    with pytest.raises(SearchSpaceError) as caught:
        ddtree.constraint("topk")
    assert caught.value.message == "unknown constraint 'topk'"
    assert caught.value.hint == "known: topk-within-budget, window-covers-block"


@pytest.mark.parametrize(
    ("values", "broken"),
    [
        ({"budget": 4, "topk": 4}, ()),
        ({"budget": 4, "topk": 5}, ("topk 5 is above budget 4: the same server as topk 4",)),
        ({"budget": None, "topk": 5}, ()),
        ({"budget": 4, "topk": None}, ()),
    ],
)
def test_a_cap_above_the_budget_is_told(values: Values, broken: tuple[str, ...]) -> None:
    assert TOPK.violations(values) == broken


@pytest.mark.parametrize(
    ("values", "point"),
    [
        ({"budget": 4, "topk": 3}, {"budget": 4, "topk": 3}),
        ({"budget": 4, "topk": 5, "window": 9}, {"budget": 4, "topk": 4, "window": 9}),
        ({"budget": None, "topk": 5}, {"budget": None, "topk": 5}),
        ({"budget": 4, "topk": None}, {"budget": 4, "topk": None}),
    ],
)
def test_a_cap_above_the_budget_is_the_same_server(values: Values, point: Values) -> None:
    assert TOPK.clamp(values) == point


def test_a_window_covers_the_block_or_is_left_out() -> None:
    assert WINDOW.violations({"window": 7})
    assert not WINDOW.violations({"window": 8})
    assert not WINDOW.violations({"window": None})
    assert WINDOW.clamp({"window": 7}) == {"window": 7}


@pytest.mark.parametrize(
    ("steps", "topk", "tokens", "broken"),
    [
        (3, 1, 4, ()),
        (3, 1, 3, ("topk 1 is a chain: the engine makes draft_tokens 4 of 3",)),
        (3, 1, 5, ("topk 1 is a chain: the engine makes draft_tokens 4 of 5",)),
        (2, 2, 7, ()),
        (2, 2, 8, ("draft_tokens 8 is above the 7 nodes of 2 steps, topk 2",)),
        (None, 2, 8, ()),
        (2, None, 8, ()),
        (2, 2, None, ()),
    ],
)
def test_a_tree_holds_what_it_verifies(
    steps: int | None, topk: int | None, tokens: int | None, broken: tuple[str, ...]
) -> None:
    values = {"steps": steps, "topk": topk, "draft_tokens": tokens}
    assert TREE.violations(values) == broken


@given(SMALL, SMALL, st.integers(1, 200))
def test_the_clamped_tree_is_valid_and_never_grows_beyond_a_chain(
    steps: int, topk: int, tokens: int
) -> None:
    values: Values = {"steps": steps, "topk": topk, "draft_tokens": tokens}
    point = TREE.clamp(values)
    assert TREE.violations(point) == ()
    assert (point == dict(values)) == (TREE.violations(values) == ())
    if topk == 1:
        assert point["draft_tokens"] == steps + 1
    else:
        assert point["draft_tokens"] == min(tokens, nodes_drawn(steps, topk))


@pytest.mark.parametrize("missing", ["steps", "topk", "draft_tokens"])
def test_a_flag_that_is_left_out_is_the_engines_to_choose(missing: str) -> None:
    values: Values = {"steps": 3, "topk": 1, "draft_tokens": 9, missing: None}
    assert TREE.clamp(values) == values


@pytest.mark.parametrize(
    ("steps", "tokens", "broken", "made"),
    [
        (3, 4, (), 4),
        (3, 5, ("a chain of 3 steps has draft_tokens 4, not 5",), 4),
        (3, 3, ("a chain of 3 steps has draft_tokens 4, not 3",), 4),
        (None, 5, (), 5),
        (3, None, (), None),
    ],
)
def test_a_chain_has_one_token_more_than_steps(
    steps: int | None, tokens: int | None, broken: tuple[str, ...], made: int | None
) -> None:
    values: Values = {"steps": steps, "draft_tokens": tokens}
    assert CHAIN.violations(values) == broken
    assert CHAIN.clamp(values) == {"steps": steps, "draft_tokens": made}
