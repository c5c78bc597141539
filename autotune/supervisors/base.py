"""One service on one host: what a supervisor must be able to do.

Two supervisors exist: `systemd` (a unit, over ssh or on this machine) and `process` (a command on
this machine).  A trial knows only this protocol, and both pass the contract test class in
`autotune.testing.supervisor_contract`.

Who may change a host::

    Lease    taken once per study and host by the driver; holds the dead man's switch
    claim    taken by each trial inside the lease; the newest claim wins, so a worker that
             comes back late is refused with LeaseLost even though its lease still lives
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, Self, runtime_checkable

from autotune.supervisors.log_lines import LogFollower

__all__ = [
    "Identity",
    "Launch",
    "Lease",
    "Listener",
    "Original",
    "Owner",
    "Passage",
    "ProcessFacts",
    "Start",
    "Supervisor",
    "Word",
]


@dataclass(frozen=True, slots=True)
class Word:
    """One argument of a command line.

    Attributes:
        text: The argument.  A word of ours is exact; an inherited word may still hold `$VARIABLE`
            references that systemd expands when the service starts.
        ours: Whether the tuner wrote it.  Only in such words is `$` doubled in a unit file.
    """

    text: str
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Passage:
    """How the words of a service become those of the process that reads them (`autotune.passage`).

    Attributes:
        before: Words that the kernel shows in front: an interpreter's, or a wrapper script's own.
        dropped: How many of the first words it does not show: a launcher's, which executes the
            rest, or a wrapper's.
        shell: Whether the words are those of the last command in the script of a `sh -c`.
    """

    before: tuple[str, ...] = ()
    dropped: int = 0
    shell: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """How the service is to be started: the whole argument vector and the variables we set.

    Attributes:
        argv: All words, `argv[0]` included.
        environment: Variables that the tuner sets; everything else is inherited from the unit.
        unset: Variables that the service must not have.
        passage: How the words reach the process.
    """

    argv: tuple[Word, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    passage: Passage = Passage()

    def texts(self) -> tuple[str, ...]:
        """The argument vector as plain text, `$` references unexpanded."""
        return tuple(word.text for word in self.argv)


@dataclass(frozen=True, slots=True)
class Identity:
    """What the supervisor says about the service at one moment.

    The words of `active_state`, `sub_state`, `result` are systemd's (`systemctl show`); the process
    supervisor uses the same ones.

    Attributes:
        invocation_id: Id of one start, 32 hexadecimal digits; empty when never started.
        main_pid: Process id of the main process, 0 when there is none.
        n_restarts: Automatic restarts since the last start by hand.
        exit_code: Exit status of the main process, None while it runs or when it was killed.
        exit_signal: Signal number that ended the main process, None otherwise.
    """

    invocation_id: str
    main_pid: int
    active_state: str
    sub_state: str
    result: str
    n_restarts: int
    exit_code: int | None = None
    exit_signal: int | None = None

    @property
    def running(self) -> bool:
        return self.main_pid > 0 and self.active_state in ("active", "activating", "reloading")


@dataclass(frozen=True, slots=True)
class Start:
    """One start that we asked for.

    Attributes:
        invocation_id: New id given by the supervisor, different from the one before.
        main_pid: Main process right after the start.
        requested_at_s: When we asked, seconds since the host booted (`CLOCK_BOOTTIME`), so that
            process start times can be compared with it whatever the wall clock does.
        n_restarts: Automatic restarts counted at that moment.
        cursor: Position in the log right before the start; opaque, the supervisor's own.
    """

    invocation_id: str
    main_pid: int
    requested_at_s: float
    n_restarts: int
    cursor: str = ""


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One process as the kernel shows it.

    Attributes:
        argv: `/proc/PID/cmdline`.
        environ: `/proc/PID/environ`, the environment it was started with.
        started_at_s: Start time, seconds since the host booted.
    """

    pid: int
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    started_at_s: float


@dataclass(frozen=True, slots=True)
class Listener:
    """Who owns a listening TCP socket.

    Attributes:
        pid: Owner, 0 when the kernel does not say.
        belongs: Whether the owner belongs to our service (its cgroup, or its session).
        description: One line for people: pid, command, unit when known.
    """

    pid: int
    belongs: bool
    description: str


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a lease, for people and for the check whether it still lives.

    Attributes:
        study: Study name.
        machine: Host name of the machine that runs the tuner.
        boot_id: Boot id of that machine.
        pid: Process id of the driver there.
        started_at_s: Start of that process, seconds since that machine booted.
        taken_at_s: Wall clock when the lease was taken, Unix seconds.
    """

    study: str
    machine: str
    boot_id: str
    pid: int
    started_at_s: float
    taken_at_s: float


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to change one service on one host.

    Attributes:
        id: Random, 32 hexadecimal digits.
        restore_after_s: The host restores itself when no heartbeat came for so long.
    """

    id: str
    host: str
    owner: Owner
    restore_after_s: float


