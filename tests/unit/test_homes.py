"""Where a flag lives: variables are written out, what lives elsewhere is refused by its line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.errors import StudyError, UnitRefused
from autotune.homes import Flag, nearest_flag, resolved
from autotune.launch import Recipe, make_recipe
from autotune.sglang.server import ServerInfo
from autotune.space import Values
from autotune.supervisors.base import Original, Passage, Word
from tests.scripted import COMMAND, DEPLOYED, a_space, an_original

FLAGS = COMMAND[5:]
HEAD = COMMAND[:5]
INFO = ServerInfo(
    {"speculative_ddtree_budget": None, "speculative_ddtree_topk_cap": None, "port": 1}
)
"""An engine that names its settings and has chosen none by itself."""


def recipe_of(original: Original, info: ServerInfo | None = INFO) -> Recipe:
    return make_recipe(a_space(), (), original, host="gpu-a", info=info)


def with_variable(word: str, value: str, *rest: str) -> Original:
    original = an_original(*HEAD, word, *rest, live=(*HEAD, *value.split(), *rest))
    return replace(original, environ={"ARGS": value})


def texts(original: Original, values: Values) -> tuple[str, ...]:
    return recipe_of(original).launch(values, None).texts()


def test_the_words_of_a_variable_take_its_place() -> None:
    original = with_variable("$ARGS", " ".join((*FLAGS, "--page-size 1")), "--tp", "8")
    assert texts(original, {**DEPLOYED, "budget": 16}) == (
        *HEAD,
        *("--speculative-ddtree-budget", "16", *FLAGS[2:], "--page-size", "1", "--tp", "8"),
    )


def test_a_variable_without_our_flags_stays_a_variable() -> None:
    original = an_original(*COMMAND, "$ARGS", live=(*COMMAND, "--tp", "8"))
    launch = recipe_of(replace(original, environ={"ARGS": "--tp 8"})).launch(DEPLOYED, None)
    assert launch.argv[-1] == Word("$ARGS")


def test_a_key_beside_a_tuned_flag_is_not_written_into_a_drop_in() -> None:
    with pytest.raises(UnitRefused) as seen:
        recipe_of(with_variable("$ARGS", " ".join((*FLAGS, "--api-key k-1234567890"))))
    assert seen.value.message == (
        "gpu-a: $ARGS holds a key beside a tuned flag, and a drop-in with its words could be read "
        "by everybody"
    )
    assert seen.value.hint == "give the key by a variable of its own"


def test_several_flags_in_one_argument_are_refused() -> None:
    original = replace(
        an_original(*HEAD, "${ARGS}", active=False), environ={"ARGS": " ".join(FLAGS)}
    )
    with pytest.raises(UnitRefused, match=r"gpu-a: .*\$\{ARGS\}.* one single argument.*\$ARGS"):
        recipe_of(original, None)


def test_a_line_of_a_script_is_shown_and_comments_are_not() -> None:
    wrapper = f"#!/bin/sh\n# {FLAGS[0]} 2\nexec x \\\n {FLAGS[0]} 8 \\  # best\n $@\n"
    original = an_original("/s/run", "--tp", "8", live=(*COMMAND, "--tp", "8"))
    launch = replace(original.launch, passage=Passage(before=COMMAND, dropped=1))
    original = replace(original, launch=launch, scripts={"/s/run": wrapper})
    with pytest.raises(UnitRefused) as seen:
        recipe_of(original)
    assert "/s/run:4: --speculative-ddtree-budget 8" in seen.value.message
    assert "line 4 ends the command with a comment" in seen.value.message
    assert "/s/run:2" not in seen.value.message


def test_what_a_wrapper_sets_beneath_cannot_be_left_out() -> None:
    """The window stands in the script and again behind it: without ours the script's counts."""
    window = ("--speculative-draft-window-size", "512")
    live = (*HEAD, *window, *FLAGS, *window)
    original = an_original("/s/run", *FLAGS, *window, live=live)
    launch = replace(original.launch, passage=Passage(before=(*HEAD, *window), dropped=1))
    space = a_space()
    deployed = replace(space.parameters[2], deployed=512)
    space = replace(space, parameters=(*space.parameters[:2], deployed))
    with pytest.raises(UnitRefused, match="draft-window-size 512"):
        make_recipe(space, (), replace(original, launch=launch), host="gpu-a", info=INFO)


def test_an_abbreviated_flag_needs_a_server_that_says_what_it_knows() -> None:
    short = ("--speculative-ddtree-b", "8", *FLAGS[2:])
    original = an_original(*HEAD, *short)
    assert texts(original, {**DEPLOYED, "budget": 16})[5:7] == (FLAGS[0], "16")
    with pytest.raises(UnitRefused, match="may be an abbreviation"):
        recipe_of(original, None)


