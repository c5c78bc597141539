"""The example of every command's help, word for word: where it is run, and what it says.

Each place is a module with one test, `test_an_example_does_what_it_says`, over
`examples_at(place)`; `tests/unit/test_examples.py` holds that every command is among them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest

from tests.command_line import command_tree

__all__ = ["EXAMPLES", "Example", "Place", "examples_at", "words_of"]


class Place(StrEnum):
    """Where an example is run: the module of its test."""

    STORED = "tests.unit.test_examples"
    """On a study that is stored already."""
    SERVICE = "tests.integration.test_examples"
    """With a service of its own on this machine."""
    HOST = "tests.host.test_examples"
    """On a machine of its own, where each name, port and unit of an example can be real."""


@dataclass(frozen=True, slots=True)
class Example:
    """How the example of one command is run.

    Attributes:
        says: Words that it prints when it did what it says.
        serves: It goes on until somebody stops it.
        codes: Exit codes that are fine.
    """

    place: Place
    says: str
    serves: bool = False
    codes: tuple[int, ...] = (0,)


EXAMPLES: Mapping[str, Example] = {
    "check": Example(Place.STORED, "nothing was changed"),
    "status": Example(Place.STORED, "study demo: 2 complete"),
    "trials": Example(Place.STORED, "trials of demo"),
    "rescore": Example(Place.STORED, "nothing was written"),
    "prune": Example(Place.STORED, "demo"),
    "report": Example(Place.STORED, "report: demo-report.html"),
    "export": Example(Place.STORED, "--speculative-ddtree-budget 16"),
    "db upgrade": Example(Place.STORED, "the tables are up to date"),
    "hosts list": Example(Place.STORED, "gpu-a"),
    "hosts drain": Example(Place.STORED, "gpu-a was never used and will not be"),
    "hosts add": Example(Place.STORED, "gpu-c will be used by a run of the study"),
    "run": Example(Place.SERVICE, "verdict: "),
    "init": Example(Place.HOST, "wrote search_spaces/llm.toml and objectives/llm.toml"),
    "verify": Example(Place.HOST, "same"),
    "revert": Example(Place.HOST, "gpu-a: nothing to restore"),
    # 1 says that the bucket is not valid: whether this machine was idle is not asked here.
    "bench": Example(Place.HOST, "output tok/s", codes=(0, 1)),
    "dashboard": Example(Place.HOST, "http://127.0.0.1:8080", serves=True),
}


def words_of(command: str) -> tuple[str, ...]:
    """The words behind `autotune` as the help of a command has them."""
    found = re.search(r"Example: autotune (.*)", command_tree()[command].help or "")
    assert found, f"{command} has no example"
    return tuple(shlex.split(found[1]))


def examples_at(place: Place) -> list[Any]:
    """(words, example) of every command that is run at a place, for `parametrize`."""
    return [
        pytest.param(words_of(command), one, id=command)
        for command, one in EXAMPLES.items()
        if one.place is place
    ]
