"""Where a unit logs, and the follower of a file."""

from __future__ import annotations

import pytest

from autotune.errors import ConnectError, UnitRefused
from autotune.supervisors.log_lines import LogLine, LogSource
from autotune.systemd.logs import FileFollower, LogPlace, log_place, written_outputs


@pytest.mark.parametrize(
    ("output", "error", "place"),
    [
        ("journal", "inherit", LogPlace()),
        ("journal", "journal", LogPlace()),
        ("journal+console", "inherit", LogPlace()),
        ("append:/l", "append:/l", LogPlace("/l")),
        ("append:/l", "inherit", LogPlace("/l")),
        ("truncate:/l", "truncate:/l", LogPlace("/l", emptied=True)),
    ],
)
def test_where_the_log_is(output: str, error: str, place: LogPlace) -> None:
    assert log_place(output, error) == place


@pytest.mark.parametrize(
    ("output", "error"),
    [
        ("null", "null"),
        ("null", "journal"),
        ("append:/a", "append:/b"),
        ("journal", "append:/b"),
        ("file:/l", "inherit"),
        ("tty", "tty"),
    ],
)
def test_a_log_that_cannot_be_read_is_refused(output: str, error: str) -> None:
    with pytest.raises(UnitRefused):
        log_place(output, error)


def test_the_path_comes_from_the_text_of_the_unit() -> None:
    text = (
        "[Service]\nStandardOutput=append:/a\nStandardError = append:/b\nStandardOutput=append:/c"
    )
    assert written_outputs(text, "append", "append") == ("append:/c", "append:/b")
    assert written_outputs(text, "journal", "inherit") == ("journal", "inherit")
    with pytest.raises(UnitRefused, match="specifier"):
        written_outputs("StandardOutput=append:/log/%i", "append", "inherit")


class Stream:
    """Gives lines; an empty list of lines left means that the connection broke."""

    def __init__(self, *lines: bytes | None) -> None:
        self.lines = list(lines)
        self.closed = False

    def read(self, timeout_s: float) -> bytes | None:
        if not self.lines:
            raise ConnectError("broken")
        return self.lines.pop(0)

    def close(self) -> None:
        self.closed = True


class Manager:
    """The journal of the same start: one line of the service manager."""

    def __init__(self, *lines: LogLine) -> None:
        self.lines = list(lines)

    def read(self, timeout_s: float) -> LogLine | None:
        return self.lines.pop(0) if self.lines else None

    def __enter__(self) -> Manager:
        return self

    def __exit__(self, *ending: object) -> None: ...


def test_a_broken_stream_goes_on_at_its_byte() -> None:
    opened: list[int] = []
    streams = [Stream(b"one", "zwölf".encode()), Stream(b"bad \xff", b"")]

    def open_file(offset: int) -> Stream:
        opened.append(offset)
        return streams[len(opened) - 1]

    ended = LogLine("Main process exited", 1.0, LogSource.MANAGER)
    with FileFollower(open_file, Manager(ended), offset_bytes=100) as follower:
        texts = [follower.read(0.0) for _ in range(4)]
    shown = [line.text for line in texts if line is not None]
    assert shown == ["one", "zwölf", "Main process exited", "bad �"]
    assert opened == [100, 100 + 4 + 7]
    assert streams[1].closed


def test_a_long_line_comes_in_pieces() -> None:
    with FileFollower(lambda _: Stream(b"x" * 100_000), Manager(), offset_bytes=0) as follower:
        lengths = [len(line.text) for _ in range(3) if (line := follower.read(0.0))]
    assert lengths == [49152, 49152, 1696]


def test_a_stream_that_never_gave_a_line_is_an_error() -> None:
    with (
        FileFollower(lambda _: Stream(), Manager(), offset_bytes=0) as follower,
        pytest.raises(ConnectError),
    ):
        follower.read(0.0)
