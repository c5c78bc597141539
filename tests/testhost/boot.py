"""The supervisor of one test host: builds its disk and its link, boots it, and clears it away.

Runs as a program (standard library only) in mount, UTS, IPC and network namespaces of its own,
with the folder of the host as its argument and the control socket as its standard input. Messages
on that socket are single packets::

    supervisor -> test   {"boot": 1, "init": 4711, "index": 3}   a boot is complete
    test -> supervisor   cycle                                   cut the power, boot again
    test -> supervisor   (end of file)                           cut the power, clear all away

The test process is watched by a pidfd too, so its end by any signal is the end of the host.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["CAPABILITIES", "OVERLAID", "SUBNET", "host_side_link", "link_name", "remove_cgroup"]

SUBNET = "127.78"
"""Host N is 127.78.N.2, and the machine is 127.78.N.1 to it. All of 127/8 stays on the machine."""

OVERLAID = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt")
"""What a host sees of the machine's top level; all other folders are its own and start empty."""

CAPABILITIES = "-mknod,-sys_module,-sys_rawio,-sys_time,-wake_alarm,-syslog,-audit_read"
"""What root in a host may not do, for `setpriv --bounding-set`: it would act on the machine."""

_SSHD_CONFIG = """\
ListenAddress 0.0.0.0
HostKey /etc/ssh/ssh_host_ed25519_key
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM yes
UseDNS no
PrintMotd no
AcceptEnv LANG LC_*
MaxStartups 100
Subsystem sftp internal-sftp
"""


def link_name(index: int) -> str:
    """The machine's end of the link to host ``index``."""
    return f"ath{index}"


def host_side_link(index: int) -> str:
    """The shell commands, run inside the host, that bring its end of the link up.

    An address in 127/8 needs `route_localnet` on the link and a route in the local table, where
    the route of the loopback device would win otherwise.
    """
    machine, host = f"{SUBNET}.{index}.1", f"{SUBNET}.{index}.2"
    return (
        "ip link set eth0 up; echo 1 >/proc/sys/net/ipv4/conf/eth0/route_localnet; "
        f"ip route replace {machine}/32 dev eth0 src {host} table local; "
        f"ip neigh del {machine} dev eth0 2>/dev/null || true"
    )


def remove_cgroup(top: Path, *, timeout_s: float = 5.0) -> None:
    """Remove a cgroup with all below it, once the kernel has let go of its last process.

    Raises:
        OSError: it is still in use after the timeout.
    """
    deadline = time.monotonic() + timeout_s
    while top.exists():
        try:
            for folder, _, _ in os.walk(top, topdown=False):
                os.rmdir(folder)
        except FileNotFoundError:
            continue
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _shell(script: str) -> None:
    subprocess.run(["/bin/sh", "-euc", script], check=True, stdin=subprocess.DEVNULL)


def _mount(kind: str, target: Path, options: str) -> None:
    subprocess.run(["mount", "-t", kind, "-o", options, kind, str(target)], check=True)


def _make_link(machine_net: str) -> int:
    """Connect the host with the machine; the first free link name decides its number."""
    for index in range(1, 255):
        link, machine = link_name(index), f"{SUBNET}.{index}.1"
        outside = ["nsenter", f"--net={machine_net}", "/bin/sh", "-euc"]
        add = f"ip link add {link} type veth peer name eth0 netns {os.getpid()}"
        if subprocess.run([*outside, add], stderr=subprocess.DEVNULL).returncode:
            continue
        no_ipv6 = "[ ! -e {0} ] || echo 1 >{0}; "
        up = (
            no_ipv6.format(f"/proc/sys/net/ipv6/conf/{link}/disable_ipv6")
            + f"ip link set {link} up; echo 1 >/proc/sys/net/ipv4/conf/{link}/route_localnet; "
            f"ip route add {SUBNET}.{index}.2/32 dev {link} src {machine} table local"
        )
        subprocess.run([*outside, up], check=True)
        # Without the second route, packets would reach the host's own 127/8 while the link is
        # down, and be answered with a reset instead of silence.
        _shell(
            no_ipv6.format("/proc/sys/net/ipv6/conf/eth0/disable_ipv6")
            + f"ip link set lo up; ip route add unreachable {machine}/32 table local metric 1000; "
            + host_side_link(index)
        )
        return index
    raise RuntimeError("no link could be made: is the veth kernel module there?")


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # may be a link that leads nowhere
    path.write_text(text)
    path.chmod(mode)


