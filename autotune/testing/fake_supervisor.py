"""A supervisor without a service: scripted starts in memory, for tests of the order of a trial.

    FakeHost         the host: what runs, who holds it, what was called; shared by all supervisors
    FakeRun          what one start does: its log, its ending, what the kernel shows of it
    FakeSupervisor   the protocol over a `FakeHost`

Nothing happens by itself: a test changes the host between two calls (`kill`, `restart`, `say`), or
names the call that raises (`fail`).  A log that has no further line answers at once.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from autotune.errors import AutotuneError, HostBusy, LeaseLost
from autotune.supervisors.base import (
    Identity,
    Launch,
    Lease,
    Listener,
    Original,
    Owner,
    ProcessFacts,
    Start,
    Word,
)
from autotune.supervisors.guard import main_exited_text
from autotune.supervisors.log_lines import LogFollower, LogLine, LogSource

__all__ = [
    "Call",
    "FakeHost",
    "FakeLog",
    "FakeRun",
    "FakeSupervisor",
]

_NEVER_STARTED = Identity("", 0, "inactive", "dead", "success", n_restarts=0)
_FIRST_PID = 4_200_000
"""Above the largest process id of Linux (2**22), so that no real process is meant by mistake."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the protocol.

    Attributes:
        method: Its name; `claim` is followed by `release` when the claim is left.
        arguments: Its arguments, positional ones first.
    """

    method: str
    arguments: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class FakeRun:
    """What one start does.

    Attributes:
        lines: The log; text alone is a line of the service.
        exit_code: Status that the main process ends with after its lines, None while it lives.
        exit_signal: Signal that ends it after its lines, None otherwise.
        argv: What the kernel shows, None = what was applied.
        environ: What the kernel shows, None = what was applied.
        listens: Whether it listens on the port.
    """

    lines: Sequence[str | LogLine] = ()
    exit_code: int | None = None
    exit_signal: int | None = None
    argv: tuple[str, ...] | None = None
    environ: Mapping[str, str] | None = None
    listens: bool = True


@dataclass(slots=True)
class FakeHost:
    """A host with one service, in memory.

    Attributes:
        command: The service as it is found.
        active: Whether it is found running; `restore` then starts it again.
        script: What a start of a launch does.
        calls: Every call of every supervisor of this host, in order.
        identity: What the manager says now; a test may replace it.
        stranger_pid: Process that holds the port and is not of the service, 0 = nobody.
    """

    name: str = "fake"
    command: tuple[str, ...] = ("serve",)
    port: int = 30000
    active: bool = False
    script: Callable[[Launch], FakeRun] = field(default=lambda launch: FakeRun())
    calls: list[Call] = field(default_factory=list)
    identity: Identity = _NEVER_STARTED
    stranger_pid: int = 0
    lease: Lease | None = None
    claim_id: str = ""
    launch: Launch | None = None
    logs: dict[str, list[LogLine]] = field(default_factory=dict)
    processes: dict[int, ProcessFacts] = field(default_factory=dict)
    listener_pid: int = 0
    _failures: dict[tuple[str, int], AutotuneError] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(_FIRST_PID))

    def __post_init__(self) -> None:
        if self.active:
            self.begin(self.found())

    def methods(self) -> list[str]:
        """Names of the calls, in order."""
        return [call.method for call in self.calls]

    def fail(self, method: str, error: AutotuneError, *, at: int = 1) -> None:
        """The call of `method` number `at`, counted from the host's first, raises `error`."""
        self._failures[method, at] = error

    def say(self, text: str, source: LogSource = LogSource.SERVICE) -> None:
        """One more line in the log of the newest start."""
        self.logs[self.identity.invocation_id].append(LogLine(text, time.time(), source))

    def kill(self, exit_signal: int = 9) -> None:
        """The main process is killed behind the supervisor's back."""
        self._end(None, exit_signal, result="signal")

    def restart(self) -> None:
        """The manager starts the service again by itself, or somebody does by hand."""
        n_restarts = self.identity.n_restarts + 1
        self.stop()
        self.begin(self.launch or self.found())
        self.identity = replace(self.identity, n_restarts=n_restarts)

    def found(self) -> Launch:
        """The service as it is found."""
        return Launch(tuple(Word(text) for text in self.command))

    def begin(self, launch: Launch) -> None:
        """Run the script of a start."""
        run = self.script(launch)
        number = next(self._numbers)
        invocation_id = f"{number:032x}"
        environ = launch.environment if run.environ is None else run.environ
        now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.processes = {
            number: ProcessFacts(number, run.argv or launch.texts(), dict(environ), now_s)
        }
        self.identity = Identity(invocation_id, number, "active", "running", "success", 0)
        self.listener_pid = number if run.listens else 0
        self.logs[invocation_id] = [
            LogLine(line, time.time()) if isinstance(line, str) else line for line in run.lines
        ]
        if run.exit_signal is not None:
            self._end(None, run.exit_signal, result="signal")
        elif run.exit_code is not None:
            self._end(run.exit_code, None, result="exit-code" if run.exit_code else "success")

    def stop(self) -> None:
        """End the service by SIGTERM, which is a success."""
        if self.identity.running:
            self._end(None, 15, result="success")

    def record(self, method: str, *arguments: object) -> None:
        """Note a call, and raise what a test wants raised at it."""
        self.calls.append(Call(method, arguments))
        self._counts[method] += 1
        error = self._failures.pop((method, self._counts[method]), None)
        if error is not None:
            raise error

    def _end(self, exit_code: int | None, exit_signal: int | None, *, result: str) -> None:
        self.say(main_exited_text(exit_code, exit_signal), LogSource.MANAGER)
        self.processes = {}
        self.listener_pid = 0
        good = result == "success"
        self.identity = replace(
            self.identity,
            main_pid=0,
            active_state="inactive" if good else "failed",
            sub_state="dead" if good else "failed",
            result=result,
            exit_code=exit_code,
            exit_signal=exit_signal,
        )


