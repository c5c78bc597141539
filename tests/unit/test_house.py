"""What every module keeps to, whoever writes it."""

from __future__ import annotations

import ast
import graphlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest
from importlinter import cli as importlinter

from autotune import errors

ROOT = Path(__file__).parents[2]
MOST_LINES = 400
MODULES = sorted((ROOT / "autotune").rglob("*.py"))


def named(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in MODULES}


def test_imports_point_one_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The contracts of pyproject.toml."""
    monkeypatch.chdir(ROOT)
    # It would silence every logger that there is, for the tests that come after this one.
    monkeypatch.setattr(importlinter, "_configure_logging", lambda verbose: None)
    ended = importlinter.lint_imports(no_cache=True)
    assert ended == importlinter.EXIT_STATUS_SUCCESS, capsys.readouterr().out


def test_no_two_modules_need_each_other() -> None:
    graph = grimp.build_graph("autotune", exclude_type_checking_imports=True, cache_dir=None)
    needs = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    order = list(graphlib.TopologicalSorter(needs).static_order())  # raises CycleError
    assert len(order) == len(graph.modules) > 200


def test_no_module_is_too_long_to_read_without_a_reason() -> None:
    """Beyond the limit its first line says why it is one piece: `(one piece: ...)`."""
    long = [
        path
        for path in [*MODULES, *sorted((ROOT / "tests").rglob("*.py"))]
        if len(lines := path.read_text().splitlines()) > MOST_LINES
        and "one piece: " not in lines[0]
    ]
    assert named(long) == []


def test_public_names_are_complete(trees: dict[Path, ast.Module]) -> None:
    """What a module defines without an underscore stands in its `__all__`."""
    wrong = {}
    for path, tree in trees.items():
        public = set(_defined(tree))
        listed = _listed(tree)
        if listed is None:
            if public:
                wrong[named([path])[0]] = public
        elif hidden := public - listed:
            wrong[named([path])[0]] = hidden
    assert wrong == {}


def test_public_names_are_explained(trees: dict[Path, ast.Module]) -> None:
    silent = [
        f"{named([path])[0]}:{node.lineno} {node.name}"
        for path, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name in (_listed(tree) or ())
        and not ast.get_docstring(node)
    ]
    assert silent == []


def test_a_mistake_of_the_user_says_what_would_be_right(trees: dict[Path, ast.Module]) -> None:
    """Every error of a file or an argument has a hint; those of machines say what happened."""
    kinds = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.ConfigError)
    }
    silent = [
        f"{named([path])[0]}:{node.lineno}"
        for path, tree in trees.items()
        if "testing" not in path.parts
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in kinds
        and "hint" not in {keyword.arg for keyword in node.keywords}
    ]
    assert silent == []


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(
            node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and not node.name.startswith("_"):
            yield node.name


def _listed(tree: ast.Module) -> set[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return None


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.match(r"[\w-]+", requirement)[0] for requirement in wanted}  # type: ignore[index]
    rows = re.findall(r"(?m)^\| ([\w, -]+?) \|", (ROOT / "docs" / "dependencies.md").read_text())
    stated = {name.strip() for row in rows for name in row.split(",")} - {"package"}
    assert stated - {"---"} == names
