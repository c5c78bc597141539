"""Values that a definition calls doubtful, with its reasons.  Pure; from the stored definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.parameter import ParameterValue, Values, value_to_file

__all__ = ["doubts", "key_of"]


def key_of(value: ParameterValue) -> str:
    """How a value is written as a key of `doubtful`: 4096 as "4096", left out as "none"."""
    return str(value_to_file(value))


def doubts(definition: Mapping[str, Any], values: Values) -> tuple[str, ...]:
    """One sentence for each doubtful value of a point, in the order of the definition."""
    found = []
    for name, section in definition.get("parameters", {}).items():
        reason = section.get("doubtful", {}).get(key_of(values.get(name)))
        if reason and name in values:
            found.append(f"{name} {key_of(values[name])} is doubtful: {reason}")
    return tuple(found)
