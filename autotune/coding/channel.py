"""Messages over a pair of pipes, with a deadline.  Runs inside the sandbox too."""

from __future__ import annotations

import os
import select
import time

__all__ = ["CandidateGone", "Channel"]


class CandidateGone(BaseException):
    """The candidate process cannot answer any more; not to be caught by a check."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail


class Channel:
    """Messages over two pipes, each as four bytes of length and its body.

    Args:
        receive: Descriptor to read from.
        send: Descriptor to write to, not blocking.
        deadline_s: `time.monotonic` value after which the other side counts as hung.
        message_bytes: Longest message that is accepted.
    """

    def __init__(self, receive: int, send: int, *, deadline_s: float, message_bytes: int) -> None:
        self.receive = receive
        self.send = send
        self.deadline_s = deadline_s
        self.message_bytes = message_bytes

    def put(self, body: bytes) -> None:
        """Raises: CandidateGone."""
        rest = len(body).to_bytes(4, "big") + body
        while rest:
            self._wait(self.send, select.POLLOUT)
            try:
                rest = rest[os.write(self.send, rest[:65536]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError as error:
                raise CandidateGone("error", "the answer's process closed its channel") from error

    def get(self) -> bytes:
        """Raises: CandidateGone."""
        size = int.from_bytes(self._read(4), "big")
        if size > self.message_bytes:
            raise CandidateGone("error", f"a value of {size} bytes; the limit is the output limit")
        return self._read(size)

    def _read(self, count: int) -> bytes:
        parts = []
        while count:
            self._wait(self.receive, select.POLLIN)
            part = os.read(self.receive, min(count, 65536))
            if not part:
                raise CandidateGone("error", "the answer's process ended by itself")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _wait(self, descriptor: int, event: int) -> None:
        if self.deadline_s == float("inf"):
            return  # the descriptor blocks
        poll = select.poll()
        poll.register(descriptor, event)
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0 or not poll.poll(1 + left_s * 1000):
            raise CandidateGone("timeout", "the answer did not return in time")