def _build_disk(folder: Path, spec: dict[str, Any]) -> Path:
    """Mount the host's root: folders of its own, and layers in memory over the machine's."""
    root, layers = folder / "root", folder / "layers"
    for target in (root, layers):
        target.mkdir()
        _mount("tmpfs", target, "mode=755,size=1g")
    for name in OVERLAID:
        source, target = Path("/", name), root / name
        if source.is_symlink():
            target.symlink_to(os.readlink(source))
        elif source.is_dir():
            upper, work = layers / name / "upper", layers / name / "work"
            for made in (target, upper, work):
                made.mkdir(parents=True)
            _mount("overlay", target, f"lowerdir={source},upperdir={upper},workdir={work}")
    for name in ("dev", "proc", "sys", "run", "tmp", "mnt", "home", "srv", "media", "root", "var"):
        (root / name).mkdir()
    # Bound folders may lie below /root, and services of other users must reach them.
    (root / "root").chmod(0o711)
    (root / "var/log/journal").mkdir(parents=True)  # a journal that outlives a reboot
    (root / "var/tmp").mkdir()
    (root / "var/tmp").chmod(0o1777)

    etc, units = root / "etc", root / "usr/lib/systemd/system"
    for name in ("ssh", "sudoers.d", "systemd/system", "systemd/network"):
        shutil.rmtree(etc / name, ignore_errors=True)
        (etc / name).mkdir(parents=True)
    for generator in (root / "usr/lib/systemd/system-generators").iterdir():
        generator.unlink()
    (root / "usr/lib/tmpfiles.d/tmp.conf").unlink(missing_ok=True)  # /tmp may hold bound folders
    # What runs is decided below /usr, so that /etc/systemd/system starts empty.
    for link, unit in (
        (units / "default.target", "multi-user.target"),
        (units / "sshd.service", "ssh.service"),
        (units / "multi-user.target.wants/ssh.service", "../ssh.service"),
    ):
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(unit)
    for name in ("fstab", "environment", "resolv.conf"):
        _write(etc / name, "")
    _write(etc / "hostname", spec["name"] + "\n")
    _write(etc / "hosts", f"127.0.0.1 localhost {spec['name']}\n")
    _write(etc / "machine-id", spec["machine_id"] + "\n", 0o444)
    _write(etc / "ssh/sshd_config", _SSHD_CONFIG)
    _write(etc / "ssh/ssh_host_ed25519_key", (folder / "host_key").read_text(), 0o600)
    _write(
        etc / f"sudoers.d/{spec['sudo_user']}",
        f"{spec['sudo_user']} ALL=(ALL) NOPASSWD: ALL\n",
        0o440,
    )
    for user in ("root", spec["sudo_user"], spec["limited_user"]):
        if user != "root":
            create = ["useradd", "--no-log-init", "--create-home", "--shell", "/bin/bash", user]
            subprocess.run(["chroot", str(root), *create], check=True)
        home = root / "root" if user == "root" else root / "home" / user
        _write(home / ".ssh/authorized_keys", (folder / "key.pub").read_text(), 0o600)
        (home / ".ssh").chmod(0o700)
        for path in (home / ".ssh", home / ".ssh/authorized_keys"):
            os.chown(path, home.stat().st_uid, home.stat().st_gid)
    return root


