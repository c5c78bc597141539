"""Every constraint that a definition may name: those of the shipped engines and of plug-ins."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from autotune import ddtree, eagle
from autotune.space import Constraint

__all__ = ["known_constraints"]


def known_constraints() -> Mapping[str, Constraint]:
    """Constraints by name."""
    return MappingProxyType({**ddtree.CONSTRAINTS, **eagle.CONSTRAINTS})
