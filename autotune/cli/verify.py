"""`autotune verify`: what is meant to run against what runs."""

from __future__ import annotations

from autotune.cli.options import Host, Json, Storage, Study, print_json

__all__ = ["command"]


def command(
    study: Study, storage: Storage = None, host: Host = None, as_json: Json = False
) -> None:
    """Compare the service's definition with the running process and the engine's own report.

    Ends with 1 when they differ. Nothing is changed.

    Example: autotune verify --study kimi-k26
    """
    from dataclasses import asdict

    from rich.table import Table

    from autotune.cli.console import Console
    from autotune.errors import NotApplied
    from autotune.hosts import open_supervisor
    from autotune.opening import plan_host
    from autotune.reading import find_study
    from autotune.verifying import verify_host

    config = find_study(study, storage).replace_budget(
        trials=None, hours=None, hosts=tuple(host or ())
    )
    rows = []
    for name in config.service.hosts:
        plan = plan_host(config, name)
        with open_supervisor(plan) as supervisor:
            rows += verify_host(plan, supervisor, config.space.parameters)
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        table = Table()
        for column in ("host", "what", "intended", "process", "engine", ""):
            table.add_column(column)
        for row in rows:
            mark = "same" if row.ok else "DIFFERS"
            table.add_row(
                row.host, row.what, row.intended, row.process or "", row.engine or "", mark
            )
        Console().print(table)
    differing = [row for row in rows if not row.ok]
    if differing:
        first = differing[0]
        raise NotApplied(
            f"{first.host}: {first.what} is meant to be {first.intended}, "
            f"but process {first.process}, engine {first.engine or 'not asked'}"
        )
