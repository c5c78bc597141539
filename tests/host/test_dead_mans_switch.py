"""The dead man's switch on a real host: it comes back, whatever became of the driver."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autotune.errors import (
    HostBusy,
    LeaseLost,
    RestoreFailed,
)
from autotune.remote.ssh import SshConnector
from autotune.remote.ssh_config import SshOptions
from autotune.supervisors.base import Owner
from autotune.supervisors.process_lease import owner_here
from autotune.supervisors.systemd import SystemdSupervisor
from autotune.systemd.agent import restore_units
from autotune.systemd.way_back import Limits
from autotune.testing.supervisor_contract import (
    PATIENCE_S,
    eventually,
    run,
    until_ready,
)
from tests.host.tiny_unit import PORT, UNIT, SystemdService, argv_of, install, show, traces
from tests.testhost import SystemdHost


@pytest.fixture
def service(host: SystemdHost) -> SystemdService:
    install(host)
    return SystemdService(host)


DRIVER = """
import sys
from types import SimpleNamespace
from pathlib import Path
from autotune.supervisors.process_lease import owner_here
from autotune.testing.supervisor_contract import run, until_ready
from tests.host.tiny_unit import SystemdService
host = SimpleNamespace(name=sys.argv[1], host=sys.argv[2], ssh_config=sys.argv[3])
service = SystemdService(host)
supervisor = service.open()
lease = supervisor.take_lease(
    owner_here("doomed"), supervisor.original(), restore_after_s=float(sys.argv[4])
)
with supervisor.claim(lease, "one"):
    until_ready(supervisor, run(supervisor, service.launch("--say", "trial")))
    print("running", flush=True)
    while sys.stdin.readline():
        supervisor.beat(lease)
        print("beaten", flush=True)
