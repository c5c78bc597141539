"""What a worker does with one start: open the host, run the walk, hand back a plain value."""

from __future__ import annotations

from functools import partial

from autotune.engines import EngineServer, open_server
from autotune.hosts import open_supervisor
from autotune.measurement import StartRecord
from autotune.trial import Notes, Tools, TrialSpec, ending_kept, execute
from autotune.workbench import ServerBench

__all__ = [
    "open_engine",
    "work",
]


def work(spec: TrialSpec, notes: Notes) -> StartRecord:
    """Make and measure one start on its host; an unreachable host is an ending too."""
    bench = partial(ServerBench, on_requests=notes.on_requests)
    with ending_kept(notes), open_supervisor(spec.plan) as supervisor:
        execute(spec, Tools(supervisor, open_engine, bench), notes)
    return notes.record


def open_engine(spec: TrialSpec) -> EngineServer:
    """The server of a start, with its keys."""
    return open_server(spec.plan)
