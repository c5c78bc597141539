"""The systemd supervisor on a real host: the contract, and what only a host can show."""

from __future__ import annotations

import base64
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import (
    CommandError,
    DropInConflict,
    HostBusy,
    LeaseLost,
    RestoreFailed,
    UnitError,
    UnitNotFound,
    UnitRefused,
)
from autotune.remote.ssh import SshConnector
from autotune.remote.ssh_config import SshOptions
from autotune.supervisors.base import Launch, Owner, Supervisor, Word
from autotune.supervisors.log_lines import LogSource
from autotune.supervisors.process_lease import owner_here
from autotune.supervisors.systemd import SystemdSupervisor
from autotune.systemd.agent import restore_units, sudoers_lines
from autotune.systemd.dropin import dropin_path, held_argv, quote, render
from autotune.systemd.expand import expand
from autotune.systemd.facts import ExecCommand, bus_command, exec_commands, parse_bus
from autotune.systemd.way_back import Limits
from autotune.testing import tiny_server
from autotune.testing.supervisor_contract import (
    PATIENCE_S,
    SupervisorContract,
    claimed,
    collect,
    eventually,
    run,
    until_ready,
)
from tests.host.conftest import HostFactory
from tests.testhost import SystemdHost

UNIT = "tiny-web.service"
PORT = 30000
SERVER = (sys.executable, "-I", "-S", tiny_server.__file__, "--host", "0.0.0.0")
FRAGMENT = f"/etc/systemd/system/{UNIT}"


def unit_text(*lines: str) -> str:
    """A unit with `$` and `%` in its command, as people write them."""
    command = " ".join(quote(word) for word in (*SERVER, "--port", str(PORT)))
    return "\n".join(
        [
            "# kept byte for byte",
            "[Service]",
            'Environment="GREETING=--say hello"',
            f'ExecStart={command} $GREETING "100%%"',
            *lines,
            "",
        ]
    )


class SystemdService:
    """`tiny_server.py` as a unit of a host."""

    lacks: Mapping[str, str] = {}
    port = PORT

    def __init__(self, host: SystemdHost, *, user: str = "root") -> None:
        self.host = host
        self.user = user
        self.base_url = f"http://{host.host}:{PORT}"

    def open(self) -> SystemdSupervisor:
        options = SshOptions(config=str(self.host.ssh_config))
        connector = SshConnector(f"{self.user}@{self.host.name}", options)
        limits = Limits(serve_s=PATIENCE_S, restore_s=2 * PATIENCE_S, start_s=PATIENCE_S)
        return SystemdSupervisor(self.host.name, connector, unit=UNIT, port=PORT, limits=limits)

    def launch(self, *words: str, environment: Mapping[str, str] | None = None) -> Launch:
        argv = (*SERVER, "--port", str(PORT), *words)
        return Launch(tuple(Word(word, ours=True) for word in argv), environment or {})

    def owner(self, study: str = "contract") -> Owner:
        return owner_here(study)

    def kill_main(self) -> None:
        self.host.run(f"kill -9 {show(self.host, 'MainPID')}")

    @contextmanager
    def occupy(self) -> Iterator[int]:
        command = " ".join(quote(word) for word in (*SERVER, "--port", str(PORT)))
        self.host.run(f"systemd-run --quiet --unit=stranger {command}")
        with self.open() as supervisor:
            listener = eventually(lambda: supervisor.listener(PORT), lambda seen: seen is not None)
        assert listener is not None
        yield listener.pid
        self.host.run("systemctl stop stranger")


def install(host: SystemdHost, *lines: str, start: bool = False) -> None:
    host.run("rm -rf /run/autotune")
    host.write(FRAGMENT, unit_text(*lines))
    host.run("systemctl daemon-reload")
    if start:
        host.run(f"systemctl start {UNIT}")


def show(host: SystemdHost, name: str, unit: str = UNIT) -> str:
    return host.run(f"systemctl show --property={name} --value '{unit}'").stdout.strip()


def traces(host: SystemdHost) -> str:
    """What a tuner has left on a host."""
    found = host.run(
        "find /run/autotune /run/lock /run/systemd/system -name '*autotune*' 2>/dev/null;"
        "systemctl list-units --all --plain --no-legend '*autotune*'",
        check=False,
    )
    return found.stdout


def argv_of(host: SystemdHost) -> list[str]:
    pid = show(host, "MainPID")
    return host.run(f"cat /proc/{pid}/cmdline", check=False).stdout.split("\0")[:-1]


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