"""


@contextmanager
def driver(host: SystemdHost, *, restore_after_s: float) -> Iterator[subprocess.Popen[str]]:
    """A driver in a process of its own, whose trial runs."""
    words = (host.name, host.host, str(host.ssh_config), str(restore_after_s))
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            yield process
        finally:
            process.kill()


def is_back(host: SystemdHost) -> bool:
    argv = argv_of(host)
    return "100%" in argv and "trial" not in argv and traces(host) == ""


@pytest.fixture
def serving(host: SystemdHost) -> SystemdHost:
    """A host whose service runs."""
    install(host, start=True)
    return host


def test_host_restores_itself_when_the_driver_is_killed(serving: SystemdHost) -> None:
    with driver(serving, restore_after_s=3) as process:
        assert "trial" in argv_of(serving)
        process.send_signal(signal.SIGKILL)
        process.wait()
        eventually(lambda: is_back(serving), bool)
    with SystemdService(serving).open() as supervisor:
        listener = supervisor.listener(PORT)
    assert listener is not None
    assert listener.belongs


@pytest.mark.parametrize("how", ["link", "blackhole"])
def test_host_restores_itself_when_the_network_is_gone(serving: SystemdHost, how: str) -> None:
    with driver(serving, restore_after_s=3):
        serving.cut("link" if how == "link" else "blackhole")
        eventually(lambda: is_back(serving), bool)
        serving.heal()


def test_host_stays_while_the_driver_beats(serving: SystemdHost) -> None:
    def elapses_at() -> str:
        return show(serving, "NextElapseUSecMonotonic", restore_units(UNIT)[1])

    with driver(serving, restore_after_s=60) as process:
        first = elapses_at()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "beaten\n"
        assert first not in ("", elapses_at())
        assert "trial" in argv_of(serving)


def test_a_late_driver_is_refused(serving: SystemdHost) -> None:
    service = SystemdService(serving)
    with service.open() as supervisor:
        original = supervisor.original()
        lease = supervisor.take_lease(owner_here("late"), original, restore_after_s=1)
        with supervisor.claim(lease, "one"):
            supervisor.apply(service.launch())
            eventually(lambda: traces(serving) == "", bool)
            for change in (
                lambda: supervisor.beat(lease),
                lambda: supervisor.apply(service.launch()),
                lambda: supervisor.stop(timeout_s=1),
                supervisor.start,
            ):
                with pytest.raises(LeaseLost):
                    change()
        supervisor.restore(lease)
    assert traces(serving) == ""


def test_who_looks_at_a_unit_that_is_tuned_is_told_who_tunes_it(serving: SystemdHost) -> None:
    """Not to take the drop-in away, which would end that run."""
    with driver(serving, restore_after_s=300), SystemdService(serving).open() as supervisor:
        with pytest.raises(HostBusy, match="is held by study 'doomed'") as busy:
            supervisor.original()
        assert busy.value.hint == (
            f"`autotune revert --host {serving.name} --unit {UNIT}`"
            " ends a lease whose tuner is gone"
        )
        supervisor.revert()
        assert is_back(serving)


def test_lease_of_a_dead_process_is_taken_over_after_a_restore(serving: SystemdHost) -> None:
    with driver(serving, restore_after_s=300) as process:
        process.kill()
        process.wait()
        with SystemdService(serving).open() as supervisor:
            original = supervisor.original()
            assert "trial" not in original.live_argv
            lease = supervisor.take_lease(owner_here("next"), original, restore_after_s=300)
            assert "trial" not in argv_of(serving)
            holder = supervisor.holder()
            assert holder is not None
            assert holder.study == "next"
            supervisor.restore(lease)
    assert traces(serving) == ""


def test_lease_of_another_machine_is_not_taken(serving: SystemdHost) -> None:
    here = owner_here("far")
    far = Owner("far", here.machine, "0" * 32, 1, 0.0, here.taken_at_s)
    with SystemdService(serving).open() as supervisor:
        original = supervisor.original()
        lease = supervisor.take_lease(far, original, restore_after_s=300)
        with pytest.raises(HostBusy, match=r"far.*pid 1\b"):
            supervisor.take_lease(owner_here("near"), original, restore_after_s=300)
        assert supervisor.revert() == far
        assert supervisor.holder() is None
        supervisor.restore(lease)
    assert traces(serving) == ""


@pytest.mark.parametrize("enabled", [True, False], ids=["enabled", "not enabled"])
def test_a_reboot_in_mid_trial(serving: SystemdHost, enabled: bool) -> None:
    service = SystemdService(serving)
    if enabled:
        install(serving, "[Install]", "WantedBy=multi-user.target")
        serving.run(f"systemctl enable {UNIT}")
    with service.open() as supervisor:
        original = supervisor.original()
        lease = supervisor.take_lease(owner_here("s"), original, restore_after_s=300)
        with supervisor.claim(lease, "one"):
            until_ready(supervisor, run(supervisor, service.launch("--say", "trial")))
        serving.reboot()
        with pytest.raises(LeaseLost, match="was rebooted"):
            supervisor.beat(lease)
        supervisor.restore(lease)
        assert supervisor.holder() is None
        assert argv_of(serving) == list(original.live_argv)
    assert traces(serving) == ""


def test_an_interrupted_restore_goes_on(serving: SystemdHost) -> None:
    """The restore is killed while the original stops; systemd runs it again."""
    install(serving, "TimeoutStopSec=3")
    serving.run(f"systemctl restart {UNIT}")
    service = SystemdService(serving)
    with service.open() as supervisor:
        original = supervisor.original()
        lease = supervisor.take_lease(owner_here("s"), original, restore_after_s=300)
        with supervisor.claim(lease, "one"):
            until_ready(supervisor, run(supervisor, service.launch("--ignore-sigterm")))
        restorer = f"autotune-restore@$(systemd-escape {UNIT}).service"
        serving.run(f"systemctl start --no-block {restorer}")
        eventually(lambda: show(serving, "ActiveState"), lambda seen: seen == "deactivating")
        with pytest.raises(LeaseLost):
            supervisor.beat(lease)
        serving.run(f"systemctl kill --signal=KILL {restorer}")
        supervisor.restore(lease)
    assert is_back(serving)


def test_the_switch_stays_armed_under_many_heartbeats(service: SystemdService) -> None:
    """systemd starts a unit five times in ten seconds, if it is not told otherwise."""
    timer = restore_units(UNIT)[1]
    with service.open() as supervisor:
        lease = supervisor.take_lease(owner_here("s"), supervisor.original(), restore_after_s=300)
        for _ in range(12):
            supervisor.beat(lease)
        assert show(service.host, "ActiveState", timer) == "active"
        supervisor.restore(lease)


def test_a_host_that_cannot_be_restored_says_why(serving: SystemdHost) -> None:
    service = SystemdService(serving)
    options = SshOptions(config=str(serving.ssh_config))
    connector = SshConnector(serving.name, options)
    limits = Limits(serve_s=1, restore_s=2)
    with SystemdSupervisor("gpu", connector, unit=UNIT, port=PORT, limits=limits) as supervisor:
        lease = supervisor.take_lease(owner_here("s"), supervisor.original(), restore_after_s=300)
        with supervisor.claim(lease, "one"):
            supervisor.apply(service.launch())
            supervisor.stop(timeout_s=PATIENCE_S)
        with service.occupy(), pytest.raises(RestoreFailed, match="not back"):
            supervisor.restore(lease)
    eventually(lambda: is_back(serving), bool)
