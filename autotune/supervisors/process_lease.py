"""The lease of a service on this machine: one small file, changed under one lock.

    lock        flock(2) for the time of one change; it dies with the process that holds it
    lease.json  who may change the service: lease id, newest claim id, owner

The right itself is not the lock but the file, because a trial may run in another process than the
driver that took the lease.  A lease whose owner is dead is free.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from autotune.errors import HostBusy, LeaseLost, TargetError
from autotune.supervisors.base import Lease, Owner
from autotune.supervisors.guard import boot_id, start_ticks
from autotune.supervisors.process_state import ticks_to_s, write_json

__all__ = [
    "LeaseFile",
    "LeaseRecord",
    "describe_owner",
    "is_dead_here",
    "owner_here",
    "owner_lives",
]

_POLL_S = 0.05
_SAME_START_S = 0.02
"""Two clock ticks: how exactly a start time survives its way through a float."""


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What the lease file holds.

    Attributes:
        claim_id: The newest claim inside the lease, "" before the first.
    """

    lease: Lease
    claim_id: str = ""


class LeaseFile:
    """The lease file of one service.

    Args:
        directory: Folder of the service on this machine.
    """

    def __init__(self, directory: Path) -> None:
        self._lock_path = directory / "lock"
        self._path = directory / "lease.json"

    @contextmanager
    def locked(self, *, timeout_s: float) -> Iterator[None]:
        """Nobody else changes the service while this is held.

        Raises:
            HostBusy: Somebody else's change took longer than `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        lock_fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() >= deadline:
                        raise HostBusy(
                            f"another change of the service holds {self._lock_path} "
                            f"for more than {timeout_s:g} s"
                        ) from error
                    time.sleep(_POLL_S)
            yield
        finally:
            os.close(lock_fd)

    def read(self) -> LeaseRecord | None:
        """The lease that is held, by a living owner or a dead one; None when it is free."""
        try:
            stored = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise TargetError(f"{self._path} is not a lease: {error}") from error
        owner = Owner(**stored["lease"].pop("owner"))
        return LeaseRecord(Lease(**stored["lease"], owner=owner), stored["claim_id"])

    def write(self, record: LeaseRecord) -> None:
        """Replace the file in one step."""
        write_json(self._path, asdict(record))

    def clear(self) -> None:
        """Free the lease."""
        self._path.unlink(missing_ok=True)

    def require(self, lease_id: str, *, claim_id: str | None = None) -> LeaseRecord:
        """The record, when the lease, and the claim if one is given, are the newest.

        Raises:
            LeaseLost: They are not.
        """
        record = self.read()
        if record is None:
            raise LeaseLost("the lease is free: it was given back, or taken away and given back")
        if record.lease.id != lease_id:
            raise LeaseLost(f"the lease is now held by {describe_owner(record.lease.owner)}")
        if claim_id is not None and record.claim_id != claim_id:
            raise LeaseLost("a newer claim within the same lease has taken over")
        return record

    def claim(self, lease_id: str, claim_id: str) -> None:
        """Make a claim the newest one.  Only under the lock.

        Raises:
            LeaseLost: The lease is not the newest one.
        """
        self.write(replace(self.require(lease_id), claim_id=claim_id))


def owner_here(study: str) -> Owner:
    """This process as the owner of a lease."""
    ticks = start_ticks(os.getpid())
    assert ticks is not None  # we run
    return Owner(
        study=study,
        machine=socket.gethostname(),
        boot_id=boot_id(),
        pid=os.getpid(),
        started_at_s=ticks_to_s(ticks),
        taken_at_s=time.time(),
    )


def owner_lives(owner: Owner) -> bool:
    """Whether the owner may still be there; nothing is known of another machine's processes."""
    if owner.machine != socket.gethostname():
        return True
    if owner.boot_id != boot_id():
        return False
    ticks = start_ticks(owner.pid)
    return ticks is not None and abs(ticks_to_s(ticks) - owner.started_at_s) < _SAME_START_S


def is_dead_here(owner: Owner) -> bool:
    """Whether the owner was a process of this machine, in this boot, that has ended.  Of another
    machine, even one of the same name, nothing is known."""
    here = owner_here(owner.study)
    if (owner.machine, owner.boot_id) != (here.machine, boot_id()):
        return False
    return not owner_lives(owner)


def describe_owner(owner: Owner) -> str:
    """Study, machine, process and age of a lease for people."""
    age_s = max(0.0, time.time() - owner.taken_at_s)
    return f"study {owner.study!r} on {owner.machine}, pid {owner.pid}, since {age_s:.0f} s"