@dataclass(frozen=True, slots=True)
class Original:
    """The service as it was found; what `restore` goes back to.

    Attributes:
        launch: The argument vector that the supervisor holds (unexpanded) and no environment.
        live_argv: `/proc/PID/cmdline` of the running main process; empty when it was not running.
        live_environ: Its environment; empty when it was not running or may not be read.
        planned_argv: What the kernel would show of a start that changes nothing.
        environ: Variables that such a start gets, as far as the supervisor sets them.
        scripts: Text of each script that the command line names, for messages.
        active: Whether the service was running.
        enabled: systemd's UnitFileState; "" for the process supervisor.
        files: Path and SHA-256 of each file that defines the unit.
        fragment: Text of `systemctl cat`, for the byte-for-byte check afterwards.
        taken_at_s: Wall clock, Unix seconds.
    """

    launch: Launch
    live_argv: tuple[str, ...]
    live_environ: Mapping[str, str]
    active: bool
    enabled: str
    files: Mapping[str, str]
    fragment: str
    taken_at_s: float
    planned_argv: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_command(cls, words: Sequence[str], *, taken_at_s: float) -> Self:
        """A command of ours that nobody has started."""
        return cls(
            launch=Launch(tuple(Word(text) for text in words)),
            live_argv=(),
            live_environ={},
            active=False,
            enabled="",
            files={},
            fragment="",
            taken_at_s=taken_at_s,
        )


@runtime_checkable
class Supervisor(AbstractContextManager["Supervisor"], Protocol):
    """One service on one host.  Use as a context manager: leaving it closes connections only.

    Every method may raise TargetError (ConnectError, CommandTimeout ...): the machine's fault.
    Methods under "changes" raise LeaseLost, before anything is changed, when the lease or the
    claim is not the newest one on the host.
    """

    host: str

    # -- facts: nothing is changed ------------------------------------------------------------
    def original(self) -> Original:
        """The service as it is now, for the record.

        Raises:
            UnitNotFound: There is no such unit.
            UnitRefused: Its shape cannot be tuned safely; the hint names the way out.
            DropInConflict: Something of ours, or masking ours, is already there.
        """
        ...

    def identity(self) -> Identity:
        """State of the service now."""
        ...

    def process(self, pid: int) -> ProcessFacts | None:
        """Facts of one process, None when it is gone."""

    def expected_argv(self, launch: Launch, process: ProcessFacts | None) -> tuple[str, ...]:
        """What the kernel must show of a process that was started from `launch`.

        Args:
            process: The process, for the variables that systemd expands in inherited words.
        """
        ...

    def listener(self, port: int) -> Listener | None:
        """Who listens on a TCP port of the host, None when nobody does."""

    def follow(self, start: Start) -> LogFollower:
        """The log of one start from its first line on."""
        ...

    def holder(self) -> Owner | None:
        """Who holds the lease now, None when it is free."""

    # -- lease ----------------------------------------------------------------------------------
    def take_lease(self, owner: Owner, original: Original, *, restore_after_s: float) -> Lease:
        """Take the lease, record `original` on the host and arm the dead man's switch.

        A lease whose holder is a dead process of this very machine is taken over: the host is
        restored first.

        Raises:
            HostBusy: Somebody else holds it; the message names owner, study, pid and age.
        """
        ...

    def beat(self, lease: Lease) -> None:
        """Push the dead man's switch back to its full time.

        Raises:
            LeaseLost: The switch has fired or somebody took over.
        """

    def claim(self, lease: Lease, claim_id: str) -> AbstractContextManager[None]:
        """From now on only this claim of this lease may change the host through this object."""
        ...

    # -- changes: need a claim ------------------------------------------------------------------
    def check_claim(self) -> None:
        """Ask the host whether it would still take a change; nothing is changed."""

    def apply(self, launch: Launch) -> None:
        """Make `launch` what the next start runs, and prove that the supervisor holds it.

        Raises:
            DropInConflict: Somebody else changed the unit meanwhile.
        """

    def stop(self, *, timeout_s: float) -> None:
        """Stop the service and return when nothing of it is left: no process, no listener.

        Raises:
            HostBusy: Something of it, or somebody else on its port, outlived `timeout_s`.
        """

    def start(self) -> Start:
        """Start the service and return at once with the identity of this start.

        Raises:
            ServerStartError: The start itself was refused or the process died at once.
            UnitError: The service manager refused for a reason that is not the parameters'.
        """
        ...

    # -- the way back ---------------------------------------------------------------------------
    def restore(self, lease: Lease) -> None:
        """Put the service back as it was found, wait until it serves, free the lease.

        Idempotent.  Raises RestoreFailed when the original cannot be proven to be back.
        """

    def revert(self) -> Owner | None:
        """Put the service back whoever holds the lease, with nothing but the host's own record.

        Returns:
            Who held the lease; None when nobody did and nothing was to be done.

        Raises:
            RestoreFailed: The original cannot be proven to be back.
        """
