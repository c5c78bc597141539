"""Commands on this very machine."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from typing import IO

from autotune.closing import Closing
from autotune.errors import CommandTimeout, ConnectError
from autotune.remote.command import Words, plain, shown
from autotune.remote.connector import CAP_BYTES, DEADLINE_S, Completed, LineSplitter

__all__ = ["LocalConnector"]

CHUNK_BYTES = 65536


class LocalConnector(Closing):
    """Runs each command as a child in its own session, so that its whole group can be ended."""

    def __init__(self, host: str = "localhost") -> None:
        self.host = host

    def run(
        self,
        argv: Words,
        *,
        input: bytes = b"",  # noqa: A002
        deadline_s: float = DEADLINE_S,
        cap_bytes: int = CAP_BYTES,
    ) -> Completed:
        words = shown(argv)
        child = _spawn(argv, stderr=subprocess.PIPE)
        ends_at = time.monotonic() + deadline_s
        try:
            output, errors = _exchange(child, input, ends_at, cap_bytes)
            status = child.wait(max(0.0, ends_at - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            raise CommandTimeout(
                f"`{' '.join(words)}` did not end within {deadline_s:g} s on {self.host}"
            ) from error
        finally:
            _end(child)
        return Completed(
            words,
            status,
            bytes(output[:cap_bytes]),
            bytes(errors[:cap_bytes]),
            truncated=max(len(output), len(errors)) > cap_bytes,
        )

    def stream(self, argv: Words, *, input: bytes = b"") -> _LocalStream:  # noqa: A002
        return _LocalStream(argv, input)

    def close(self) -> None:
        """Nothing is held open."""


class _LocalStream:
    def __init__(self, argv: Words, first: bytes) -> None:
        self._words = shown(argv)
        self._child = _spawn(argv, stderr=subprocess.DEVNULL)
        self._splitter = LineSplitter()
        if self._child.stdin is not None:
            with suppress(BrokenPipeError):
                self._child.stdin.write(first)
                self._child.stdin.flush()
        self._selector = selectors.DefaultSelector()
        self._selector.register(_pipe(self._child.stdout), selectors.EVENT_READ)

    def read(self, timeout_s: float) -> bytes | None:
        ends_at = time.monotonic() + timeout_s
        while (line := self._splitter.pop()) is None:
            if not self._selector.select(max(0.0, ends_at - time.monotonic())):
                return None
            chunk = os.read(_pipe(self._child.stdout).fileno(), CHUNK_BYTES)
            if not chunk:
                raise ConnectError(f"`{' '.join(self._words)}` has ended")
            self._splitter.feed(chunk)
        return line

    def close(self) -> None:
        self._selector.close()
        _end(self._child)


def _spawn(argv: Words, *, stderr: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            plain(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise ConnectError(f"this machine has no program {shown(argv)[0]!r}") from error
    except OSError as error:
        raise ConnectError(f"`{' '.join(shown(argv))}` cannot be started: {error}") from error


def _exchange(
    child: subprocess.Popen[bytes], pending: bytes, ends_at: float, cap_bytes: int
) -> tuple[bytearray, bytearray]:
    """Feed stdin and drain both outputs at once; more than `cap_bytes` + 1 is never kept."""
    kept: dict[int, bytearray] = {}
    with selectors.DefaultSelector() as selector:
        for pipe in (_pipe(child.stdout), _pipe(child.stderr)):
            kept[pipe.fileno()] = bytearray()
            selector.register(pipe, selectors.EVENT_READ)
        stdin = _pipe(child.stdin)
        os.set_blocking(stdin.fileno(), False)
        selector.register(stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            left_s = ends_at - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            for key, _ in selector.select(left_s):
                if key.fileobj is stdin:
                    try:
                        pending = pending[os.write(key.fd, pending[:CHUNK_BYTES]) :]
                    except BrokenPipeError:
                        pending = b""
                    if not pending:
                        selector.unregister(stdin)
                        stdin.close()
                    continue
                chunk = os.read(key.fd, CHUNK_BYTES)
                kept[key.fd] += chunk[: max(0, cap_bytes + 1 - len(kept[key.fd]))]
                if not chunk:
                    selector.unregister(key.fileobj)
    output, errors = kept.values()
    return output, errors


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise ConnectError("a pipe to the command is missing")
    return pipe


def _end(child: subprocess.Popen[bytes]) -> None:
    """End what is left of the child's group and close its pipes."""
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
