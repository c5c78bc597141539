"""What a driver must know of the world beside its own starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from autotune.supervisors.base import Owner
from autotune.supervisors.owner import owner_lives

__all__ = ["ALONE", "Surroundings"]


class Surroundings(Protocol):
    """Hosts that come and go, and the other drivers of the study."""

    def step(self, busy: frozenset[str]) -> None:
        """Take over what has changed of the hosts.

        Args:
            busy: Hosts on which a start runs: they cannot leave now.
        """

    def expecting(self) -> bool:
        """Whether a host that is not there now may still come."""
        ...

    def living(self) -> Callable[[Owner], bool]:
        """Which drivers live, by one look."""
        ...


class _Alone:
    """The hosts are those that were opened, and there is no other driver."""

    def step(self, busy: frozenset[str]) -> None:
        return

    def expecting(self) -> bool:
        return False

    def living(self) -> Callable[[Owner], bool]:
        return owner_lives


ALONE: Surroundings = _Alone()
