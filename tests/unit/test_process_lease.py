"""The lease file: who holds it, and who may change."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import HostBusy, LeaseLost, TargetError
from autotune.supervisors.base import Lease
from autotune.supervisors.process_lease import (
    LeaseFile,
    LeaseRecord,
    describe_owner,
    owner_here,
    owner_lives,
)

LEASE = Lease("a" * 32, "here", owner_here("study"), restore_after_s=300.0)


@pytest.fixture
def lease_file(tmp_path: Path) -> LeaseFile:
    return LeaseFile(tmp_path)


def test_round_trip(lease_file: LeaseFile) -> None:
    assert lease_file.read() is None
    lease_file.write(LeaseRecord(LEASE, "claim"))
    assert lease_file.read() == LeaseRecord(LEASE, "claim")
    lease_file.clear()
    lease_file.clear()
    assert lease_file.read() is None


def test_only_we_may_read_it(lease_file: LeaseFile, tmp_path: Path) -> None:
    lease_file.write(LeaseRecord(LEASE))
    assert (tmp_path / "lease.json").stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lease.json"]


def test_newest_claim_wins(lease_file: LeaseFile) -> None:
    lease_file.write(LeaseRecord(LEASE))
    lease_file.claim(LEASE.id, "one")
    lease_file.require(LEASE.id, claim_id="one")
    lease_file.claim(LEASE.id, "two")
    lease_file.require(LEASE.id, claim_id="two")
    with pytest.raises(LeaseLost, match="newer claim"):
        lease_file.require(LEASE.id, claim_id="one")


def test_another_lease_is_named(lease_file: LeaseFile) -> None:
    with pytest.raises(LeaseLost, match="free"):
        lease_file.require(LEASE.id)
    lease_file.write(LeaseRecord(replace(LEASE, id="b" * 32)))
    with pytest.raises(LeaseLost, match="'study'"):
        lease_file.require(LEASE.id)
    with pytest.raises(LeaseLost):
        lease_file.claim(LEASE.id, "one")


def test_lock_is_exclusive_and_ends_with_the_block(lease_file: LeaseFile, tmp_path: Path) -> None:
    other = LeaseFile(tmp_path)
    with lease_file.locked(timeout_s=0), pytest.raises(HostBusy), other.locked(timeout_s=0):
        pytest.fail("two held the lock")
    with other.locked(timeout_s=0):
        assert (tmp_path / "lock").exists()


def test_damaged_file(lease_file: LeaseFile, tmp_path: Path) -> None:
    (tmp_path / "lease.json").write_text("{")
    with pytest.raises(TargetError, match="not a lease"):
        lease_file.read()


def test_owner_lives_by_process_and_start_time() -> None:
    here = owner_here("study")
    assert here.pid == os.getpid()
    assert owner_lives(here)
    assert not owner_lives(replace(here, started_at_s=here.started_at_s + 1))
    assert not owner_lives(replace(here, boot_id="another boot"))
    assert owner_lives(replace(here, machine="elsewhere", pid=0)), "nothing is known of it"
    child = subprocess.Popen(["true"])
    gone = replace(here, pid=child.pid)
    child.wait()
    assert not owner_lives(gone)


def test_owner_for_people() -> None:
    text = describe_owner(LEASE.owner)
    assert "'study'" in text
    assert f"pid {os.getpid()}" in text
    assert LEASE.owner.machine in text
