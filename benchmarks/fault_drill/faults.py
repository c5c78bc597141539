"""What happens to a run at its point, and how it is undone."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from tests.host.services import argv, show, until
from tests.testhost import UNIT, SystemdHost

__all__ = ["ON_HOST", "Fault", "disk_of_its_own", "fill", "free", "heal", "strike"]

_FULL = """
for path in /run /tmp /dev/shm /; do
    mount -o "remount,size=$(df --output=used -B1 "$path" | tail -n 1 | tr -d ' ')" "$path"
done
"""
_FREE = """
for path in /run /tmp /dev/shm /; do mount -o remount,size=512m "$path"; done
"""
# A new mount on top: what is open below stays open, what is opened now is read-only.
# Who opened a file for writing there in between keeps it from becoming read-only: then once more.
_READ_ONLY = """
while mount --bind /run /run && ! mount -o remount,bind,ro /run; do umount -l /run; done
"""
_WRITABLE = """
while [ "$(awk '$5 == "/run"' /proc/self/mountinfo | wc -l)" -gt 1 ]; do umount -l /run; done
"""


class Fault(StrEnum):
    """One thing that goes wrong."""

    KILLED = "kill -9, never back"
    BACK = "kill -9, and back"
    CUT = "network cut"
    BLACKHOLE = "network blackholed"
    REBOOT = "host reboots"
    SERVICE = "service killed"
    OOM = "service OOM-killed"
    HOST_FULL = "host disk full"
    HERE_FULL = "disk here full"
    READ_ONLY = "/run read-only"
    SECOND = "second tuner"

    @property
    def kills(self) -> bool:
        """Whether the tuner dies of it at once."""
        return self in (Fault.KILLED, Fault.BACK)

    @property
    def alone(self) -> bool:
        """Whether the host must come back by its own timer: nobody can or will reach it."""
        return self in (Fault.KILLED, Fault.CUT, Fault.BLACKHOLE)


ON_HOST: Mapping[Fault, tuple[str, str]] = {
    Fault.HOST_FULL: (_FULL, _FREE),
    Fault.READ_ONLY: (_READ_ONLY, _WRITABLE),
}
"""Faults of a host's file systems: the shell script that makes it, and the one that undoes it."""


def strike(fault: Fault, host: SystemdHost, *, folder: Path) -> None:
    """Let it happen; killing the tuner and starting a second one are the caller's.

    Args:
        folder: The disk of the tuner's database, made by `disk_of_its_own`.
    """
    match fault:
        case Fault.CUT:
            host.cut("link")
        case Fault.BLACKHOLE:
            host.cut("blackhole")
        case Fault.REBOOT:
            host.reboot()
        case Fault.SERVICE:
            _until_it_runs(host)
            host.run(f"systemctl kill --signal=KILL {UNIT}")
        case Fault.OOM:
            _until_it_runs(host)
            host.oom(UNIT)
        case Fault.HOST_FULL | Fault.READ_ONLY:
            host.run(ON_HOST[fault][0])
        case Fault.HERE_FULL:
            fill(folder)
        case Fault.KILLED | Fault.BACK | Fault.SECOND:
            pass


def heal(fault: Fault, host: SystemdHost, *, folder: Path) -> None:
    """Undo what `strike` did; harmless when that was done."""
    match fault:
        case Fault.CUT | Fault.BLACKHOLE:
            host.heal()
        case Fault.HOST_FULL | Fault.READ_ONLY:
            host.run(ON_HOST[fault][1])
        case Fault.HERE_FULL:
            free(folder)
        case _:
            pass


@contextmanager
def disk_of_its_own(folder: Path, *, megabytes: int) -> Iterator[None]:
    """A small file system at a folder, for as long as this lasts."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"mode=755,size={megabytes}m"
    _away_from_ctrl_c(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)])
    try:
        yield
    finally:
        _away_from_ctrl_c(["umount", "--lazy", str(folder)])


def _away_from_ctrl_c(command: list[str]) -> None:
    """Run a command that a Ctrl-C in the terminal does not reach."""
    subprocess.run(command, check=True, start_new_session=True)


def fill(folder: Path) -> None:
    """Leave not one byte free on the folder's file system."""
    with (folder / "filler").open("ab", buffering=0) as filler:
        size = 1 << 20
        while size:
            try:
                filler.write(b"\0" * size)
            except OSError:
                size //= 2


def free(folder: Path) -> None:
    (folder / "filler").unlink(missing_ok=True)


def _until_it_runs(host: SystemdHost) -> None:
    """Wait until the unit has a main process: between two starts there is none to kill."""
    until(lambda: show(host, "ActiveState") == "active" and argv(host) != (), "a service to kill")
