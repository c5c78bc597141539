"""The fake supervisor keeps the contract as far as it goes without processes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from autotune.errors import ConnectError, HostBusy
from autotune.supervisors.base import Launch, Owner, Supervisor, Word
from autotune.supervisors.log_lines import LogSource
from autotune.supervisors.process_lease import owner_here
from autotune.testing.fake_supervisor import Call, FakeHost, FakeRun, FakeSupervisor
from autotune.testing.supervisor_contract import (
    Need,
    SupervisorContract,
    claimed,
    run,
    texts,
    until_ready,
)
from autotune.testing.tiny_server import READY_TEXT, START_TEXT


def tiny_run(launch: Launch) -> FakeRun:
    """What `tiny_server.py` would do with these words."""
    words = launch.texts()
    pairs = list(itertools.pairwise(words))
    said = [value for name, value in pairs if name == "--say"]
    raw = b"".join(bytes.fromhex(value) for name, value in pairs if name == "--say-hex")
    said += [line.decode(errors="replace") for line in raw.replace(b"\r", b"\n").split(b"\n")]
    exit_codes = [int(value) for name, value in pairs if name == "--exit"]
    lines = [START_TEXT, *(text for text in said if text)]
    if exit_codes:
        return FakeRun(lines, exit_code=exit_codes[0])
    return FakeRun([*lines, READY_TEXT])


class FakeService:
    """A `FakeHost` that plays the tiny server."""

    lacks: Mapping[str, str] = {Need.HTTP: "the fake supervisor starts no process"}
    base_url = ""

    def __init__(self) -> None:
        self.fake = FakeHost(script=tiny_run)
        self.port = self.fake.port

    def open(self) -> FakeSupervisor:
        return FakeSupervisor(self.fake)

    def launch(self, *words: str, environment: Mapping[str, str] | None = None) -> Launch:
        argv = ("tiny", *words)
        return Launch(tuple(Word(word, ours=True) for word in argv), environment or {})

    def owner(self, study: str = "contract") -> Owner:
        return owner_here(study)

    def kill_main(self) -> None:
        self.fake.kill()

    @contextmanager
    def occupy(self) -> Iterator[int]:
        self.fake.stranger_pid = os.getpid()
        yield self.fake.stranger_pid
        self.fake.stranger_pid = 0


@pytest.fixture
def service() -> FakeService:
    return FakeService()


class TestFakeSupervisor(SupervisorContract):
    """Everything of the contract that needs no process."""


def test_is_a_supervisor(service: FakeService) -> None:
    assert isinstance(service.open(), Supervisor)


def test_calls_are_recorded_in_order(service: FakeService) -> None:
    with claimed(service) as (supervisor, lease):
        start = run(supervisor, service.launch())
        until_ready(supervisor, start)
    assert service.fake.methods() == [
        "original",
        "take_lease",
        "claim",
        "apply",
        "stop",
        "start",
        "follow",
        "release",
        "restore",
    ]
    assert service.fake.calls[3] == Call("apply", (service.launch(),))
    assert service.fake.calls[-1] == Call("restore", (lease,))


def test_a_named_call_raises_once(service: FakeService) -> None:
    service.fake.fail("start", ConnectError("cable"), at=2)
    with claimed(service) as (supervisor, _):
        run(supervisor, service.launch())
        with pytest.raises(ConnectError, match="cable"):
            run(supervisor, service.launch())
        assert not service.fake.identity.running
        run(supervisor, service.launch())
        assert service.fake.identity.running


def test_restart_behind_the_back_is_another_invocation(service: FakeService) -> None:
    with claimed(service) as (supervisor, _):
        start = run(supervisor, service.launch("--say", "again"))
        service.fake.restart()
        identity = supervisor.identity()
        assert identity.invocation_id != start.invocation_id
        assert identity.n_restarts == start.n_restarts + 1
        assert supervisor.process(start.main_pid) is None


def test_what_the_kernel_shows_can_differ_from_what_was_applied() -> None:
    fake = FakeHost(script=lambda launch: FakeRun(argv=("old",), environ={"A": "1"}, listens=False))
    with claimed(_Service(fake)) as (supervisor, _):
        start = run(supervisor, Launch((Word("new"),)))
        facts = supervisor.process(start.main_pid)
        assert facts is not None
        assert facts.argv == ("old",)
        assert facts.environ == {"A": "1"}
        assert supervisor.listener(fake.port) is None


def test_a_line_said_later_is_followed(service: FakeService) -> None:
    with claimed(service) as (supervisor, _):
        start = run(supervisor, service.launch())
        with supervisor.follow(start) as log:
            while log.read(0) is not None:
                pass
            service.fake.say("CUDA out of memory")
            line = log.read(0)
        assert line is not None
        assert (line.text, line.source) == ("CUDA out of memory", LogSource.SERVICE)


def test_a_service_that_was_running_is_started_again_by_restore() -> None:
    fake = FakeHost(active=True, script=lambda launch: FakeRun(launch.texts()))
    with claimed(_Service(fake)) as (supervisor, _):
        found = fake.identity
        start = run(supervisor, Launch((Word("new"),)))
        with pytest.raises(HostBusy, match="still runs"):
            supervisor.start()
    assert found.running
    assert fake.identity.running
    assert fake.identity.invocation_id not in (found.invocation_id, start.invocation_id)
    assert texts(fake.logs[fake.identity.invocation_id]) == ["serve"]


class _Service(FakeService):
    """Another host."""

    def __init__(self, fake: FakeHost) -> None:
        self.fake = fake
        self.port = fake.port
