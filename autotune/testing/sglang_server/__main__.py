"""`python -m autotune.testing.sglang_server`: load, listen, serve, drain."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn

from autotune.testing.sglang_server.answers import Model
from autotune.testing.sglang_server.app import build_app
from autotune.testing.sglang_server.args import parse
from autotune.testing.sglang_server.lifecycle import Lifecycle
from autotune.testing.sglang_server.log import ServerLog, uvicorn_log_config
from autotune.testing.sglang_server.startup import kill_self, load
from autotune.testing.sglang_server.switches import LogStyle, Switches

__all__ = [
    "HttpServer",
    "main",
]


class HttpServer(uvicorn.Server):
    """Uvicorn without its own handling of SIGTERM: the server drains in its own way."""

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self.stop)
        listeners = sockets or [s for server in self.servers for s in server.sockets]
        self._lifecycle.listener_fd = listeners[0].fileno()

    def stop(self) -> None:
        """Shut down in an orderly way: no new connections, running streams end first."""
        self.should_exit = True


def main(argv: Sequence[str], environ: dict[str, str]) -> int:
    """Run one server.

    Returns:
        Exit status; many endings do not return but die by a signal, as the real server does.

    Raises:
        ValueError: The arguments do not go together.
        SystemExit: Usage error (2) or the port is taken (3).
    """
    switches = Switches.read(environ)
    args = parse(argv, switches)
    log = ServerLog(tp_size=args.tp_size)
    model = Model(switches.surface, args.setting, switches.faults).with_tasks(switches.answers)
    inherited = switches.inherited
    if inherited is None:
        load(args, switches, log)
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
        signal.setitimer(signal.ITIMER_REAL, inherited.life_s)

    def stop() -> None:
        server.stop()

    def on_engine_error(error: BaseException) -> None:
        text = "".join(traceback.format_exception(error))
        log.scheduler(f"Scheduler hit an exception: {text}")
        kill_self(log, serving=True)

    lifecycle = Lifecycle(args, switches, log, stop=stop)
    level = str(args.fields["log_level"])
    config = uvicorn.Config(
        build_app(args, switches, log, lifecycle, model, on_engine_error=on_engine_error),
        host=str(args.fields["host"]),
        port=int(args.fields["port"]),
        http="httptools",
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_level=level,
        log_config=uvicorn_log_config(level),
        timeout_keep_alive=5,
        date_header=True,
    )
    server = HttpServer(config, lifecycle)
    sockets = None if inherited is None else [socket.socket(fileno=inherited.fd)]
    server.run(sockets=sockets)
    if switches.log_style is LogStyle.NEW:
        pid = os.getpid()
        log.main(f"kill_process_tree called: parent_pid={pid}, include_parent=False, pid={pid}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], dict(os.environ)))
