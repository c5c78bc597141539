"""`autotune`, standing still at one point of its way until it is told to go on.

    python -m benchmarks.fault_drill.gated POINT REACHED_FD GO_FD run --study ...

At the point one byte is written to REACHED_FD and one is awaited from GO_FD; a closed GO_FD counts
as one.  Only the thread that walks stands still: the heartbeat goes on, as under a slow load.  The
point is passed once, in the first start of a trial: a run that resumes measures its reference
first, and what a fault does to that says nothing about trials.  Everything else is the product,
called as its own command line.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from autotune.audience import Watcher
from autotune.cli.app import main
from autotune.cli.live import Live
from autotune.config import StudyConfig
from autotune.repository import Repository
from autotune.stored import Role
from autotune.study import TrialStudy
from autotune.systemd.agent import Agent
from autotune.trial import Phase, TrialSpec
from benchmarks.fault_drill.points import Point

__all__ = ["Gate", "hold"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

_VERBS = {Point.APPLY: "apply", Point.STOP: "stop", Point.START: "start", Point.RESTORE: "release"}
"""Points that are passed when the host's agent has answered one of its verbs."""

_PHASES = {Point.PROOF: "proof", Point.BUCKET: "bucket", Point.EVAL: "coding"}
"""Points that a run announces to its live view."""


class Gate:
    """Says that the point is reached, waits to be opened, and stays open.

    Before it is armed everybody passes.

    Args:
        reached_fd: Written to when the point is reached.
        go_fd: Read from until the gate may open.
    """

    def __init__(self, reached_fd: int, go_fd: int) -> None:
        self._reached_fd, self._go_fd = reached_fd, go_fd
        self._armed = self._passed = False

    def arm(self) -> None:
        """The start whose phases count begins."""
        self._armed = True

    def stand(self) -> None:
        if self._passed or not self._armed:
            return
        self._passed = True
        os.write(self._reached_fd, b"!")
        os.read(self._go_fd, 1)


def hold(point: Point, gate: Gate) -> None:
    """Make this process stand at the gate when a trial of its run reaches the point."""
    _at_phase(point, gate)
    if point in _VERBS:
        _after_verb(_VERBS[point], gate)
    elif point is Point.SAVE:
        setattr(Repository, "end_start", _before(Repository.end_start, gate))  # noqa: B010
    elif point is Point.TELL:
        setattr(TrialStudy, "tell_complete", _before(TrialStudy.tell_complete, gate))  # noqa: B010


def _before(method: Callable[_P, _T], gate: Gate) -> Callable[_P, _T]:
    @functools.wraps(method)
    def gated(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        gate.stand()
        return method(*args, **kwargs)

    return gated


def _after_verb(wanted: str, gate: Gate) -> None:
    call = Agent.call

    @functools.wraps(call)
    def gated(self: Agent, verb: str, *words: str, **options: Any) -> bytes:
        answer = call(self, verb, *words, **options)
        if verb == wanted:
            gate.stand()
        return answer

    setattr(Agent, "call", gated)  # noqa: B010


def _at_phase(point: Point, gate: Gate) -> None:
    watcher_of = Live.watcher

    @functools.wraps(watcher_of)
    def gated(self: Live, config: StudyConfig) -> Watcher:
        watcher = watcher_of(self, config)

        def started(spec: TrialSpec) -> None:
            if spec.role == Role.SEARCH:
                gate.arm()
            watcher.started(spec)

        def phase(spec: TrialSpec, phase: Phase) -> None:
            watcher.phase(spec, phase)
            # The first word of a load comes before its start; the next ones are the server's.
            loads = point is Point.LOAD and phase.name == "load" and phase.detail
            if loads or _PHASES.get(point) == phase.name:
                gate.stand()

        return replace(watcher, started=started, phase=phase)

    setattr(Live, "watcher", gated)  # noqa: B010


if __name__ == "__main__":
    name, reached, go = sys.argv[1:4]
    hold(Point(name), Gate(int(reached), int(go)))
    sys.argv = ["autotune", *sys.argv[4:]]
    main()
