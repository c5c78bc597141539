"""The hosts that the tests of this folder stand on (one piece: one object)."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Literal

import paramiko
import pytest

from tests.host.conftest import HostFactory, require_hosts
from tests.testhost import UNIT, BootFailed, SystemdHost, boot, install_unit, unit_text

PROJECT_ROOT = Path(__file__).resolve().parents[2]
LISTENER = (
    sys.executable,
    "-c",
    "'import socket,signal; s=socket.create_server((\"0.0.0.0\",30000)); signal.pause()'",
)
"""Stands in for the server where only the unit matters."""


def login(host: SystemdHost, user: str) -> paramiko.SSHClient:
    client = paramiko.SSHClient()
    client.load_host_keys(str(host.known_hosts))
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    client.connect(
        host.host,
        host.port,
        username=user,
        key_filename=str(host.key),
        allow_agent=False,
        look_for_keys=False,
        timeout=20,
    )
    return client


def answer(client: paramiko.SSHClient, command: str) -> tuple[int, str]:
    _, stdout, _ = client.exec_command(command, timeout=20)
    text = stdout.read().decode()
    return stdout.channel.recv_exit_status(), text


def show(host: SystemdHost, unit: str, name: str) -> str:
    return host.run(f"systemctl show --property={name} --value {unit}").stdout.strip()


def wait_until_ended(pid: int) -> None:
    """Wait for a process that is not our child; one that is gone already is fine."""
    try:
        ended = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([ended], [], [], 20)[0], f"process {pid} still runs"
    finally:
        os.close(ended)


def traces(*, link: str, folder: Path, cgroup: Path) -> list[str]:
    """What of a host is still on the machine."""
    found = [str(path) for path in (Path("/sys/class/net", link), folder, cgroup) if path.exists()]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return found + [line for line in mounts if folder.name in line]


def test_boots_a_complete_systemd(host: SystemdHost) -> None:
    assert host.run("systemctl is-system-running").stdout == "running\n"
    assert host.run("cat /proc/1/comm").stdout == "systemd\n"
    assert host.run("hostname").stdout == "gpu-a\n"
    assert host.run("systemctl is-active ssh dbus systemd-logind").stdout.split() == ["active"] * 3


@pytest.mark.skipif(
    not Path("/proc/self/ns/time").exists(), reason="a kernel without time namespaces"
)
def test_its_clock_starts_with_its_boot(host: SystemdHost) -> None:
    host.power_cycle()
    assert float(host.read("/proc/uptime").split()[0]) < 60


@pytest.mark.usefixtures("systemd_hosts")  # skips where no host can be booted
def test_shows_nothing_of_the_machine_but_its_programs(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("of the machine")
    # A host of its own: earlier tests may have left files in a shared one.
    with boot("gpu-fresh") as host:
        assert host.run(f"test -e {tmp_path}/note", check=False).returncode == 1
        assert host.run("ls /etc/systemd/system /mnt /srv | grep -v :").stdout.split() == []
        assert host.link not in host.run("ls /sys/class/net").stdout.split()


def test_cannot_change_the_machine(host: SystemdHost) -> None:
    assert host.run(f"touch {PROJECT_ROOT}/seen", check=False).returncode != 0
    same = "cat /proc/sys/vm/swappiness >/proc/sys/vm/swappiness"
    assert "Read-only file system" in host.run(same, check=False).stderr
    clock = host.run("date --set=@$(date +%s)", check=False)
    assert "Operation not permitted" in clock.stderr
    host.run("touch /usr/bin/of-a-host /etc/of-a-host")
    assert not Path("/usr/bin/of-a-host").exists()
    assert not Path("/etc/of-a-host").exists()


def test_two_hosts_are_two_machines(systemd_hosts: HostFactory) -> None:
    one, two = systemd_hosts("gpu-a"), systemd_hosts("gpu-b")
    assert one.host != two.host
    for path in ("/proc/sys/kernel/random/boot_id", "/etc/machine-id", "/etc/hostname"):
        assert one.read(path) != two.read(path)
    for host in (one, two):
        install_unit(host, command=LISTENER)
        host.run(f"systemctl start {UNIT}")
        host.run("until ss -Hltn 'sport = :30000' | grep -q .; do sleep 0.05; done")
        socket.create_connection((host.host, 30000), timeout=20).close()
    one.run(f"systemctl stop {UNIT}")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((one.host, 30000), timeout=20)
    socket.create_connection((two.host, 30000), timeout=20).close()


def test_login_as_root_and_as_the_user_with_sudo(host: SystemdHost) -> None:
    with login(host, host.user) as client:
        assert answer(client, "id -un") == (0, "root\n")
    with login(host, host.sudo_user) as client:
        assert answer(client, "id -un && sudo -n id -un") == (0, "deploy\nroot\n")


def test_the_limited_user_may_do_what_a_rule_grants(host: SystemdHost) -> None:
    with login(host, host.limited_user) as client:
        assert answer(client, "sudo -n /usr/bin/id -un")[0] != 0
        rule = "limited ALL=NOPASSWD: /usr/bin/id -un\n"
        host.write("/etc/sudoers.d/limited", rule, mode=0o440)
        assert answer(client, "sudo -n /usr/bin/id -un") == (0, "root\n")
        assert answer(client, "sudo -n /usr/bin/id -ur")[0] != 0


def test_a_key_that_is_not_known_is_rejected(host: SystemdHost) -> None:
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    with client, pytest.raises(paramiko.SSHException, match="not found in known_hosts"):
        client.connect(host.host, username=host.user, key_filename=str(host.key))


def test_the_ssh_configuration_is_read_by_ssh_and_by_paramiko(host: SystemdHost) -> None:
    wanted = {"hostname": host.host, "user": "root", "port": "22"}
    printed = subprocess.run(
        ["ssh", "-G", "-F", str(host.ssh_config), host.name],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    seen = dict(line.split(" ", 1) for line in printed.splitlines())
    assert {key: seen[key] for key in wanted} == wanted
    assert seen["identityfile"] == str(host.key)
    config = paramiko.SSHConfig.from_path(str(host.ssh_config)).lookup(host.name)
    assert {key: config[key] for key in wanted} == wanted
    command = ["ssh", "-F", str(host.ssh_config), host.name, "cat /etc/hostname"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "gpu-a\n"


def test_the_journal_holds_what_a_service_prints(host: SystemdHost) -> None:
    host.run("systemd-run --quiet --wait --unit=talks echo a line from a service")
    host.run("journalctl --sync")
    entries = host.run("journalctl --unit=talks --output=json --no-pager").stdout.splitlines()
    ours = [json.loads(entry) for entry in entries]
    (line,) = [entry for entry in ours if entry["MESSAGE"] == "a line from a service"]
    assert line["_SYSTEMD_UNIT"] == "talks.service"
    boot_id = host.read("/proc/sys/kernel/random/boot_id").strip().replace("-", "")
    assert line["_BOOT_ID"] == boot_id


def exec_start(host: SystemdHost) -> list[str]:
    bus = "busctl --json=short"
    manager = "org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager"
    loaded = host.run(f"{bus} call {manager} LoadUnit s {UNIT}").stdout
    path = json.loads(loaded)["data"][0]
    service = f"org.freedesktop.systemd1 {path} org.freedesktop.systemd1.Service"
    argv = json.loads(host.run(f"{bus} get-property {service} ExecStartEx").stdout)["data"][0][1]
    assert isinstance(argv, list)
    return argv


def test_the_unit_is_what_people_write(host: SystemdHost) -> None:
    install_unit(host, load_s=2.5, faults="no-usage", environment={"NOTE": 'a "b" 5% \\c'})
    argv = exec_start(host)
    assert argv[:3] == [sys.executable, "-m", "autotune.testing.sglang_server"]
    assert len([word for word in argv if word.startswith("--")]) >= 12
    assert argv[argv.index("--speculative-ddtree-budget") + 1] == "8"
    host.run(f"systemd-analyze verify /etc/systemd/system/{UNIT}")
    environment = show(host, UNIT, "Environment")
    assert "AUTOTUNE_SIM_LOAD_S=2.5 AUTOTUNE_SIM_FAULT=no-usage" in environment
    assert show(host, UNIT, "RestartUSec") == "2s"
    assert show(host, UNIT, "TimeoutStopUSec") == "1min"


def test_the_units_environment_reaches_the_process(host: SystemdHost) -> None:
    note = 'a "b" 5% \\c'
    install_unit(host, environment={"NOTE": note}, command=LISTENER, user=host.limited_user)
    host.run(f"systemctl start {UNIT}")
    pid = show(host, UNIT, "MainPID")
    host.run(f"until grep -qz AUTOTUNE_SIM_LOAD_S /proc/{pid}/environ; do sleep 0.05; done")
    assert f"NOTE={note}" in host.read(f"/proc/{pid}/environ").split("\0")
    assert host.run(f"stat --format=%U /proc/{pid}").stdout == "limited\n"


def test_a_runtime_drop_in_takes_effect_and_a_reset_removes_it(host: SystemdHost) -> None:
    install_unit(host, command=LISTENER)
    host.write(
        f"/run/systemd/system/{UNIT}.d/zzzz-test.conf",
        "[Service]\nExecStart=\nExecStart=/bin/sleep infinity\n",
    )
    host.run(f"systemctl daemon-reload && systemctl restart {UNIT}")
    assert exec_start(host) == ["/bin/sleep", "infinity"]
    assert show(host, UNIT, "DropInPaths").endswith("zzzz-test.conf")
    assert show(host, UNIT, "ActiveState") == "active"
    host.reset()
    assert show(host, UNIT, "LoadState") == "not-found"
    assert show(host, UNIT, "ActiveState") == "inactive"
    assert host.run("pgrep --exact sleep", check=False).returncode == 1


def test_a_reset_ends_what_will_not_stop(host: SystemdHost) -> None:
    unit = (
        "[Service]\nExecStart=/bin/sh -c 'trap : TERM; while :; do sleep 1; done'\nRestart=always\n"
    )
    host.write("/etc/systemd/system/stubborn@.service", unit)
    host.write("/run/lock/autotune/unit.lock", "owner")
    host.write("/etc/sudoers.d/limited", "limited ALL=NOPASSWD: ALL\n", mode=0o440)
    host.run("systemctl daemon-reload && systemctl start stubborn@one stubborn@two")
    host.run("systemd-run --on-active=1h --unit=later true")
    host.reset()
    left = host.run("systemctl list-units --all --plain --no-legend 'stubborn@*' 'later*'").stdout
    assert left == ""
    assert host.run("ls /run/lock /etc/sudoers.d").stdout.split() == [
        "/etc/sudoers.d:",
        "deploy",
        "/run/lock:",
    ]
    assert host.run("systemctl is-system-running").stdout == "running\n"


def test_an_oom_kill_is_told_as_one(host: SystemdHost) -> None:
    install_unit(host, command=LISTENER)
    host.write(f"/run/systemd/system/{UNIT}.d/once.conf", "[Service]\nRestart=no\n")
    host.run(f"systemctl daemon-reload && systemctl start {UNIT}")
    host.oom(UNIT)
    host.run(f"while systemctl is-active --quiet {UNIT}; do sleep 0.05; done")
    assert show(host, UNIT, "Result") == "oom-kill"


@pytest.mark.parametrize("how", ["link", "blackhole"])
def test_a_cut_is_silence_and_sessions_outlive_it(
    host: SystemdHost, how: Literal["link", "blackhole"]
) -> None:
    with login(host, host.user) as client:
        host.cut(how)
        with pytest.raises(OSError, match=r"timed out|No route to host"):
            socket.create_connection((host.host, host.port), timeout=0.5)
        assert host.run("echo still here").stdout == "still here\n"
        host.heal()
        assert answer(client, "echo back") == (0, "back\n")
        socket.create_connection((host.host, host.port), timeout=20).close()


def boot_ids(host: SystemdHost) -> tuple[str, str]:
    return host.read("/proc/sys/kernel/random/boot_id"), host.read("/etc/machine-id")


@pytest.mark.parametrize("how", ["reboot", "power cycle", "reboot over ssh"])
def test_a_boot_forgets_run_and_keeps_the_disk(host: SystemdHost, how: str) -> None:
    install_unit(host, command=LISTENER)
    host.run(f"systemctl enable {UNIT}")
    host.write("/run/systemd/system/gone.service", "[Service]\nExecStart=/bin/true\n")
    host.write("/var/lib/kept", "kept")
    before, machine = boot_ids(host)
    if how == "reboot":
        host.reboot()
    elif how == "power cycle":
        host.power_cycle()
    else:
        boots = host.boots
        with login(host, host.sudo_user) as client:
            client.exec_command("sudo -n systemctl reboot")
            host.wait_for_boot(boots + 1)
    after, same_machine = boot_ids(host)
    assert (after != before, same_machine) == (True, machine)
    assert show(host, UNIT, "ActiveState") == "active"
    assert show(host, "gone.service", "LoadState") == "not-found"
    assert host.read("/var/lib/kept") == "kept"
    listed = host.run("journalctl --list-boots --no-pager").stdout
    assert before.strip().replace("-", "") in listed
    with login(host, host.user) as client:
        assert answer(client, "true") == (0, "")


@pytest.mark.usefixtures("systemd_hosts")
def test_nothing_is_left_of_a_closed_host() -> None:
    with boot("brief") as host:
        init = host.init_pid
        assert len(traces(link=host.link, folder=host.folder, cgroup=host.cgroup)) == 3
    wait_until_ended(init)
    assert traces(link=host.link, folder=host.folder, cgroup=host.cgroup) == []
    routes = subprocess.run(
        ["ip", "route", "show", "table", "local"], check=True, capture_output=True, text=True
    ).stdout
    assert host.host not in routes
    host.close()


@pytest.mark.usefixtures("systemd_hosts")
def test_a_host_that_cannot_boot_says_why(tmp_path: Path) -> None:
    with pytest.raises(BootFailed, match="not-there"):
        boot("broken", binds=[tmp_path / "not-there"])


def test_a_powered_off_host_is_replaced(systemd_hosts: HostFactory) -> None:
    first = systemd_hosts("gpu-b")
    first.run("systemctl poweroff", check=False)
    first.supervisor.wait(timeout=20)
    with pytest.raises(BootFailed, match="gpu-b"):
        first.wait_for_boot(first.boots + 1)
    second = systemd_hosts("gpu-b")
    assert second is not first
    assert second.run("systemctl is-system-running").stdout == "running\n"


CHILD = """
import json, signal, sys
from tests.testhost import boot
host = boot("orphan")
code = f"{sys.executable} -c 'import sys, autotune; print(sys.prefix)'"
python = host.run(f"runuser -u limited -- env PYTHONPATH={sys.argv[1]} {code}")
print(json.dumps({
    "init": host.init_pid, "supervisor": host.supervisor.pid, "link": host.link,
    "folder": str(host.folder), "cgroup": str(host.cgroup), "prefix": python.stdout.strip(),
}), flush=True)
signal.pause()
"""


def start_child(python: str) -> tuple[subprocess.Popen[str], dict[str, str | int]]:
    child = subprocess.Popen(
        [python, "-c", CHILD, str(PROJECT_ROOT)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROJECT_ROOT,
    )
    assert child.stdout is not None
    with child.stdout:
        line = child.stdout.readline()
    if not line:
        child.wait(timeout=20)
        pytest.fail("the child did not boot a host")
    return child, json.loads(line)


@pytest.mark.usefixtures("systemd_hosts")
@pytest.mark.parametrize("victims", ["test", "test and supervisor"])
def test_a_host_dies_with_its_test_process(victims: str) -> None:
    child, seen = start_child(sys.executable)
    supervisor, init = int(seen["supervisor"]), int(seen["init"])
    if victims == "test and supervisor":
        os.kill(supervisor, signal.SIGKILL)
    child.kill()
    child.wait(timeout=20)
    wait_until_ended(supervisor)
    wait_until_ended(init)
    if victims == "test and supervisor":
        boot("sweeper").close()  # nobody was left to clear: the next host does
    there = {name: Path(str(seen[name])) for name in ("folder", "cgroup")}
    assert traces(link=str(seen["link"]), **there) == []


@pytest.mark.usefixtures("systemd_hosts")
def test_a_virtual_environment_below_tmp_is_shown(tmp_path: Path) -> None:
    create = [sys.executable, "-m", "venv", "--without-pip", "--system-site-packages"]
    subprocess.run([*create, str(tmp_path / "venv")], check=True)
    child, seen = start_child(str(tmp_path / "venv/bin/python"))
    child.kill()
    child.wait(timeout=20)
    wait_until_ended(int(seen["supervisor"]))
    assert seen["prefix"] == str(tmp_path / "venv")


def test_missing_prerequisites_skip_or_fail() -> None:
    require_hosts(None, ci=True)
    with pytest.raises(pytest.skip.Exception, match="need root"):
        require_hosts("host tests need root", ci=False)
    with pytest.raises(pytest.fail.Exception, match="need root"):
        require_hosts("host tests need root", ci=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="a user namespace without root is made by root")
@pytest.mark.parametrize(("ci", "status", "outcome"), [("", 0, "SKIPPED"), ("true", 1, "ERROR")])
def test_without_root_the_reason_is_one_sentence(ci: str, status: int, outcome: str) -> None:
    test = f"{__file__}::test_boots_a_complete_systemd"
    # In a new user namespace we are nobody, and read our files all the same.
    ran = subprocess.run(
        ["unshare", "--user", sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test],
        env={**os.environ, "CI": ci},
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, outcome in ran.stdout) == (status, True)
    assert "host tests need root: run them with sudo or in a privileged container." in ran.stdout


def test_the_text_of_the_unit_has_its_quirks() -> None:
    text = unit_text(port=30001, user="deploy", environment={"AUTOTUNE_SIM_FAULTS": "orphan:5"})
    assert text.count("\\\n") >= 12
    assert "--port 30001 \\\n" in text
    assert 'Environment="AUTOTUNE_SIM_FAULTS=orphan:5"\n' in text
    assert "User=deploy\n" in text
    assert text.splitlines()[0].startswith("#")
