"""One host for the length of a study: lease, heartbeat, restore."""

from __future__ import annotations

import logging
import threading

from autotune.errors import AutotuneError, LeaseLost
from autotune.heartbeat import heart_stopped, until_lost
from autotune.hosts import HostPlan
from autotune.launch import Recipe
from autotune.supervisors.base import Lease, Original, Supervisor
from autotune.threads import watched

__all__ = ["HostSession"]

log = logging.getLogger(__name__)


class HostSession:
    """The driver's hold on one host.

    The heartbeat runs in a thread of its own, so that it never waits for a load.  Leaving the
    session restores the host, whatever happened.
    """

    def __init__(
        self,
        plan: HostPlan,
        supervisor: Supervisor,
        *,
        lease: Lease,
        original: Original,
        recipe: Recipe,
    ) -> None:
        self.plan = plan
        self.lease = lease
        self.original = original
        self.recipe = recipe
        self.lost: AutotuneError | None = None
        self.draining = False
        """An operator wants the host back: it gets no further start."""
        self._supervisor = supervisor
        self._stopping = threading.Event()
        self._heart = watched(
            f"heartbeat-{plan.host}",
            self._beat_until_stopped,
            failed=lambda error: self.lose(heart_stopped(lease)),
        )
        self._heart.start()

    @property
    def host(self) -> str:
        return self.plan.host

    @property
    def usable(self) -> bool:
        return self.lost is None and not self.draining

    def lose(self, reason: AutotuneError) -> None:
        """Use this host no more; it is restored when the session ends."""
        if self.lost is None:
            self.lost = reason
            log.warning("host %s is lost: %s", self.host, reason)

    def check(self) -> None:
        """Ask the host itself whether the lease is still ours.

        Raises:
            LeaseLost: It has restored itself meanwhile, or somebody took over.
            TargetError: It does not answer.
        """
        if not self._heart.is_alive():
            raise LeaseLost(f"the lease of {self.host} had no heartbeat for too long")
        self._supervisor.beat(self.lease)

    def found(self) -> None:
        """The host is back, its lease with it."""
        self.lost = None

    def leave(self) -> None:
        """Stop the heartbeat; the lease was ended in another way."""
        self._stopping.set()
        self._heart.join()

    def restore(self) -> None:
        """Put the host back as it was found.

        Raises:
            TargetError: It cannot be reached (its own timer restores it), or the original could
                not be proven to be back (RestoreFailed).
        """
        self.leave()
        self._supervisor.restore(self.lease)

    def _beat_until_stopped(self) -> None:
        reason = until_lost(
            lambda: self._supervisor.beat(self.lease), self.lease, stopping=self._stopping
        )
        if reason is not None:
            self.lose(reason)
