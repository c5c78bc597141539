"""The page about unit shapes is made from the case files that the host test runs."""

from __future__ import annotations

from pathlib import Path

from tests.host.unit_shapes import CASES, read_case, table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "units.md"


def test_the_page_shows_every_case() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(CASES) >= 25
    assert table() in text, "write the output of tests.host.unit_shapes.table() into the page"


def test_every_case_says_what_it_is() -> None:
    for path in CASES:
        case = read_case(path)
        assert case.title.endswith("."), path
        assert case.tuned or len(case.expect) > 10, path
