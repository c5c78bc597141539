"""Commands over ssh.

A connection that broke is opened anew by the next command; the command it broke under is reported,
never repeated.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import paramiko

from autotune.closing import Closing
from autotune.errors import CommandTimeout, ConnectError, TargetError
from autotune.remote.command import Words, shell_line, shown
from autotune.remote.connector import CAP_BYTES, DEADLINE_S, Completed, LineSplitter
from autotune.remote.ssh_config import SshOptions, SshSettings, parse_target, resolve
from autotune.remote.ssh_login import dial, login, mapped

__all__ = ["SshConnector"]

CHUNK_BYTES = 65536
MOST_JUMPS = 8

logging.getLogger("paramiko").addHandler(logging.NullHandler())


class SshConnector(Closing):
    """Runs commands on one host over ssh.

    Args:
        host: `[user@]host[:port]`, a name that the ssh configuration may know.
        options: What counts before the ssh configuration.

    Raises:
        ConfigError: The ssh configuration cannot be honoured; nothing was contacted.
    """

    def __init__(self, host: str, options: SshOptions | None = None) -> None:
        self.host = host
        options = options or SshOptions()
        self._options = options
        self.settings = _resolve(host, options)
        self._lock = threading.Lock()
        self._client: paramiko.SSHClient | None = None
        self._hops: list[paramiko.SSHClient] = []
        self.connections = 0
        """How often a connection was opened."""

    def run(
        self,
        argv: Words,
        *,
        input: bytes = b"",  # noqa: A002
        deadline_s: float = DEADLINE_S,
        cap_bytes: int = CAP_BYTES,
    ) -> Completed:
        words = shown(argv)
        line = shell_line(argv)
        ends_at = time.monotonic() + deadline_s
        with self._session() as channel, self._mapping():
            channel.settimeout(max(0.1, deadline_s))
            try:
                with _closed_at(channel, ends_at):
                    channel.exec_command(line)
                    output, errors = _exchange(channel, input, ends_at, cap_bytes)
                    status = channel.recv_exit_status()
            except TimeoutError as error:
                raise CommandTimeout(
                    f"{self.host}: `{' '.join(words)}` did not end within {deadline_s:g} s"
                ) from error
            if status < 0 and not _alive(channel.get_transport()):
                raise ConnectError(f"{self.host}: connection lost under `{' '.join(words)}`")
        return Completed(
            words,
            status,
            bytes(output[:cap_bytes]),
            bytes(errors[:cap_bytes]),
            truncated=max(len(output), len(errors)) > cap_bytes,
        )

    def stream(self, argv: Words, *, input: bytes = b"") -> _SshStream:  # noqa: A002
        line = shell_line(argv)
        opened = self._session()
        channel = opened.__enter__()
        try:
            with self._mapping(), _closed_at(channel, time.monotonic() + DEADLINE_S):
                channel.settimeout(DEADLINE_S)
                channel.exec_command(line)
                while input:
                    input = _sent(channel, input)  # noqa: A001
        except TargetError:
            opened.__exit__(None, None, None)
            raise
        return _SshStream(self.host, shown(argv), opened)

    def close(self) -> None:
        with self._lock:
            self._drop()

    @contextmanager
    def _mapping(self) -> Iterator[None]:
        try:
            yield
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise mapped(error, where=self.host) from error

    def _session(self) -> _Session:
        """A channel on the one connection; on a connection of its own where the host allows no
        second session (`MaxSessions 1`)."""
        timeout_s = self.settings.connect_timeout_s
        with self._lock:
            if self._client is None or not _alive(self._client.get_transport()):
                self._drop()
                self._client, self._hops = self._connect()
            transport = self._client.get_transport()
        if transport is None:
            raise ConnectError(f"{self.host}: the connection was closed")
        with self._mapping():
            try:
                return _Session(transport.open_session(timeout=timeout_s), [])
            except paramiko.ChannelException:
                client, hops = self._connect()
                own = client.get_transport()
                if own is None:
                    raise
                return _Session(own.open_session(timeout=timeout_s), [client, *hops])

    def _connect(self) -> tuple[paramiko.SSHClient, list[paramiko.SSHClient]]:
        hops: list[paramiko.SSHClient] = []
        try:
            sock = self._path_to(self.settings, hops, depth=0)
            client = login(self.settings, sock)
        except TargetError:
            _close_all(hops)
            raise
        self.connections += 1
        return client, hops

    def _path_to(
        self, settings: SshSettings, hops: list[paramiko.SSHClient], *, depth: int
    ) -> socket.socket | paramiko.Channel:
        """A byte path to the host, through its jump hosts; each hop has settings of its own."""
        if depth > MOST_JUMPS:
            raise ConnectError(f"{self.host}: more than {MOST_JUMPS} jump hosts")
        if not settings.jumps:
            return dial(settings)
        sock: socket.socket | paramiko.Channel | None = None
        for jump in settings.jumps:
            hop = _resolve(jump, SshOptions(config=self._options.config))
            if sock is None:
                sock = self._path_to(hop, hops, depth=depth + 1)
            else:
                sock = self._through(hops[-1], hop)
            hops.append(login(hop, sock))
        return self._through(hops[-1], settings)

    def _through(self, hop: paramiko.SSHClient, to: SshSettings) -> paramiko.Channel:
        transport = hop.get_transport()
        if transport is None:
            raise ConnectError(f"{self.host}: a jump host closed the connection")
        with self._mapping():
            return transport.open_channel(
                "direct-tcpip",
                (to.hostname, to.port),
                ("127.0.0.1", 0),
                timeout=to.connect_timeout_s,
            )

    def _drop(self) -> None:
        clients = [self._client] if self._client is not None else []
        _close_all([*clients, *self._hops])
        self._client, self._hops = None, []


class _Session:
    """A channel and the clients that must be closed after it."""

    def __init__(self, channel: paramiko.Channel, clients: list[paramiko.SSHClient]) -> None:
        self._channel = channel
        self._clients = clients

    def __enter__(self) -> paramiko.Channel:
        return self._channel

    def __exit__(self, *error: object) -> None:
        with suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.close()
        _close_all(self._clients)


class _SshStream:
    def __init__(self, host: str, words: tuple[str, ...], session: _Session) -> None:
        self._host = host
        self._words = words
        self._session = session
        self._channel = session.__enter__()
        self._splitter = LineSplitter()
        self._errors = b""

    def read(self, timeout_s: float) -> bytes | None:
        ends_at = time.monotonic() + timeout_s
        while (line := self._splitter.pop()) is None:
            self._keep_errors()
            self._channel.settimeout(max(0.0, ends_at - time.monotonic()))
            try:
                chunk = self._channel.recv(CHUNK_BYTES)
            except TimeoutError:
                if not _alive(self._channel.get_transport()):
                    raise ConnectError(f"{self._host}: the connection was lost") from None
                return None
            if not chunk:
                self._keep_errors()
                tail = self._errors.decode(errors="replace").strip()
                raise ConnectError(f"{self._host}: `{' '.join(self._words)}` has ended: {tail}")
            self._splitter.feed(chunk)
        return line

    def close(self) -> None:
        self._session.__exit__(None, None, None)

    def _keep_errors(self) -> None:
        while self._channel.recv_stderr_ready():
            self._errors = (self._errors + self._channel.recv_stderr(CHUNK_BYTES))[-2000:]


@contextmanager
def _closed_at(channel: paramiko.Channel, ends_at: float) -> Iterator[None]:
    """Close the channel at a time (monotonic, seconds) when the block has not ended by then.

    paramiko waits without a limit for the answer to `exec` and for what comes after; only the
    channel's end wakes it.

    Raises:
        TimeoutError: It was closed.
    """
    late = threading.Event()

    def close() -> None:
        late.set()
        with suppress(OSError, EOFError, paramiko.SSHException):
            channel.close()

    timer = threading.Timer(max(0.0, ends_at - time.monotonic()), close)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (paramiko.SSHException, OSError, EOFError) as error:
        if late.is_set():
            raise TimeoutError from error
        raise
    finally:
        timer.cancel()
    if late.is_set():
        raise TimeoutError


def _exchange(
    channel: paramiko.Channel, pending: bytes, ends_at: float, cap_bytes: int
) -> tuple[bytearray, bytearray]:
    """Feed stdin and drain both outputs at once: a full window of either would stop the command."""
    output, errors = bytearray(), bytearray()
    sent_all = False
    arrivals = select.poll()  # select() refuses descriptors from 1024 on
    arrivals.register(channel.fileno(), select.POLLIN)
    while True:
        if not sent_all and not pending:
            channel.shutdown_write()
            sent_all = True
        moved = False
        while channel.recv_ready():
            output += channel.recv(CHUNK_BYTES)[: max(0, cap_bytes + 1 - len(output))]
            moved = True
        while channel.recv_stderr_ready():
            errors += channel.recv_stderr(CHUNK_BYTES)[: max(0, cap_bytes + 1 - len(errors))]
            moved = True
        if not sent_all and channel.send_ready():
            pending = _sent(channel, pending)
            moved = True
        if moved:
            if time.monotonic() > ends_at:
                raise TimeoutError
            continue
        if channel.eof_received and channel.exit_status_ready():
            if not (channel.recv_ready() or channel.recv_stderr_ready()):
                return output, errors
            continue
        if channel.closed:
            return output, errors
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        if channel.eof_received or not sent_all:
            # Nothing to select on: the exit status and window space have no file descriptor.
            channel.status_event.wait(min(0.05, left_s))
        else:
            arrivals.poll(1000 * min(1.0, left_s))


def _sent(channel: paramiko.Channel, pending: bytes) -> bytes:
    """Send a piece and return what is left: nothing, where the command has ended without reading.

    That end is no fault of the connection (a command may refuse its input), and its exit status
    says what it was; paramiko tells it by `OSError` or by a piece of zero bytes.
    """
    try:
        sent = channel.send(pending[:CHUNK_BYTES])
    except OSError as error:
        if isinstance(error, TimeoutError) or not channel.closed:
            raise
        return b""
    return pending[sent:] if sent else b""


def _resolve(host: str, options: SshOptions) -> SshSettings:
    target = parse_target(host)
    return resolve(
        target.host,
        SshOptions(
            port=target.port or options.port,
            user=target.user or options.user,
            key=options.key,
            known_hosts=options.known_hosts,
            config=options.config,
        ),
    )


def _alive(transport: paramiko.Transport | None) -> bool:
    return transport is not None and transport.is_active()


def _close_all(clients: list[paramiko.SSHClient]) -> None:
    for client in clients:
        with suppress(OSError, EOFError, paramiko.SSHException):
            client.close()
