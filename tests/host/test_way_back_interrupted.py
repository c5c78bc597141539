"""The way back on a real host whose /run fails in the middle of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from autotune.errors import RestoreFailed
from autotune.supervisors.base import Lease
from autotune.supervisors.process_lease import owner_here
from autotune.supervisors.systemd import SystemdSupervisor
from autotune.systemd.agent import agent_path, agent_script, restore_units
from autotune.systemd.dropin import EXPORT_NAME
from autotune.systemd.record import UnitRecord
from autotune.systemd.way_back import WayBack
from autotune.testing.supervisor_contract import run, until_ready
from benchmarks.fault_drill.faults import ON_HOST, Fault
from tests.host.services import traces
from tests.host.tiny_unit import UNIT, SystemdService, argv_of, install, show
from tests.testhost import SystemdHost
from tests.waiting import until

RESTORER = restore_units(UNIT)[0]
STRUCK = "/srv/struck"


@contextmanager
def struck(
    host: SystemdHost, fault: Fault, before: str
) -> Iterator[tuple[SystemdSupervisor, Lease]]:
    """A host on its way back from a trial, struck right before a command of its agent.

    The block begins when the way back has ended, or waits to be begun again.
    """
    install(host, start=True)
    host.run(f"rm -f {STRUCK}")
    once = f"[ -e {STRUCK} ] && exit 0\n: >{STRUCK}\n"
    host.write("/srv/strike", once + ON_HOST[fault][0])
    text = agent_script(UNIT).decode()
    assert text.count(before) == 1
    service = SystemdService(host)
    try:
        with service.open() as supervisor:
            original = supervisor.original()
            lease = supervisor.take_lease(owner_here("s"), original, restore_after_s=300)
            with supervisor.claim(lease, "one"):
                until_ready(supervisor, run(supervisor, service.launch("--say", "trial")))
            text = text.replace(before, f"sh /srv/strike; {before}")
            host.write(agent_path(UNIT), text, mode=0o600)
            host.run(f"systemctl start --no-block '{RESTORER}'")
            until(lambda: host.run(f"ls {STRUCK}", check=False).returncode == 0, "it is struck")
            until(lambda: waits(host) or not runs(host), "the way back ends or waits")
            yield supervisor, lease
    finally:
        host.run(ON_HOST[fault][1])


def waits(host: SystemdHost) -> bool:
    return show(host, "SubState", RESTORER) == "auto-restart"


def runs(host: SystemdHost) -> bool:
    return show(host, "ActiveState", RESTORER) not in ("inactive", "failed")


def is_back(host: SystemdHost) -> bool:
    argv = argv_of(host)
    return "100%" in argv and "trial" not in argv and traces(host) == ""


@pytest.mark.parametrize(
    "before",
    [
        'mv "$LEASE_DIR/armed" "$LEASE_DIR/restoring"',
        "said=$(systemctl daemon-reload",
        'mv "$LEASE_DIR" "$FOLDER/lease.gone"',
        "    end_followers\n    if",
        'rm -f "$UNITS/$SERVICE"',
        'rm -rf "$FOLDER" ||',
    ],
)
def test_a_read_only_run_delays_it(host: SystemdHost, before: str) -> None:
    """Nothing is left, and no lock of the tuner's is in the way, once /run can be written again."""
    with struck(host, Fault.READ_ONLY, before):
        pass
    until(lambda: is_back(host), f"{host.name} is as it was found")


@pytest.mark.parametrize(
    "before",
    [
        'mv "$LEASE_DIR/armed" "$LEASE_DIR/restoring"',
        "said=$(systemctl daemon-reload",
        "bring_back\n    else",
        '[ -z "$loaded" ] || systemctl',
    ],
)
def test_a_full_run_does_not_stop_it(host: SystemdHost, before: str) -> None:
    with struck(host, Fault.HOST_FULL, before):
        until(lambda: is_back(host), f"{host.name} is as it was found")


def test_a_lease_is_not_taken_for_the_one_that_is_cleared_away(host: SystemdHost) -> None:
    """The original serves and its lease is free, but its way back waits to clear the rest away."""
    with struck(host, Fault.READ_ONLY, 'rm -f "$UNITS/$SERVICE"') as (supervisor, _):
        assert waits(host)
        assert supervisor.holder() is None
        host.run(ON_HOST[Fault.READ_ONLY][1])
        original = supervisor.original()
        lease = supervisor.take_lease(owner_here("next"), original, restore_after_s=300)
        assert not runs(host)
        supervisor.beat(lease)
        supervisor.restore(lease)
        assert is_back(host)