def test_a_comment_among_the_words_is_a_defect_of_the_unit() -> None:
    with pytest.raises(UnitRefused, match="comment at the end of a line"):
        recipe_of(an_original(*COMMAND, "#", "best"))
    recipe_of(an_original(*COMMAND, "--mark", "#"))


BUDGET = FLAGS[0]


@pytest.mark.parametrize(
    ("own", "real", "environ", "message", "hint"),
    [
        (
            (BUDGET, "8"),
            (BUDGET, "16"),
            {},
            f"the server has {BUDGET} 16, but ExecStart gives it 8",
            "restart the service so that it runs what its unit says, then run again",
        ),
        (
            (BUDGET, "8"),
            (),
            {},
            f"the server has no {BUDGET}, but ExecStart gives it 8",
            "restart the service so that it runs what its unit says, then run again",
        ),
        (
            (),
            (BUDGET, "16"),
            {},
            f"the server has {BUDGET} 16, but ExecStart does not give it",
            "write the flag into ExecStart, restart the service, then run again",
        ),
        (
            ("$ARGS",),
            (BUDGET, "16"),
            {},
            f"the server has {BUDGET} 16, which comes from a variable whose value cannot be read, "
            "not from the words of ExecStart",
            "write the flag itself into ExecStart, then run again",
        ),
        (
            (BUDGET, "8", "$ARGS"),
            (BUDGET, "16"),
            {},
            f"the server has {BUDGET} 16, but ExecStart gives it 8",
            "restart the service so that it runs what its unit says, then run again",
        ),
    ],
)
def test_where_else_a_flag_comes_from(
    own: tuple[str, ...],
    real: tuple[str, ...],
    environ: dict[str, str],
    message: str,
    hint: str,
) -> None:
    original = replace(an_original(*HEAD, *own, live=(*HEAD, *real)), environ=environ)
    with pytest.raises(UnitRefused) as seen:
        resolved(original, (Flag(BUDGET),))
    assert (seen.value.message, seen.value.hint) == (message, hint)


def test_a_variable_in_our_words_is_no_value_to_compare() -> None:
    original = an_original(*HEAD, BUDGET, "$B", live=(*HEAD, BUDGET, "8"))
    assert resolved(original, (Flag(BUDGET),)) == original.launch.argv
    whole = an_original(*HEAD, BUDGET, "$B", *FLAGS[2:], live=COMMAND)
    assert texts(whole, {**DEPLOYED, "budget": 16})[5:7] == (BUDGET, "16")


def scripted(text: str, *own: str, name: str = "/s/run") -> Original:
    original = an_original(name, *own, live=(*HEAD, BUDGET, "16", *own))
    launch = replace(original.launch, passage=Passage(before=(*HEAD, BUDGET, "16"), dropped=1))
    return replace(original, launch=launch, scripts={name: text})


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        (f"#!/bin/sh\nexec x {BUDGET} 16 $@\n", f"/s/run:2: exec x {BUDGET} 16 $@"),
        (f"  # {BUDGET} 1\n\texec x {BUDGET}=16 \n", f"/s/run:2: exec x {BUDGET}=16"),
        (f"{BUDGET} 1 #\n{BUDGET} 2\n", f"/s/run:1: {BUDGET} 1 #; /s/run:2: {BUDGET} 2"),
        (
            f"x \\ # {BUDGET}x\n--old 3\n",
            "/s/run:2: --old 3; line 1 ends the command with a comment",
        ),
        (
            f"x\n  \\  # y\n{BUDGET} 2",
            f"/s/run:3: {BUDGET} 2; line 2 ends the command with a comment",
        ),
    ],
)
def test_the_lines_of_a_script_that_hold_the_flag(script: str, shown: str) -> None:
    with pytest.raises(UnitRefused) as seen:
        resolved(scripted(script), (Flag(BUDGET, ("--old",)),))
    assert seen.value.message == f"the server has {BUDGET} 16, which stands in a script: {shown}"
    assert seen.value.hint == (
        f"take it out there and write {BUDGET} behind the script's name in ExecStart"
    )


@pytest.mark.parametrize("script", ["", f"# {BUDGET} 16\n", f"x {BUDGET}-more 16\n", "x \\ # y"])
def test_a_script_that_does_not_hold_the_flag_is_not_shown(script: str) -> None:
    with pytest.raises(UnitRefused) as seen:
        resolved(scripted(script), (Flag(BUDGET),))
    assert seen.value.message == f"the server has {BUDGET} 16, but ExecStart does not give it"


