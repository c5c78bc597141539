"""Commands on this machine."""

from __future__ import annotations

import os
import sys

import psutil
import pytest

from autotune.errors import CommandTimeout, ConnectError
from autotune.remote.command import Masked
from autotune.remote.connector import Connector
from autotune.remote.local import LocalConnector

MANY = 3_000_000


@pytest.fixture
def here() -> LocalConnector:
    return LocalConnector("here")


def test_is_a_connector(here: LocalConnector) -> None:
    assert isinstance(here, Connector)


def test_both_outputs_and_the_input_flow_at_once(here: LocalConnector) -> None:
    script = f"cat; head -c {MANY} /dev/zero >&2; head -c {MANY} /dev/zero; exit 3"
    completed = here.run(["sh", "-c", script], input=b"x" * MANY, cap_bytes=2 * MANY)
    assert completed.exit_status == 3
    assert completed.stdout == b"x" * MANY + bytes(MANY)
    assert completed.stderr == bytes(MANY)
    assert not completed.truncated


def test_more_than_the_cap_is_read_and_dropped(here: LocalConnector) -> None:
    completed = here.run(["sh", "-c", f"head -c {MANY} /dev/zero; exit 4"], cap_bytes=10)
    assert completed == type(completed)(completed.argv, 4, bytes(10), b"", truncated=True)


def test_a_command_that_reads_nothing_ends(here: LocalConnector) -> None:
    assert here.run(["true"], input=b"x" * MANY).exit_status == 0


def test_a_deadline_ends_the_whole_group(here: LocalConnector) -> None:
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(CommandTimeout, match=r"0\.3 s on here") as seen:
        here.run(["sh", "-c", "sleep 60 & sleep 60", Masked("s3cret")], deadline_s=0.3)
    assert "s3cret" not in str(seen.value)
    assert set(psutil.Process().children(recursive=True)) == before


def test_a_signal_is_seen(here: LocalConnector) -> None:
    assert here.run(["sh", "-c", "kill -9 $$"]).exit_status == -9


def test_a_program_that_is_not_there(here: LocalConnector) -> None:
    with pytest.raises(ConnectError, match="nowhere"):
        here.run(["/nowhere/program"])
    with pytest.raises(ConnectError, match="cannot be started"):
        here.run([os.path.dirname(sys.executable)])


def test_a_stream_gives_lines_and_then_says_that_it_ended(here: LocalConnector) -> None:
    stream = here.stream(["sh", "-c", "head -n 1; echo two; printf rest"], input=b"one\n")
    try:
        assert stream.read(20) == b"one"
        assert stream.read(20) == b"two"
        with pytest.raises(ConnectError, match="ended"):
            stream.read(20)
    finally:
        stream.close()
        stream.close()


def test_a_quiet_stream_gives_none_and_is_ended(here: LocalConnector) -> None:
    stream = here.stream(["sh", "-c", "echo $$; exec sleep 60"])
    try:
        pid = int(stream.read(20) or b"")
        assert stream.read(0.0) is None
        assert psutil.pid_exists(pid)
    finally:
        stream.close()
    assert not psutil.pid_exists(pid)
