"""`autotune status`: where a study stands, or which studies there are."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.cli.options import Json, Storage, print_json

__all__ = ["command"]


def command(
    study: Annotated[
        str | None,
        typer.Option("--study", help="Name of a stored study or path of its file; else all."),
    ] = None,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Show where a study stands: trials by state, hosts, best so far, verdict.

    Without --study, one line for each study of the storage.

    Example: autotune status --study demo
    """
    from autotune.cli.tables import print_status, print_studies
    from autotune.reading import load_all, load_stored
    from autotune.views import status_view, studies_view

    if study is None:
        studies = studies_view(load_all(storage))
        print_json(studies) if as_json else print_studies(studies)
        return
    view = status_view(load_stored(study, storage, evidence=False))
    print_json(view) if as_json else print_status(view)
