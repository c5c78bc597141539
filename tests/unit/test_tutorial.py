"""The tutorial's commands are those of the script that films them, and they parse."""

from __future__ import annotations

import shlex

import pytest

from autotune.systemd.unit_text import exec_words
from tests.command_line import command_tree
from tests.newcomer import COMMANDS, PAGE, TUTORIAL, a_unit, commands_of


def test_the_tutorial_has_the_commands_of_the_script() -> None:
    shown = [one for one in commands_of(TUTORIAL.read_text("utf-8")) if one in COMMANDS]
    assert tuple(shown) == COMMANDS
    assert set(commands_of(TUTORIAL.read_text("utf-8"))) == set(COMMANDS)


def test_the_transcript_is_of_these_commands_and_ends_with_an_applied_winner() -> None:
    page = PAGE.read_text("utf-8")
    assert tuple(one for one in commands_of(page) if one in COMMANDS) == COMMANDS
    assert "verdict: better by " in page
    assert "gpu-a: applied; " in page


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_parses(line: str) -> None:
    program, name, *words = shlex.split(line)
    assert program == "autotune"
    context = command_tree()[name].make_context(name, list(words))
    assert not context.args


def test_the_unit_is_one_that_its_owner_may_have_written() -> None:
    words = [word.text for word in exec_words(a_unit())]
    assert words[words.index("--context-length") + 1] == "1200"
    assert words[words.index("--max-running-requests") + 1] == "8"
