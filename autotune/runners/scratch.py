"""Short-lived folders under /tmp that a killed run leaves, and the next run takes away."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from autotune.supervisors.guard import boot_id, start_ticks

__all__ = ["scratch_folder"]

PREFIX = "autotune-"


def scratch_folder() -> str:
    """A new folder of this process that nobody else may enter; those of dead processes go.

    Its name says whose it is: `autotune-PID.TICKS.BOOT-random`, process id, its start in clock
    ticks and the beginning of the boot id.
    """
    root = Path(tempfile.gettempdir())
    boot = boot_id()[:8]
    for path in root.glob(f"{PREFIX}*"):
        if path.is_dir() and not path.is_symlink() and _is_left(path, boot):
            shutil.rmtree(path, ignore_errors=True)
    own = f"{PREFIX}{os.getpid()}.{start_ticks(os.getpid())}.{boot}-"
    return tempfile.mkdtemp(prefix=own, dir=root)


def _is_left(path: Path, boot: str) -> bool:
    """Whether the folder is ours and was made by a process that has ended."""
    pid, ticks, of_boot = [*path.name.removeprefix(PREFIX).partition("-")[0].split("."), "", ""][:3]
    if not (pid.isdecimal() and ticks.isdecimal()) or path.stat().st_uid != os.getuid():
        return False
    return of_boot != boot or start_ticks(int(pid)) != int(ticks)
