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
