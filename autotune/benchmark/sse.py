"""Server-sent events, split on bytes.

The rules are those of the WHATWG HTML standard, section 9.2.6 "Interpreting an event stream": lines
end with LF, CR or CRLF and with nothing else (text line readers also cut at U+2028 and U+0085,
which are legal inside JSON), an empty line ends an event, several `data` lines are joined with LF,
and an event that the stream's end cuts off is dropped.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SseEvent", "SseSplitter"]


class SseEvent(NamedTuple):
    """One event: its data, and its type when the server names one (`error` for example)."""

    data: bytes
    event: bytes = b""


class SseSplitter:
    """Bytes in, events out, over any number of reads.

    >>> splitter = SseSplitter()
    >>> splitter.feed(b"data: a\\n\\ndata: b")
    [SseEvent(data=b'a', event=b'')]
    >>> splitter.feed(b"c\\n\\n")
    [SseEvent(data=b'bc', event=b'')]
    """

    __slots__ = ("_after_cr", "_data", "_event", "_line", "_started")

    def __init__(self) -> None:
        self._line = b""  # what came after the last line end
        self._after_cr = False  # the last byte was CR: an LF that follows belongs to it
        self._data: list[bytes] = []
        self._event = b""
        self._started = False

    @property
    def unfinished(self) -> bool:
        """Whether an event has begun that no empty line has ended."""
        return bool(self._line or self._data)

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that `chunk` completes, in order."""
        if not chunk:
            return []
        if self._started and not (self._line or self._data or self._event or self._after_cr):
            events = _whole_events(chunk)
            if events is not None:
                return events
        return self._slow(chunk)

    def _slow(self, chunk: bytes) -> list[SseEvent]:
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_cr = False
        text = self._line + chunk
        if not self._started:
            if len(text) < 3 and b"\xef\xbb\xbf".startswith(text):
                self._line = text
                return []
            text = text.removeprefix(b"\xef\xbb\xbf")
            self._started = True
        if b"\r" in text:
            self._after_cr = text.endswith(b"\r")
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = text.split(b"\n")
        self._line = lines.pop()
        return [event for line in lines if (event := self._take(line)) is not None]

    def _take(self, line: bytes) -> SseEvent | None:
        if not line:
            data, event = self._data, self._event
            self._data, self._event = [], b""
            return SseEvent(b"\n".join(data), event) if data else None
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif name == b"event":
            self._event = value.removeprefix(b" ")
        return None


def _whole_events(chunk: bytes) -> list[SseEvent] | None:
    """The events of a read that is nothing but whole one-line `data: ` events; None otherwise.

    This is what a server sends nearly always: one write for each event.
    """
    if not chunk.endswith(b"\n\n") or b"\r" in chunk:
        return None
    parts = chunk[:-2].split(b"\n\n")
    for part in parts:
        if not part.startswith(b"data: ") or b"\n" in part:
            return None
    return [SseEvent(part[6:]) for part in parts]
