"""The `process` supervisor: a command on this machine as the service.

The service lives in a session of its own under a guard (`guard.py`), which ends it when the
process that started it, or the owner of the lease, is gone.  Everything that another process of
this machine has to know lies in one folder::

    lock, lease.json   who may change the service      (process_lease.py)
    port               the port that it was given; later commands mean the same one
    launch.json        what the next start runs; none = the command as it was given
    state.json         the newest start                (written by the guard)
    starts/ID.log      the log of each start           (written by the guard)
    guard.err          what a guard had to say that no log took

As it is found, the service does not run; restoring it means that nothing of it is left.
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from autotune.errors import (
    ConfigError,
    HostBusy,
    LeaseLost,
    RestoreFailed,
    UnitError,
    UnitNotFound,
)
from autotune.supervisors.base import (
    Identity,
    Launch,
    Lease,
    Listener,
    Original,
    Owner,
    ProcessFacts,
    Start,
)
from autotune.supervisors.log_lines import LogFollower
from autotune.supervisors.process_launch import NextStart, read_next_start, write_next_start
from autotune.supervisors.process_lease import (
    LeaseFile,
    LeaseRecord,
    describe_owner,
    owner_lives,
)
from autotune.supervisors.process_log import GuardLog
from autotune.supervisors.process_service import (
    KILL_TIMEOUT_S,
    LAUNCH_TIMEOUT_S,
    end_service,
    start_guarded,
)
from autotune.supervisors.process_state import (
    ServiceState,
    Specification,
    keep_port,
    process_facts,
    read_state,
)
from autotune.supervisors.sockets import SocketOwner, owners_of_port

__all__ = ["ProcessSupervisor"]

_LOG_LIMIT_BYTES = 256 * 1024 * 1024
_KEPT_LOGS = 50
_NEVER_STARTED = Identity("", 0, "inactive", "dead", "success", n_restarts=0)


class ProcessSupervisor:
    """A command on this machine, as a service.

    Leaving the context ends nothing: the service lives on as long as the process that started it
    and the owner of the lease do, until `stop` or `restore`.

    Args:
        host: Name of this machine in the study.
        command: The service as it is deployed, program first; no shell reads it.
        port: TCP port that the service listens on.
        directory: Folder for lease, state and logs; made when it is not there.  The one thing
            that processes which work on the same service must agree on.
        environment: The whole environment of the service; None passes this process's own on.
        stop_timeout_s: How long the service may take to end before it is killed, at restore and
            when its main process has ended before its children.
        log_limit_bytes: Size at which the log of one start is cut.

    Raises:
        ConfigError: The command is empty.
    """

    def __init__(
        self,
        host: str,
        *,
        command: Sequence[str],
        port: int,
        directory: Path,
        environment: Mapping[str, str] | None = None,
        stop_timeout_s: float = 30.0,
        log_limit_bytes: int = _LOG_LIMIT_BYTES,
    ) -> None:
        if not command:
            raise ConfigError(
                "the command of the service is empty", hint="command is what starts the server"
            )
        self.host = host
        self._command = tuple(command)
        self._port = port
        self._environment = None if environment is None else dict(environment)
        self._stop_timeout_s = stop_timeout_s
        self._log_limit_bytes = log_limit_bytes
        self._directory = directory
        self._logs = directory / "starts"
        try:
            self._logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise UnitError(
                f"{self._logs} cannot be made: {error.strerror}",
                hint="AUTOTUNE_DATA names another folder",
            ) from error
        self._launch_path = directory / "launch.json"
        self._state_path = directory / "state.json"
        self._error_path = directory / "guard.err"
        self._lease_file = LeaseFile(directory)
        self._held: tuple[str, str] | None = None
        self._hold_fds: list[int] = []

    def __enter__(self) -> ProcessSupervisor:
        return self

    def __exit__(self, *error: object) -> None:
        """Close what is of no use any more.

        The hold pipe of a running service stays open on purpose: this process's end closes it.
        """
        state = self._state()
        if state is None or not state.guarded():
            self._let_go()

    # -- facts ----------------------------------------------------------------------------------
    def original(self) -> Original:
        """The command as it was given; it does not run before the first start."""
        path = self._inherited().get("PATH")
        if shutil.which(self._command[0], path=path) is None:
            raise UnitNotFound(
                f"the command of the service, {self._command[0]!r}, cannot be executed",
                hint="give an absolute path, or a program that PATH leads to",
            )
        text = f"command: {shlex.join(self._command)}\nport: {self._port}\n"
        return replace(
            Original.of_command(self._command, taken_at_s=time.time()),
            fragment=text,
            planned_argv=self._command,
            environ=dict(self._inherited()),
        )

    def identity(self) -> Identity:
        """State of the service now."""
        state = self._state()
        return _NEVER_STARTED if state is None else state.identity()

    def process(self, pid: int) -> ProcessFacts | None:
        """Facts of one process, None when it is gone."""
        return process_facts(pid)

    def expected_argv(self, launch: Launch, process: ProcessFacts | None) -> tuple[str, ...]:
        """The words themselves: no shell and no systemd expands anything here."""
        return launch.texts()

    def listener(self, port: int) -> Listener | None:
        """Who listens on a port; a stranger is named before one of ours."""
        strangers, ours = self._owners(port)
        if not strangers and not ours:
            return None
        owner = (strangers or ours)[0]
        return Listener(pid=owner.pid, belongs=not strangers, description=owner.description)

    def follow(self, start: Start) -> LogFollower:
        """The log of one start from its first line on."""

        def ended() -> bool:
            state = self._state()
            newest = state is not None and state.invocation_id == start.invocation_id
            return not (newest and state is not None and state.guarded())

        return GuardLog(self._log_path(start.invocation_id), ended=ended)

    def holder(self) -> Owner | None:
        """Who holds the lease now; a dead owner holds nothing."""
        record = self._lease_file.read()
        return record.lease.owner if record and owner_lives(record.lease.owner) else None

    # -- lease ------------------------------------------------------------------------------------
    def take_lease(self, owner: Owner, original: Original, *, restore_after_s: float) -> Lease:
        """Take the lease; what a dead owner left running is ended first.

        The dead man's switch of this supervisor is the guard, so `restore_after_s` is recorded
        only; and nothing of `original` has to outlive this process, since it did not run.
        """
        with self._lease_file.locked(timeout_s=self._lock_timeout_s()):
            record = self._lease_file.read()
            if record is not None and owner_lives(record.lease.owner):
                raise HostBusy(
                    f"the service is held by {describe_owner(record.lease.owner)}",
                    hint="let it end, or end that process",
                )
            end_service(self._state_path, timeout_s=self._stop_timeout_s)
            self._launch_path.unlink(missing_ok=True)
            keep_port(self._directory, self._port)
            lease = Lease(uuid.uuid4().hex, self.host, owner, restore_after_s)
            self._lease_file.write(LeaseRecord(lease))
            return lease

    def beat(self, lease: Lease) -> None:
        """Check that the lease is still ours."""
        self._lease_file.require(lease.id)

    @contextmanager
    def claim(self, lease: Lease, claim_id: str) -> Iterator[None]:
        """From now on only this claim of this lease may change the service."""
        with self._lease_file.locked(timeout_s=self._lock_timeout_s()):
            self._lease_file.claim(lease.id, claim_id)
        before, self._held = self._held, (lease.id, claim_id)
        try:
            yield
        finally:
            self._held = before

    # -- changes ----------------------------------------------------------------------------------
    def check_claim(self) -> None:
        """The claim is the newest of the lease that holds."""
        lease_id, claim_id = self._require_claim()
        self._lease_file.require(lease_id, claim_id=claim_id)

    def apply(self, launch: Launch) -> None:
        """Write down what the next start runs; see `write_next_start` for what it raises."""
        with self._changing():
            write_next_start(self._launch_path, launch)

    def stop(self, *, timeout_s: float) -> None:
        """End every process of the service: SIGTERM, after `timeout_s` SIGKILL."""
        with self._changing():
            end_service(self._state_path, timeout_s=timeout_s)
            self._let_go()
            self._refuse_strangers()

    def start(self) -> Start:
        """Start the service under a new guard.

        Raises:
            HostBusy: The port is taken, or the service still runs.
            UnitError: The program cannot be executed.
        """
        with self._changing() as record:
            state = self._state()
            if state is not None and state.guarded():
                raise HostBusy(
                    f"the service still runs, pid {state.identity().main_pid}",
                    hint="stop it before it is started again",
                )
            self._let_go()
            self._refuse_strangers()
            self._forget_old_logs()
            intended = read_next_start(self._launch_path) or NextStart(self._command)
            invocation_id = uuid.uuid4().hex
            # The kernel cuts start times down to whole ticks; so does this, to stay comparable.
            tick_per_s = os.sysconf("SC_CLK_TCK")
            requested_at_s = int(time.clock_gettime(time.CLOCK_BOOTTIME) * tick_per_s) / tick_per_s
            main_pid, hold_fd = start_guarded(
                Specification(
                    invocation_id=invocation_id,
                    argv=list(intended.argv),
                    environment={
                        **intended.variables(self._inherited()),
                        "INVOCATION_ID": invocation_id,
                    },
                    tuner_pids=sorted({os.getpid(), *self._local_owner(record)}),
                    stop_timeout_s=self._stop_timeout_s,
                    state_path=str(self._state_path),
                    log_path=str(self._log_path(invocation_id)),
                    log_limit_bytes=self._log_limit_bytes,
                    error_path=str(self._error_path),
                )
            )
            self._hold_fds.append(hold_fd)
            return Start(invocation_id, main_pid, requested_at_s, n_restarts=0, cursor="0")

    # -- the way back -----------------------------------------------------------------------------
    def restore(self, lease: Lease) -> None:
        """End the service, prove that its port is free, free the lease.

        A lease that is not held any more was restored before it was given away: nothing is done.
        """
        with self._lease_file.locked(timeout_s=self._lock_timeout_s()):
            record = self._lease_file.read()
            if record is None or record.lease.id != lease.id:
                return
            try:
                end_service(self._state_path, timeout_s=self._stop_timeout_s)
                self._refuse_strangers()
            except HostBusy as error:
                raise RestoreFailed(f"the service is not as it was found: {error}") from error
            self._let_go()
            self._launch_path.unlink(missing_ok=True)
            self._lease_file.clear()

    def revert(self) -> Owner | None:
        """End the service that a dead tuner left, and free its lease."""
        record = self._lease_file.read()
        if record is None:
            return None
        self.restore(record.lease)
        return record.lease.owner

    # -- inside -----------------------------------------------------------------------------------
    @contextmanager
    def _changing(self) -> Iterator[LeaseRecord]:
        """One change: under the lock, and with the newest claim of a lease whose owner lives."""
        lease_id, claim_id = self._require_claim()
        with self._lease_file.locked(timeout_s=self._lock_timeout_s()):
            record = self._lease_file.require(lease_id, claim_id=claim_id)
            if not owner_lives(record.lease.owner):
                raise LeaseLost(f"the owner is gone: {describe_owner(record.lease.owner)}")
            yield record

    def _require_claim(self) -> tuple[str, str]:
        if self._held is None:
            raise LeaseLost("a change needs a claim; none is held by this object")
        return self._held

    def _lock_timeout_s(self) -> float:
        return self._stop_timeout_s + KILL_TIMEOUT_S + LAUNCH_TIMEOUT_S

    def _state(self) -> ServiceState | None:
        return read_state(self._state_path)

    def _log_path(self, invocation_id: str) -> Path:
        return self._logs / f"{invocation_id}.log"

    def _forget_old_logs(self) -> None:
        logs = sorted(self._logs.glob("*.log"), key=lambda path: path.stat().st_mtime_ns)
        for path in logs[: -_KEPT_LOGS + 1]:
            path.unlink()

    def _inherited(self) -> Mapping[str, str]:
        return os.environ if self._environment is None else self._environment

    def _local_owner(self, record: LeaseRecord) -> tuple[int, ...]:
        """The owner of the lease as a process that a guard can watch."""
        facts = process_facts(record.lease.owner.pid)
        same = facts is not None and owner_lives(record.lease.owner)
        return (record.lease.owner.pid,) if same else ()

    def _let_go(self) -> None:
        while self._hold_fds:
            os.close(self._hold_fds.pop())

    def _owners(self, port: int) -> tuple[list[SocketOwner], list[SocketOwner]]:
        """Listeners of a port: strangers and ours."""
        owners = owners_of_port(port)
        state = self._state() if owners else None
        members = () if state is None or state.ended() else state.members()
        return (
            [owner for owner in owners if owner.pid not in members],
            [owner for owner in owners if owner.pid in members],
        )

    def _refuse_strangers(self) -> None:
        """Nobody listens on our port.

        Raises:
            HostBusy: Somebody does; the message names the process.
        """
        strangers, ours = self._owners(self._port)
        if owners := strangers + ours:
            raise HostBusy(f"port {self._port} is held by {owners[0].description}")
