"""The least versions that pyproject.toml names are honest: the decisions work with them.

`scripts/dependency-sets` runs all unit tests on them, and on the newest versions.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

from tests.clean_environment import CleanEnvironment

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements-lowest.lock"
DECISIONS = (
    *("objective", "pruning", "rounds", "stats", "verdict"),  # what is better
    *("parameter", "space", "study"),  # what to measure next
    *("host_state", "launch", "passage", "proof"),  # what runs
    *("config", "storage"),  # what is read and kept
)


def test_the_lock_is_of_the_least_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = "\n".join(project["dependencies"])
    bounds = dict(re.findall(r"(?m)^([\w-]+)(?:\[\w+\])?>=([\d.]+)$", needed))
    assert len(bounds) == len(project["dependencies"])
    locked = dict(re.findall(r"(?m)^([\w-]+)==([\d.]+)", LOCK.read_text()))
    assert {name: _padded(locked[name]) for name in bounds} == {
        name: _padded(version) for name, version in bounds.items()
    }


def _padded(version: str) -> tuple[int, ...]:
    numbers = tuple(map(int, version.split(".")))
    return numbers + (0,) * (3 - len(numbers))


def test_decisions_hold_on_the_least_versions(tmp_path: Path) -> None:
    with CleanEnvironment(tmp_path / "lowest") as clean:
        clean.install("--require-hashes", "--requirement", LOCK)
        files = ["tests/unit/sampler", *(f"tests/unit/test_{name}.py" for name in DECISIONS)]
        # No database server is among the requirements, so in there its tests may be skipped.
        environment = {name: value for name, value in os.environ.items() if name != "CI"}
        ran = subprocess.run(
            [clean.programs / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
            cwd=ROOT,
            env={**environment, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr
