"""What an ending says about the study and its hosts, beyond the trial itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from autotune.config import StudyConfig
from autotune.errors import (
    AuthenticationError,
    CommandTimeout,
    ConnectError,
    DropInConflict,
    FailureRateExceeded,
    HostKeyError,
    LeaseLost,
    RestoreFailed,
    StudyError,
    TargetError,
)
from autotune.fingerprint import LIMIT
from autotune.measurement import Ending, FailureRecord, StartRecord

__all__ = ["Judge", "gone", "require_room", "silent_most_s"]

FAILED_LEAST = 8
"""Failed starts of a run that are tolerated; above them at most half of all starts may fail."""

SAME_LINK_MOST = 2
"""A proof link broken this often stops the study: going on would only cost GPU time."""

_GONE: Mapping[str, type[TargetError]] = {
    kind.__name__: kind
    for kind in (
        *(LeaseLost, ConnectError, HostKeyError, AuthenticationError, CommandTimeout),
        RestoreFailed,
    )
}


class Judge:
    """Counts failed starts of one run: the same failure again and again only costs GPU time.

    Args:
        same_failure_most: Failures of one kind in a row that stop the study.
    """

    def __init__(self, same_failure_most: int) -> None:
        self._same_failure_most = same_failure_most
        self._failures: list[FailureRecord] = []
        self._broken_links: Counter[str] = Counter()
        self._failed = 0

    def judge(self, record: StartRecord, *, starts: int) -> None:
        """Take one ending into account.

        Args:
            starts: Starts that this run has made.

        Raises:
            StudyError: The study stops.
        """
        if record.failure is None or record.ending is not Ending.FAILED:
            self._failures.clear()
            return
        failure = record.failure
        if failure.kind == DropInConflict.__name__:
            raise StudyError(f"the study stops: {failure.message}")
        self._failures.append(failure)
        self._failed += 1
        if self._failed > max(FAILED_LEAST, starts / 2):
            raise FailureRateExceeded(
                f"the study stops: {self._failed} of {starts} starts of this run failed, "
                f"the last one: {failure.message}"
            )
        if failure.link:
            self._broken_links[failure.link] += 1
            if self._broken_links[failure.link] >= SAME_LINK_MOST:
                raise FailureRateExceeded(
                    f"the study stops: the same proof link broke twice: {failure.message}",
                    hint="the server does not run what it is told; no such trial was scored",
                )
        most = self._same_failure_most
        if [f.kind for f in self._failures[-most:]] == [failure.kind] * most:
            raise FailureRateExceeded(
                f"the study stops: {most} starts in a row failed alike: {failure.message}",
                hint="once the reason is gone, run it again: it goes on where it stopped",
            )


def gone(failure: FailureRecord | None) -> TargetError | None:
    """Why a host cannot be reached or is no longer ours, as the error that its worker met."""
    kind = _GONE.get(failure.kind) if failure is not None else None
    return kind(failure.message) if kind is not None and failure is not None else None


def silent_most_s(config: StudyConfig) -> float:
    """Seconds without a word after which the worker of a start hangs.

    Everything that it may wait for in silence, one after the other, and ten minutes.
    """
    service, coding = config.service, config.coding
    waits = (
        *(service.load_timeout_s, 2 * service.stop_timeout_s, config.measure.request_timeout_s),
        *(coding.timeout_s * max(1, coding.samples, config.samples_of_final()), 600.0),
    )
    return sum(waits)


def require_room(largest: int, host: str, record: StartRecord) -> None:
    """The largest bucket must fit into what the reference admits at once.

    Raises:
        StudyError: It does not.
    """
    limit = int(record.fingerprint.get(LIMIT, largest))
    if largest > limit:
        raise StudyError(
            f"a bucket asks for {largest} requests at once, but the reference on {host} "
            f"admits {limit}",
            hint="add --max-running-requests to the fixed flags, or drop the bucket",
        )
