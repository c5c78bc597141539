"""One simulated server as a process of its own, and what is asked of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

TREE = (
    "--speculative-algorithm",
    "DDTREE",
    "--speculative-draft-model-path",
    "d",
    "--speculative-ddtree-budget",
    "8",
    "--speculative-ddtree-topk-cap",
    "4",
)


DEADLINE_S = 30.0


READY = "The server is fired up and ready to roll!"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    """One process; its log is collected by a thread, so a test can wait for a line."""

    process: subprocess.Popen[str]
    port: int
    lines: list[str] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)
    _readers: list[threading.Thread] = field(default_factory=list)

    def follow(self) -> None:
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            reader = threading.Thread(target=self._read, args=(stream,))
            reader.start()
            self._readers.append(reader)

    def _read(self, stream: Any) -> None:
        for line in stream:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        stream.close()

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, text: str) -> None:
        with self._news:
            seen = self._news.wait_for(lambda: text in self.log, timeout=DEADLINE_S)
        assert seen, f"{text!r} is not in the log:\n{self.log[-3000:]}"

    def wait(self) -> int:
        status = self.process.wait(timeout=DEADLINE_S)
        self.join()
        return status

    def join(self) -> None:
        for reader in self._readers:
            reader.join(timeout=DEADLINE_S)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=DEADLINE_S, trust_env=False, **options)


Start = Callable[..., Server]


def starter() -> Iterator[Start]:
    servers: list[Server] = []

    def start(*flags: str, port: int | None = None, ready: bool = True, **environ: str) -> Server:
        port = port or free_port()
        settings = {"TIME_SCALE": "20", "SHARED_SD": "0", "BUCKET_SD": "0", "WATCH_S": "0.1"}
        settings |= environ
        argv = [sys.executable, "-m", "autotune.testing.sglang_server", "--model-path", "m"]
        process = subprocess.Popen(
            [*argv, "--port", str(port), *flags],
            env={**os.environ, **{f"AUTOTUNE_SIM_{k}": v for k, v in settings.items()}},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        server = Server(process, port)
        servers.append(server)
        server.follow()
        if ready:
            server.wait_for(READY)
        return server

    yield start
    for server in servers:
        server.process.kill()
        server.process.wait()
        server.join()


def events(body: bytes) -> list[Any]:
    """The JSON of every event; [DONE] stays text."""
    parts = [part for part in body.split(b"\n\n") if part]
    assert all(part.startswith(b"data: ") for part in parts)
    return [p[6:].decode() if p[6:] == b"[DONE]" else json.loads(p[6:]) for p in parts]


def generate(client: httpx.Client, text: str, tokens: int, **extra: Any) -> httpx.Response:
    params = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return client.post("/generate", json={"text": text, "sampling_params": params, **extra})


def soon(holds: Callable[[], bool]) -> bool:
    """Ask again until it holds; the requests themselves set the pace."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if holds():
            return True
    return False
