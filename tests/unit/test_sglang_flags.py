"""Editing argument vectors (one piece: one grammar): what is set can be got, the rest stays."""

from __future__ import annotations

import argparse
import shlex
from itertools import chain
from typing import NoReturn

import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st

from autotune.errors import UnitRefused
from autotune.sglang.flags import Found, find, first_argument, get_flag, has_flag, set_flag
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
        ("python -m", 2),
        ("python -u", 2),
        ("python -W error -u serve.py --a", 5),
        ("python -m sglang serve", 3),
        ("python -m sglang.launch_server", 3),
        ("python -m sglangx --a", 3),
        ("pypy3 -msglang.launch_server --a", 2),
        ("python -X dev serve.py --a", 4),
        ("nice -n 5 python serve.py --a", 5),
        ("python2.7 x.py --a", 2),
        ("/opt/pythonic --a", 1),
        ("sglang --serve --a", 1),
        ("/v/bin/sglang-serve serve --a", 1),
        ("sh run.sh sglang serve --a", 4),
        ("''", 1),
        ("", 0),
    ],
)
def test_only_words_behind_the_program_count(line: str, program: int) -> None:
    assert first_argument(words(line)) == program


def test_flags_of_the_launcher_do_not_end_with_ours() -> None:
    argv = words("env -- python -m sglang.launch_server --port 30000")
    assert get_flag(argv, "--port") == "30000"
    assert shown(set_flag(argv, "--x", (), "9")) == (
        "env -- python -m sglang.launch_server --port 30000 --x 9"
    )


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
    assert found == Found(4, 1, WINDOW, "2048", inline=True, times=2)
    assert find(argv, OLD_WINDOW) == Found(2, 2, OLD_WINDOW, "1024", inline=False)
    assert find(argv, "--other") is None
    assert find(words("sglang serve --a --b"), "--a") == Found(2, 1, "--a", None, inline=False)
    assert find(words("sglang serve --a b"), "--a", switch=True) == Found(
        2, 1, "--a", None, inline=False
    )
    assert find(words("sglang serve --a=1 --a="), "--a") == Found(
        3, 1, "--a", "", inline=True, times=2
    )
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
        # An alias that is there keeps its spelling, an abbreviation becomes the flag.
        (f"{OLD_WINDOW} 4 --x", "8", f"{OLD_WINDOW} 8 --x"),
        (f"{OLD_WINDOW}=4 --x", "8", f"{OLD_WINDOW}=8 --x"),
        (f"{OLD_WINDOW} 4 {WINDOW} 5", "8", f"{WINDOW} 8"),
        (f"{WINDOW} 4 {OLD_WINDOW} 5", "8", f"{OLD_WINDOW} 8"),
        (f"{WINDOW} 4 {OLD_WINDOW} 5 --x", None, "--x"),
        ("--speculative-draft-window 8 --x", "8", f"{WINDOW} 8 --x"),
        ("--speculative-draft-window=8 --x", "8", f"{WINDOW}=8 --x"),
        ("--speculative-draft-w=4 --x", "8", f"{WINDOW}=8 --x"),
        # What begins like a flag can only stand behind `=`.
        (f"{WINDOW} 4", "-x", f"{WINDOW}=-x"),
        (f"{WINDOW} 4", "-1", f"{WINDOW} -1"),
        (f"{WINDOW} 4", "-.5", f"{WINDOW} -.5"),
        (f"{WINDOW} 4", "-", f"{WINDOW} -"),
        ("--x", "-x", f"--x {WINDOW}=-x"),
        ("--x", "", f"--x {WINDOW} ''"),
        (f"{WINDOW}=4", "", f"{WINDOW}="),
        # A flag that stands last or before another has no value yet.
        (f"--x {WINDOW}", "8", f"--x {WINDOW} 8"),
        (f"{WINDOW} -- y", "8", f"{WINDOW} 8 -- y"),
        (f"-- {WINDOW} 4", "8", f"{WINDOW} 8 -- {WINDOW} 4"),
        (f"{WINDOW} 4 -- {WINDOW} 5", None, f"-- {WINDOW} 5"),
    ],
)
def test_setting_a_value_of_a_flag_with_two_names(
    before: str, value: str | None, after: str
) -> None:
    argv = words(f"sglang serve {before}")
    edited = set_flag(argv, WINDOW, (OLD_WINDOW,), value, known_flags=KNOWN)
    assert shown(edited) == f"sglang serve {after}"
    assert get_flag(edited, WINDOW, (OLD_WINDOW,)) == value


