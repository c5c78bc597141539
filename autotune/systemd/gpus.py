"""Memory that a stopped server has not given back yet, from what `nvidia-smi` says.

The driver frees the memory of a killed process over seconds, in which the process is gone from
every list.  So what counts is the memory of a GPU that no process on it accounts for::

    unaccounted = used - sum over its processes

Other people's processes stay out of it, and what was unaccounted for while the service ran (the
driver's own) stays allowed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TypeAlias

__all__ = ["GpuRoom", "gpu_room", "occupied"]

GpuRoom: TypeAlias = Mapping[str, float]
"""For each GPU (its UUID) how much memory may be unaccounted for, MiB; empty without a tool."""

SLACK_MIB = 1500.0
"""What an idle GPU may hold: the driver with persistence mode takes 0.4 to 0.7 GiB."""


def gpu_room(text: str, *, running: bool) -> GpuRoom:
    """How much may be unaccounted for after a stop.

    Args:
        text: The agent's answer: `gpu, UUID, MIB` and `compute-apps, UUID, PID, MIB`, a line each.
        running: Whether the service ran then; of a dead one the rest may still be there.
    """
    return {
        uuid: SLACK_MIB + (max(0.0, unaccounted) if running else 0.0)
        for uuid, unaccounted in _unaccounted(text).items()
    }


def occupied(text: str, room: GpuRoom) -> str:
    """The GPUs that hold more than that, for people; "" when none does."""
    held = {
        uuid: mib for uuid, mib in _unaccounted(text).items() if uuid in room and mib > room[uuid]
    }
    return "; ".join(
        f"{mib / 1024:.1f} GiB on GPU {uuid} that no process accounts for"
        for uuid, mib in sorted(held.items())
    )


def _unaccounted(text: str) -> dict[str, float]:
    used: dict[str, float] = {}
    listed: defaultdict[str, float] = defaultdict(float)
    for line in text.splitlines():
        kind, *fields = (field.strip() for field in line.split(","))
        if kind == "gpu" and len(fields) == 2 and _is_number(fields[1]):
            used[fields[0]] = float(fields[1])
        elif kind == "compute-apps" and len(fields) == 3:
            # Of a process in another container the driver says `[N/A]`: nothing is known then.
            listed[fields[0]] += float(fields[2]) if _is_number(fields[2]) else float("inf")
    return {uuid: mib - listed[uuid] for uuid, mib in used.items()}


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()
