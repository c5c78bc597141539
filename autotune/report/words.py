"""Numbers, times and foreign text as the report prints them.  Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

__all__ = [
    "clock",
    "count",
    "duration",
    "gpu_time",
    "gpu_unit",
    "listed",
    "number",
    "percent",
    "plain",
    "point",
    "sentence",
    "share",
]

NOTHING = "–"
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")
# Controls, and the marks that turn the direction of text: they could make a line read as another.
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def plain(text: str, *, most: int = 0) -> str:
    """Text of unknown origin without terminal codes; unprintable characters become U+FFFD.

    Args:
        most: Characters to keep; 0 keeps all.
    """
    clean = text
    if not text.isprintable():  # most is, and a report has a million texts
        clean = _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", _ANSI.sub("", text))
    return clean if not most or len(clean) <= most else clean[: most - 1] + "…"


def number(value: float | None, digits: int = 1) -> str:
    """`1 234.5`; a dash where there is no number."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return _minus(f"{value:,.{digits}f}".replace(",", "\N{NARROW NO-BREAK SPACE}"))


def percent(ratio: float | None, *, sign: bool = True) -> str:
    """A ratio to the reference as its difference: 1.123 is `+12.3 %`."""
    if ratio is None or not math.isfinite(ratio):
        return NOTHING
    return _minus(f"{100 * (ratio - 1):{'+' if sign else ''}.1f}\N{NO-BREAK SPACE}%")


def share(part: float) -> str:
    """0.12 is `12 %`."""
    return f"{100 * part:.3g}\N{NO-BREAK SPACE}%"


def duration(seconds: float | None) -> str:
    """`42 s`, `6 min 10 s`, `3 h 05 min`."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def gpu_unit(gpu_hours: float) -> tuple[float, str]:
    """GPU-hours of the unit in which an amount is told, and its name."""
    return (1.0, "GPU-hours") if gpu_hours >= 1 else (1 / 60, "GPU-minutes")


def gpu_time(gpu_hours: float) -> str:
    """`12.3 GPU-hours`, `4.1 GPU-minutes`."""
    unit, name = gpu_unit(gpu_hours)
    return f"{number(gpu_hours / unit, 1)} {name}"


def clock(at_s: float | None) -> str:
    """UTC, to the second."""
    if at_s is None or not math.isfinite(at_s) or at_s <= 0:
        return NOTHING
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def count(n: int, one: str, many: str = "") -> str:
    """`1 trial`, `2 trials`."""
    return f"{n} {one if n == 1 else many or one + 's'}"


def listed(words: Iterable[str], *, most: int = 12) -> str:
    """`a, b and c`; past `most` the rest is counted."""
    all_words = list(words)
    if len(all_words) > most:
        return f"{', '.join(all_words[:most])} and {len(all_words) - most} more"
    if len(all_words) < 2:
        return "".join(all_words)
    return f"{', '.join(all_words[:-1])} and {all_words[-1]}"


def point(parameters: Mapping[str, Any]) -> str:
    """A configuration in one line: `budget 16, topk 4, window none`."""
    return ", ".join(
        f"{plain(name)} {'none' if value is None else plain(str(value))}"
        for name, value in parameters.items()
    )


def _minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")


def sentence(text: str) -> str:
    """The text, plain, at most 400 characters and with a full stop."""
    clean = plain(text.strip(), most=400)
    return clean if clean.endswith((".", "!", "?", "…")) else f"{clean}."
