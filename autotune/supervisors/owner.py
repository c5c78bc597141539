"""This process as the owner of a lease, and whether another owner still lives."""

from __future__ import annotations

from autotune.supervisors.process_lease import describe_owner, owner_here, owner_lives

__all__ = ["describe_owner", "owner_here", "owner_lives"]
