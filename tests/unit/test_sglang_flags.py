"""Editing argument vectors: what is set can be got, what is not ours stays."""

from __future__ import annotations

import argparse
import shlex
from itertools import chain
from typing import NoReturn

import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st

from autotune.errors import UnitRefused
from autotune.sglang.flags import find, first_argument, get_flag, has_flag, set_flag
from autotune.supervisors.base import Word

BUDGET = "--speculative-ddtree-budget"
WINDOW = "--speculative-draft-window-size"
OLD_WINDOW = "--speculative-dflash-draft-window-size"
KNOWN = (
    BUDGET,
    WINDOW,
    OLD_WINDOW,
    "--speculative-ddtree-topk-cap",
    "--speculative-draft-model-path",
    "--enable-lora",
    "--enable-lora-overlap-loading",
)


def words(line: str) -> tuple[Word, ...]:
    return tuple(Word(text) for text in shlex.split(line))


def shown(argv: tuple[Word, ...]) -> str:
    return shlex.join(word.text for word in argv)


def ours(argv: tuple[Word, ...]) -> list[str]:
    return [word.text for word in argv if word.ours]


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("/v/bin/python -m sglang.launch_server --a", 3),
        ("/v/bin/python -O -msglang.launch_server --a", 3),
        ("env X=1 numactl -m 0 python3.11 -u -m sglang.launch_server --a", 9),
        ("/v/bin/sglang serve --a", 2),
        ("/v/bin/python /v/bin/sglang serve --a", 3),
        ("python -X dev -m other.server --a", 5),
        ("python3 -u serve.py --a", 3),
        ("/opt/serve --a", 1),
        ("python", 1),
    ],
)
def test_only_words_behind_the_program_count(line: str, program: int) -> None:
    assert first_argument(words(line)) == program


def test_flags_of_the_launcher_are_not_ours() -> None:
    argv = words("numactl --port 1 python -m sglang.launch_server --port 30000")
    assert get_flag(argv, "--port") == "30000"
    assert shown(set_flag(argv, "--port", (), "9")) == (
        "numactl --port 1 python -m sglang.launch_server --port 9"
    )


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (f"{BUDGET} 8", "8"),
        (f"{BUDGET}=8", "8"),
        (f"{BUDGET}=", ""),
        (f"{BUDGET} ''", ""),
        (f"{BUDGET} -1", "-1"),
        (f"{BUDGET} 4 --x y {BUDGET}=8", "8"),
        (f"{BUDGET}=4 {BUDGET} 8", "8"),
        ("--speculative-ddtree-b 8", "8"),
        ("--speculative-ddtree-b=8", "8"),
        ("--speculative-ddtree 8", None),
        ("--speculative_ddtree_budget 8", None),
        (f"{BUDGET}-x 8", None),
        (f"-- {BUDGET} 8", None),
        (f"{BUDGET} --x", None),
        ("--x 8", None),
    ],
)
def test_values_are_read_as_argparse_reads_them(arguments: str, value: str | None) -> None:
    argv = words(f"sglang serve {arguments}")
    assert get_flag(argv, BUDGET, known_flags=KNOWN) == value


def test_aliases_and_counts() -> None:
    argv = words(f"sglang serve {OLD_WINDOW} 1024 {WINDOW}=2048")
    found = find(argv, WINDOW, (OLD_WINDOW,))
    assert found is not None
    assert (found.index, found.spelling, found.value, found.times) == (4, WINDOW, "2048", 2)
    assert get_flag(argv, OLD_WINDOW) == "1024"


def test_a_switch_is_found_by_its_other_names_and_before_a_word() -> None:
    argv = words("sglang serve --old-name x")
    assert has_flag(argv, "--new-name", ("--old-name",))
    assert not has_flag(argv, "--new-name")
    # It takes no value, so what follows may be a flag of its own.
    assert has_flag(words("sglang serve --a --b"), "--b")


def test_a_flag_that_begins_like_another_is_itself() -> None:
    argv = words("sglang serve --enable-lora")
    assert not has_flag(argv, "--enable-lora-overlap-loading", known_flags=KNOWN)
    assert not has_flag(argv, "--enable-lora-overlap-loading")
    assert has_flag(words("sglang serve --enable-lora-o"), KNOWN[-1], known_flags=KNOWN)


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        ("--x 1", "8", f"--x 1 {BUDGET} 8"),
        (f"{BUDGET} 4 --x 1", "8", f"{BUDGET} 8 --x 1"),
        (f"{BUDGET}=4 --x 1", "8", f"{BUDGET}=8 --x 1"),
        (f"{BUDGET} 4 --x 1 {BUDGET}=5", "8", f"--x 1 {BUDGET}=8"),
        ("--speculative-ddtree-b 4 --x 1", "8", f"{BUDGET} 8 --x 1"),
        (f"{BUDGET} --x 1", "8", f"{BUDGET} 8 --x 1"),
        (f"{BUDGET} 4 --x 1", "--odd", f"{BUDGET}=--odd --x 1"),
        (f"{BUDGET} 4 --x 1 {BUDGET}=5", None, "--x 1"),
        (f"{BUDGET} 4 $ARGS", None, "'$ARGS'"),
        ("--x 1 -- y", "8", f"--x 1 {BUDGET} 8 -- y"),
    ],
)
def test_setting_a_value(before: str, value: str | None, after: str) -> None:
    argv = tuple(Word(text) for text in ["sglang", "serve", *shlex.split(before)])
    edited = set_flag(argv, BUDGET, (), value, known_flags=KNOWN)
    assert shown(edited) == f"sglang serve {after}"


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        ("--y $ARGS", True, "--y '$ARGS' --enable-lora"),
        ("--enable-lora '$ARGS'", True, "--enable-lora '$ARGS'"),
        ("--enable-lora '$ARGS'", False, "'$ARGS'"),
        ("--enable-lora --y --enable-lora", True, "--y --enable-lora"),
        ("--y", False, "--y"),
    ],
)
def test_switches_take_no_word_with_them(before: str, value: bool, after: str) -> None:
    edited = set_flag(words(f"sglang serve {before}"), "--enable-lora", (), value)
    assert shown(edited) == f"sglang serve {after}"
    assert has_flag(edited, "--enable-lora") is value


