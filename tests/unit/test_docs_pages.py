"""The pages of docs/: what is made from the code is current, and what they link to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.reference import page

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_the_reference_is_current() -> None:
    """`python -m tests.reference > docs/reference.md` makes it."""
    assert (ROOT / "docs" / "reference.md").read_text("utf-8") == page()


def test_every_key_of_a_definition_is_explained() -> None:
    rows = re.findall(r"^\| `\w+` \|.*\| (.*) \|$", page(), re.MULTILINE)
    assert len(rows) > 60
    assert all(row.endswith((".", "`")) and len(row) > 10 for row in rows)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    lost = [
        target
        for target in re.findall(r"\]\(([^)#\s]+)", path.read_text("utf-8"))
        if "://" not in target and not (path.parent / target).exists()
    ]
    assert lost == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_the_readme_leads_to_every_page(path: Path) -> None:
    linked = (ROOT / "README.md").read_text("utf-8") + (ROOT / "docs" / "tutorial.md").read_text()
    assert f"{path.name})" in linked
