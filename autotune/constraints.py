"""Every constraint that a definition may name: those of the shipped engines and of plug-ins.

A plug-in is an installed package with entry points of the group `autotune.constraints`, each a
`Constraint`; it cannot replace a shipped one.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

from autotune import ddtree, eagle
from autotune.errors import SearchSpaceError
from autotune.space import Constraint

__all__ = ["GROUP", "known_constraints"]

GROUP = "autotune.constraints"


def known_constraints() -> Mapping[str, Constraint]:
    """Constraints by name.

    Raises:
        SearchSpaceError: A plug-in cannot be loaded, or takes a name that is taken.
    """
    known = {**ddtree.CONSTRAINTS, **eagle.CONSTRAINTS}
    for point in entry_points(group=GROUP):
        rule = _loaded(point)
        if rule.name in known:
            raise SearchSpaceError(
                f"plug-in {point.value} names its constraint {rule.name!r}, which is taken",
                hint="give it another name, or remove the package",
            )
        known[rule.name] = rule
    return MappingProxyType(known)


def _loaded(point: EntryPoint) -> Constraint:
    try:
        rule = point.load()
    except (ImportError, AttributeError) as error:
        raise SearchSpaceError(
            f"plug-in {point.name} = {point.value!r} of {GROUP} cannot be loaded: {error}",
            hint="install its package anew, or remove it",
        ) from error
    if not isinstance(rule, Constraint):
        raise SearchSpaceError(
            f"plug-in {point.value!r} of {GROUP} is no autotune.space.Constraint",
            hint="its entry point must name one",
        )
    return rule
