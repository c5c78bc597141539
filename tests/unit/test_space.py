"""Parameters, constraints and the points they span."""

from __future__ import annotations

import hashlib
import pickle
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.ddtree import CONSTRAINTS, constraint
from autotune.errors import ConfigError, SearchSpaceError
from autotune.parameter import (
    Parameter,
    ParameterKind,
    ParameterValue,
    Values,
    value_from_file,
    value_to_file,
)
from autotune.space import Constraint, SearchSpace
from autotune.testing.surfaces import ddtree_space

SPACE = ddtree_space()
INT, FLOAT, CATEGORICAL = ParameterKind.INT, ParameterKind.FLOAT, ParameterKind.CATEGORICAL


def integer(**changes: Any) -> Parameter:
    given: dict[str, Any] = {"low": 1, "high": 64, "deployed": 8, "flag": "--budget", **changes}
    return Parameter("budget", INT, **given)


@st.composite
def points(draw: st.DrawFn) -> dict[str, ParameterValue]:
    return {
        parameter.name: draw(st.sampled_from(parameter.levels())) for parameter in SPACE.parameters
    }


def test_none_is_written_as_a_word() -> None:
    for value in (None, 7, 0.5, "fa3"):
        assert value_from_file(value_to_file(value)) == value
    assert value_to_file(None) == "none"


A_POINT = "a point has a value of every parameter, in its range and by every rule"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"budget": 65}, "parameter 'budget': 65 is outside [1, 64]"),
        ({"budget": True}, "parameter 'budget': True is not a number"),
        ({"window": 100},
         "parameter 'window': 100 is not one of 256, 512, 1024, 2048, 4096, 8192, none"),
        ({"topk": "4"}, "parameter 'topk': '4' is not a number"),
        ({"depth": 3}, "unknown parameter 'depth'"),
        ({"topk": 9}, "topk 9 is above budget 8: the same server as topk 8"),
        ({"budget": 0, "topk": None},
         "parameter 'budget': 0 is outside [1, 64]; parameter 'topk': 'none' is not a number"),
    ],
)  # fmt: skip
def test_validate_says_what_is_wrong(change: dict[str, ParameterValue], said: str) -> None:
    with pytest.raises(SearchSpaceError) as caught:
        SPACE.validate({**SPACE.deployed(), **change})
    assert (caught.value.message, caught.value.hint) == (said, A_POINT)


def test_a_missing_parameter_is_named() -> None:
    with pytest.raises(SearchSpaceError, match="'topk' is missing"):
        SPACE.validate({"budget": 8, "window": None})


def test_off_step_is_refused() -> None:
    fraction = Parameter("share", FLOAT, low=0.1, high=0.9, step=0.1, deployed=0.7, flag="--share")
    assert fraction.problem(0.30000000000000004) == ""
    assert fraction.problem(0.35) == "0.35 is not 0.1 plus steps of 0.1"
    assert all(fraction.problem(level) == "" for level in fraction.levels())
    assert len(fraction.levels()) == 9


def never(name: str) -> Constraint:
    """A rule that every point breaks, of its own name."""
    return Constraint(name, lambda values: (f"{name} is broken",))


BUDGET, TOPK, WINDOW = SPACE.parameters
RULE = CONSTRAINTS["topk-within-budget"]


@pytest.mark.parametrize(
    ("parameters", "rules", "said", "hint"),
    [
        ((), (), "the search space has no parameter", "for example [parameters.budget]"),
        # not the first, nor the last by its letters
        ((WINDOW, BUDGET, TOPK, BUDGET), (), "parameter 'budget' is defined twice",
         "give each a name of its own"),
        (SPACE.parameters, (never("z"), RULE, never("a"), RULE),
         "constraint 'topk-within-budget' is named twice", "name it once"),
        ((BUDGET, TOPK), (CONSTRAINTS["window-covers-block"],),
         "constraint 'window-covers-block' needs the parameter 'window', "
         "the space has budget, topk",
         "take the rule out of constraints, or call the parameter so"),
        ((BUDGET, replace(TOPK, deployed=16)), (RULE, never("odd")),
         "the deployed point is not valid: topk 16 is above budget 8: the same server as topk 8; "
         "odd is broken",
         "deployed is what runs today: mend it, or take the rule out of constraints"),
    ],
)  # fmt: skip
def test_a_space_refuses_what_cannot_be(
    parameters: tuple[Parameter, ...], rules: tuple[Constraint, ...], said: str, hint: str
) -> None:
    with pytest.raises(SearchSpaceError) as caught:
        SearchSpace(parameters, rules)
    assert (caught.value.message, caught.value.hint) == (said, hint)


