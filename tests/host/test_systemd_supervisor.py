"""The systemd supervisor on a real host: the contract, and what only a host can show."""

from __future__ import annotations

from contextlib import suppress

import pytest

from autotune.errors import (
    CommandError,
    DropInConflict,
    RestoreFailed,
    UnitError,
    UnitNotFound,
    UnitRefused,
)
from autotune.supervisors.base import Launch, Supervisor, Word
from autotune.supervisors.log_lines import LogSource
from autotune.supervisors.process_lease import owner_here
from autotune.systemd.agent import sudoers_lines
from autotune.testing.supervisor_contract import (
    PATIENCE_S,
    SupervisorContract,
    claimed,
    collect,
    eventually,
    run,
    until_ready,
)
from tests.host.tiny_unit import (
    FRAGMENT,
    UNIT,
    SystemdService,
    argv_of,
    install,
    show,
    traces,
    unit_text,
)
from tests.testhost import SystemdHost


@pytest.fixture
def service(host: SystemdHost) -> SystemdService:
    install(host)
    return SystemdService(host)


class TestSystemdSupervisor(SupervisorContract):
    """Everything of the contract, as root over ssh, with a service that was stopped."""


class TestUnprivileged(SupervisorContract):
    """Everything again, as a user with three sudoers lines, with a service that was running."""

    @pytest.fixture
    def service(self, host: SystemdHost) -> SystemdService:
        install(host, start=True)
        lines = sudoers_lines(UNIT, host.limited_user)
        host.write("/etc/sudoers.d/autotune", "\n".join(lines) + "\n", mode=0o440)
        return SystemdService(host, user=host.limited_user)


def test_is_a_supervisor(service: SystemdService) -> None:
    with service.open() as supervisor:
        assert isinstance(supervisor, Supervisor)


# -- nothing of ours is left -----------------------------------------------------------------------
def test_restore_leaves_nothing_behind(service: SystemdService) -> None:
    host = service.host
    host.run(f"systemctl start {UNIT}")
    before = host.read(FRAGMENT)
    with service.open() as supervisor:
        original = supervisor.original()
        lease = supervisor.take_lease(owner_here("s"), original, restore_after_s=60)
        with supervisor.claim(lease, "one"):
            until_ready(supervisor, run(supervisor, service.launch(environment={"A": "b"})))
        assert "autotune" in traces(host)
        supervisor.restore(lease)
        assert traces(host) == ""
    assert host.read(FRAGMENT) == before
    assert argv_of(host) == list(original.live_argv)
    assert "100%" in argv_of(host)
    assert host.run(f"test -e /run/systemd/system/{UNIT}.d", check=False).returncode == 1


def test_a_look_leaves_nothing_behind(service: SystemdService) -> None:
    with service.open() as supervisor:
        supervisor.original()
        supervisor.listener(22)
    assert traces(service.host) == ""


def test_a_process_that_no_trial_touched_is_not_restarted(service: SystemdService) -> None:
    service.host.run(f"systemctl start {UNIT}")
    before = show(service.host, "InvocationID")
    with service.open() as supervisor:
        original = supervisor.original()
        lease = supervisor.take_lease(owner_here("s"), original, restore_after_s=60)
        with supervisor.claim(lease, "one"):
            supervisor.apply(service.launch("--say", "never started"))
        supervisor.restore(lease)
    assert show(service.host, "InvocationID") == before
    assert traces(service.host) == ""


def test_a_drop_in_folder_of_the_user_stays(service: SystemdService) -> None:
    folder = f"/run/systemd/system/{UNIT}.d"
    service.host.run(f"mkdir -p {folder}")
    with claimed(service) as (supervisor, _):
        supervisor.apply(service.launch())
    assert service.host.run(f"ls -A {folder}").stdout == ""


# -- the unit of somebody else ---------------------------------------------------------------------
def test_a_foreign_edit_is_not_overwritten(service: SystemdService) -> None:
    host = service.host
    with claimed(service) as (supervisor, _):
        supervisor.apply(service.launch())
        host.write(f"/etc/systemd/system/{UNIT}.d/foreign.conf", "[Service]\nNice=5\n")
        host.run("systemctl daemon-reload")
        with pytest.raises(DropInConflict, match=r"foreign\.conf"):
            supervisor.apply(service.launch())
        host.run(f"rm -r /etc/systemd/system/{UNIT}.d && systemctl daemon-reload")
        supervisor.apply(service.launch())
        host.write(FRAGMENT, unit_text("Nice=5"))
        with pytest.raises(DropInConflict, match=UNIT):
            supervisor.apply(service.launch())
        host.write(FRAGMENT, unit_text())
        host.run("systemctl daemon-reload")


