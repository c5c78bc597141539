"""The log as JSON: one object a line, for collectors."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

__all__ = ["JsonLines", "log_as_json"]


class JsonLines(logging.Formatter):
    """`{"time": ..., "level": ..., "logger": ..., "message": ...}`; times are UTC, ISO 8601."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_as_json() -> None:
    """Every handler of this process writes JSON from now on."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonLines())
