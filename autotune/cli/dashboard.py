"""`autotune dashboard`: Optuna's dashboard on the study's storage, for this machine only."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.cli.options import Storage

__all__ = ["command"]


def command(
    storage: Storage = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = 8080,
) -> None:
    """Serve Optuna's dashboard on 127.0.0.1.

    It can delete studies and has no login, so it listens on the loopback address only; what it
    deletes is Optuna's, the measurements in our own tables stay.

    Example: autotune dashboard --port 8080
    """
    from autotune.dashboard import serve

    serve(storage, port=port)