def test_a_flag_that_stays_may_be_set_beneath_and_one_that_goes_may_not() -> None:
    original = scripted("", BUDGET, "8")
    original = replace(original, live_argv=(*HEAD, BUDGET, "16", BUDGET, "8"))
    assert resolved(original, (Flag(BUDGET),)) == original.launch.argv
    with pytest.raises(UnitRefused, match="the server has"):
        resolved(original, (Flag(BUDGET, removable=True),))


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        ("--speculative-ddtre-budget 8", "--speculative-ddtre-budget 8"),
        ("--speculative-ddtre-budget=8", "--speculative-ddtre-budget 8"),
        ("--speculative-ddtre-budget", "--speculative-ddtre-budget"),
        ("--speculative-ddtree-budge 1 --dtree-budge 2", "--speculative-ddtree-budge 1"),
        (f"{BUDGET} 8", ""),
        ("speculative-ddtree-budge 8", ""),
        ("--port 30000", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_the_flag_that_is_most_like_ours(words: str, nearest: str) -> None:
    assert nearest_flag([Word(text) for text in (*HEAD, *words.split())], BUDGET) == nearest


def test_a_variable_is_written_out_only_where_it_carries_a_flag_of_ours() -> None:
    words = (*HEAD, "$A", "$B", "x$C", "${D}", "$MISSING", "${MISSING}")
    environ = {"A": f"{BUDGET}=8 --x", "B": "--port 1", "C": f"{BUDGET} 9", "D": f"{BUDGET}"}
    live = (*HEAD, f"{BUDGET}=8", "--x", "--port", "1", "x", BUDGET)
    original = replace(an_original(*words, live=live), environ=environ)
    argv = resolved(replace(original, live_argv=()), (Flag(BUDGET),))
    assert [word.text for word in argv] == [
        *HEAD, f"{BUDGET}=8", "--x", "$B", "x$C", "${D}", "$MISSING", "${MISSING}"
    ]  # fmt: skip
    assert [word.ours for word in argv[5:]] == [True, True, *[False] * 5]
    assert [word.text for word in resolved(original, (Flag("--other"),))] == list(words)
    by_alias = resolved(replace(original, live_argv=()), (Flag("--new", (BUDGET,)),))
    assert [word.text for word in by_alias[5:7]] == [f"{BUDGET}=8", "--x"]


KNOWN = frozenset({BUDGET, "--page-size"})
SHORT = BUDGET[:-3]


def test_an_engine_that_says_its_flags_knows_an_abbreviation_everywhere() -> None:
    in_words = an_original(*HEAD, SHORT, "8", live=(*HEAD, SHORT, "8"))
    assert resolved(in_words, (Flag(BUDGET),), known_flags=KNOWN) == in_words.launch.argv
    # `live` has it in full: both mean the same.
    in_full = replace(in_words, live_argv=(*HEAD, BUDGET, "8"))
    assert resolved(in_full, (Flag(BUDGET),), known_flags=KNOWN) == in_words.launch.argv
    in_variable = with_variable("$ARGS", f"{SHORT} 8")
    argv = resolved(in_variable, (Flag(BUDGET),), known_flags=KNOWN)
    assert [word.text for word in argv[5:]] == [SHORT, "8"]
    beneath = an_original("/s/run", BUDGET, "8", live=(*HEAD, SHORT, "8", BUDGET, "8"))
    passage = Passage(before=(*HEAD, SHORT, "8"), dropped=1)
    beneath = replace(beneath, launch=replace(beneath.launch, passage=passage))
    with pytest.raises(UnitRefused, match="the server has"):
        resolved(beneath, (Flag(BUDGET, removable=True),), known_flags=KNOWN)


def test_an_alias_is_the_same_flag() -> None:
    original = an_original(*HEAD, "--old", "8", live=(*HEAD, "--old", "8"))
    with pytest.raises(UnitRefused, match=r"has --new 9, but ExecStart gives it 8"):
        resolved(replace(original, live_argv=(*HEAD, "--old", "9")), (Flag("--new", ("--old",)),))


def test_every_flag_is_looked_at_where_no_server_runs() -> None:
    original = an_original(*HEAD, SHORT, "8", active=False)
    with pytest.raises(UnitRefused, match="may be an abbreviation"):
        resolved(original, (Flag("--page-size"), Flag(BUDGET)))


@pytest.mark.parametrize("text", ["$ARGS", "${ARGS}"])
def test_a_dollar_sign_of_ours_is_no_variable(text: str) -> None:
    original = replace(an_original(*HEAD, active=False), environ={"ARGS": f"{BUDGET} 8"})
    argv = (*original.launch.argv, Word(text, ours=True))
    original = replace(original, launch=replace(original.launch, argv=argv))
    assert resolved(original, (Flag(BUDGET),)) == argv


@pytest.mark.parametrize("value", ["--switch", "--x 1 --switch", "--switch --x=1"])
def test_a_variable_with_a_flag_that_has_no_value_is_written_out(value: str) -> None:
    original = replace(an_original(*HEAD, "$ARGS", active=False), environ={"ARGS": value})
    argv = resolved(original, (Flag("--switch"),))
    assert [word.text for word in argv[5:]] == value.split()


def test_the_words_of_a_shells_script_stay_in_it() -> None:
    live = (*HEAD, BUDGET, "8", "--x", "1")
    original = an_original("bash", "-c", f"exec {' '.join(HEAD)} {BUDGET} 8 $ARGS", live=live)
    launch = replace(original.launch, passage=Passage(shell=True))
    original = replace(original, launch=launch, environ={"ARGS": "--x 1"})
    assert resolved(original, (Flag(BUDGET),)) == launch.argv
    other = replace(original, live_argv=(*HEAD, BUDGET, "9", "--x", "1"))
    with pytest.raises(UnitRefused, match=f"the server has {BUDGET} 9, but ExecStart gives it 8"):
        resolved(other, (Flag(BUDGET),))


def test_one_argument_of_several_words_is_refused_where_a_flag_of_ours_is_in_it() -> None:
    def of(value: str) -> Original:
        return replace(an_original(*HEAD, "${ARGS}", active=False), environ={"ARGS": value})

    for value in (f"{BUDGET} 8", f"--x {BUDGET}=8"):
        with pytest.raises(UnitRefused) as seen:
            resolved(of(value), (Flag("--other"), Flag(BUDGET)))
        assert seen.value.message == (
            "systemd gives ${ARGS} to the server as one single argument, with all of 2 words in it"
        )
        assert seen.value.hint == "write $ARGS, which is split at blanks"
    for value in (f"{BUDGET}=8", "--x 8", ""):
        assert resolved(of(value), (Flag(BUDGET),))[-1] == Word("${ARGS}")


def test_a_comment_behind_a_value_is_told_with_both_words() -> None:
    with pytest.raises(UnitRefused) as seen:
        resolved(an_original(*HEAD, BUDGET, "8", "#best"), (Flag(BUDGET),))
    assert seen.value.message.endswith("gives to the server as arguments: '#best' behind '8'")
    assert seen.value.hint == "write comments on lines of their own"


@pytest.mark.parametrize(
    ("word", "refused"),
    [
        ("--speculative-ddtree-budge", True),
        ("--speculative-ddtree-budge=8", True),
        ("--sp", True),
        ("--s", False),  # an engine with hundreds of flags knows no such one
        ("--ol", True),
        ("--", False),
        ("--x", False),
        ("-s", False),
        ("speculative", False),
        (f"{BUDGET}-x", False),
    ],
)
def test_what_may_be_an_abbreviation(word: str, refused: bool) -> None:
    original = an_original(*HEAD, word, "8", active=False)
    if refused:
        with pytest.raises(UnitRefused) as seen:
            resolved(original, (Flag(BUDGET, ("--old",)),))
        name = word.partition("=")[0]
        assert seen.value.message == (
            f"{name} may be an abbreviation of {BUDGET}, and the server does not run, so nobody "
            "can be asked"
        )
        assert seen.value.hint == "write the flag in full, or start the service first"
    else:
        assert resolved(original, (Flag(BUDGET, ("--old",)),)) == original.launch.argv


def test_the_flags_of_a_launcher_are_no_abbreviation_of_ours() -> None:
    original = an_original("nice", "--spec", "1", *HEAD, active=False)
    assert resolved(original, (Flag(BUDGET),)) == original.launch.argv


def test_the_nearest_flag_is_named_where_ours_is_not_there() -> None:
    typed = tuple(word.replace("ddtree-budget", "dtree-budget") for word in COMMAND)
    with pytest.raises(StudyError, match=r"runs none \(.*; the nearest there is --spec\S+ 8\)"):
        recipe_of(an_original(*typed))


def test_a_missing_file_is_named() -> None:
    original = replace(an_original(*HEAD, "$ARGS", live=HEAD), files={"/etc/a.conf": "missing"})
    with pytest.raises(StudyError, match=r"/etc/a\.conf is missing"):
        recipe_of(original)
