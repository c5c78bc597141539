"""From the first served request to the end: warm-up, SIGTERM, drain, death, orphan."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from autotune.testing.sglang_server.args import ServerArgs
from autotune.testing.sglang_server.engine import Engine, Fatal
from autotune.testing.sglang_server.faults import Fault
from autotune.testing.sglang_server.log import ServerLog
from autotune.testing.sglang_server.startup import die_out_of_memory, kill_self
from autotune.testing.sglang_server.switches import PREFIX, Inherited, LogStyle, Switches

__all__ = ["Lifecycle", "WarmUp"]


class WarmUp(threading.Thread):
    """Asks the server's own address for one generation and then says that it is ready.

    It cannot know who answers there: when another process holds the port, that one's answers make
    it print the ready line, as in the real server.
    """

    _TRIES = 120
    _TIMEOUT_S = 5.0

    def __init__(
        self,
        args: ServerArgs,
        switches: Switches,
        log: ServerLog,
        on_ready: Callable[[], None],
    ) -> None:
        super().__init__(name="warm-up", daemon=True)
        host = str(args.fields["host"])
        self._host = "127.0.0.1" if host == "0.0.0.0" else host
        self._port = int(args.fields["port"])
        key = args.fields["api_key"]
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._poll_s = switches.warm_poll_s
        self._log = log
        self._on_ready = on_ready

    def run(self) -> None:
        for _ in range(self._TRIES):
            time.sleep(self._poll_s)
            if self._ask("GET", "/model_info") == 200:
                break
        else:
            self._log.main("Initialization failed. warmup error: no answer from /model_info")
            return
        body = {
            "text": "The capital city of France is",
            "sampling_params": {"temperature": 0, "max_new_tokens": 8},
        }
        if self._ask("POST", "/generate", body) == 200:
            self._on_ready()
            self._log.main("The server is fired up and ready to roll!")
        else:
            self._log.main("Initialization failed. warmup error: /generate gave no answer")

    def _ask(self, method: str, path: str, body: object = None) -> int | None:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._TIMEOUT_S)
        try:
            connection.request(
                method,
                path,
                body=None if body is None else json.dumps(body),
                headers={"Content-Type": "application/json", **self._headers},
            )
            response = connection.getresponse()
            response.read()
            return response.status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()


class Lifecycle:
    """What state the server is in, and how it ends.

    Args:
        stop: Asks the HTTP server to shut down in an orderly way.
    """

    def __init__(
        self, args: ServerArgs, switches: Switches, log: ServerLog, *, stop: Callable[[], None]
    ) -> None:
        self._args = args
        self._switches = switches
        self._log = log
        self._stop = stop
        self._armed = False
        self._drain: asyncio.Task[None] | None = None
        self._engine: Engine | None = None
        self.listener_fd: int | None = None
        self.ready = False
        self.draining = False

    def attach(self, engine: Engine) -> None:
        """The engine whose requests are counted while draining."""
        self._engine = engine

    def mark_ready(self) -> None:
        """The self warm-up got its answer."""
        self.ready = True

    def arm(self) -> None:
        """The first generation has arrived: from now on SIGTERM drains instead of killing."""
        if self._armed:
            return
        self._armed = True
        if self._switches.inherited is None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.on_sigterm)

    def on_sigterm(self) -> None:
        """Begin to drain; a second signal changes nothing."""
        self._log.main(
            "SIGTERM received. signum=None frame=None. Draining requests and shutting down..."
        )
        if self._drain is None:
            self.draining = True
            if Fault.ORPHAN in self._switches.faults:
                self._leave_orphan()
            self._drain = asyncio.get_running_loop().create_task(self._drained())

    def on_fatal(self, fatal: Fatal) -> None:
        """The scheduler is dead; the process follows it."""
        if fatal.out_of_memory:
            die_out_of_memory(self._log, need_gib=1.27, free_gib=0.61, serving=True)
        kill_self(self._log, serving=True, silent=True)

    async def _drained(self) -> None:
        switches = self._switches
        not_before = time.monotonic()
        if Fault.SLOW_DRAIN in switches.faults:
            not_before += switches.drain_s
        while True:
            await asyncio.sleep(switches.watch_s)
            ids = self._engine.request_ids if self._engine is not None else []
            tail = ""
            if switches.log_style is LogStyle.NEW:
                tail = f" Remaining requests remaining_rids={ids}."
            self._log.main(f"Gracefully exiting... Remaining number of requests {len(ids)}.{tail}")
            if not ids and time.monotonic() >= not_before:
                break
        if switches.log_style is LogStyle.OLD:
            pid = os.getpid()
            self._log.main(
                f"kill_process_tree called: parent_pid={pid}, include_parent=True, pid={pid}"
            )
            kill_self(self._log, serving=True, silent=True)
        self._stop()

    def _leave_orphan(self) -> None:
        """Start a child in its own session that goes on answering on the same socket."""
        life_s = self._switches.faults.argument(Fault.ORPHAN)
        if self.listener_fd is None or life_s is None:
            return
        inherited = Inherited(
            fd=self.listener_fd,
            life_s=life_s,
            random_seed=int(self._args.fields["random_seed"]),
        )
        subprocess.Popen(
            [sys.executable, "-m", "autotune.testing.sglang_server", *self._args.argv],
            env={**os.environ, PREFIX + "INHERIT": str(inherited), PREFIX + "LOAD_S": "0"},
            pass_fds=(self.listener_fd,),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
