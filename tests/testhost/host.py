"""Hosts to test against: a real systemd, journald, D-Bus and sshd each, on this machine.

A host shows the machine's programs and nothing else of it; what it writes stays in memory. It has
its own processes, clock, boot id and network, is reached at an address of its own, can be cut off,
rebooted and lose its power, and ends with the test process however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TextIO

from autotune.closing import Closing
from tests.testhost.boot import (
    CAPABILITIES,
    OVERLAID,
    SUBNET,
    host_side_link,
    link_name,
    remove_cgroup,
)
from tests.testhost.needs import own_cgroup, unshare

__all__ = ["BootFailed", "SystemdHost", "boot", "interpreter_binds"]

STATE = Path("/run/autotune-testhost")
PROJECT_ROOT = Path(__file__).resolve().parents[2]

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_WRONG_MAC = "02:00:00:00:00:99"
_RESET = """
shopt -s nullglob
for path in /run/systemd/transient/* /run/systemd/system/* /etc/systemd/system/*; do
    unit=${path##*/}; unit=${unit%.d}
    case $unit in *.wants | *.requires) continue ;; esac
    units+=("${unit/@./@*.}")
done
if [ ${#units[@]} -gt 0 ]; then
    systemctl stop --no-block "${units[@]}"
    systemctl kill --signal=KILL "${units[@]}"
    systemctl stop "${units[@]}"
fi 2>/dev/null
pkill -KILL -u "$sudo_user,$limited_user"
rm -rf /{run,etc}/systemd/system{,.control}/* /run/systemd/transient/* /run/lock/*
find /etc/sudoers.d -type f ! -name "$sudo_user" -delete
systemctl daemon-reload && systemctl reset-failed
"""


class BootFailed(RuntimeError):
    """The host did not come up; the message ends with what it printed."""


def interpreter_binds() -> tuple[Path, ...]:
    """This Python, its packages and the project: what a unit needs to run our code in a host."""
    found = [Path(sys.prefix), Path(sys.base_prefix), PROJECT_ROOT]
    found.append(Path(sys.executable).resolve().parent.parent)
    return tuple(
        dict.fromkeys(path for name in found for path in (name.absolute(), name.resolve()))
    )


def boot(name: str, *, binds: Iterable[Path] = (), timeout_s: float = 60.0) -> SystemdHost:
    """Boot a host; returns when its systemd says that the boot is complete and sshd listens.

    Args:
        name: Its host name, and its alias in its ssh configuration.
        binds: Files and folders of the machine that it shows, read-only and at the same paths,
            beside those of `interpreter_binds`.
        timeout_s: The longest wait for one boot.

    Raises:
        BootFailed: it did not come up in time.
    """
    STATE.mkdir(mode=0o755, exist_ok=True)
    with (STATE / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _sweep()
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=STATE))
        alive = (folder / "alive").open("a")
        fcntl.flock(alive, fcntl.LOCK_EX)
    for key in ("key", "host_key"):
        generate = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f"]
        subprocess.run([*generate, str(folder / key)], check=True, stdin=subprocess.DEVNULL)
    spec = {
        "name": name,
        "parent": os.getpid(),
        "cgroup": str(own_cgroup() / f"autotune-{folder.name}"),
        "machine_id": uuid.uuid4().hex,
        "binds": [str(path) for path in _outermost([*interpreter_binds(), *binds])],
        "sudo_user": SystemdHost.sudo_user,
        "limited_user": SystemdHost.limited_user,
    }
    (folder / "spec.json").write_text(json.dumps(spec))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = [sys.executable, "-I", str(Path(__file__).with_name("boot.py")), str(folder)]
    with theirs, (folder / "supervisor.log").open("ab") as log:
        supervisor = subprocess.Popen(
            [*unshare(), *program],
            stdin=theirs.fileno(),
            stdout=log,
            stderr=log,
            pass_fds=[alive.fileno()],  # locked as long as either of us lives
            start_new_session=True,
            env={**os.environ, "PATH": _PATH},
            cwd="/",
        )
    host = SystemdHost(name, folder, supervisor, control=ours, alive=alive)
    try:
        host.wait_for_boot(1, timeout_s=timeout_s)
    except BaseException:
        host.close()
        raise
    return host


class SystemdHost(Closing):
    """A running host; a context manager that ends it.

    Attributes:
        name: Host name, and alias in `ssh_config`.
        key: Private key that opens root and both other users.
        known_hosts: Holds the host's real key.
        ssh_config: For `ssh -F`, `ssh -G -F` and `paramiko.SSHConfig`.
        boots: Number of boots that were complete, as far as known.
    """

    port = 22
    user = "root"
    sudo_user = "deploy"
    limited_user = "limited"

    def __init__(
        self,
        name: str,
        folder: Path,
        supervisor: subprocess.Popen[bytes],
        *,
        control: socket.socket,
        alive: TextIO,
    ) -> None:
        self.name = name
        self.folder = folder
        self.cgroup = _cgroup_of(folder)
        self.supervisor = supervisor
        self.key = folder / "key"
        self.known_hosts = folder / "known_hosts"
        self.ssh_config = folder / "ssh_config"
        self.boots = 0
        self._control = control
        self._alive = alive
        self._index = 0
        self._init = 0

    @property
    def host(self) -> str:
        """The address, reachable from this machine only."""
        return f"{SUBNET}.{self._index}.2"

    @property
    def link(self) -> str:
        """Name of the machine's end of the link."""
        return link_name(self._index)

    @property
    def init_pid(self) -> int:
        """Process id of the host's PID 1, as the machine sees it."""
        while self._receive(timeout_s=0):
            pass
        return self._init

    def run(
        self,
        cmd: str,
        *,
        check: bool = True,
        input: str | None = None,  # noqa: A002  # as subprocess.run calls it
        timeout_s: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a bash command as root in the host, by no network.

        Raises:
            subprocess.CalledProcessError: status other than 0, unless `check` is off.
            subprocess.TimeoutExpired: it took longer than `timeout_s`.
        """
        namespaces = ["mount", "uts", "ipc", "net", "pid", "cgroup"]
        if Path("/proc/self/ns/time").exists():
            namespaces.append("time")
        init = self.init_pid
        # Into a cgroup of the host first, as a process that is started there would be.
        join = 'mkdir -p "$0" && echo 0 >"$0/cgroup.procs" && exec "$@"'
        command = ["/bin/sh", "-c", join, f"/proc/{init}/root/sys/fs/cgroup/outside", "nsenter"]
        command += [f"--target={init}", *(f"--{name}" for name in namespaces), "--root", "--wd"]
        environment = {"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8", "SYSTEMD_PAGER": ""}
        command += ["--", "setpriv", "--inh-caps=-all", f"--bounding-set={CAPABILITIES}", "--"]
        done = subprocess.run(
            [*command, "/bin/bash", "-c", cmd],
            input=input if input is not None else "",
            capture_output=True,
            text=True,
            env=environment,
            timeout=timeout_s,
        )
        if check and done.returncode:
            error = subprocess.CalledProcessError(done.returncode, cmd, done.stdout, done.stderr)
            error.add_note(done.stderr.strip() or done.stdout.strip())
            raise error
        return done

    def write(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Write a file in the host, owned by root, with the folders above it."""
        self.run(f"install -D -m {mode:o} /dev/stdin '{path}'", input=text)

    def read(self, path: str) -> str:
        """The text of a file in the host."""
        return self.run(f"cat '{path}'").stdout

    def cut(self, how: Literal["link", "blackhole"] = "link") -> None:
        """Cut the network: the cable is out, or it is in and each packet is lost."""
        if how == "link":
            self.run("ip link set eth0 down")
            return
        wrong = f"lladdr {_WRONG_MAC} nud permanent dev"
        self.run(f"ip neigh replace {SUBNET}.{self._index}.1 {wrong} eth0")
        subprocess.run(["ip", "neigh", "replace", self.host, *wrong.split(), self.link], check=True)

    def heal(self) -> None:
        """Undo `cut`; sessions that lived through it go on."""
        self.run(host_side_link(self._index))
        forget = ["ip", "neigh", "del", self.host, "dev", self.link]
        subprocess.run(forget, stderr=subprocess.DEVNULL)  # no entry, nothing to forget

    def wait_for_boot(self, number: int, *, timeout_s: float = 60.0) -> None:
        """Wait until boot `number` (the first is 1) is complete.

        Raises:
            BootFailed: the host ended instead, or took longer.
        """
        while self.boots < number:
            if not self._receive(timeout_s=timeout_s):
                logs = (self.folder / "supervisor.log", self.folder / "console.log")
                printed = [log.read_text(errors="replace")[-3000:] for log in logs if log.exists()]
                raise BootFailed(
                    f"host {self.name} did not complete boot {number}\n" + "".join(printed)
                )

    def reboot(self) -> None:
        """`systemctl reboot`; returns when the host is up again."""
        boots = self.boots
        self.run("systemctl reboot", check=False)
        self.wait_for_boot(boots + 1)

    def power_cycle(self) -> None:
        """Every process of the host is gone at once, then it boots with its disk kept."""
        boots = self.boots
        self._control.send(b"cycle")
        self.wait_for_boot(boots + 1)

    def oom(self, unit: str) -> None:
        """Kill a unit as systemd-oomd does, so that its Result is oom-kill.

        The marks are those of systemd's `src/oom/oomd-util.c`; PID 1 reads them when the cgroup
        has become empty.
        """
        group = self.run(f"systemctl show --property=ControlGroup --value '{unit}'").stdout.strip()
        if not group:
            raise ValueError(f"unit {unit} has no processes")
        path = Path(f"/proc/{self.init_pid}/root/sys/fs/cgroup{group}")
        for mark in ("user.oomd_ooms", "user.oomd_kill"):
            before = os.getxattr(path, mark) if mark in os.listxattr(path) else b"0"
            os.setxattr(path, mark, str(int(before) + 1).encode())
        (path / "cgroup.kill").write_text("1")

    def reset(self) -> None:
        """Back to a host without units, drop-ins, sudo rules or processes of a test.

        Raises:
            subprocess.CalledProcessError: systemd refused; such a host is to be closed.
        """
        self.heal()
        self.run(f"sudo_user={self.sudo_user} limited_user={self.limited_user}\n{_RESET}")

    def close(self) -> None:
        """Cut the power and clear everything away; harmless when that was done."""
        self._control.close()
        self.supervisor.wait(timeout=30)
        remove_cgroup(self.cgroup)  # both are left behind when the supervisor was killed
        shutil.rmtree(self.folder, ignore_errors=True)
        self._alive.close()

    def _receive(self, *, timeout_s: float) -> bool:
        """Take the supervisor's next message; false when there is none."""
        if not select.select([self._control], [], [], timeout_s)[0]:
            return False
        packet = self._control.recv(65536)
        if not packet:
            return False
        message = json.loads(packet)
        self.boots, self._init, self._index = (message[key] for key in ("boot", "init", "index"))
        if not self.ssh_config.exists():
            self._write_ssh_files()
        return True

    def _write_ssh_files(self) -> None:
        public = (self.folder / "host_key.pub").read_text().split()[:2]
        self.known_hosts.write_text(f"{self.host},{self.name} {' '.join(public)}\n")
        self.ssh_config.write_text(
            f"Host {self.name} {self.host}\n"
            f"  HostName {self.host}\n"
            f"  Port {self.port}\n"
            f"  User {self.user}\n"
            f"  IdentityFile {self.key}\n"
            "  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.known_hosts}\n"
            "  GlobalKnownHostsFile /dev/null\n"
            "  StrictHostKeyChecking yes\n"
            "  PasswordAuthentication no\n"
            "  BatchMode yes\n"
        )


def _outermost(paths: list[Path]) -> list[Path]:
    """The paths that a host does not show already: by another path, or by a layer of its own."""
    shown = [Path("/", name) for name in OVERLAID]
    found: list[Path] = []
    for path in sorted(set(paths), key=lambda path: len(path.parts)):
        if path != Path("/") and not any(path.is_relative_to(other) for other in shown + found):
            found.append(path)
    return found


def _cgroup_of(folder: Path) -> Path:
    return Path(json.loads((folder / "spec.json").read_text())["cgroup"])


def _sweep() -> None:
    """Clear away what is left when a test and its supervisor were killed together."""
    for marker in STATE.glob("*/alive"):
        with (
            contextlib.suppress(BlockingIOError, FileNotFoundError),  # alive, or just being cleared
            marker.open() as alive,
        ):
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (marker.parent / "spec.json").exists():
                remove_cgroup(_cgroup_of(marker.parent))
            shutil.rmtree(marker.parent)
