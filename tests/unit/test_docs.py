"""What the pages say can be followed: links, paths and commands lead somewhere."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture_picture import drawn, shown
from tests.command_line import command_tree

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "docs", "objectives", "search_spaces", "storage", "tests")
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for one in FOLDERS for page in (ROOT / one).rglob("*.md"))]
)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
README = (ROOT / "README.md").read_text("utf-8")
OF_USERS = {"search_spaces/llm.toml", "objectives/llm.toml", "search_spaces/NAME.toml"}
"""Files that a user's own folder has, not this repository."""


def prose(text: str) -> str:
    """Without blocks of code, in which nothing is a link."""
    return re.sub(r"(?ms)^```.*?^```$|^    .*?$", "", text)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    seen: dict[str, int] = {}
    found = set()
    for heading in re.findall(r"(?m)^#+ (.+)$", prose(page.read_text("utf-8"))):
        words = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        number = seen.get(words, 0)
        seen[words] = number + 1
        found.add(f"{words}-{number}" if number else words)
    return found


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text("utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            wrong.append(target)
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_files_that_are_named_are_there(page: Path) -> None:
    tops = {one.name for one in ROOT.iterdir() if one.is_dir()}
    named = re.findall(r"`([\w./-]+/[\w./-]*)`", page.read_text("utf-8"))
    wrong = [
        path
        for path in named
        if path.split("/")[0] in tops and path not in OF_USERS and not (ROOT / path).exists()
    ]
    assert wrong == []


def test_decisions_are_numbered_each_by_its_own() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    titles = [re.match(r"# (\d+)\. ", page.read_text("utf-8")) for page in pages]
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    assert [int(title[1]) for title in titles if title] == list(range(1, len(pages) + 1))


def test_the_picture_of_the_packages_is_the_code() -> None:
    """`python -m tests.architecture_picture` draws it anew."""
    assert shown() == drawn()


def test_the_readme_sets_up_by_two_commands() -> None:
    blocks = re.findall(r"(?m)(?:^    \S.*\n)+", README)
    assert [block.strip() for block in blocks if "scripts/" in block] == [
        "scripts/demo",
        "scripts/test",
    ]
    for script in ("demo", "test"):
        assert (ROOT / "scripts" / script).stat().st_mode & 0o111


def commands() -> Iterator[str]:
    """Every `autotune ...` of the README; of alternatives in a row each by itself."""
    for words in re.findall(r"`(autotune [^`]+)`", README.replace("\\|", "|")):
        if words.split(" ")[1].startswith(("-", ".")):
            continue  # the program's own options
        optional = re.sub(r"\[([^\]]*)\]", r"\1", words)
        choices = [word.split("|") for word in optional.split()]
        for line in itertools.product(*choices):
            yield " ".join(line)


@pytest.mark.parametrize("line", sorted(set(commands())))
def test_a_command_of_the_readme_parses(line: str) -> None:
    words = shlex.split(line)[1:]
    tree = command_tree()
    name = " ".join(words[:2]) if " ".join(words[:2]) in tree else words[0]
    rest = words[len(name.split()) :]
    if name not in tree:
        assert any(one.startswith(f"{name} ") for one in tree)
        return
    context = tree[name].make_context(name, rest, resilient_parsing=not rest)
    assert not context.args


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (row[0].replace("autotune ", ""), sorted(set(re.findall(r"--[a-z-]+", row[1]))))
        for row in re.findall(
            r"(?m)^\| `(autotune [a-z]+(?: [a-z]+)?)[^|]*?\| (.*) \|$", README.replace("\\|", "/")
        )
    ],
)
def test_the_options_in_the_table_of_commands_exist(name: str, options: list[str]) -> None:
    known = {option for one in command_tree()[name].params for option in one.opts}
    assert set(options) <= known
