"""The journal of one start: entries in, lines out."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from autotune.errors import ConnectError
from autotune.supervisors.log_lines import LogLine, LogSource
from autotune.systemd.journal import JournalFollower, parse_entry

ID = "bd2579ba636542b39bea723bf92b8e13"
OTHER = "0c95f9121bc241a29c3d526436e1827c"
BASE = {
    "__CURSOR": "s=1;i=1",
    "__REALTIME_TIMESTAMP": "1795964966386122",
    "__MONOTONIC_TIMESTAMP": "1",
}


def entry(message: object, *, cursor: str = "s=1;i=1", **fields: str) -> bytes:
    return json.dumps({**BASE, "MESSAGE": message, **fields, "__CURSOR": cursor}).encode()


def lines(raw: bytes) -> list[str]:
    parsed = parse_entry(raw, invocation_id=ID)
    assert parsed is not None
    return [line.text for line in parsed.lines]


def test_a_line_of_the_service() -> None:
    parsed = parse_entry(entry("ready", _SYSTEMD_INVOCATION_ID=ID), invocation_id=ID)
    assert parsed is not None
    assert parsed.lines == (LogLine("ready", 1795964966.386122, LogSource.SERVICE),)
    assert parsed.cursor == "s=1;i=1"


@pytest.mark.parametrize(
    ("fields", "source"),
    [
        ({"_SYSTEMD_INVOCATION_ID": ID}, LogSource.SERVICE),
        ({"_SYSTEMD_INVOCATION_ID": ID, "INVOCATION_ID": OTHER}, LogSource.SERVICE),
        ({"INVOCATION_ID": ID, "_SYSTEMD_UNIT": "init.scope"}, LogSource.MANAGER),
        ({"INVOCATION_ID": ID, "_SYSTEMD_INVOCATION_ID": OTHER}, LogSource.MANAGER),
        ({"_SYSTEMD_UNIT": "t.service"}, LogSource.LOOSE),
    ],
)
def test_fields_say_what_a_line_proves(fields: dict[str, str], source: LogSource) -> None:
    parsed = parse_entry(entry("x", **fields), invocation_id=ID)
    assert parsed is not None
    assert [line.source for line in parsed.lines] == [source]


@pytest.mark.parametrize(
    "fields",
    [{"_SYSTEMD_INVOCATION_ID": OTHER, "_SYSTEMD_UNIT": "t.service"}, {"INVOCATION_ID": OTHER}],
)
def test_lines_of_another_start_are_dropped(fields: dict[str, str]) -> None:
    assert lines(entry("x", **fields)) == []


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ([98, 97, 114, 32, 49, 13, 98, 97, 114, 32, 50], ["bar 1", "bar 2"]),
        ([98, 97, 100, 32, 255, 32, 120], ["bad \ufffd x"]),
        (["twice", "told"], ["twice", "told"]),
        (None, []),
        ("", []),
        ("a\u2028b\u0085c", ["a\u2028b\u0085c"]),
        ("a\n\nb\r\n", ["a", "b"]),
        ("x" * 49152, ["x" * 49152]),
    ],
)
def test_messages(message: object, wanted: list[str]) -> None:
    assert lines(entry(message, _SYSTEMD_INVOCATION_ID=ID)) == wanted


@pytest.mark.parametrize(
    "raw", [b"", b"-- No entries --", b'{"MESSAGE":"cut', b"[]", b'{"MESSAGE":"x"}']
)
def test_what_is_no_entry(raw: bytes) -> None:
    assert parse_entry(raw, invocation_id=ID) is None


class Stream:
    """A journalctl that says these lines; then it is quiet, or gone."""

    def __init__(self, said: Sequence[bytes], *, gone: bool = False) -> None:
        self.said = list(said)
        self.gone = gone
        self.closed = False

    def read(self, timeout_s: float) -> bytes | None:
        if self.said:
            return self.said.pop(0)
        if self.gone:
            raise ConnectError("the connection was lost")
        return None

    def close(self) -> None:
        self.closed = True


def follower(streams: list[Stream], opened: list[str], *, cursor: str = "c0") -> JournalFollower:
    def open_stream(at: str) -> Stream:
        opened.append(at)
        return streams[len(opened) - 1]

    return JournalFollower(open_stream, invocation_id=ID, cursor=cursor)


def own(text: str, cursor: str) -> bytes:
    return entry(text, cursor=cursor, _SYSTEMD_INVOCATION_ID=ID)


def drained(log: JournalFollower) -> list[str]:
    seen = []
    while (line := log.read(9)) is not None:
        seen.append(line.text)
    return seen


def test_pieces_of_a_line_come_one_by_one() -> None:
    with follower([Stream([own("a\rb", "c1"), b"broken", own("c", "c2")])], []) as log:
        assert [log.read(9), log.read(9), log.read(9), log.read(0)] == [
            LogLine("a", 1795964966.386122),
            LogLine("b", 1795964966.386122),
            LogLine("c", 1795964966.386122),
            None,
        ]


def test_the_entry_at_the_cursor_itself_is_not_of_this_start() -> None:
    loose = entry("before", cursor="c0", _SYSTEMD_UNIT="t.service")
    assert drained(follower([Stream([loose, own("after", "c1")])], [])) == ["after"]


def test_a_broken_stream_goes_on_at_its_last_entry() -> None:
    opened: list[str] = []
    streams = [
        Stream([own("one", "c1"), own("two", "c2")], gone=True),
        Stream([own("two", "c2"), own("three", "c3")]),
    ]
    log = follower(streams, opened)
    assert drained(log) == ["one", "two"]
    assert drained(log) == ["three"]
    assert opened == ["c0", "c2"]
    assert streams[0].closed
    log.close()
    assert streams[1].closed


def test_a_stream_that_gives_nothing_is_not_opened_for_ever() -> None:
    opened: list[str] = []
    log = follower([Stream([own("one", "c1")], gone=True), Stream([], gone=True)], opened)
    assert drained(log) == ["one"]
    with pytest.raises(ConnectError):
        log.read(0.0)
    assert len(opened) == 2