def test_an_agent_that_cannot_be_taken_away_is_named(
    host: SystemdHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(host, start=True)
    prove = WayBack.prove
    strike, heal = ON_HOST[Fault.READ_ONLY]

    def struck_after(self: WayBack, record: UnitRecord) -> None:
        prove(self, record)
        host.run(strike)

    with SystemdService(host).open() as supervisor:
        lease = supervisor.take_lease(owner_here("s"), supervisor.original(), restore_after_s=300)
        with monkeypatch.context() as patched:
            patched.setattr(WayBack, "prove", struck_after)
            with pytest.raises(RestoreFailed, match=r"original is back, but .* agent .* /run"):
                supervisor.restore(lease)
        host.run(heal)
        assert not is_back(host)
        assert supervisor.revert() is None
        assert is_back(host)


def test_a_tuner_that_leaves_at_once_takes_all_of_it_away(host: SystemdHost) -> None:
    """Systemd would begin the way back again, of a unit that is gone, and keep it as failed."""
    with struck(host, Fault.READ_ONLY, 'rm -f "$UNITS/$SERVICE"') as (supervisor, _):
        assert waits(host)
        host.run(ON_HOST[Fault.READ_ONLY][1])
        supervisor.revert()
        assert is_back(host)


def test_without_its_agent_the_way_back_is_tried_until_it_is_there_again(host: SystemdHost) -> None:
    install(host, start=True)
    service = SystemdService(host)
    agent = agent_path(UNIT)
    with service.open() as supervisor:
        lease = supervisor.take_lease(owner_here("s"), supervisor.original(), restore_after_s=300)
        with supervisor.claim(lease, "one"):
            until_ready(supervisor, run(supervisor, service.launch("--say", "trial")))
        host.run(f"mv '{agent}' /srv/agent && systemctl start --no-block '{RESTORER}'")
        until(lambda: waits(host), "the way back waits")
        host.run(f"mv /srv/agent '{agent}'")
        until(lambda: is_back(host), f"{host.name} is as it was found")


def test_a_lease_is_taken_of_a_host_that_somebody_just_left(host: SystemdHost) -> None:
    """He takes the agent away while ours, which has begun to run, waits for the lock."""
    install(host, start=True)
    folder, lock = agent_path(UNIT).rpartition("/")[0], f"/run/lock/autotune-{UNIT}.lock"
    leaves = (
        # The brackets: a pattern that does not match the command line that it stands in.
        f"until pgrep -f '[f]lock -w 20 9'; do sleep 0.05; done; rm -rf {folder} {lock}"
    )
    with SystemdService(host).open() as supervisor:
        original = supervisor.original()
        host.run(f'systemd-run --quiet --unit=leaver flock {lock} sh -c "{leaves}"')
        until(lambda: host.run(f"flock -n {lock} true", check=False).returncode != 0, "it is held")
        lease = supervisor.take_lease(owner_here("s"), original, restore_after_s=300)
        supervisor.beat(lease)
        supervisor.restore(lease)
    assert is_back(host)


def test_an_export_is_taken_back_as_often_as_it_needs(host: SystemdHost) -> None:
    """The way back is killed when what was there before stands again and nobody has noted it."""
    install(host, start=True)
    export = f"/etc/systemd/system/{UNIT}.d/{EXPORT_NAME}"
    first = "[Service]\nEnvironment=EXPORT=first\n"
    host.write(export, first)
    host.run("systemctl daemon-reload; rm -f /srv/once")
    done = 'rm -f "$LEASE_DIR/exporting"\n    fi'
    text = agent_script(UNIT).decode()
    assert text.count(done) == 1
    text = text.replace(done, f"[ -e /srv/once ] || {{ : >/srv/once; kill -9 $$; }}; {done}")
    with SystemdService(host).open() as supervisor:
        lease = supervisor.take_lease(owner_here("s"), supervisor.original(), restore_after_s=300)
        second = first.replace("first", "second")
        agent = supervisor.export.agent
        agent.call("keep", "drop-in", lease=lease.id, payload=second.encode())
        assert host.read(export) == second
        assert host.read(f"{export}.undo") == first
        host.write(agent_path(UNIT), text, mode=0o600)
        host.run(f"systemctl start --no-block '{RESTORER}'")
        until(lambda: waits(host), "the way back waits")
        assert host.read(export) == first
        until(lambda: supervisor.holder() is None, "the lease is free")
    assert host.read(export) == first
    assert host.run(f"ls {export}.undo", check=False).returncode != 0
