"""Log lines in the shape of the real server: `[YYYY-MM-DD HH:MM:SS TP0] message`, local time."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

__all__ = ["ServerLog", "uvicorn_log_config"]

_TIME = "%Y-%m-%d %H:%M:%S"


class ServerLog:
    """Writes whole lines to one stream and flushes each.

    Args:
        stream: Where the lines go; standard error, as in the real server.
        tp_size: Ranks of the tensor-parallel group; a prefix is written only above 1.
    """

    def __init__(self, *, tp_size: int, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._tp_size = tp_size

    def main(self, message: str) -> None:
        """A line of the main process, without a rank."""
        self._write("", message)

    def scheduler(self, message: str, *, rank: int = 0) -> None:
        """A line of one scheduler rank."""
        self._write(f" TP{rank}" if self._tp_size > 1 else "", message)

    def ranks(self, message: str) -> None:
        """The same line from every rank."""
        for rank in range(self._tp_size):
            self.scheduler(message, rank=rank)

    def raw(self, text: str) -> None:
        """Text without a prefix: progress bars and tracebacks."""
        self._stream.write(text)
        self._stream.flush()

    def _write(self, prefix: str, message: str) -> None:
        self._stream.write(f"[{time.strftime(_TIME)}{prefix}] {message}\n")
        self._stream.flush()


def uvicorn_log_config(level: str) -> dict[str, Any]:
    """Uvicorn's own lines with the server's time stamp; access lines on standard output."""
    formatter = {"datefmt": _TIME, "use_colors": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "default": {
                "()": "uvicorn.logging.DefaultFormatter",
                "fmt": "[%(asctime)s] %(levelprefix)s %(message)s",
                **formatter,
            },
            "access": {
                "()": "uvicorn.logging.AccessFormatter",
                "fmt": "[%(asctime)s] %(levelprefix)s "
                '%(client_addr)s - "%(request_line)s" %(status_code)s',
                **formatter,
            },
        },
        "handlers": {
            "default": {
                "formatter": "default",
                "class": "logging.StreamHandler",
                "stream": "ext://sys.stderr",
            },
            "access": {
                "formatter": "access",
                "class": "logging.StreamHandler",
                "stream": "ext://sys.stdout",
            },
        },
        "loggers": {
            "uvicorn": {"handlers": ["default"], "level": level.upper(), "propagate": False},
            "uvicorn.error": {"level": level.upper()},
            "uvicorn.access": {
                "handlers": ["access"],
                "level": level.upper(),
                "propagate": False,
            },
        },
    }
