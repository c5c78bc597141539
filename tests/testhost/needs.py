"""What a machine must have to boot test hosts, and what of it the hosts are made with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["own_cgroup", "unavailable", "unshare"]

_PACKAGES = (
    ("openssh-server", "/usr/sbin/sshd"),
    ("openssh-client", "/usr/bin/ssh-keygen"),
    ("sudo", "/usr/bin/sudo"),
    ("systemd", "/lib/systemd/systemd"),
    ("dbus", "/usr/bin/dbus-daemon"),
    ("libpam-systemd", "/usr/share/pam-configs/systemd"),
    ("iproute2", "/usr/sbin/ip"),
    ("util-linux", "/usr/bin/unshare"),
    ("passwd", "/usr/sbin/useradd"),
)
_PROBE = """
ip link add probe0 type veth peer name probe1
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o lowerdir=/usr,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root
mount -t cgroup2 cgroup2 /mnt/work
"""


def unavailable() -> str | None:
    """One sentence that says why no host can be booted here and what would help, or None."""
    if sys.platform != "linux":
        return "host tests need Linux: run them in a virtual machine with systemd packages."
    if os.geteuid() != 0:
        return "host tests need root: run them with sudo or in a privileged container."
    missing = " ".join(package for package, path in _PACKAGES if not Path(path).exists())
    if missing:
        return f"host tests need packages: apt-get install --no-install-recommends {missing}."
    if not os.access(own_cgroup(), os.W_OK):
        return (
            "host tests need a writable cgroup2 file system: "
            "run the container with --privileged, or mount -t cgroup2 none /sys/fs/cgroup/unified."
        )
    tried = subprocess.run(
        [*unshare("pid", "cgroup", "fork"), "/bin/sh", "-euc", _PROBE],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if tried.returncode:
        return (
            f"host tests need namespaces, veth, overlayfs and cgroup2 ({tried.stderr.strip()}): "
            "run the container with --privileged, or take a kernel that has them."
        )
    return None


def unshare(*more: str) -> list[str]:
    """The start of a command that runs in namespaces of its own; `more` are further flags."""
    flags = (f"--{name}" for name in ("mount", "uts", "ipc", "net", *more))
    return ["unshare", *flags, "--propagation", "private", "--"]


def own_cgroup() -> Path:
    """The cgroup2 folder of this process, as mounted on this machine."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    mounts = [line.split()[4] for line in lines if " - cgroup2 " in line]
    groups = Path("/proc/self/cgroup").read_text().splitlines()
    own = [group.removeprefix("0::/") for group in groups if group.startswith("0::")]
    return Path(mounts[0], own[0]) if mounts and own else Path("/nonexistent")