def test_a_foreign_edit_is_told_after_the_restore(service: SystemdService) -> None:
    with service.open() as supervisor:
        lease = supervisor.take_lease(owner_here("s"), supervisor.original(), restore_after_s=300)
        service.host.write(FRAGMENT, unit_text("Nice=5"))
        with pytest.raises(RestoreFailed, match="not those of the beginning"):
            supervisor.restore(lease)
        assert supervisor.holder() is None


def test_a_masked_drop_in_is_refused(service: SystemdService) -> None:
    folder = f"/etc/systemd/system/{UNIT}.d"
    mask = f"mkdir {folder} && ln -s /dev/null {folder}/zzzz-autotune.conf"
    with claimed(service) as (supervisor, _):
        service.host.run(mask)
        with pytest.raises(DropInConflict, match="masks"):
            supervisor.apply(service.launch())
        with pytest.raises(DropInConflict, match="masks"):
            supervisor.original()
        service.host.run(f"rm -r {folder}")


def test_a_later_drop_in_is_refused(service: SystemdService) -> None:
    service.host.write(f"/etc/systemd/system/{UNIT}.d/zzzzz.conf", "[Service]\nNice=5\n")
    service.host.run("systemctl daemon-reload")
    with service.open() as supervisor, pytest.raises(DropInConflict, match=r"zzzzz\.conf"):
        supervisor.original()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[Service]\nType=oneshot\nExecStart=/bin/true\nExecStart=/bin/true\n", "oneshot"),
        ("[Service]\nExecStart=relative/path\n", "does not load"),
    ],
)
def test_shapes_that_are_refused(service: SystemdService, text: str, sentence: str) -> None:
    service.host.write(FRAGMENT, text)
    service.host.run("systemctl daemon-reload")
    with service.open() as supervisor, pytest.raises(UnitRefused, match=sentence):
        supervisor.original()


def test_an_edit_without_reload_is_refused(service: SystemdService) -> None:
    service.host.run(f"systemctl start {UNIT}")
    service.host.write(FRAGMENT, unit_text("Nice=5"))
    with service.open() as supervisor, pytest.raises(UnitRefused, match="changed since"):
        supervisor.original()


def test_a_unit_that_is_not_there(service: SystemdService) -> None:
    service.host.run(f"rm {FRAGMENT} && systemctl daemon-reload")
    with service.open() as supervisor, pytest.raises(UnitNotFound):
        supervisor.original()


def test_a_program_that_cannot_be_executed(service: SystemdService) -> None:
    with claimed(service) as (supervisor, _):
        supervisor.apply(Launch((Word("/nowhere/server", ours=True),)))
        supervisor.stop(timeout_s=PATIENCE_S)
        with suppress(UnitError):  # when the end is seen at once
            supervisor.start()
        identity = eventually(supervisor.identity, lambda seen: seen.active_state == "failed")
    assert identity.exit_code == 203


def test_a_crash_loop_is_visible(service: SystemdService) -> None:
    install(service.host, "Restart=always", "RestartSec=2")
    with claimed(service) as (supervisor, _):
        start = run(supervisor, service.launch("--exit", "7"))
        with supervisor.follow(start) as log:
            lines = collect(log.read, lambda line: "Scheduled restart job" in line.text)
        assert lines[0].source is LogSource.MANAGER
        assert eventually(supervisor.identity, lambda seen: seen.n_restarts > 0)
        supervisor.stop(timeout_s=PATIENCE_S)
        assert not supervisor.identity().running


def test_sudo_without_rights_names_the_lines(service: SystemdService) -> None:
    limited = SystemdService(service.host, user=service.host.limited_user)
    with limited.open() as supervisor, pytest.raises(CommandError, match="sudoers needs") as seen:
        supervisor.holder()
    for line in sudoers_lines(UNIT, service.host.limited_user):
        assert line in seen.value.hint
