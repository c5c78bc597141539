"""One tuned setting: which values it takes, and where they lie."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from autotune.errors import SearchSpaceError
from autotune.parameter import (
    Parameter,
    ParameterKind,
    ParameterValue,
    canonical,
    value_from_file,
    value_to_file,
)

INT, FLOAT, CATEGORICAL = ParameterKind.INT, ParameterKind.FLOAT, ParameterKind.CATEGORICAL


def number(kind: ParameterKind, low: float, high: float, **rest: Any) -> Parameter:
    return Parameter("x", kind, **{"low": low, "high": high, "deployed": low, "flag": "-x", **rest})


def choice(*choices: ParameterValue) -> Parameter:
    return Parameter("mode", CATEGORICAL, choices=choices, deployed=choices[0], env="MODE")


def test_an_optional_definition_says_nothing_by_default() -> None:
    plain = number(INT, 1, 4)
    assert (plain.step, plain.log, plain.choices, plain.aliases) == (None, False, (), ())
    assert (plain.env, plain.why, plain.source, plain.proof) == ("", "", "", ())


@pytest.mark.parametrize("place", ["argv", "environ", "server_info", "log"])
def test_every_place_of_proof_may_be_asked_for(place: str) -> None:
    assert number(INT, 1, 4, proof=(place,)).proof == (place,)


@pytest.mark.parametrize("kind", [INT, FLOAT])
def test_a_range_may_be_one_value(kind: ParameterKind) -> None:
    one = number(kind, 3, 3)
    assert one.problem(3) == ""
    assert one.problem(4)
    assert one.encode(3) == (0.0,)
    assert [float(value) for value in one.levels() if value is not None] == [3.0]


RANGE = "for example low = 1 and high = 64"
CHOICES = 'for example choices = [512, 2048, "none"]'
CARRIER = "give either a flag or an environment variable that carries it"
A_FLAG = 'for example flag = "--max-running-requests"'
MEND = "deployed is what runs today: mend it, or widen the range"


@pytest.mark.parametrize(
    ("changes", "said", "hint"),
    [
        ({"low": 5}, "low 5 is above high 4", "low is the least, high the greatest"),
        ({"low": None}, "needs low and high", RANGE),
        ({"high": None}, "needs low and high", RANGE),
        ({"high": math.inf}, "high inf is not a finite number", RANGE),
        ({"high": True}, "high True is not a finite number", RANGE),
        ({"low": "1"}, "low '1' is not a finite number", RANGE),
        ({"low": 1.0}, "low 1.0 is not an integer", 'a whole number, or kind = "float"'),
        ({"step": 0.5}, "step 0.5 is not an integer", 'a whole number, or kind = "float"'),
        ({"step": -1}, "step -1 is not above 0", "leave it out, or for example 1"),
        ({"step": 0}, "step 0 is not above 0", "leave it out, or for example 1"),
        ({"low": 0, "log": True}, "log needs low above 0, it is 0", "raise low, or take log out"),
        ({"low": 1, "step": 3, "log": True}, "log and step exclude each other",
         "take one of them out"),
        ({"step": 2}, "high 4 is not low 1 plus steps of 2", "move high, or take step out"),
        ({"choices": (1, 2)}, "an int has low and high, not choices",
         'give them, or kind = "categorical"'),
        ({"deployed": 0}, "deployed 0 is outside [1, 4]", MEND),
        ({"deployed": "1"}, "deployed '1' is not a number", MEND),
        ({"deployed": None}, "deployed 'none' is not a number", MEND),
        ({"deployed": 1.5}, "deployed 1.5 is not an integer", MEND),
        ({"flag": ""}, CARRIER, A_FLAG),
        ({"env": "X"}, CARRIER, A_FLAG),
        ({"flag": "x"}, "flag 'x' does not begin with a dash", "for example --x"),
        ({"proof": ("argv", "dream")},
         "proof 'dream' is none of argv, environ, server_info, log",
         "leave it out, and what can show the value must"),
    ],
)  # fmt: skip
def test_a_range_that_cannot_be_is_refused(changes: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(SearchSpaceError) as caught:
        Parameter("x", INT, **{"low": 1, "high": 4, "deployed": 1, "flag": "-x", **changes})
    assert (caught.value.message, caught.value.hint) == (f"parameter 'x': {said}", hint)


NO_RANGE = "a categorical has choices, not low, high, step or log"
NEITHER = "is neither text nor a finite number"


@pytest.mark.parametrize(
    ("changes", "said", "hint"),
    [
        ({"low": 1}, NO_RANGE, CHOICES),
        ({"high": 1}, NO_RANGE, CHOICES),
        ({"step": 1}, NO_RANGE, CHOICES),
        ({"log": True}, NO_RANGE, CHOICES),
        ({"choices": ()}, "a categorical needs choices", CHOICES),
        ({"choices": ("a", "none")}, 'the choice "none" is read as leaving the flag out',
         "use None"),
        ({"choices": ("a", math.nan)}, f"choice nan {NEITHER}", CHOICES),
        ({"choices": ("a", math.inf)}, f"choice inf {NEITHER}", CHOICES),
        ({"choices": ("a", True)}, f"choice True {NEITHER}", CHOICES),
        ({"choices": ("a", (1,))}, f"choice (1,) {NEITHER}", CHOICES),
        ({"choices": ("a", 1, "a")}, "a choice stands twice", "keep one of them"),
        ({"deployed": "b"}, "deployed 'b' is not one of a", MEND),
    ],
)  # fmt: skip
def test_choices_that_cannot_be_are_refused(changes: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(SearchSpaceError) as caught:
        Parameter("x", CATEGORICAL, **{"choices": ("a",), "deployed": "a", "flag": "-x", **changes})
    assert (caught.value.message, caught.value.hint) == (f"parameter 'x': {said}", hint)


@pytest.mark.parametrize("name", ["", "two words", "9lives"])
def test_a_name_is_an_identifier(name: str) -> None:
    with pytest.raises(SearchSpaceError) as caught:
        Parameter(name, INT, low=1, high=2, deployed=1, flag="--x")
    assert caught.value.message == f"parameter {name!r}: the name is not an identifier"
    assert caught.value.hint == "letters, digits and _, no digit first"


def test_a_logarithm_starts_above_zero_and_has_no_steps() -> None:
    assert number(INT, 1, 64, log=True, step=1).log  # an integer's own step is no other
    assert number(FLOAT, 1e-9, 1.0, log=True).log
    with pytest.raises(SearchSpaceError, match="log and step exclude each other"):
        number(FLOAT, 1.0, 2.0, log=True, step=1)
    with pytest.raises(SearchSpaceError, match="log needs low above 0, it is -1"):
        number(FLOAT, -1.0, 2.0, log=True)


def test_a_choice_is_text_a_number_or_none() -> None:
    assert choice("a", 1, 0.5, None).choices == ("a", 1, 0.5, None)


def test_a_choice_is_not_another_that_python_calls_equal() -> None:
    bits = choice(0, 1)
    assert bits.problem(1) == ""
    assert bits.problem(True) == "True is not one of 0, 1"
    assert choice("a", None).problem("b") == "'b' is not one of a, none"


@given(st.integers(-50, 50), st.integers(0, 40), st.integers(1, 7), st.integers(-60, 100))
def test_the_values_of_an_integer_are_those_of_its_levels(
    low: int, count: int, step: int, value: int
) -> None:
    parameter = number(INT, low, low + count * step, step=step)
    assert parameter.levels() == tuple(range(low, low + count * step + 1, step))
    assert (parameter.problem(value) == "") == (value in parameter.levels())


@given(st.floats(-10, 10), st.integers(0, 40), st.floats(0.01, 3))
def test_the_levels_of_a_float_are_steps_from_low_to_high(
    low: float, count: int, step: float
) -> None:
    high = low + count * step
    levels = number(FLOAT, low, high, step=step).levels()
    assert len(levels) == count + 1
    assert levels == pytest.approx([low + i * step for i in range(count + 1)])
    assert all(isinstance(level, float) and level <= high for level in levels)


def test_a_step_has_the_tolerance_of_binary_fractions_only() -> None:
    far = number(FLOAT, 0.0, 1e6, step=0.1)
    assert far.problem(0.1 * 3) == ""
    assert far.problem(99_999.9) == ""
    assert far.problem(0.1000001)
    assert far.problem(0.05)
    near = number(FLOAT, 0.0, 1.0, step=1.0)  # a billionth of a step, near low too
    assert near.problem(0.9e-9) == ""
    assert near.problem(1.5e-9) == "1.5e-09 is not 0.0 plus steps of 1.0"


def test_without_a_step_an_integer_has_every_one_and_a_float_33() -> None:
    assert number(INT, 2, 5).levels() == (2, 3, 4, 5)
    even = number(FLOAT, 0.0, 32.0).levels()
    assert even == tuple(float(value) for value in range(33))
    ratios = number(FLOAT, 1.0, 2.0**32, log=True).levels()
    assert ratios == pytest.approx([2.0**power for power in range(33)])


@pytest.mark.parametrize(
    ("low", "high"),  # a few floats apart: NumPy's spacing goes above one and below the other
    [(32.94661263122024, 32.94661263122027), (1.779363838348512, 1.7793638383485124)],
)
def test_no_level_leaves_its_range_by_a_rounding_error(low: float, high: float) -> None:
    narrow = number(FLOAT, low, high, log=True)
    assert {narrow.problem(level) for level in narrow.levels()} == {""}


def test_the_deployed_value_is_a_level() -> None:
    levels = number(FLOAT, 0.0, 32.0, deployed=0.3).levels()
    assert levels[:3] == (0.0, 0.3, 1.0)
    assert len(levels) == 34


def test_numbers_are_in_order_with_none_above_them() -> None:
    assert choice(4, None, 1, 2).levels() == (1, 2, 4, None)
    assert choice(4, 1).levels() == (1, 4)
    assert choice("b", "a", 1).levels() == ("b", "a", 1)


def test_what_has_an_order_and_what_has_an_end() -> None:
    assert [p.ordinal for p in (number(INT, 1, 2), choice(1, None), choice(1, "a"))] == [
        True,
        True,
        False,
    ]
    assert [p.finite for p in (number(INT, 1, 2), choice("a"), number(FLOAT, 1, 2, step=1))] == [
        True,
        True,
        True,
    ]
    assert not number(FLOAT, 1, 2).finite


def test_where_values_lie() -> None:
    assert number(INT, 2, 6).encode(3) == (0.25,)
    assert number(FLOAT, 1.0, 100.0, log=True).encode(10.0) == pytest.approx((0.5,))
    assert number(FLOAT, 2.0, 32.0, log=True).encode(4.0) == pytest.approx((0.25,))
    assert choice(8, 4, None).encode(8) == (0.5,)
    assert choice(8, 4).encode(8) == (1.0,)
    assert choice(8).encode(8) == (0.0,)
    assert choice("a", "b", None).encode(None) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("parameter", "distribution"),
    [
        (choice("a", None), CategoricalDistribution(("a", None))),
        (number(INT, 1, 64, log=True), IntDistribution(1, 64, log=True)),
        (number(INT, 2, 8, step=3), IntDistribution(2, 8, step=3)),
        (number(FLOAT, 1, 2), FloatDistribution(1.0, 2.0)),
        (number(FLOAT, 1, 2, log=True), FloatDistribution(1.0, 2.0, log=True)),
        (number(FLOAT, 1, 2, step=0.5), FloatDistribution(1.0, 2.0, step=0.5)),
    ],
)
def test_optuna_gets_the_same_values(parameter: Parameter, distribution: object) -> None:
    assert parameter.distribution() == distribution


def test_only_the_word_none_means_none() -> None:
    assert value_from_file("none") is None
    assert [value_from_file(value) for value in ("None", 0, "")] == ["None", 0, ""]
    assert [value_to_file(value) for value in (None, 0, "")] == ["none", 0, ""]


def test_equal_points_have_one_text() -> None:
    assert canonical({"b": None, "a": 1.5}) == canonical({"a": 1.5, "b": None})
    assert canonical({"b": None, "a": 1.5}) == '{"a":1.5,"b":null}'
    with pytest.raises(ValueError, match="JSON"):
        canonical({"a": math.nan})
