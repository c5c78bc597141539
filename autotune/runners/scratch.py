"""Short-lived folders under /tmp that a killed run leaves, and the next run takes away."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from autotune.supervisors.guard import boot_id, start_ticks

__all__ = ["scratch_folder"]

PREFIX = "autotune-"
OWNER = "owner"


def scratch_folder() -> str:
    """A new folder of this process that nobody else may enter; those of dead processes go.

    A file in it says whose it is: `PID.TICKS.BOOT`, process id, its start in clock ticks and the
    beginning of the boot id.  The folder's own name is short: Ray puts sockets below it, and the
    path of a socket has 107 bytes at most (unix(7), `sun_path`).
    """
    root = Path(tempfile.gettempdir())
    boot = boot_id()[:8]
    for path in root.glob(f"{PREFIX}*"):
        if path.is_dir() and not path.is_symlink() and _is_left(path, boot):
            shutil.rmtree(path, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=root)
    own = f"{os.getpid()}.{start_ticks(os.getpid())}.{boot}"
    Path(folder, OWNER).write_text(own)
    return folder


def _is_left(path: Path, boot: str) -> bool:
    """Whether the folder is ours and was made by a process that has ended."""
    if path.stat().st_uid != os.getuid():
        return False
    try:
        pid, ticks, of_boot = (path / OWNER).read_text().split(".")
    except (OSError, ValueError):
        return False
    if not (pid.isdecimal() and ticks.isdecimal()):
        return False
    return of_boot != boot or start_ticks(int(pid)) != int(ticks)
