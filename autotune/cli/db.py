"""`autotune db`: the schema of the storage."""

from __future__ import annotations

import typer

from autotune.cli.options import Storage

__all__ = [
    "app",
    "db",
    "upgrade",
]

app = typer.Typer(help="The schema of the storage.", rich_markup_mode=None)


@app.callback()
def db() -> None:
    """The schema of the storage."""


@app.command()
def upgrade(storage: Storage = None) -> None:
    """Bring the tables to the schema of this version; measurements are kept.

    Example: autotune db upgrade
    """
    from autotune.storage import storage_url, upgrade_database

    upgrade_database(storage_url(storage))
    typer.echo("the tables are up to date")
