"""An httpx transport for many slow streams: HTTP/1.1 over plain TCP, parsed by httptools.

httpx's own transport costs about 0.15 ms of CPU for each chunk of a stream, so that one core is
full at 6000 chunks a second: 64 streams at 100 steps a second.  This one hands a read from the
event loop to the parser and from there to the waiting reader, and nothing else.
"""

from __future__ import annotations

import asyncio
import collections
import ssl
from collections.abc import AsyncIterator, Callable
from typing import cast

import httptools
import httpx

__all__ = ["StreamTransport"]

# What may lie unread on one connection before the server is made to wait.
_UNREAD_BYTES = 1 << 20
# Below the five seconds after which Uvicorn closes an idle connection: a request never meets a
# connection that is just being closed, nor one whose end nobody has read yet.
_KEEP_ALIVE_S = 4.0


class StreamTransport(httpx.AsyncBaseTransport):
    """For `http://`; everything else goes to httpx's transport.

    Connections are kept and used again while the server keeps them open.  The timeouts of a
    request apply as in httpx: `connect`, and `read` for each wait for bytes.  Raises httpx's
    TransportError classes.

    There is no limit of connections on either way: the concurrency of the bucket is the limit, and
    a request that waits for a connection of ours would wait in the server's TTFT.

    Args:
        verify: Whom to trust over `https://`, as httpx takes it.
    """

    def __init__(self, *, verify: ssl.SSLContext | bool = True) -> None:
        self._idle: dict[tuple[str, int], collections.deque[_Connection]] = {}
        self._other = httpx.AsyncHTTPTransport(
            verify=verify,
            trust_env=False,
            limits=httpx.Limits(
                max_connections=None,
                max_keepalive_connections=None,
                keepalive_expiry=_KEEP_ALIVE_S,
            ),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.scheme != "http":
            return await self._other.handle_async_request(request)
        timeouts: dict[str, float | None] = request.extensions.get("timeout", {})
        body = await request.aread()
        connection = await self._connect(request.url, timeouts.get("connect"))
        try:
            connection.send(request, body, read_timeout_s=timeouts.get("read"))
            await connection.headers()
        finally:
            if not connection.has_headers:
                connection.abort()
        return httpx.Response(
            connection.status,
            headers=connection.fields,
            stream=_Body(connection, self._give_back),
            extensions={"network_stream": connection},
        )

    async def aclose(self) -> None:
        for idle in self._idle.values():
            for connection in idle:
                connection.abort()
        self._idle.clear()
        await self._other.aclose()

    async def _connect(self, url: httpx.URL, timeout_s: float | None) -> _Connection:
        key = (url.host, url.port or 80)
        idle = self._idle.setdefault(key, collections.deque())
        loop = asyncio.get_running_loop()
        while idle:
            connection = idle.pop()
            if connection.usable and loop.time() - connection.idle_since_s < _KEEP_ALIVE_S:
                return connection
            connection.abort()
        try:
            async with asyncio.timeout(timeout_s):
                _, made = await loop.create_connection(lambda: _Connection(loop, key), *key)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(f"no connection within {timeout_s:g} s") from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        return made

    def _give_back(self, connection: _Connection) -> None:
        if connection.usable and connection.key in self._idle:  # gone once the client is closed
            connection.idle_since_s = asyncio.get_running_loop().time()
            self._idle[connection.key].append(connection)
        else:
            connection.abort()


class _Connection(asyncio.Protocol):
    """One connection; one request at a time.  The `on_` methods are called by the parser."""

    def __init__(self, loop: asyncio.AbstractEventLoop, key: tuple[str, int]) -> None:
        self.key = key
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._read_timeout_s: float | None = None
        self._lost: Exception | None = None
        self.idle_since_s = 0.0
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self.fields: list[tuple[bytes, bytes]] = []
        self.has_headers = False
        self._complete = False
        self._keep = False
        self._parts: list[bytes] = []
        self._unread = 0

    @property
    def usable(self) -> bool:
        """Whether another request can go over it."""
        return (
            self._lost is None
            and self._complete
            and self._keep
            and self._transport is not None
            and not self._transport.is_closing()
        )

    def send(self, request: httpx.Request, body: bytes, *, read_timeout_s: float | None) -> None:
        self._reset()
        self._parser = httptools.HttpResponseParser(self)
        self._read_timeout_s = read_timeout_s
        head = b"".join(b"%b: %b\r\n" % field for field in request.headers.raw)
        line = b"%b %b HTTP/1.1\r\n" % (request.method.encode(), request.url.raw_path)
        if self._transport is None:
            raise httpx.ConnectError("not connected")
        self._transport.write(line + head + b"\r\n" + body)

    async def headers(self) -> None:
        while not self.has_headers:
            await self._wait()

    async def read(self) -> bytes:
        """The bytes of the body that have come; waits for some; b"" at its end."""
        while not self._parts:
            if self._complete:
                return b""
            await self._wait()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        if self._unread > _UNREAD_BYTES and self._transport is not None:
            self._transport.resume_reading()
        self._unread = 0
        return data

    def get_extra_info(self, info: str) -> object:
        """As asyncio's transports have it, `socket` for example."""
        return None if self._transport is None else self._transport.get_extra_info(info)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self) -> None:
        """Until something came.  Raises ReadTimeout, ReadError and RemoteProtocolError."""
        if self._lost is not None:
            raise self._lost
        self._waiter = waiter = self._loop.create_future()
        timer = None
        if self._read_timeout_s is not None:
            timer = self._loop.call_later(self._read_timeout_s, self._late)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _late(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(
                httpx.ReadTimeout(f"nothing came within {self._read_timeout_s:g} s")
            )

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's, so this cannot be asserted.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lost = httpx.RemoteProtocolError(f"not HTTP: {error}")
            self.abort()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.has_headers and not self._complete and self._until_end and exc is None:
            self._complete = True
        elif self._lost is None:
            self._lost = (
                httpx.ReadError(str(exc) or type(exc).__name__)
                if exc is not None
                else httpx.RemoteProtocolError("the server closed the connection in mid-answer")
            )
        self._wake()

    @property
    def _until_end(self) -> bool:
        """Whether the body ends with the connection: no length, no chunks (RFC 9112, 6.3)."""
        names = {name.lower() for name, _ in self.fields}
        return not names & {b"content-length", b"transfer-encoding"}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.has_headers = self.status >= httpx.codes.OK
        if not self.has_headers:  # 1xx: the answer proper follows
            self.fields = []

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        self._unread += len(body)
        if self._unread > _UNREAD_BYTES and self._transport is not None:
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self.has_headers:
            self._complete = True
            self._keep = self._parser.should_keep_alive()


class _Body(httpx.AsyncByteStream):
    """The body of one answer."""

    def __init__(self, connection: _Connection, give_back: Callable[[_Connection], None]) -> None:
        self._connection = connection
        self._give_back = give_back
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self._connection.read():
            yield data

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._give_back(self._connection)
