"""`autotune run`: tune until the budget is spent, name a winner, leave every host as found."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import Host, Json, Storage, Study

if TYPE_CHECKING:
    from autotune.metrics import Figures

__all__ = ["Executor", "OnStop", "command", "finishing_signals"]


class Executor(StrEnum):
    """What runs the trials; `auto`: Ray with several hosts, this process with one."""

    AUTO = "auto"
    RAY = "ray"
    SERIAL = "serial"


class OnStop(StrEnum):
    """What becomes of the trial in flight when the run is stopped."""

    AUTO = "auto"
    FINISH = "finish"
    ABANDON = "abandon"


def command(
    study: Study,
    storage: Storage = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials in all, finished ones included.")
    ] = None,
    hours: Annotated[float | None, typer.Option(min=0.001, help="Hours of this run.")] = None,
    host: Host = None,
    host_label: Annotated[
        list[str] | None,
        typer.Option(help="NAME=LABEL: what the study calls a host; may be repeated."),
    ] = None,
    executor: Annotated[
        Executor, typer.Option(help="auto: ray when there is more than one host.")
    ] = Executor.AUTO,
    ray_address: Annotated[str, typer.Option(help="Ray cluster to join instead of an own.")] = "",
    on_stop: Annotated[
        OnStop,
        typer.Option(
            help="What Ctrl-C and SIGTERM do with the trials under way; the second abandons them. "
            "auto: finish for Ctrl-C at a terminal, else abandon."
        ),
    ] = OnStop.AUTO,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Serve Prometheus metrics on 127.0.0.1 at this port."),
    ] = None,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Log JSON, one object a line.")
    ] = False,
    earlier: Annotated[
        str,
        typer.Option("--from", help="A stored study whose trials the search begins with."),
    ] = "",
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check everything, say what would run, change nothing."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a study until its budget is spent; started again, it goes on.

    Example: autotune run --study demo
    """
    # Small matrices: threads of linear algebra cost ten times what they bring on a busy machine.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from autotune.reading import find_study

    config = find_study(study, storage).replace_budget(
        trials=trials, hours=hours, hosts=tuple(host or ())
    )
    config = config.label_hosts(tuple(host_label or ()))
    if dry_run:
        from autotune.cli.check import show
        from autotune.reading import load_stored

        if earlier:
            load_stored(earlier, storage, evidence=False)  # told when there is none

        show(config, storage, as_json=as_json, plan=True)
        return
    # Only now: a mistake in the file is told before anything heavy is imported.
    from contextlib import ExitStack

    from autotune.cli.live import view
    from autotune.cli.logs import log_as_json
    from autotune.metrics import serve_metrics
    from autotune.running import run_study
    from autotune.stopping import Stop

    if log_json:
        log_as_json()
    looks: list[Callable[[], Figures]] = []
    with ExitStack() as around:
        if metrics_port is not None:
            around.enter_context(serve_metrics(metrics_port, lambda: looks[0]() if looks else None))
        live = around.enter_context(view(as_json=as_json))
        try:
            run_study(
                config,
                storage=storage,
                executor=executor,
                ray_address=ray_address,
                live=live,
                stop=Stop(finish=finishing_signals(on_stop)),
                watch=looks.append,
                earlier=earlier,
            )
        except KeyboardInterrupt:
            live.left(config.name, stopped=True)
            raise


def finishing_signals(on_stop: OnStop) -> tuple[signal.Signals, ...]:
    """The signals that let the trials under way end."""
    match on_stop:
        case OnStop.FINISH:
            return (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        case OnStop.AUTO if sys.stdin.isatty():
            return (signal.SIGINT,)
    return ()
