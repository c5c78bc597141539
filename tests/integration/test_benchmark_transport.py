"""Framing and endings that the transport must tell apart, against raw sockets on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from autotune.benchmark.transport import StreamTransport

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\n"


def sends(*parts: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)

    return answer


def asked(
    answer: Answer, *, requests: int = 1, close: bool = True, read_timeout_s: float = 5.0
) -> tuple[list[bytes], int]:
    """Bodies of so many requests one after another, and the connections that they took."""

    async def run() -> tuple[list[bytes], int]:
        connections = 0
        handlers: list[asyncio.Task[None]] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            task = asyncio.current_task()
            assert task is not None
            handlers.append(task)
            try:
                while True:
                    await reader.readuntil(b"\r\n\r\n")
                    await answer(writer)
                    if close:
                        break
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        timeout = httpx.Timeout(read_timeout_s)
        client = httpx.AsyncClient(transport=StreamTransport(), timeout=timeout)
        try:
            url = f"http://127.0.0.1:{port}/"
            return [(await client.get(url)).content for _ in range(requests)], connections
        finally:
            await client.aclose()
            await asyncio.gather(*handlers)
            server.close()

    return asyncio.run(run())


@pytest.mark.parametrize(
    "parts",
    [
        (OK + b"content-length: 5\r\n\r\nhello",),
        (OK + b"content-le", b"ngth: 5\r\n\r\nhe", b"llo"),
        (OK + b"transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n", b"3\r\nllo\r\n0\r\n\r\n"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", OK + b"content-length: 5\r\n\r\nhello"),
        (OK + b"\r\nhel", b"lo"),
    ],
)
def test_framings(parts: tuple[bytes, ...]) -> None:
    assert asked(sends(*parts))[0] == [b"hello"]


def test_a_kept_connection_is_used_again() -> None:
    bodies, connections = asked(sends(OK + b"content-length: 2\r\n\r\nok"), requests=3, close=False)
    assert bodies == [b"ok"] * 3
    assert connections == 1


def test_a_closed_connection_is_not() -> None:
    answer = sends(OK + b"connection: close\r\ncontent-length: 2\r\n\r\nok")
    assert asked(answer, requests=3) == ([b"ok"] * 3, 3)


@pytest.mark.parametrize(
    "parts",
    [
        (OK + b"content-length: 5\r\n\r\nhel",),
        (OK + b"transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n",),
        (OK,),
        (),
        (b"SSH-2.0-OpenSSH\r\n\r\n",),
    ],
)
def test_an_answer_cut_short_is_a_protocol_error(parts: tuple[bytes, ...]) -> None:
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        asked(sends(*parts))


def test_silence_is_a_read_timeout() -> None:
    with pytest.raises(httpx.ReadTimeout):
        asked(sends(OK), close=False, read_timeout_s=0.05)


def test_nobody_listens() -> None:
    async def run() -> None:
        async with httpx.AsyncClient(transport=StreamTransport()) as client:
            await client.get("http://127.0.0.1:9/")

    with pytest.raises(httpx.ConnectError):
        asyncio.run(run())


def test_much_unread_makes_the_server_wait_and_loses_nothing() -> None:
    body = b"x" * (8 << 20)
    answer = sends(OK + b"content-length: %d\r\n\r\n" % len(body), body)
    assert asked(answer)[0] == [body]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_as_many_requests_at_once_as_are_asked_for(scheme: str, tmp_path: Path) -> None:
    """Nobody gets an answer before all have asked: with fewer connections none ever would."""
    streams = 128
    ours, theirs = contexts(tmp_path)

    async def run() -> list[httpx.Response]:
        all_there = asyncio.Barrier(streams)
        handlers: list[asyncio.Task[None]] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            handlers.append(task)
            with contextlib.suppress(
                asyncio.IncompleteReadError, asyncio.BrokenBarrierError, ConnectionError
            ):
                await reader.readuntil(b"\r\n\r\n")
                await all_there.wait()
                writer.write(OK + b"content-length: 2\r\n\r\nhi")
                await reader.read()
            writer.transport.abort()

        server = await asyncio.start_server(
            serve, "127.0.0.1", 0, backlog=streams, ssl=theirs if scheme == "https" else None
        )
        url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        timeout = httpx.Timeout(60.0, pool=1.0)
        client = httpx.AsyncClient(transport=StreamTransport(verify=ours), timeout=timeout)
        try:
            return await asyncio.gather(*(client.get(url) for _ in range(streams)))
        finally:
            await all_there.abort()
            await client.aclose()
            await asyncio.gather(*handlers)
            server.close()

    assert [response.content for response in asyncio.run(run())] == [b"hi"] * streams


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS of a client and of a server with a certificate of its own, which the client trusts."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    ).public_bytes(serialization.Encoding.PEM)
    path = folder / "server.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate
    )
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(path)
    return ssl.create_default_context(cadata=certificate.decode()), theirs
