"""`autotune run`: tune until the budget is spent, name a winner, leave every host as found."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from autotune.cli.options import Host, Json, Storage, Study

__all__ = ["Executor", "command"]


class Executor(StrEnum):
    AUTO = "auto"
    RAY = "ray"
    SERIAL = "serial"


def command(
    study: Study,
    storage: Storage = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials in all, finished ones included.")
    ] = None,
    hours: Annotated[float | None, typer.Option(min=0.001, help="Hours of this run.")] = None,
    host: Host = None,
    executor: Annotated[
        Executor, typer.Option(help="auto: ray when there is more than one host.")
    ] = Executor.AUTO,
    ray_address: Annotated[str, typer.Option(help="Ray cluster to join instead of an own.")] = "",
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check everything, say what would run, change nothing."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a study until its budget is spent; started again, it goes on.

    Example: autotune run --study demo
    """
    from autotune.reading import find_study

    config = find_study(study, storage).replace_budget(
        trials=trials, hours=hours, hosts=tuple(host or ())
    )
    if dry_run:
        from autotune.cli.check import show

        show(config, storage, as_json=as_json, plan=True)
        return
    # Only now: a mistake in the file is told before anything heavy is imported.
    from autotune.cli.live import view
    from autotune.running import run_study

    with view(as_json=as_json) as live:
        run_study(
            config,
            storage=storage,
            executor=executor,
            ray_address=ray_address,
            live=live,
        )
