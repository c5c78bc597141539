"""The wheel, as a user gets it: installed beside what it requires and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.clean_environment import CleanEnvironment, run_pip

ROOT = Path(__file__).parents[2]
Installed = Callable[..., str]
"""Runs a program of the clean environment in an empty folder and returns its output."""

_EVERY_MODULE = """
import importlib, pkgutil, autotune
for module in pkgutil.walk_packages(autotune.__path__, "autotune."):
    # The contract of supervisors is a class of tests: whoever subclasses it has pytest.
    if not module.name.endswith((".__main__", ".supervisor_contract", ".service_under_test")):
        importlib.import_module(module.name)
"""
_EVERY_DEFINITION = """
from pathlib import Path
import autotune
from autotune.config import load_study
shipped = Path(autotune.__file__).parent / "_definitions" / "search_spaces"
print(*(load_study(file.stem).name for file in sorted(shipped.glob("*.toml"))))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("wheel")
    empty = folder / "empty"
    empty.mkdir()
    with CleanEnvironment(folder / "clean") as clean:
        run_pip("wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
        clean.install("--require-hashes", "--requirement", ROOT / "requirements.lock")
        clean.install("--no-deps", *folder.glob("*.whl"))
        clean.pip("check")

        kept = {k: v for k, v in os.environ.items() if not k.startswith(("AUTOTUNE_", "PYTHON"))}

        def run(program: str, *words: str) -> str:
            ran = subprocess.run(
                [clean.programs / program, *words],
                cwd=empty,
                env={**kept, "AUTOTUNE_DATA": str(folder / "data")},
                capture_output=True,
                text=True,
                check=False,
            )
            assert ran.returncode == 0, ran.stdout + ran.stderr
            assert list(empty.iterdir()) == [], "a command that only looks leaves something behind"
            return ran.stdout

        yield run


def test_what_development_needs_is_not_there(installed: Installed) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert any(one.startswith("pytest>") for one in project["optional-dependencies"]["dev"])
    assert "pytest" in packages_distributions()
    found = installed("python", "-c", "import importlib.util as u; print(u.find_spec('pytest'))")
    assert found == "None\n"


def test_every_module_can_be_imported(installed: Installed) -> None:
    installed("python", "-c", _EVERY_MODULE)


def test_every_definition_is_in_it(installed: Installed) -> None:
    names = sorted(file.stem for file in (ROOT / "search_spaces").glob("*.toml"))
    assert installed("python", "-c", _EVERY_DEFINITION).split() == names
    assert "demo" in names


def test_help(installed: Installed) -> None:
    assert "COMMAND" in installed("autotune", "--help")


def test_the_demo_passes_its_checks(installed: Installed) -> None:
    checks = json.loads(installed("autotune", "check", "--study", "demo", "--json"))
    assert checks["ok"] is True
    assert {one["place"] for one in checks["findings"]} > {"demo-a", "demo-b"}


def test_the_demo_would_run(installed: Installed) -> None:
    assert "next: autotune run --study demo" in installed(
        "autotune", "run", "--study", "demo", "--dry-run"
    )