def test_constraints_are_found_by_name_and_fixed() -> None:
    assert constraint("topk-within-budget").name == "topk-within-budget"
    with pytest.raises(ConfigError, match="known: topk-within-budget, window-covers-block"):
        constraint("topk-below-budget")
    with pytest.raises(TypeError):
        CONSTRAINTS["x"] = Constraint("x", lambda values: ())  # type: ignore[index]


def test_a_window_below_the_block_is_a_violation() -> None:
    window = Parameter("window", INT, low=1, high=64, deployed=16, flag="--window")
    space = SearchSpace((window,), (CONSTRAINTS["window-covers-block"],))
    assert space.violations({"window": 7}) == ("window 7 is below the drafter's block of 8 tokens",)
    assert space.violations({"window": 8}) == ()
    assert min(point["window"] for point in space.enumerate(100)) == 8  # type: ignore[type-var]


@given(points())
def test_the_effective_point_is_valid_and_final(point: dict[str, ParameterValue]) -> None:
    effective = SPACE.effective(point)
    SPACE.validate(effective)
    assert SPACE.effective(effective) == effective
    assert SPACE.key(point) == SPACE.key(effective)


@given(points(), points())
def test_equal_keys_mean_the_same_server(
    a: dict[str, ParameterValue], b: dict[str, ParameterValue]
) -> None:
    assert (SPACE.key(a) == SPACE.key(b)) == (SPACE.effective(a) == SPACE.effective(b))


def test_a_cap_above_the_budget_is_the_budget() -> None:
    assert SPACE.effective({"budget": 4, "topk": 16, "window": None}) == {
        "budget": 4,
        "topk": 4,
        "window": None,
    }
    assert SPACE.key({"budget": 4, "topk": 16, "window": None}) == (
        '{"budget":4,"topk":4,"window":null}'
    )


def test_what_is_no_point_has_no_effective_one() -> None:
    for values, words in (
        ({"budget": 4, "topk": 4}, "parameter 'window' is missing"),
        ({**SPACE.deployed(), "depth": 1}, "unknown parameter 'depth'"),
        ({"budget": 65, "topk": 0, "window": None},
         "parameter 'budget': 65 is outside [1, 64]; parameter 'topk': 0 is outside [1, 16]"),
    ):  # fmt: skip
        with pytest.raises(SearchSpaceError) as caught:
            SPACE.effective(values)
        assert (caught.value.message, caught.value.hint) == (words, A_POINT)


def test_an_effective_point_has_the_values_of_the_definition() -> None:
    """Numbers that Python calls equal are one value: 1 is 1.0 and, for a float, written so."""
    share = Parameter("share", FLOAT, low=1, high=2, deployed=1, flag="--share")
    mode = Parameter("mode", CATEGORICAL, choices=(1, 0.5, None), deployed=1, flag="--mode")
    space = SearchSpace((share, mode))
    point = space.effective({"mode": 1.0, "share": 2})
    assert list(point.items()) == [("share", 2.0), ("mode", 1)]
    assert [type(value) for value in point.values()] == [float, int]
    assert space.key({"mode": 1, "share": 2.0}) == space.key({"share": 2, "mode": 1.0})


def steps_down(name: str, above: str) -> Constraint:
    """`name` is at most one below `above`."""

    def clamp(values: Values) -> dict[str, ParameterValue]:
        highest = values[above]
        assert isinstance(highest, int)
        value = values[name]
        assert isinstance(value, int)
        return {**values, name: min(value, highest - 1)}

    def violations(values: Values) -> tuple[str, ...]:
        return () if clamp(values) == dict(values) else (f"{name} is not below {above}",)

    return Constraint(f"{name}-below-{above}", violations, (name, above), clamp)


