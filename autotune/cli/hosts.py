"""`autotune hosts`: which hosts a study has, and what is wanted of them while it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.cli.options import Json, Storage, Study, print_json

__all__ = [
    "add",
    "app",
    "drain",
    "list_",
]

app = typer.Typer(help="Hosts of a study: list, drain, add.")

Name = Annotated[str, typer.Argument(help="Host, as the study calls it.", show_default=False)]


@app.command("list")
def list_(study: Study, storage: Storage = None, as_json: Json = False) -> None:
    """List the hosts of a study: state, what is wanted, who has them.

    Example: autotune hosts list --study kimi-k26
    """
    from autotune.cli.tables import print_hosts
    from autotune.reading import load_stored
    from autotune.views import status_view

    hosts = status_view(load_stored(study, storage, evidence=False))["hosts"]
    print_json(hosts) if as_json else print_hosts(hosts)


@app.command()
def drain(host: Name, study: Study, storage: Storage = None) -> None:
    """Use a host no more: after the start that runs on it, it is restored at once.

    Example: autotune hosts drain gpu-a --study kimi-k26
    """
    from autotune.stored import Wanted

    if _want(host, study, storage, Wanted.DRAIN):
        typer.echo(f"{host} will be restored after the start that runs on it")
    else:
        typer.echo(f"{host} was never used and will not be")


@app.command()
def add(host: Name, study: Study, storage: Storage = None) -> None:
    """Use a host while the study runs: a new one, or one that was drained.

    Example: autotune hosts add gpu-c --study kimi-k26
    """
    from autotune.stored import Wanted

    _want(host, study, storage, Wanted.ADD)
    typer.echo(f"{host} will be used by a run of the study that is free to")


def _want(host: str, study: str, storage: str | None, wanted: str) -> bool:
    """Say what is wanted of a host; whether a run has ever had it."""
    from autotune.errors import ConfigError
    from autotune.reading import open_stored, study_name
    from autotune.roster import Roster
    from autotune.stored import Wanted

    with open_stored(storage) as repository:
        roster = Roster(repository, study_name(study))
        known = roster.wanted()
        if wanted == Wanted.DRAIN and host not in known:
            raise ConfigError(
                f"study {study_name(study)!r} has no host {host!r}",
                hint=f"it has: {', '.join(known) or 'none yet'}",
            )
        return roster.want(host, Wanted(wanted))
