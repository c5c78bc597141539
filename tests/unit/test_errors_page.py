"""Mistakes that people make: what, where, what to do; docs/errors.md says what really happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.provoked import CASES, Case, page, provoked

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mistake)
def test_a_mistake_is_told_in_a_sentence_and_a_hint(case: Case) -> None:
    told = provoked(case)
    assert told.code == case.code, told.said
    lines = told.said.splitlines()
    assert 1 <= len(lines) <= 2, told.said
    assert lines[0].startswith("autotune: ")
    for word in ("Traceback", "Value error", "pydantic", "sqlalchemy", "errno"):
        assert word not in told.said
    if case.prepare.__name__ == "prepare" and "mine.toml:" in told.said:
        assert "search_spaces/mine.toml:" in told.said or "objectives/mine.toml:" in told.said


def test_there_are_thirty() -> None:
    assert len(CASES) >= 30


def test_the_page_is_current() -> None:
    """`python -m tests.provoked > docs/errors.md` makes it."""
    assert PAGE.read_text("utf-8") == page()