# -- the dead man's switch -------------------------------------------------------------------------
DRIVER = """
import sys
from types import SimpleNamespace
from pathlib import Path
from autotune.supervisors.process_lease import owner_here
from autotune.testing.supervisor_contract import run, until_ready
from tests.host.test_systemd_supervisor import SystemdService
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


# -- what systemd makes of our text ----------------------------------------------------------------
WORD = st.text(
    st.one_of(
        st.sampled_from(list("$%\\\"'{};: \t\n#@-+!~*=`\x01\x7f")),
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
    ),
    max_size=12,
)


PIECE = st.sampled_from(["$", "$$", "{", "}", "A", "B", "NONE", ":", "-", " ", "x", "\\"])
EXPANDED = st.lists(PIECE, max_size=6).map("".join)
VALUE = st.text(st.sampled_from(list("ab \t\"'\\$")), max_size=8)


class Probe:
    """A unit that writes down the command line and the environment it was given."""

    def __init__(self, host: SystemdHost) -> None:
        self.host = host
        lines = [f"base64 -w 0 /proc/$$/{name} >/run/{name}" for name in ("environ", "cmdline")]
        host.write("/srv/dump", "\n".join(["#!/bin/sh", *lines, ""]), mode=0o755)
        fragment = "[Service]\nType=oneshot\nExecStart=/srv/dump\n"
        host.write("/etc/systemd/system/probe.service", fragment)

    def load(self, text: str) -> dict[str, Any]:
        """What systemd holds with this drop-in."""
        self.host.write(dropin_path("probe.service"), text)
        names = ["ExecStartEx", "Environment"]
        asked = " ".join(bus_command("probe.service", "Service", names))
        return parse_bus(self.host.run(f"systemctl daemon-reload && {asked}").stdout, names)

    def start(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Words and environment of the started process."""
        texts = self.host.run(
            "systemctl start probe && cat /run/cmdline && echo && cat /run/environ"
        )
        words, variables = (
            base64.b64decode(line).decode().split("\0")[:-1] for line in texts.stdout.split("\n")
        )
        pairs = (variable.partition("=") for variable in variables)
        return tuple(words), {name: value for name, _, value in pairs}


@pytest.fixture(scope="module")
def probe(systemd_hosts: HostFactory) -> Probe:
    return Probe(systemd_hosts("gpu-b"))


@settings(max_examples=40, deadline=None)
@given(
    words=st.lists(st.tuples(WORD, st.booleans()), min_size=1, max_size=8),
    flags=st.sets(st.sampled_from(["ignore-failure", "no-env-expand", "privileged"])),
    title=st.one_of(st.just("/srv/dump"), WORD.filter(bool)),
)
def test_systemd_holds_what_was_rendered(
    probe: Probe, words: list[tuple[str, bool]], flags: set[str], title: str
) -> None:
    command = ExecCommand("/srv/dump", (title,), frozenset(flags))
    further = (Word(text, ours) for text, ours in words)
    launch = Launch((Word(title), *further), {"NASTY": words[0][0]})
    told = probe.load(render(launch, command))
    (held,) = exec_commands(told["ExecStartEx"])
    assert held.path == "/srv/dump"
    assert held.argv == held_argv(launch, expands=command.expands)
    assert held.flags == command.flags
    assert told["Environment"] == [f"NASTY={words[0][0]}"]


@settings(max_examples=40, deadline=None)
@given(
    inherited=st.lists(EXPANDED, min_size=1, max_size=8),
    ours=st.lists(WORD, max_size=3),
    first=VALUE,
    second=VALUE,
    expands=st.booleans(),
)
def test_a_process_gets_the_expanded_words(
    probe: Probe, inherited: list[str], ours: list[str], first: str, second: str, expands: bool
) -> None:
    flags = frozenset() if expands else frozenset({"no-env-expand"})
    command = ExecCommand("/srv/dump", ("/srv/dump",), flags)
    words = (*(Word(text) for text in inherited), *(Word(text, ours=True) for text in ours))
    launch = Launch((Word("/srv/dump"), *words), {"A": first, "B": second})
    (held,) = exec_commands(probe.load(render(launch, command))["ExecStartEx"])
    seen, environ = probe.start()
    wanted = expand(held.argv, environ) if expands else held.argv
    # The kernel puts the interpreter of a script before its words.
    assert seen == ("/bin/sh", *wanted)
    if ours:
        assert seen[-len(ours) :] == tuple(ours)