class FakeLog:
    """A log in memory; it answers at once."""

    def __init__(self, lines: list[LogLine]) -> None:
        self._lines = lines
        self._next = 0

    def read(self, timeout_s: float) -> LogLine | None:
        if self._next >= len(self._lines):
            return None
        self._next += 1
        return self._lines[self._next - 1]

    def __enter__(self) -> FakeLog:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is open."""


class FakeSupervisor:
    """The protocol over a `FakeHost`; several of them stand for several processes."""

    def __init__(self, fake_host: FakeHost) -> None:
        self.host = fake_host.name
        self._fake = fake_host
        self._held: tuple[str, str] | None = None

    def __enter__(self) -> FakeSupervisor:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is open."""

    def original(self) -> Original:
        self._fake.record("original")
        facts = self._fake.processes.get(self._fake.identity.main_pid)
        return Original(
            launch=self._fake.found(),
            live_argv=facts.argv if facts else (),
            live_environ=facts.environ if facts else {},
            active=self._fake.active,
            enabled="",
            files={},
            fragment=" ".join(self._fake.command),
            taken_at_s=time.time(),
        )

    def identity(self) -> Identity:
        self._fake.record("identity")
        return self._fake.identity

    def process(self, pid: int) -> ProcessFacts | None:
        self._fake.record("process", pid)
        return self._fake.processes.get(pid)

    def expected_argv(self, launch: Launch, process: ProcessFacts | None) -> tuple[str, ...]:
        self._fake.record("expected_argv", launch, process)
        return launch.texts()

    def listener(self, port: int) -> Listener | None:
        self._fake.record("listener", port)
        pid = self._fake.stranger_pid or self._fake.listener_pid
        if port != self._fake.port or pid == 0:
            return None
        return Listener(pid, belongs=pid != self._fake.stranger_pid, description=f"pid {pid}")

    def follow(self, start: Start) -> LogFollower:
        self._fake.record("follow", start)
        return FakeLog(self._fake.logs[start.invocation_id])

    def holder(self) -> Owner | None:
        self._fake.record("holder")
        return self._fake.lease.owner if self._fake.lease else None

    def take_lease(self, owner: Owner, original: Original, *, restore_after_s: float) -> Lease:
        self._fake.record("take_lease", owner, original, restore_after_s)
        if self._fake.lease is not None:
            held = self._fake.lease.owner
            raise HostBusy(f"{self.host} is held by study {held.study!r}, pid {held.pid}")
        lease_id = f"{len(self._fake.calls):032x}"
        self._fake.lease = Lease(lease_id, self.host, owner, restore_after_s)
        self._fake.claim_id = ""
        return self._fake.lease

    def beat(self, lease: Lease) -> None:
        self._fake.record("beat", lease)
        self._require(lease.id)

    @contextmanager
    def claim(self, lease: Lease, claim_id: str) -> Iterator[None]:
        self._fake.record("claim", lease, claim_id)
        self._require(lease.id)
        self._fake.claim_id = claim_id
        before, self._held = self._held, (lease.id, claim_id)
        try:
            yield
        finally:
            self._held = before
            self._fake.calls.append(Call("release", (claim_id,)))

    def check_claim(self) -> None:
        self._fake.record("check_claim")
        self._require_claim()

    def apply(self, launch: Launch) -> None:
        self._fake.record("apply", launch)
        self._require_claim()
        self._fake.launch = launch

    def stop(self, *, timeout_s: float) -> None:
        self._fake.record("stop", timeout_s)
        self._require_claim()
        self._fake.stop()
        self._refuse_stranger()

    def start(self) -> Start:
        self._fake.record("start")
        self._require_claim()
        if self._fake.identity.running:
            raise HostBusy(f"the service still runs, pid {self._fake.identity.main_pid}")
        self._refuse_stranger()
        requested_at_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._fake.begin(self._fake.launch or self._fake.found())
        identity = self._fake.identity
        return Start(identity.invocation_id, identity.main_pid, requested_at_s, n_restarts=0)

    def restore(self, lease: Lease) -> None:
        self._fake.record("restore", lease)
        if self._fake.lease is not None and self._fake.lease.id == lease.id:
            self._put_back()

    def revert(self) -> Owner | None:
        self._fake.record("revert")
        lease = self._fake.lease
        if lease is None:
            return None
        self._put_back()
        return lease.owner

    def _put_back(self) -> None:
        self._fake.stop()
        self._fake.launch = None
        self._fake.lease = None
        if self._fake.active:
            self._fake.begin(self._fake.found())

    def _require(self, lease_id: str) -> None:
        if self._fake.lease is None or self._fake.lease.id != lease_id:
            raise LeaseLost(f"the lease of {self.host} is not ours any more")

    def _require_claim(self) -> None:
        if self._held is None:
            raise LeaseLost("a change needs a claim")
        lease_id, claim_id = self._held
        self._require(lease_id)
        if claim_id != self._fake.claim_id:
            raise LeaseLost("a newer claim within the same lease has taken over")

    def _refuse_stranger(self) -> None:
        if self._fake.stranger_pid:
            raise HostBusy(f"port {self._fake.port} is held by pid {self._fake.stranger_pid}")
