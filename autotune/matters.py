"""What a conclusion says beside its verdict, in words.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["matters"]


def matters(conclusion: Mapping[str, Any]) -> list[str]:
    """Sentences about the parameters, the best values by concurrency, and what more would bring.

    Args:
        conclusion: As it is stored; older ones have none of this.
    """
    findings = conclusion.get("findings") or {}
    lines = [f"{one['sentence']}." for one in findings.get("parameters", ())]
    schedule = findings.get("concurrencies", ())
    if len({str(one["parameters"]) for one in schedule}) > 1:
        for one in schedule:
            point = ", ".join(f"{name} {value}" for name, value in one["parameters"].items())
            lines.append(
                f"Best at {one['concurrency']} requests at once: {point} "
                f"({100 * one['expected_gain']:+.1f} % expected)."
            )
    outlook = conclusion.get("outlook")
    return [*lines, *([f"{outlook[:1].upper()}{outlook[1:]}."] if outlook else [])]
