"""Virtual environments with what a lock file names and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

from autotune.closing import Closing

__all__ = ["CleanEnvironment", "run_pip"]


class CleanEnvironment(Closing):
    """Made by `venv`, filled by the pip of this one, gone at its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        venv.create(folder, symlinks=True)
        self.programs = folder / "bin"

    def close(self) -> None:
        """Give back its gigabyte: pytest keeps the folders of its last runs."""
        shutil.rmtree(self._folder)

    def pip(self, *words: str | Path) -> None:
        """`pip` on this environment; it must succeed."""
        run_pip("--python", self.programs / "python", *words)

    def install(self, *words: str | Path) -> None:
        """`pip install`; bytecode is made by whoever imports something."""
        self.pip("install", "--quiet", "--no-compile", *words)


def run_pip(*words: str | Path) -> None:
    """`pip` of this environment; it must succeed."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, words)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