def test_clamps_that_wake_each_other_are_all_applied() -> None:
    names = ("a", "b", "c", "d")
    space = SearchSpace(
        tuple(
            Parameter(name, INT, low=-9, high=9, deployed=9 - at, flag=f"--{name}")
            for at, name in enumerate(names)
        ),
        # in the order in which each undoes the one before it
        (steps_down("d", "c"), steps_down("c", "b"), steps_down("b", "a")),
    )
    assert space.effective(dict.fromkeys(names, 5)) == {"a": 5, "b": 4, "c": 3, "d": 2}


def test_a_listing_has_at_least_one_point() -> None:
    for limit in (0, -1):
        with pytest.raises(ValueError, match=f"limit is {limit}, must be >= 1"):
            SPACE.enumerate(limit)
    assert SPACE.enumerate(1) == [SPACE.deployed()]


def test_another_seed_is_another_sample() -> None:
    assert SPACE.enumerate(50, seed=1) != SPACE.enumerate(50, seed=2)
    assert SPACE.enumerate(50) == SPACE.enumerate(50, seed=0)


def test_a_sample_is_drawn_without_preference() -> None:
    """Of 100 values 10 are drawn: each other one comes in 9 of 99 samples."""
    space = SearchSpace((integer(low=1, high=100),))
    counts = Counter(
        point["budget"] for seed in range(400) for point in space.enumerate(10, seed=seed)
    )
    assert counts.pop(8) == 400
    assert set(counts) == set(range(1, 101)) - {8}
    assert max(counts.values()) < 70  # 36 expected, standard deviation 5.7
    ordered = [point["budget"] for point in space.enumerate(10, seed=1)]
    assert ordered[0] == 8
    assert ordered[1:] == [n for n in range(1, 101) if n in ordered[1:]]


def test_listing_is_complete_and_without_twins() -> None:
    listed = SPACE.enumerate(10_000)
    keys = {SPACE.key(point) for point in listed}
    assert len(keys) == len(listed) == 7 * sum(min(16, budget) for budget in range(1, 65))
    assert listed[0] == SPACE.deployed()


@given(st.integers(1, 300), st.integers(0, 2**32 - 1))
@settings(max_examples=5, deadline=None)
def test_a_sample_of_the_listing_is_valid_and_seeded(limit: int, seed: int) -> None:
    sample = SPACE.enumerate(limit, seed=seed)
    assert len({SPACE.key(point) for point in sample}) == len(sample) == limit
    assert SPACE.deployed() in sample
    assert sample == SPACE.enumerate(limit, seed=seed)
    for point in sample:
        SPACE.validate(point)


def test_a_space_too_large_to_list_is_sampled() -> None:
    share = Parameter("share", FLOAT, low=0.5, high=0.95, deployed=0.8, flag="--share")
    rate = Parameter("rate", FLOAT, low=1.0, high=1e4, log=True, deployed=3.0, flag="--rate")
    space = SearchSpace((*SPACE.parameters, share, rate), SPACE.constraints)
    sample = space.enumerate(500, seed=3)
    assert len(sample) == 500
    assert not space.finite
    assert sample[0] == space.deployed()
    for parameter in space.parameters:  # from end to end
        levels = parameter.levels()
        seen = {point[parameter.name] for point in sample}
        assert {levels[0], levels[-1]} <= seen
    for point in sample:
        space.validate(point)


def test_sixty_thousand_combinations_are_listed_and_not_drawn() -> None:
    """Of 60 000 all but one are one of 300 servers: a draw would hardly find that one."""
    rare = {"budget": 300, "other": 200}

    def clamp(values: Values) -> dict[str, ParameterValue]:
        return dict(values) if values == rare else {**values, "other": 1}

    other = replace(integer(low=1, high=200, deployed=1), name="other", flag="--other")
    space = SearchSpace(
        (integer(low=1, high=300), other), (Constraint("rare", lambda values: (), (), clamp),)
    )
    listed = space.enumerate(301)
    assert len(listed) == 301
    assert rare in listed


