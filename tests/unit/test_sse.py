from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.benchmark.sse import SseEvent, SseSplitter


def split(*reads: bytes) -> list[SseEvent]:
    splitter = SseSplitter()
    return [event for read in reads for event in splitter.feed(read)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data: a\r\n\r\n", [b"a"]),
        (b"data: a\r\r", [b"a"]),
        (b"data:a\n\ndata:  b\n\n", [b"a", b" b"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data\n\n", [b""]),
        (b": ping\n\ndata: a\nid: 7\nretry: 1\n\n", [b"a"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: a\n\ndata: cut off", [b"a"]),
        (b"\n\n\n", []),
        (b"database: a\n\n", []),
    ],
)
def test_streams(stream: bytes, events: list[bytes]) -> None:
    assert [event.data for event in split(stream)] == events


def test_unicode_line_separators_stay_inside_the_data() -> None:
    text = 'data: {"content":"a\u2028b\u2029c\u0085d"}'.encode()
    assert split(b"data: x\n\n", text + b"\n\n")[1].data == text[6:]


def test_the_type_of_an_event_is_kept_for_that_event_only() -> None:
    assert split(b"event: error\ndata: a\n\ndata: b\n\n") == [
        SseEvent(b"a", b"error"),
        SseEvent(b"b", b""),
    ]


def test_crlf_cut_between_its_two_bytes_is_one_line_end() -> None:
    assert split(b"data: a\r", b"\n\r", b"\ndata: b\r", b"\n\r\n") == [
        SseEvent(b"a"),
        SseEvent(b"b"),
    ]


def test_the_type_may_come_in_an_earlier_read() -> None:
    assert split(b"data: a\n\nevent: error\n", b"data: b\n\n")[1] == SseEvent(b"b", b"error")


def test_an_unfinished_event_is_visible() -> None:
    splitter = SseSplitter()
    splitter.feed(b"data: a\n\n")
    assert not splitter.unfinished
    splitter.feed(b"data: b\n")
    assert splitter.unfinished


LINES = st.sampled_from(
    [
        b"data: a",
        b"data: \xe2\x80\xa8b",
        b"data:",
        b"",
        b"",
        b": note",
        b"event: error",
        b"data: c:d",
    ]
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])


@given(
    lines=st.lists(st.tuples(LINES, ENDS), max_size=20),
    cuts=st.lists(st.integers(0, 300), max_size=20),
)
def test_any_split_of_the_bytes_gives_the_same_events(
    lines: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(line + end for line, end in lines)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reads = [stream[a:b] for a, b in itertools.pairwise(edges)]
    bytewise = [stream[i : i + 1] for i in range(len(stream))]
    assert split(*reads) == split(stream) == split(*bytewise)
