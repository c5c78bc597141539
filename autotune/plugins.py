"""Parts that installed packages add by entry point: one mechanism for every group.

=======================  =========================================  =========================
group                    what the entry point names                 where a study names it
=======================  =========================================  =========================
`autotune.constraints`   a `Constraint`, called by its own name     `[study] constraints`
`autotune.samplers`      (SearchSpace, seed) -> Optuna's sampler    `[study] sampler`
`autotune.supervisors`   (HostPlan) -> `Supervisor`                 `[service] supervisor`
`autotune.objectives`    ({Bucket: tok/s}) -> tok/s                 `[score] aggregate`
`autotune.engines`       an `autotune.engines.Engine`               `[service] engine`
=======================  =========================================  =========================

A plug-in is loaded when a study names it, and cannot take the name of a shipped part.  Each process
loads it for itself: with Ray on other machines its package must be installed there too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from autotune.errors import ConfigError

__all__ = ["Group", "function", "loaded", "names", "points", "require_known"]


class Group(StrEnum):
    """Entry point groups, see above."""

    CONSTRAINTS = "autotune.constraints"
    SAMPLERS = "autotune.samplers"
    SUPERVISORS = "autotune.supervisors"
    OBJECTIVES = "autotune.objectives"
    ENGINES = "autotune.engines"


def points(group: Group) -> tuple[EntryPoint, ...]:
    """The entry points of a group, by name; nothing is loaded."""
    return tuple(sorted(entry_points(group=group), key=lambda point: (point.name, point.value)))


def names(group: Group) -> tuple[str, ...]:
    """Names that plug-ins of a group go by; nothing is loaded."""
    return tuple(point.name for point in points(group))


def require_known(name: str, group: Group, shipped: Collection[str]) -> str:
    """The name, when it is that of a shipped part or of a plug-in.

    Raises:
        ValueError: It is neither, or more than one part has it.
    """
    given = names(group)
    if (name in shipped) + given.count(name) > 1:
        raise ValueError(
            f"{name!r} is taken more than once: a plug-in of {group} needs its own name"
        )
    if name not in shipped and name not in given:
        known = ", ".join(repr(one) for one in (*shipped, *given))
        raise ValueError(f"{name!r} is none of {known}; packages add more by {group}")
    return name


def function(group: Group, name: str) -> Callable[..., Any]:
    """The function of a plug-in.

    Raises:
        ConfigError: There is none, it cannot be loaded, or it cannot be called.
    """
    found = [point for point in points(group) if point.name == name]
    if not found:
        raise ConfigError(
            f"no installed package gives {name!r} in {group}", hint="install the package that does"
        )
    part = loaded(found[0])
    if not callable(part):
        raise ConfigError(
            f"plug-in {found[0].value!r} of {group} cannot be called",
            hint="its entry point must name a function or a class",
        )
    return part


def loaded(point: EntryPoint) -> object:
    """What an entry point names.

    Raises:
        ConfigError: It cannot be loaded.
    """
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"plug-in {point.name} = {point.value!r} of {point.group} cannot be loaded: {error}",
            hint="install its package anew, or remove it",
        ) from error
