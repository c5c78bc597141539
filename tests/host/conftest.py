"""Fixtures for tests that need a real systemd host."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.testhost import SystemdHost, boot, unavailable

__all__ = ["HostFactory", "require_hosts"]

HostFactory = Callable[[str], SystemdHost]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses a host, so that `-m 'not host'` leaves them all out."""
    for item in items:
        if "systemd_hosts" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.host)


def require_hosts(reason: str | None, *, ci: bool) -> None:
    """Skip when hosts cannot be booted; in CI fail, so that these tests cannot vanish unseen."""
    if reason is not None and ci:
        pytest.fail(reason, pytrace=False)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def systemd_hosts() -> Iterator[HostFactory]:
    """A clean host by its name: booted at the first call, put in order at each later one."""
    require_hosts(unavailable(), ci=os.environ.get("CI") == "true")
    hosts: dict[str, SystemdHost] = {}

    with ExitStack() as running:

        def clean(name: str) -> SystemdHost:
            known = hosts.get(name)
            if known is not None:
                try:
                    known.reset()
                except (OSError, subprocess.SubprocessError):
                    known.close()  # the test before left it powered off, or past repair
                else:
                    return known
            hosts[name] = running.enter_context(boot(name))
            return hosts[name]

        yield clean


@pytest.fixture
def host(systemd_hosts: HostFactory) -> SystemdHost:
    """A host without units, drop-ins, sudo rules or processes of an earlier test."""
    return systemd_hosts("gpu-a")
