"""A systemd unit on one host, over ssh or on this machine.

The straight walk of a lease::

    original ─ take_lease ─┬─ claim ─ apply ─ stop ─ start ─ follow ... ─┬─ restore
                           └─ beat, beat, beat ...                      ─┘

What needs root is done by the agent (`autotune.systemd.agent`), which checks lease and claim under
a lock.  The way back is one service on the host that anybody may trigger: this object, the timer
when nobody beats any more, `autotune revert`.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

from autotune.errors import (
    DropInConflict,
    HostBusy,
    LeaseLost,
    RestoreFailed,
    TargetError,
    UnitError,
)
from autotune.passage import shown
from autotune.remote.connector import Connector
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
from autotune.supervisors.process_lease import describe_owner, is_dead_here
from autotune.systemd.agent import Agent, Held
from autotune.systemd.checks import UnitChecks, is_refusal, not_started
from autotune.systemd.dropin import NO_LINE_LOST, dropin_path, held_argv, render
from autotune.systemd.expand import expand
from autotune.systemd.exports import UnitExport, Written
from autotune.systemd.facts import UnitState
from autotune.systemd.finding import find_original
from autotune.systemd.journal import JournalFollower, last_lines
from autotune.systemd.logs import FileFollower
from autotune.systemd.record import UnitRecord
from autotune.systemd.unit import UnitFacts
from autotune.systemd.way_back import Limits, WayBack

__all__ = ["SystemdSupervisor"]

_ENDED = ("inactive", "failed")


class SystemdSupervisor:
    """One unit on one host.

    Args:
        host: Name for people and records.
        connector: The way to the host; closed with this object.
        port: The port that the service serves on, 0 when it serves none.
    """

    def __init__(
        self,
        host: str,
        connector: Connector,
        *,
        unit: str,
        port: int,
        limits: Limits | None = None,
    ) -> None:
        self.host = host
        self.unit = unit if "." in unit else f"{unit}.service"
        self._connector = connector
        self._port = port
        self._limits = limits or Limits()
        self._reached: tuple[Agent, UnitFacts] | None = None
        self._record: tuple[str, UnitRecord] | None = None
        self._claimed: tuple[str, str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._reached is not None and self._agent.installed:
            # The agent alone changes nothing; a host that cannot be reached keeps it until reboot.
            with suppress(TargetError):
                self._agent.leave()
        self._connector.close()

    # -- facts ------------------------------------------------------------------------------------

    def original(self) -> Original:
        self._facts.require_version()
        state = self._facts.state()
        held = self._agent.holder()
        if held is not None and is_dead_here(held.owner):
            # What `take_lease` will go back to before it takes the lease.
            return UnitRecord.from_json(held.record).original
        if held is not None and self._checks.has_ours() and not self._facts.masked():
            raise self._busy(held)
        return find_original(self._facts, self._checks, state)

    def identity(self) -> Identity:
        return self._facts.state().identity()

    def process(self, pid: int) -> ProcessFacts | None:
        return self._facts.process(pid)

    def expected_argv(self, launch: Launch, process: ProcessFacts | None) -> tuple[str, ...]:
        """What systemd, and whatever stands between it and the engine, makes of the words."""
        expands = self._checks.one_command().expands
        environ = process.environ if process else {}
        held = held_argv(launch, expands=expands)
        words = expand(held, environ) if expands else held
        return shown(words, launch.passage, environ)

    def listener(self, port: int) -> Listener | None:
        return self._facts.listener(port)

    def follow(self, start: Start) -> LogFollower:
        cursor, _, offset = start.cursor.partition(" ")
        journal = JournalFollower(
            lambda at: self._agent.follow(start.invocation_id, at),
            invocation_id=start.invocation_id,
            cursor=cursor,
        )
        place = self._checks.require_log()
        if not place.path:
            return journal
        return FileFollower(
            lambda at: self._agent.follow_file(place.path, at),
            journal,
            offset_bytes=0 if place.emptied else int(offset or 0),
        )

    def holder(self) -> Owner | None:
        held = self._agent.holder()
        return held.owner if held is not None else None

    # -- lease ------------------------------------------------------------------------------------

    def take_lease(self, owner: Owner, original: Original, *, restore_after_s: float) -> Lease:
        held = self._agent.holder()
        if held is not None:
            if not is_dead_here(held.owner):
                raise self._busy(held)
            self._way_back.go(held.lease_id)
        command = self._checks.one_command()
        if command.argv != original.launch.texts():
            raise DropInConflict(f"{self.host}: {self.unit} has changed since it was looked at")
        from_files = tuple(sorted(self._facts.environment().from_files))
        record = UnitRecord(original, command, self._listen_mode(), from_files)
        lease = Lease(uuid.uuid4().hex, self.host, owner, restore_after_s)
        self._acquire(lease, record)
        self._record = (lease.id, record)
        return lease

    def beat(self, lease: Lease) -> None:
        self._agent.call("beat", lease=lease.id)

    @contextmanager
    def claim(self, lease: Lease, claim_id: str) -> Iterator[None]:
        self._agent.call("claim", lease=lease.id, claim=claim_id)
        before, self._claimed = self._claimed, (lease.id, claim_id)
        try:
            yield
        finally:
            self._claimed = before

    # -- changes ----------------------------------------------------------------------------------

    def check_claim(self) -> None:
        lease_id, claim_id = self._require_claim()
        self._agent.call("guard", lease=lease_id, claim=claim_id)

    def apply(self, launch: Launch) -> None:
        self.check_claim()
        lease_id, claim_id = self._require_claim()
        record = self._known_record(lease_id)
        self._checks.require_same_files(record.original)
        text = render(
            launch,
            record.command,
            from_files=record.from_files,
            lines=NO_LINE_LOST,
        )
        self._agent.call("apply", lease=lease_id, claim=claim_id, payload=text.encode())
        try:
            self._checks.require_held(launch, record.command, from_files=record.from_files)
        except DropInConflict:
            self._agent.call("unapply", lease=lease_id, claim=claim_id)
            raise

    def stop(self, *, timeout_s: float) -> None:
        lease_id, claim_id = self._require_claim()
        ends_at = time.monotonic() + timeout_s
        state = self._facts.state()
        room = self._facts.gpu_room(running=state.main_pid > 0)
        self._agent.call("stop", lease=lease_id, claim=claim_id)
        killed = False
        while left := self._left(state.control_group) or self._facts.occupied(room):
            if time.monotonic() >= ends_at:
                if killed or self._facts.state().active_state in _ENDED:
                    if not (left := self._left(state.control_group) or self._facts.occupied(room)):
                        return  # it ended between the two looks
                    raise HostBusy(f"{self.host}: the stop left {left}")
                # Our limit is shorter than the unit's TimeoutStopSec=.
                self._agent.call("kill", lease=lease_id, claim=claim_id)
                killed, ends_at = True, time.monotonic() + self._limits.kill_s
            time.sleep(self._limits.poll_s)
            self.check_claim()  # a host that goes back by itself never comes to rest here

    def start(self) -> Start:
        self.check_claim()
        lease_id, claim_id = self._require_claim()
        if taken := self._facts.listener(self._port) if self._port else None:
            raise HostBusy(f"{self.host}: port {self._port} is held by {taken.description}")
        path = self._checks.require_log().path
        answer = self._agent.call(
            "start", lease=lease_id, claim=claim_id, payload=path.encode() + b"\n"
        ).decode()
        before, uptime, size, cursor = (answer.split("\n") + [""] * 4)[:4]
        ends_at = time.monotonic() + self._limits.start_s
        while True:
            state = self._facts.state()
            new = bool(state.invocation_id) and state.invocation_id != before
            if new and state.last_pid and not (state.n_restarts or is_refusal(state)):
                return Start(
                    invocation_id=state.invocation_id,
                    main_pid=state.main_pid or state.last_pid,
                    requested_at_s=float(uptime),
                    n_restarts=state.n_restarts,
                    cursor=f"{cursor} {size}",
                )
            if state.active_state == "failed" or state.n_restarts:
                raise not_started(
                    f"{self.host}: {self.unit}", state, self._tail(state, cursor, path, size)
                )
            if time.monotonic() >= ends_at:
                raise UnitError(
                    f"{self.host}: {self.unit} has no main process {self._limits.start_s:g} s after"
                    f" its start (it is {state.active_state}/{state.sub_state})"
                )
            time.sleep(self._limits.poll_s)

    # -- a configuration that stays ---------------------------------------------------------------

    @property
    def export(self) -> UnitExport:
        """What an export leaves in the unit."""
        return UnitExport(
            unit=self.unit,
            agent=self._agent,
            facts=self._facts,
            checks=self._checks,
            way_back=self._way_back,
            expected_argv=self.expected_argv,
        )

    def keep_export(self, lease: Lease, launch: Launch, written: Written) -> None:
        """Make the command line that runs now the unit's own; see `UnitExport.keep`."""
        self.export.keep(lease, self._known_record(lease.id), launch, written)

    # -- the way back -----------------------------------------------------------------------------

    def restore(self, lease: Lease) -> None:
        held = self._agent.holder()
        if held is not None and held.lease_id != lease.id:
            return  # a lease is freed only by the way back, so this one has been there
        if held is not None:
            self._record = (lease.id, UnitRecord.from_json(held.record))
        record = self._record[1] if self._record and self._record[0] == lease.id else None
        if held is None and record is not None and self._way_back.was_forgotten(record):
            # The host has rebooted and does not start this unit by itself.
            self._acquire(lease, record)
        self._way_back.go(lease.id)
        if record is not None:
            self._way_back.prove(record)
        else:
            self._require_nothing_of_ours()
        self._way_back.leave()

    def revert(self) -> Owner | None:
        held = self._agent.holder()
        if held is not None:
            record = UnitRecord.from_json(held.record)
            self._way_back.go("any")
            self._way_back.prove(record)
        else:
            self._require_nothing_of_ours()
        self._way_back.leave()
        return held.owner if held is not None else None

    # -- parts ------------------------------------------------------------------------------------

    @property
    def _agent(self) -> Agent:
        return self._reach()[0]

    @property
    def _facts(self) -> UnitFacts:
        return self._reach()[1]

    @property
    def _checks(self) -> UnitChecks:
        return UnitChecks(self._facts, host=self.host, unit=self.unit, port=self._port)

    def _reach(self) -> tuple[Agent, UnitFacts]:
        if self._reached is None:
            user = self._connector.run(["id", "-un"]).checked().text.strip()
            is_root = self._connector.run(["id", "-u"]).checked().text.strip() == "0"
            agent = Agent(self._connector, unit=self.unit, user="" if is_root else user)
            self._reached = (agent, UnitFacts(self._connector, agent, self.unit))
        return self._reached

    @property
    def _way_back(self) -> WayBack:
        return WayBack(self._agent, self._facts, self._checks, port=self._port, limits=self._limits)

    def _acquire(self, lease: Lease, record: UnitRecord) -> None:
        original = record.original
        cmdline = b"".join(
            word.encode(errors="surrogateescape") + b"\0" for word in original.live_argv
        )
        facts = {
            "active": "1" if original.active else "0",
            "invocation": self._facts.state().invocation_id,
            "cmdline": hashlib.sha256(cmdline).hexdigest(),
            "listen": record.listen,
            "port": str(self._port),
            "wait": str(round(self._limits.serve_s)),
            "after": f"{lease.restore_after_s:g}",
        }
        held = self._agent.acquire(lease.id, facts, lease.owner, record.to_json())
        if held is not None:
            raise self._busy(held)

    def _require_nothing_of_ours(self) -> None:
        if self._checks.has_ours():
            raise RestoreFailed(
                f"{self.host}: {dropin_path(self.unit)} is there without a lease",
                hint=f"remove it, `systemctl daemon-reload`, `systemctl restart {self.unit}`",
            )

    def _listen_mode(self) -> str:
        listener = self._facts.listener(self._port) if self._port else None
        return "cgroup" if listener is None or listener.belongs else "any"

    def _busy(self, held: Held) -> HostBusy:
        doing = "is being restored from" if held.restoring else "is held by"
        return HostBusy(
            f"{self.host}: {self.unit} {doing} {describe_owner(held.owner)}",
            hint=f"{self._checks.revert} ends a lease whose tuner is gone",
        )

    def _require_claim(self) -> tuple[str, str]:
        if self._claimed is None:
            raise LeaseLost(f"{self.host}: a change needs a claim of the lease")
        return self._claimed

    def _known_record(self, lease_id: str) -> UnitRecord:
        if self._record is not None and self._record[0] == lease_id:
            return self._record[1]
        held = self._agent.holder()
        if held is None or held.lease_id != lease_id:
            raise LeaseLost(f"{self.host}: the lease is gone")
        record = UnitRecord.from_json(held.record)
        self._record = (lease_id, record)
        return record

    def _left(self, group: str) -> str:
        """What is left of a service that was told to stop, "" when nothing is."""
        state = self._facts.state()
        if state.active_state not in _ENDED:
            return f"{self.unit} in state {state.active_state}/{state.sub_state}"
        processes = self._facts.left(state.control_group or group)
        if processes:
            return processes
        listener = self._facts.listener(self._port) if self._port else None
        return f"a listener on port {self._port}: {listener.description}" if listener else ""

    def _tail(self, state: UnitState, cursor: str, path: str, size: str) -> tuple[str, ...]:
        entries = self._agent.tail(state.invocation_id, cursor, lines=50)
        said = last_lines(entries, invocation_id=state.invocation_id, cursor=cursor)
        return (*self._agent.tail_of_file(path, int(size or 0), lines=50), *said)
