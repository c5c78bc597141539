"""A very small HTTP server: the service that supervisors are tested with.

Run as a file by any Python 3.11, with the standard library only.  Unknown arguments are allowed
and given back, so that any word can be sent through a supervisor::

    python -I -S tiny_server.py --port 8000 [--exit 2] [-- WORDS...]

    GET /v1/models   {"data": [{"id": "tiny"}]}
    GET /environ     its environment
    GET /argv        its words, program and script left out
    GET /pids        process ids: its own, and that of `--grandchild` when there is one

It prints `tiny server starts, pid N` at once and `tiny server is ready on port N` when it listens.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socketserver
import sys
import time
from http.server import BaseHTTPRequestHandler

__all__ = ["READY_TEXT", "START_TEXT", "main"]

START_TEXT = "tiny server starts"
READY_TEXT = "tiny server is ready"


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    answers: dict[str, object]


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        answer = self.server.answers.get(self.path)
        body = json.dumps(answer).encode()
        self.send_response(404 if answer is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """No access log: the log of a start holds only what a test asked for."""


def main(arguments: list[str]) -> int:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(prog="tiny_server", allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--exit", type=int, help="end with this status instead of serving")
    parser.add_argument("--say", action="append", default=[], help="one more line at the start")
    parser.add_argument("--say-hex", default="", help="bytes to write at the start, as hexadecimal")
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--slow-start-s", type=float, default=0.0, help="listen only after this")
    parser.add_argument("--grandchild", action="store_true", help="with one in its own session")
    options, _ = parser.parse_known_args(arguments)
    if options.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(f"{START_TEXT}, pid {os.getpid()}", flush=True)
    for text in options.say:
        print(text, flush=True)
    sys.stdout.buffer.write(bytes.fromhex(options.say_hex))
    sys.stdout.flush()
    pids = {"main": os.getpid()}
    if options.grandchild:
        pids["grandchild"] = _grandchild()
        print(f"grandchild {pids['grandchild']}", flush=True)
    if options.exit is not None:
        return int(options.exit)
    time.sleep(options.slow_start_s)
    with _Server((options.host, options.port), _Handler) as server:
        server.answers = {
            "/v1/models": {"object": "list", "data": [{"id": "tiny", "object": "model"}]},
            "/environ": dict(os.environ),
            "/argv": arguments,
            "/pids": pids,
        }
        print(f"{READY_TEXT} on port {options.port}", flush=True)
        server.serve_forever()
    return 0


def _grandchild() -> int:
    """A process that leaves the session and its parent, as daemons do; its process id."""
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write_fd, b"%d" % os.getpid())
            os.close(write_fd)
            while True:
                signal.pause()
        os._exit(0)
    os.close(write_fd)
    os.waitpid(child, 0)
    pid = int(os.read(read_fd, 32))
    os.close(read_fd)
    return pid


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
