"""Optuna's dashboard on a storage, bound to the loopback address."""

from __future__ import annotations

import socket

from autotune.errors import HostBusy
from autotune.storage import open_engine, open_optuna, storage_url

__all__ = ["ADDRESS", "serve"]

ADDRESS = "127.0.0.1"
"""The dashboard has no login and can delete a study: no other machine may reach it."""


def serve(storage: str | None, *, port: int) -> None:
    """Serve until interrupted.

    Raises:
        StorageError: There is no such database.
        HostBusy: The port is taken.
    """
    url = storage_url(storage)
    open_engine(url, create=False).dispose()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError as error:
            raise HostBusy(
                f"port {port} of this machine is taken: {error.strerror}",
                hint="give another --port",
            ) from error
    from optuna_dashboard import run_server

    print(f"dashboard: http://{ADDRESS}:{port}/dashboard/  (Ctrl-C ends it)", flush=True)
    run_server(open_optuna(url), host=ADDRESS, port=port)