@pytest.mark.parametrize(
    ("before", "value", "after", "written"),
    [
        ("--enable-lora", True, "--enable-lora", []),
        ("--enable-lora=true", True, "--enable-lora", ["--enable-lora"]),
        ("--old-lora", True, "--old-lora", []),
        ("--enable-lo", True, "--enable-lora", ["--enable-lora"]),
        ("--enable-lora --old-lora", True, "--old-lora", []),
        ("--enable-lora --old-lora x", False, "x", []),
        ("x", True, "x --enable-lora", ["--enable-lora"]),
    ],
)
def test_a_switch_of_two_names(before: str, value: bool, after: str, written: list[str]) -> None:
    known = ("--enable-lora", "--old-lora")
    argv = words(f"sglang serve {before}")
    edited = set_flag(argv, "--enable-lora", ("--old-lora",), value, known_flags=known)
    assert shown(edited) == f"sglang serve {after}"
    assert ours(edited) == written


@pytest.mark.parametrize(
    ("before", "value", "written"),
    [
        (f"{WINDOW} 4", "8", ["8"]),
        (f"{WINDOW}=4", "8", [f"{WINDOW}=8"]),
        ("--speculative-draft-window 4", "8", [WINDOW, "8"]),
        ("--x", "8", [WINDOW, "8"]),
        (f"{WINDOW} 8", "8", []),
        (f"{WINDOW} 8 --x {WINDOW} 8", "8", []),
        (f"{WINDOW}='$W'", "$W", [f"{WINDOW}=$W"]),
        (f"{WINDOW} 4", "-x", [f"{WINDOW}=-x"]),
    ],
)
def test_only_changed_words_are_ours(before: str, value: str, written: list[str]) -> None:
    edited = set_flag(words(f"sglang serve {before}"), WINDOW, (), value, known_flags=KNOWN)
    assert ours(edited) == written


def test_a_dollar_sign_that_is_ours_already_is_the_same() -> None:
    argv = (*words("sglang serve"), Word(WINDOW, ours=True), Word("$W", ours=True))
    assert all(a is b for a, b in zip(set_flag(argv, WINDOW, (), "$W"), argv, strict=True))


@pytest.mark.parametrize(
    ("word", "names"),
    [
        (BUDGET, True),
        ("--speculative-ddtree-b", True),
        ("--speculative-ddtree-", False),  # of the top-k cap, too
        ("--enable-l", False),
        ("--en", False),
        ("--sp", False),
        ("-speculative-ddtree-b", False),
        ("speculative-ddtree-b", False),
        (f"{BUDGET}s", False),
    ],
)
def test_which_abbreviations_are_a_flag(word: str, names: bool) -> None:
    argv = words(f"sglang serve {word} 8")
    assert (find(argv, BUDGET, known_flags=KNOWN) is not None) is names
    assert (find(argv, BUDGET) is not None) is (word == BUDGET)


def test_four_letters_may_be_an_abbreviation() -> None:
    argv = words("sglang serve --ab 8 --a 9")
    assert get_flag(argv, "--abc", known_flags=("--abc", "--x")) == "8"


@pytest.mark.parametrize(
    ("before", "refused"),
    [
        ("--f 1 2", True),
        ("--f 1 2 --x", True),
        ("--x --f 1 -2", True),
        ("--f 1", False),
        ("--f 1 --x", False),
        ("--f 1 '$ARGS'", False),
        ("--f=1 2", False),
        ("--f --x 2", False),
        ("--f 1 -- 2", False),
        ("--f 1 2 --f 3", True),
    ],
)
def test_several_values_of_one_flag(before: str, refused: bool) -> None:
    argv = words(f"sglang serve {before}")
    if not refused:
        assert get_flag(set_flag(argv, "--f", (), "8"), "--f") == "8"
        return
    with pytest.raises(UnitRefused) as caught:
        set_flag(argv, "--f", (), "8")
    assert caught.value.message.startswith("--f is given with several values: 1 ")
    assert (
        caught.value.hint == "only flags with one value can be tuned; write it once as --flag=value"
    )
    # A switch takes no value, so nothing stands beside it.
    assert has_flag(set_flag(argv, "--f", (), True), "--f")


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
