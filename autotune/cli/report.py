"""`autotune report`: one HTML file about a study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.options import Storage, Study

__all__ = ["command"]


def command(
    study: Study,
    storage: Storage = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; else STUDY-report.html.")
    ] = None,
) -> None:
    """Write one self-contained HTML file about a study.

    Example: autotune report --study demo
    """
    from autotune.reading import load_shown, open_stored, study_name
    from autotune.report.page import write_report

    with open_stored(storage) as repository:
        stored = load_shown(repository, study_name(study))
    path = output or Path(f"{stored.name}-report.html")
    write_report(stored, path)
    typer.echo(f"report: {path}")
