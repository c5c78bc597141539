"""Stop and start on a real host: limits, orphans, GPU memory, logs in files and in quantity."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.errors import CommandError, HostBusy
from autotune.supervisors.base import Launch, Word
from autotune.supervisors.log_lines import LogSource
from autotune.systemd.agent import sudoers_lines
from autotune.testing.supervisor_contract import (
    PATIENCE_S,
    claimed,
    collect,
    eventually,
    run,
    until_ready,
)
from tests.host.tiny_unit import UNIT, SystemdService, install
from tests.testhost import SystemdHost

LOG = "/var/log/tiny.log"
MEGABYTES = 100

_NVIDIA_SMI = """\
#!/bin/sh
# Memory that the driver gives back step by step, a step at each question.
case $1 in
    --query-gpu=*)
        read -r mib </run/gpu-mib
        echo "GPU-a, $mib"
        read -r step </run/gpu-step
        [ "$mib" -le 600 ] || systemctl is-active -q tiny-web ||
            echo $((mib - step)) >/run/gpu-mib ;;
    --query-compute-apps=*)
        pid=$(systemctl show --property=MainPID --value tiny-web)
        [ "$pid" = 0 ] || echo "GPU-a, $pid, 70000" ;;
esac
"""


@pytest.fixture
def service(host: SystemdHost) -> SystemdService:
    install(host)
    return SystemdService(host)


@pytest.fixture
def gpu(service: SystemdService) -> Iterator[SystemdHost]:
    """A host with one GPU, as far as `nvidia-smi` knows."""
    host = service.host
    host.write("/usr/local/bin/nvidia-smi", _NVIDIA_SMI, mode=0o755)
    host.run("echo 70600 >/run/gpu-mib; echo 25000 >/run/gpu-step")
    yield host
    host.run("rm -f /usr/local/bin/nvidia-smi")


def test_starts_in_a_row_meet_no_start_limit(service: SystemdService) -> None:
    install(service.host, "[Unit]", "StartLimitIntervalSec=300", "StartLimitBurst=2")
    with claimed(service) as (supervisor, _):
        for number in range(4):
            until_ready(supervisor, run(supervisor, service.launch("--say", str(number))))


def test_a_queued_restart_is_no_obstacle(service: SystemdService) -> None:
    """A trial that crashed has its next start queued by `RestartSec=` when ours comes."""
    install(service.host, "Restart=always", "RestartSec=60")
    with claimed(service) as (supervisor, _):
        run(supervisor, service.launch("--exit", "2"))
        eventually(supervisor.identity, lambda seen: seen.sub_state == "auto-restart")
        until_ready(supervisor, run(supervisor, service.launch()))
        assert supervisor.identity().n_restarts == 0


def test_orphans_are_named(service: SystemdService) -> None:
    """Workers that re-parented to PID 1 and that the unit's stop does not end."""
    install(service.host, "KillMode=process")
    with claimed(service) as (supervisor, _):
        start = run(supervisor, service.launch("--grandchild"))
        lines = until_ready(supervisor, start)
        orphan = next(line.text.split()[1] for line in lines if "grandchild" in line.text)
        with pytest.raises(HostBusy, match=rf"left pid {orphan} .* of tiny-web\.service"):
            supervisor.stop(timeout_s=0.5)
        service.host.run(f"kill -9 {orphan}")


def test_gpu_memory_is_waited_for(service: SystemdService, gpu: SystemdHost) -> None:
    with claimed(service) as (supervisor, _):
        until_ready(supervisor, run(supervisor, service.launch()))
        gpu.run("echo 70600 >/run/gpu-mib")
        supervisor.stop(timeout_s=PATIENCE_S)
        assert int(gpu.read("/run/gpu-mib")) < 600


def test_gpu_memory_that_stays_is_the_machines_fault(
    service: SystemdService, gpu: SystemdHost
) -> None:
    with claimed(service) as (supervisor, _):
        until_ready(supervisor, run(supervisor, service.launch()))
        gpu.run("echo 70600 >/run/gpu-mib; echo 0 >/run/gpu-step")
        with pytest.raises(HostBusy, match=r"68\.9 GiB on GPU GPU-a that no process accounts for"):
            supervisor.stop(timeout_s=0.5)