def test_a_large_space_with_few_servers_is_drawn_until_the_draws_are_spent() -> None:
    """Most of 60 000 combinations are the same 300 servers: the draws end, not the loop."""
    one = integer(low=1, high=300, deployed=1)
    other = replace(integer(low=1, high=300, deployed=1), name="other", flag="--other")
    twin = Constraint(
        "other-is-budget",
        lambda values: (),
        ("budget", "other"),
        lambda values: {**values, "other": values["budget"]},
    )
    space = SearchSpace((one, other), (twin,))
    found = space.enumerate(400)
    assert 290 <= len(found) <= 300
    assert all(point["other"] == point["budget"] for point in found)
    broken = Constraint(
        "odd", lambda values: ("even",) if int(values["budget"] or 0) % 2 == 0 else ()
    )
    odd = SearchSpace((one, other), (broken,)).enumerate(100)
    assert len(odd) == 100
    assert all(int(point["budget"] or 0) % 2 for point in odd)


@given(points())
def test_the_encoding_lies_in_the_unit_cube(point: dict[str, ParameterValue]) -> None:
    encoded = SPACE.encode(point)
    assert encoded.shape == (3,)
    assert np.all((encoded >= 0) & (encoded <= 1))


def test_the_encoding_follows_ratios_ranks_and_names() -> None:
    backend = Parameter(
        "backend", CATEGORICAL, choices=("fa3", "triton", None), deployed="fa3", flag="--backend"
    )
    space = SearchSpace((*SPACE.parameters, backend))
    encoded = space.encode({"budget": 8, "topk": 2, "window": None, "backend": "triton"})
    assert encoded.tolist() == pytest.approx([0.5, 0.25, 1.0, 0.0, 1.0, 0.0])
    assert space.encode(space.deployed())[2] == pytest.approx(3 / 6)


@given(points())
def test_optuna_accepts_every_point(point: dict[str, ParameterValue]) -> None:
    trial = optuna.trial.create_trial(
        params=dict(point), distributions=SPACE.distributions(), value=1.0
    )
    assert trial.params == point


def test_equal_definitions_are_equal_values() -> None:
    again = ddtree_space()
    assert again == SPACE
    assert again.fingerprint() == SPACE.fingerprint()
    assert pickle.loads(pickle.dumps(SPACE)) == SPACE


@pytest.mark.parametrize(
    "changes", [{"high": 32}, {"log": False}, {"flag": "--other"}, {"deployed": 9}]
)
def test_what_a_point_means_is_in_the_fingerprint(changes: dict[str, Any]) -> None:
    budget, *others = SPACE.parameters
    changed = SearchSpace((replace(budget, **changes), *others), SPACE.constraints)
    assert changed.fingerprint() != SPACE.fingerprint()


def test_the_fingerprint_of_a_space_is_the_same_in_every_release() -> None:
    """It is stored with a study, which is resumed only where it is equal."""
    share = Parameter("share", FLOAT, low=0.5, high=1.0, step=0.1, deployed=0.8, env="SHARE")
    definition = (
        '{"constraints": ["topk-within-budget"], "parameters": ['
        '{"carrier": ["--speculative-ddtree-budget", ""], "choices": [], "deployed": 8, '
        '"kind": "int", "name": "budget", "range": [1, 64, null, true]}, '
        '{"carrier": ["--speculative-ddtree-topk-cap", ""], "choices": [], "deployed": 4, '
        '"kind": "int", "name": "topk", "range": [1, 16, null, true]}, '
        '{"carrier": ["", "SHARE"], "choices": [], "deployed": 0.8, '
        '"kind": "float", "name": "share", "range": [0.5, 1.0, 0.1, false]}]}'
    )
    space = SearchSpace((*SPACE.parameters[:2], share), (CONSTRAINTS["topk-within-budget"],))
    assert space.fingerprint() == hashlib.sha256(definition.encode()).hexdigest()


def test_texts_are_not_in_the_fingerprint() -> None:
    budget, *others = SPACE.parameters
    changed = SearchSpace((replace(budget, why="wide", source="x"), *others), SPACE.constraints)
    assert changed.fingerprint() == SPACE.fingerprint()


def test_changes_count_parameters() -> None:
    assert SPACE.changes(SPACE.deployed()) == 0
    assert SPACE.changes({"budget": 16, "topk": 4, "window": None}) == 2