def test_none_removes_a_switch_alone_when_told_that_it_is_one() -> None:
    argv = words("sglang serve --enable-lora $ARGS")
    assert shown(set_flag(argv, "--enable-lora", (), None, switch=True)) == "sglang serve '$ARGS'"


def test_what_we_write_is_ours_and_the_rest_the_same_objects() -> None:
    argv = words(f"sglang serve --model $MODEL {BUDGET} 4 $ARGS")
    edited = set_flag(argv, BUDGET, (), "8")
    assert ours(edited) == ["8"]
    assert all(one is two for one, two in zip(edited, argv, strict=True) if not one.ours)
    assert set_flag(argv, BUDGET, (), "4") == argv


def test_a_reference_is_not_the_same_as_a_dollar_sign() -> None:
    argv = words(f"sglang serve {BUDGET} $BUDGET")
    assert ours(set_flag(argv, BUDGET, (), "$BUDGET")) == ["$BUDGET"]


def test_a_list_is_refused() -> None:
    argv = words("sglang serve --cuda-graph-bs 1 2 4 --x y")
    with pytest.raises(UnitRefused, match="several values: 1 2"):
        set_flag(argv, "--cuda-graph-bs", (), "8")


NAMES = ("--alpha", "--beta", "--gamma-ray", "--delta_x")
VALUES = st.text(alphabet="ab1-=$ .", max_size=5)
PLAIN_VALUES = VALUES.filter(lambda text: not text.startswith(("-", "$")))
ONE = st.one_of(
    st.tuples(st.sampled_from(NAMES), PLAIN_VALUES).map(list),
    st.tuples(st.sampled_from(NAMES), VALUES).map(lambda pair: [f"{pair[0]}={pair[1]}"]),
    st.sampled_from(["--switch", "--gamma", "--no-alpha"]).map(lambda text: [text]),
)
ARGV = st.lists(ONE, max_size=6).map(
    lambda parts: tuple(Word(text) for text in ["sglang", "serve", *chain(*parts)])
)


@given(ARGV, st.sampled_from(NAMES), VALUES)
def test_what_is_set_can_be_got(argv: tuple[Word, ...], name: str, value: str) -> None:
    edited = set_flag(argv, name, (), value)
    found = find(edited, name)
    assert found is not None
    assert (found.value, found.times) == (value, 1)
    assert set_flag(edited, name, (), value) == edited
    for other in (*NAMES, "--switch", "--gamma", "--no-alpha"):
        if other != name:
            assert get_flag(edited, other) == get_flag(argv, other)
            assert has_flag(edited, other) == has_flag(argv, other)


@given(ARGV, st.sampled_from(NAMES), VALUES)
def test_removing_leaves_the_others_and_only_them(
    argv: tuple[Word, ...], name: str, value: str
) -> None:
    removed = set_flag(argv, name, (), None)
    assert find(removed, name) is None
    assert set_flag(removed, name, (), None) == removed
    assert set_flag(set_flag(argv, name, (), value), name, (), None) == removed
    assert not ours(removed)
    assert all(any(word is old for old in argv) for word in removed)


class Strict(argparse.ArgumentParser):
    """argparse that raises where it would leave the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["--alpha", "--alp", "--al", "--gamma-ray", "--gamma-r", "--gamma"]),
            st.sampled_from([" ", "="]),
            PLAIN_VALUES | st.sampled_from(["-1", "-.5", "-", "-1x"]),
        ),
        max_size=4,
    )
)
def test_values_are_what_argparse_makes_of_them(given_flags: list[tuple[str, str, str]]) -> None:
    known = ("--alpha", "--albedo", "--gamma-ray", "--gamma-burst")
    parser = Strict()
    for name in known:
        parser.add_argument(name)
    texts = list(
        chain(
            *([flag, text] if by == " " else [f"{flag}={text}"] for flag, by, text in given_flags)
        )
    )
    try:
        parsed, left = parser.parse_known_args(texts)
    except ValueError:
        reject()
    assume(not left)
    argv = tuple(Word(text) for text in ["sglang", "serve", *texts])
    assert get_flag(argv, "--alpha", known_flags=known) == parsed.alpha
    assert get_flag(argv, "--gamma-ray", known_flags=known) == parsed.gamma_ray
