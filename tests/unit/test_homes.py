"""Where a flag lives: variables are written out, what lives elsewhere is refused by its line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.errors import StudyError, UnitRefused
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
    with pytest.raises(UnitRefused, match="holds a key beside a tuned flag") as seen:
        recipe_of(with_variable("$ARGS", " ".join((*FLAGS, "--api-key k-1234567890"))))
    assert "1234567890" not in str(seen.value)


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


def test_the_nearest_flag_is_named_where_ours_is_not_there() -> None:
    typed = tuple(word.replace("ddtree-budget", "dtree-budget") for word in COMMAND)
    with pytest.raises(StudyError, match=r"runs none \(.*; the nearest there is --spec\S+ 8\)"):
        recipe_of(an_original(*typed))


def test_a_missing_file_is_named() -> None:
    original = replace(an_original(*HEAD, "$ARGS", live=HEAD), files={"/etc/a.conf": "missing"})
    with pytest.raises(StudyError, match=r"/etc/a\.conf is missing"):
        recipe_of(original)
