"""`autotune init`: from a live unit to the two files of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.options import Json, print_json

__all__ = ["command"]


def command(
    host: Annotated[str, typer.Option("--host", help="ssh name of the host; `local` is this one.")],
    unit: Annotated[str, typer.Option("--unit", help="The systemd unit that runs the engine.")],
    name: Annotated[
        str, typer.Option("--name", help="Name of the study; else the unit's.", show_default=False)
    ] = "",
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            help="Name of the engine; else every installed one is asked.",
            show_default=False,
        ),
    ] = "",
    ssh_config: Annotated[
        str,
        typer.Option(
            "--ssh-config",
            help="Read it instead of your own ssh configuration.",
            show_default=False,
        ),
    ] = "",
    api_key_env: Annotated[
        str,
        typer.Option(
            "--api-key-env", help="Variable that holds the server's API key.", show_default=False
        ),
    ] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Replace definitions of this name.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Read a live unit and write search_spaces/NAME.toml and objectives/NAME.toml.

    Every installed engine is asked whether the unit's command line is its own.
    What runs today becomes the reference; ranges come from the engine's rules, with reasons.
    Nothing is changed on the host. `autotune check --study NAME` accepts the files as they are.

    Example: autotune init --host gpu-a --unit llm.service
    """
    from autotune.initialising import write_definitions
    from autotune.space import value_to_file

    written = write_definitions(
        host,
        unit,
        folder=Path(),
        name=name,
        engine=engine,
        ssh_config=ssh_config,
        api_key_env=api_key_env,
        force=force,
    )
    drafted = written.drafted
    if as_json:
        print_json(
            {
                "study": drafted.name,
                "engine": drafted.engine.name,
                "algorithm": drafted.algorithm.name,
                "deployed": drafted.present,
                "search_space": str(written.study_path),
                "objective": str(written.objective_path),
                "notes": list(drafted.left_out),
            }
        )
        return
    typer.echo(f"{host}: {unit} runs {drafted.algorithm.name}, {drafted.algorithm.title}")
    if written.silent:
        typer.echo(f"  the server could not be asked: {written.silent}")
    for parameter, value in drafted.present.items():
        typer.echo(f"  {parameter}: {value_to_file(value)} today")
    for sentence in drafted.left_out:
        typer.echo(f"  note: {sentence}")
    typer.echo(f"wrote {written.study_path} and {written.objective_path}")
    typer.echo(f"next: autotune check --study {drafted.name}")
