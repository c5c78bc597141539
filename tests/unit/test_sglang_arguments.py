"""Settings in a `server_args=` line: what Python wrote comes back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.sglang.arguments import Unparsed, is_complete, parse_server_args

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@settings(max_examples=60)
@given(st.dictionaries(NAMES, PLAIN, min_size=1, max_size=5))
def test_both_forms_come_back_as_they_were(values: dict[str, object]) -> None:
    as_call = "ServerArgs(" + ", ".join(f"{key}={value!r}" for key, value in values.items()) + ")"
    for text in (as_call, repr(values)):
        assert parse_server_args(text) == values
        assert is_complete(text)
        assert not is_complete(text[:-1])


@pytest.mark.parametrize(
    "odd",
    [
        "<object at 0x7f>",
        "<function f at 0x7f, (odd>",
        "<Foo: it's>",
        "<bound method A.b of <A object at 0x1>>",
        "open('x').read()",
        "lambda: 0",
        "a b c",
        "[<Foo: it's>, 2]",
        "Graph(a=<Foo: it's>)",
        "<Map<int, str>, 'it>",
    ],
)
def test_one_odd_value_does_not_cost_the_others(odd: str) -> None:
    call = parse_server_args(f"ServerArgs(first='a, b', odd={odd}, last=[1, (2,)], end='z')")
    assert call is not None
    assert isinstance(call.pop("odd"), Unparsed)
    assert call == {"first": "a, b", "last": [1, (2,)], "end": "z"}
    mapping = parse_server_args(f"{{'first': 'a, b', 'odd': {odd}, 'last': [1, (2,)], 'end': 'z'}}")
    assert mapping is not None
    assert isinstance(mapping.pop("odd"), Unparsed)
    assert mapping == {"first": "a, b", "last": [1, (2,)], "end": "z"}


def test_settings_of_an_object_are_not_those_of_the_server() -> None:
    for odd in ("<Foo a=1, b=2>", "<Foo <Bar>, b=2>", "[<A>, <Foo a=1, b=2>]"):
        assert parse_server_args(f"ServerArgs(odd={odd}, end=3)") == {
            "odd": Unparsed(odd), "end": 3
        }  # fmt: skip


def test_enums_and_nested_settings_become_plain_values() -> None:
    text = "ServerArgs(mode=<Mode.FULL: 0>, graph=Graph(decode=Phase(bs=[1, 2], x=-1)), inf=inf)"
    assert parse_server_args(text) == {
        "mode": 0,
        "graph": {"decode": {"bs": [1, 2], "x": -1}},
        "inf": float("inf"),
    }


@pytest.mark.parametrize("text", ["", "None", "[1]", "'x'"])
def test_other_text_is_no_mapping(text: str) -> None:
    assert parse_server_args(text) is None


def test_settings_of_a_nested_value_that_is_cut_off_are_not_taken_for_others() -> None:
    assert parse_server_args("ServerArgs(port=1, graph=Graph(decode=2, port=3") == {"port": 1}
    assert parse_server_args("{'port': 1, 'graph': {'decode': 2, 'port': 3") == {"port": 1}


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("", True),  # no settings at all: there is nothing to wait for
        ("None", True),
        ("{}", True),
        ("ServerArgs()", True),
        ("ServerArgs( )", True),
        ("ServerArgs() and more", True),
        ("{", False),
        ("{ ", False),
        ("ServerArgs(", False),
        ("ServerArgs(port=1", False),
        ("ServerArgs(port=1,", False),
        ("ServerArgs(port=1)", True),
        ("ServerArgs(port=1) and more", True),
        ("ServerArgs(port=[1)", False),
        ("{'port': 1, 'host'", False),
        ("{'port': <Foo: it's>", False),
    ],
)
def test_a_line_is_complete_with_its_last_bracket(text: str, complete: bool) -> None:
    assert is_complete(text) is complete


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-2.5", -2.5),
        ("(1, 2)", (1, 2)),
        ("{1}", [1]),
        ("{'a': {2: 'b'}, (1, 2): 3}", {"a": {2: "b"}, "(1, 2)": 3}),
        ("nan_like", Unparsed("nan_like")),
        ("null", None),
        ("true", True),
        ("false", False),
        ("-inf", float("-inf")),
        ("torch.float16", "torch.float16"),
        ("Mode.MAX", "Mode.MAX"),
        ("Phase(bs=8, mode='x')", {"bs": 8, "mode": "x"}),
        ("Phase()", {}),
        ("<Mode.FULL: 'full'>", "full"),
        ("<Mode.FULL: <object at 0x7f>>", Unparsed("<Mode.FULL: <object at 0x7f>>")),
        ("-'x'", Unparsed("-'x'")),
        ("Phase(8)", Unparsed("Phase(8)")),
        ("a.b(x=1)", Unparsed("a.b(x=1)")),
        ("1 + 1", Unparsed("1 + 1")),
        ("'a\\'b'", "a'b"),
        ('"it\'s"', "it's"),
    ],
)
@pytest.mark.parametrize("form", ["ServerArgs(x={}, y=1)", "{{'x': {}, 'y': 1}}"])
def test_values_that_a_line_may_hold(form: str, text: str, value: object) -> None:
    assert parse_server_args(form.format(text)) == {"x": value, "y": 1}


def test_nothing_is_the_number_that_it_is_not() -> None:
    read = parse_server_args("ServerArgs(x=nan)")
    assert read is not None
    assert read["x"] != read["x"]


def test_blanks_and_a_bracket_too_many_do_not_matter() -> None:
    assert parse_server_args("  ServerArgs( a = 1 ,  b = 2 )") == {"a": 1, "b": 2}
    assert parse_server_args("ServerArgs(a=1,b=2)") == {"a": 1, "b": 2}
    assert parse_server_args(""" { 'a' : 1 , "b" : 2 } """) == {"a": 1, "b": 2}
    assert parse_server_args("ServerArgs(a=[1)], b=2)") == {"a": Unparsed("[1)]"), "b": 2}
    assert parse_server_args("ServerArgs(a=1 < 2, b=2)") == {"a": Unparsed("1 < 2"), "b": 2}


def test_what_follows_the_last_bracket_is_not_read() -> None:
    assert parse_server_args("ServerArgs(a=1), b=2") == {"a": 1}
    assert parse_server_args("{'a': 1}, 'b': 2}") == {"a": 1}


def test_a_value_of_a_thousand_brackets_is_left_unread() -> None:
    deep = "[" * 5000 + "]" * 5000
    assert parse_server_args(f"ServerArgs(a={deep}, b=2)") == {"a": Unparsed(deep), "b": 2}
