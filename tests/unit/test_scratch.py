"""Scratch folders: those of killed processes go, those of living ones and of others stay."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from autotune.runners.scratch import scratch_folder


def test_what_a_killed_process_left_goes_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "autotune-of-somebody").mkdir()
    made = (
        "import os; from autotune.runners.scratch import scratch_folder as f; "
        "print(f(), flush=True); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run([sys.executable, "-c", made], env=environment, stdout=subprocess.PIPE)
    left = Path(killed.stdout.decode().strip())
    assert left.is_dir()
    first, second = Path(scratch_folder()), Path(scratch_folder())
    assert not left.exists()
    assert {first.name, second.name, "autotune-of-somebody"} == {
        path.name for path in tmp_path.iterdir()
    }
    assert first.stat().st_mode & 0o077 == 0
    assert (first / "owner").read_text().startswith(f"{os.getpid()}.")


def test_the_path_leaves_room_for_the_sockets_of_ray() -> None:
    folder = Path(scratch_folder())
    try:
        session = "session_2026-11-29_20-59-13_962211_4194304"  # the largest process id of Linux
        assert len(str(folder / "ray" / session / "sockets" / "plasma_store")) <= 107
    finally:
        shutil.rmtree(folder)
