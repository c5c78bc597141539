"""A service for contract tests of supervisors, and the steps that such tests are made of."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from threading import Event
from typing import Any, Protocol, TypeVar

import pytest

from autotune.supervisors.base import Launch, Lease, Owner, Start, Supervisor
from autotune.supervisors.log_lines import LogLine, LogSource
from autotune.testing.tiny_server import READY_TEXT

__all__ = [
    "NASTY_WORDS",
    "PATIENCE_S",
    "Need",
    "ServiceUnderTest",
    "changes",
    "claimed",
    "collect",
    "eventually",
    "get",
    "is_ending",
    "is_ready",
    "require",
    "run",
    "texts",
    "until_ended",
    "until_ready",
]

_T = TypeVar("_T")

PATIENCE_S = 60.0
"""A deadline for what takes milliseconds on a quiet machine; nothing is measured with it."""


NASTY_WORDS = (
    "two words",
    " edges ",
    "",
    "\"double\" 'single' `back`",
    "$HOME ${HOME} $$ $(id)",
    "%n %% %H",
    "back\\slash \\n \\\\",
    '{"rope": {"type": "yarn", "factor": 64.0}, "s": "%i $x"}',
    "naïve ☃ 窓",
    "tab\there",
    ";",
    "#not a comment",
    "--flag=a=b",
    "*",
    "~",
)


class Need:
    """What a test needs beyond the protocol; a fake names what it lacks and why."""

    HTTP = "http"
    """A server that answers HTTP."""
    PORTS = "ports"
    """Sockets of a real kernel."""


class ServiceUnderTest(Protocol):
    """One service on one host, for a contract test.

    Attributes:
        port: TCP port of the service.
        base_url: How this process reaches it over HTTP, without a slash at the end.
        lacks: What cannot be tested here (a `Need`), and why.
    """

    port: int
    base_url: str
    lacks: Mapping[str, str]

    def open(self) -> Supervisor:
        """A new supervisor of the same service, as another process would open it."""
        ...

    def launch(self, *words: str, environment: Mapping[str, str] | None = None) -> Launch:
        """`tiny_server.py` on `port`, with these further words, all of them ours."""
        ...

    def owner(self, study: str = "contract") -> Owner:
        """A living owner of a lease."""
        ...

    def kill_main(self) -> None:
        """SIGKILL for the main process of the service, behind the supervisor's back."""

    def occupy(self) -> AbstractContextManager[int]:
        """A process that is not of the service listens on `port`; its process id."""
        ...


def require(service: ServiceUnderTest, need: str) -> None:
    """Skip with the reason when the service cannot do it."""
    if need in service.lacks:
        pytest.skip(service.lacks[need])


@contextmanager
def claimed(service: ServiceUnderTest) -> Iterator[tuple[Supervisor, Lease]]:
    """A supervisor with a lease and a claim, restored afterwards."""
    with service.open() as supervisor:
        lease = supervisor.take_lease(service.owner(), supervisor.original(), restore_after_s=300)
        try:
            with supervisor.claim(lease, "contract-claim"):
                yield supervisor, lease
        finally:
            supervisor.restore(lease)


def run(supervisor: Supervisor, launch: Launch) -> Start:
    """Replace what runs, in the order of a trial."""
    supervisor.apply(launch)
    supervisor.stop(timeout_s=PATIENCE_S)
    return supervisor.start()


def changes(supervisor: Supervisor, service: ServiceUnderTest) -> tuple[Callable[[], object], ...]:
    """Every call that changes a host, and the one that asks whether it would."""
    return (
        supervisor.check_claim,
        lambda: supervisor.apply(service.launch()),
        lambda: supervisor.stop(timeout_s=PATIENCE_S),
        supervisor.start,
    )


def until_ready(supervisor: Supervisor, start: Start) -> list[LogLine]:
    """The log of a start up to the line that says ready."""
    with supervisor.follow(start) as log:
        return collect(log.read, is_ready)


def until_ended(supervisor: Supervisor, start: Start) -> LogLine:
    """The manager's line about the end of the main process."""
    with supervisor.follow(start) as log:
        return collect(log.read, is_ending)[-1]


def is_ready(line: LogLine) -> bool:
    """Whether the service says that it is ready."""
    return line.source is LogSource.SERVICE and line.text.startswith(READY_TEXT)


def is_ending(line: LogLine) -> bool:
    """Whether the manager says that the main process has ended."""
    return line.source is LogSource.MANAGER and "main process exited" in line.text.lower()


def collect(
    read: Callable[[float], LogLine | None], wanted: Callable[[LogLine], bool]
) -> list[LogLine]:
    """Lines up to the wanted one; what came so far is shown when it does not come."""
    lines: list[LogLine] = []
    deadline = time.monotonic() + PATIENCE_S
    while (left_s := deadline - time.monotonic()) > 0:
        line = read(left_s)
        if line is not None:
            lines.append(line)
            if wanted(line):
                return lines
    raise AssertionError(f"the awaited line did not come; seen: {texts(lines)[-20:]}")


def texts(lines: list[LogLine]) -> list[str]:
    """The texts of the lines."""
    return [line.text for line in lines]


def eventually(probe: Callable[[], _T], wanted: Callable[[_T], bool]) -> _T:
    """Ask until the answer is the wanted one."""
    deadline = time.monotonic() + PATIENCE_S
    while not wanted(answer := probe()):
        assert time.monotonic() < deadline, f"still {answer!r} after {PATIENCE_S:g} s"
        Event().wait(0.02)
    return answer


def get(service: ServiceUnderTest, path: str) -> Any:
    """JSON answer of the service, past any proxy of the environment."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(service.base_url + path, timeout=PATIENCE_S) as answer:
        return json.loads(answer.read())
