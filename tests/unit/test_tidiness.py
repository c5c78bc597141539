"""Nothing is left lying about: code that nobody uses, imports that nobody declared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["vulture"], id="no code that nobody uses"),
        pytest.param(["deptry", "."], id="what is imported is declared and the other way round"),
        pytest.param(
            [
                *("deptry", ".", "--extend-exclude", "(tests|benchmarks|storage|autotune/testing)"),
                *("--optional-dependencies-dev-groups", "dev", "--ignore", "DEP002"),
            ],
            id="the product needs nothing of its development",
        ),
    ],
)
def test_tidy(command: list[str]) -> None:
    """Exceptions stand in pyproject.toml, each with its reason."""
    ran = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
