"""Every constraint that a definition may name: those of the shipped engines and of plug-ins.

A plug-in is an installed package with entry points of the group `autotune.constraints`, each a
`Constraint`; it cannot replace a shipped one.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from types import MappingProxyType

from autotune import ddtree, eagle
from autotune.errors import SearchSpaceError
from autotune.plugins import Group, loaded, points
from autotune.space import Constraint

__all__ = ["known_constraints"]


def known_constraints() -> Mapping[str, Constraint]:
    """Constraints by name.

    Raises:
        ConfigError: A plug-in cannot be loaded, or takes a name that is taken.
    """
    known = {**ddtree.CONSTRAINTS, **eagle.CONSTRAINTS}
    for point in points(Group.CONSTRAINTS):
        rule = _loaded(point)
        if rule.name in known:
            raise SearchSpaceError(
                f"plug-in {point.value} names its constraint {rule.name!r}, which is taken",
                hint="give it another name, or remove the package",
            )
        known[rule.name] = rule
    return MappingProxyType(known)


def _loaded(point: EntryPoint) -> Constraint:
    rule = loaded(point)
    if not isinstance(rule, Constraint):
        raise SearchSpaceError(
            f"plug-in {point.value!r} of {Group.CONSTRAINTS} is no autotune.space.Constraint",
            hint="its entry point must name one",
        )
    return rule
