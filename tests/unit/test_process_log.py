"""The log of a guard: its lines, and following it."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import TargetError
from autotune.supervisors.log_lines import LogFollower, LogLine, LogSource
from autotune.supervisors.process_log import GuardLog, parse_record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "start.log"
    path.touch()
    return path


def follow(path: Path, *, ended: bool = False) -> GuardLog:
    return GuardLog(path, ended=lambda: ended)


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (b"12.500000 S hello", LogLine("hello", 12.5)),
        (b"12.500000 S  two  blanks ", LogLine(" two  blanks ", 12.5)),
        (
            b"12.500000 M Main process exited",
            LogLine("Main process exited", 12.5, LogSource.MANAGER),
        ),
        ("12.500000 S ☃".encode(), LogLine("☃", 12.5)),
        (b"12.500000 S \xff\xfe", LogLine("��", 12.5)),
        ("12.500000 S a\x0bb\x85c\u2028d".encode(), LogLine("a\x0bb\x85c\u2028d", 12.5)),
    ],
)
def test_record(record: bytes, line: LogLine) -> None:
    assert parse_record(record) == line


@pytest.mark.parametrize("record", [b"", b"hello", b"x S hello", b"12.5 Q hello"])
def test_no_record(record: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_record(record)


def test_a_line_counts_when_it_is_whole(path: Path) -> None:
    with follow(path) as log, path.open("ab", buffering=0) as file:
        assert log.read(0) is None
        file.write(b"1.0 S be")
        assert log.read(0) is None
        file.write(b"gin\n2.0 S next\n")
        assert log.read(0) == LogLine("begin", 1.0)
        assert log.read(0) == LogLine("next", 2.0)
        assert log.read(0) is None


def test_more_than_one_chunk(path: Path) -> None:
    texts = [f"{number} {'x' * 20_000}" for number in range(20)]
    path.write_text("".join(f"1.0 S {text}\n" for text in texts))
    with follow(path) as log:
        seen = [log.read(0) for _ in texts]
        assert [line.text for line in seen if line] == texts
        assert log.read(0) is None


def test_end_that_nobody_wrote_down_is_told_once(path: Path) -> None:
    path.write_bytes(b"1.0 S last words\n")
    with follow(path, ended=True) as log:
        assert log.read(0) == LogLine("last words", 1.0)
        line = log.read(0)
        assert line is not None
        assert line.source is LogSource.MANAGER
        assert line.text == "Main process exited, code=killed, status=9/KILL"
        assert log.read(0) is None


def test_end_that_was_written_down_is_told_once(path: Path) -> None:
    path.write_bytes(b"1.0 M Main process exited, code=exited, status=2\n")
    with follow(path, ended=True) as log:
        line = log.read(0)
        assert line is not None
        assert line.text.endswith("status=2")
        assert log.read(0) is None


def test_words_of_the_service_are_not_the_managers(path: Path) -> None:
    path.write_bytes(b"1.0 S Main process exited, code=exited, status=0\n")
    with follow(path, ended=True) as log:
        assert log.read(0) == LogLine("Main process exited, code=exited, status=0", 1.0)
        line = log.read(0)
        assert line is not None
        assert line.source is LogSource.MANAGER


def test_missing_file_and_foreign_file(tmp_path: Path, path: Path) -> None:
    with pytest.raises(TargetError, match="cannot be read"):
        follow(tmp_path / "nowhere")
    path.write_bytes(b"no log\n")
    with follow(path) as log, pytest.raises(TargetError, match="not a log of ours"):
        log.read(0)


def test_is_a_follower(path: Path) -> None:
    with follow(path) as log:
        follower: LogFollower = log
        assert follower.read(0) is None