def _boot_command(cgroup: Path, arguments: list[str]) -> list[str]:
    """PID 1 in its own cgroup and namespaces, its clock near 0, tied to the supervisor's life."""
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--cgroup", "--mount", "--pid"]
    command += ["--fork", "--kill-child=KILL"]
    if Path("/proc/self/ns/time").exists():
        for clock in ("monotonic", "boottime"):
            now_s = time.clock_gettime(getattr(time, f"CLOCK_{clock.upper()}"))
            command += [f"--{clock}", str(1 - int(now_s))]
        command += ["--time"]
    command += ["/bin/sh", str(Path(__file__).with_name("stage.sh")), *arguments]
    return ["/bin/sh", "-euc", 'echo 0 >"$0"; exec "$@"', str(cgroup / "cgroup.procs"), *command]


class _Supervisor:
    def __init__(self, folder: Path, spec: dict[str, Any]) -> None:
        self._folder, self._spec = folder, spec
        self._control = socket.socket(fileno=0)
        self._parent = os.pidfd_open(spec["parent"])
        self._cgroup = Path(spec["cgroup"])
        self._console, terminal = os.openpty()  # the terminal's end stays open: no EIO at reboot
        self._terminal = os.ttyname(terminal)
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(folder / "notify"))
        self._notify.setblocking(False)
        self._boots = 0
        self._leaving = False

    def run(self) -> None:
        try:
            socket.sethostname(self._spec["name"])
            index = _make_link(f"/proc/{self._spec['parent']}/ns/net")
            root = _build_disk(self._folder, self._spec)
            while self._boot(root, index) and not self._leaving:
                pass
        finally:
            self._clear()

    def _boot(self, root: Path, index: int) -> bool:
        """One boot, until PID 1 has ended; says whether the next one follows."""
        self._cgroup.mkdir(exist_ok=True)
        self._boots += 1
        with contextlib.suppress(BlockingIOError):
            while self._notify.recv(65536):  # what the boot before had still to say
                pass
        arguments = [str(root), self._terminal, str(self._folder / "notify")]
        arguments += [self._spec["machine_id"], CAPABILITIES, *self._spec["binds"]]
        process = subprocess.Popen(
            _boot_command(self._cgroup, arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        init = int(process.stdout.readline())
        ended = os.pidfd_open(process.pid)
        ready = again = False
        with process.stdout, selectors.DefaultSelector() as events:
            for source in (self._control, self._parent, self._console, self._notify, ended):
                events.register(source, selectors.EVENT_READ)
            while True:
                for key, _ in events.select():
                    if key.fileobj == self._console:
                        with (self._folder / "console.log").open("ab") as log:
                            log.write(os.read(self._console, 65536))
                    elif key.fileobj is self._notify:
                        said = self._notify.recv(65536).split(b"\n")
                        if b"READY=1" in said and not ready:  # newer ones repeat it at a reload
                            ready = True
                            message = {"boot": self._boots, "init": init, "index": index}
                            with contextlib.suppress(BrokenPipeError):  # its end is an event too
                                self._control.send(json.dumps(message).encode())
                    elif key.fileobj == ended:
                        os.close(ended)
                        remove_cgroup(self._cgroup)
                        # In a PID namespace reboot(2) ends PID 1 by SIGHUP, power off by SIGINT.
                        return process.wait() == -signal.SIGHUP or again
                    else:
                        again = key.fileobj is self._control and bool(self._control.recv(64))
                        if not again:
                            self._leaving = True
                            events.unregister(key.fileobj)
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(init, signal.SIGKILL)

    def _clear(self) -> None:
        subprocess.run(["ip", "link", "del", "eth0"], stderr=subprocess.DEVNULL)
        remove_cgroup(self._cgroup)
        for name in ("root", "layers"):
            if os.path.ismount(self._folder / name):
                unmount = ["umount", "--recursive", "--lazy", str(self._folder / name)]
                subprocess.run(unmount, check=True)
        if self._boots and self._leaving:  # else the logs are still wanted
            shutil.rmtree(self._folder)


def main() -> None:
    os.umask(0o022)
    folder = Path(sys.argv[1])
    _Supervisor(folder, json.loads((folder / "spec.json").read_text())).run()


if __name__ == "__main__":
    main()
