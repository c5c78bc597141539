"""Mistakes that people make: what, where, what to do; docs/errors.md says what really happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.provoked import CASES, Case, page, provoked

PLACES = (
    *(
        "./search_spaces/mine.toml:",
        "./objectives/mine.toml",
        "--",
        "./mime.toml",
    ),
    *(
        "search_spaces/mime.toml",
        "search_spaces/mine.toml",
        "autotune.db",
        "study 'mine'",
    ),
    *("'sqlite://'", "127.0.0.1:1", "'tune'", "say what to restore"),
)
"""What a message names: a file with its line, a key, an option, a database, a host, a command."""
PAGE = Path(__file__).parents[2] / "docs" / "errors.md"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mistake)
def test_a_mistake_is_told_in_a_sentence_and_a_hint(case: Case) -> None:
    told = provoked(case)
    assert told.code == case.code, told.said
    lines = told.said.splitlines()
    assert len(lines) == 2, told.said
    assert lines[0].startswith("autotune: ")
    assert lines[1].startswith("          ")
    for word in ("Traceback", "Value error", "pydantic", "sqlalchemy", "errno"):
        assert word not in told.said
    assert any(place in lines[0] for place in PLACES), "it does not say where"


def test_there_are_thirty() -> None:
    assert len(CASES) >= 30


def test_the_page_is_current() -> None:
    """`python -m tests.provoked > docs/errors.md` makes it."""
    assert PAGE.read_text("utf-8") == page()
