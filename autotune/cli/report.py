"""`autotune report`: one HTML file about a study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.options import Storage, Study
from autotune.report.formats import TableFormat

__all__ = ["command"]


def command(
    study: Study,
    storage: Storage = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; else STUDY-report.html.")
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option("--tables", help="Folder for every table as a file of its own, all digits."),
    ] = None,
    tables_format: Annotated[
        TableFormat, typer.Option("--tables-format", help="With --tables: kind of those files.")
    ] = TableFormat.CSV,
) -> None:
    """Write one self-contained HTML file about a study, and its tables as files.

    Example: autotune report --study demo
    """
    from autotune.reading import load_shown, load_stored, open_stored, study_name
    from autotune.report.page import write_report

    with open_stored(storage) as repository:
        stored = load_shown(repository, study_name(study))
    path = output or Path(f"{stored.name}-report.html")
    write_report(stored, path)
    typer.echo(f"report: {path}")
    if tables is not None:
        from autotune.report.files import write_tables

        whole = load_stored(study, storage)  # with every proof, which the page does not need
        for written in write_tables(whole, tables, tables_format):
            typer.echo(f"table: {written}")