def test_a_journal_that_loses_lines_loses_none_of_a_trial(service: SystemdService) -> None:
    install(service.host, "LogRateLimitIntervalSec=300", "LogRateLimitBurst=5")
    words = [word for number in range(40) for word in ("--say", f"line {number}")]
    with claimed(service) as (supervisor, _):
        lines = until_ready(supervisor, run(supervisor, service.launch(*words)))
    assert [line.text for line in lines if line.text.startswith("line ")] == words[1::2]


def test_a_hundred_megabytes_of_log_in_bounded_memory(service: SystemdService) -> None:
    """Progress bars without a line end, bytes that are not UTF-8, and then the line that counts."""
    install(service.host, f"StandardOutput=append:{LOG}", f"StandardError=append:{LOG}")
    flood = (
        "import os, sys; bar = b'\\r 45%|' + '█'.encode() * 20 + b'\\xff\\xfe 1/2' * 90\n"
        f"for _ in range({MEGABYTES} * 1000000 // len(bar) + 1): sys.stdout.buffer.write(bar)\n"
        "sys.stdout.buffer.write(b'\\n'); sys.stdout.flush()\n"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    server = service.launch().texts()[1:]
    launch = Launch(tuple(Word(w, ours=True) for w in (sys.executable, "-c", flood, *server)))
    with claimed(service) as (supervisor, _):
        start = run(supervisor, launch)
        before = _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        with supervisor.follow(start) as log:
            last = ""
            while not last.startswith("tiny server is ready"):
                line = log.read(PATIENCE_S)
                assert line is not None
                last = line.text
        grown = _memory("VmHWM") - before
        size = int(service.host.run(f"stat -c %s {LOG}").stdout)
    assert size > MEGABYTES * 1_000_000
    assert grown < 48 * 1024, f"{grown} KiB"


def test_a_log_file_is_read_from_this_start_on(service: SystemdService) -> None:
    install(service.host, f"StandardOutput=append:{LOG}", f"StandardError=append:{LOG}", start=True)
    service.host.run(f"echo 'tiny server is ready, says an old line' >>{LOG}")
    with claimed(service) as (supervisor, _):
        start = run(supervisor, service.launch("--say", "mine\rtwo", "--exit", "7"))
        with supervisor.follow(start) as log:
            lines = collect(log.read, lambda line: "status=7" in line.text)
        own = [line.text for line in lines if line.source is LogSource.SERVICE]
        assert own[0].startswith("tiny server starts")
        assert own[1:] == ["mine", "two"]
    left = service.host.run("pgrep -fa '[t]ail -c' || true").stdout
    assert left == ""


def _memory(key: str) -> int:
    """Memory of this process, KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key + ":"))


def test_a_lease_is_reverted_by_another_user(host: SystemdHost) -> None:
    """Taken as root, reverted as a user who may use sudo, with nothing but the host."""
    install(host, start=True)
    service = SystemdService(host)
    with service.open() as supervisor:
        original = supervisor.original()
        lease = supervisor.take_lease(service.owner("far"), original, restore_after_s=300)
        with supervisor.claim(lease, "one"):
            until_ready(supervisor, run(supervisor, service.launch("--say", "trial")))
        with SystemdService(host, user=host.sudo_user).open() as other:
            held = other.revert()
        assert held is not None
        assert held.study == "far"
        identity = supervisor.identity()
        process = supervisor.process(identity.main_pid)
        assert process is not None
        assert process.argv == original.live_argv
        supervisor.restore(lease)


def test_each_sudo_line_is_needed_and_none_beside_them(service: SystemdService) -> None:
    """All three together are enough for the whole contract (`TestUnprivileged`)."""
    host = service.host
    lines = sudoers_lines(UNIT, host.limited_user)
    for without in lines:
        host.run("rm -rf /run/autotune")
        kept = [line for line in lines if line != without]
        host.write("/etc/sudoers.d/autotune", "\n".join(kept) + "\n", mode=0o440)
        limited = SystemdService(host, user=host.limited_user)
        with limited.open() as supervisor, pytest.raises(CommandError, match="sudoers needs") as no:
            supervisor.original()
        assert without in no.value.hint
    host.write("/etc/sudoers.d/autotune", "\n".join(lines) + "\n", mode=0o440)
    refused = host.run(f"runuser -u {host.limited_user} -- sudo -n true", check=False)
    assert refused.returncode != 0
