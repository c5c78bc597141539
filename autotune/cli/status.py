"""`autotune status`: where a study stands."""

from __future__ import annotations

from autotune.cli.options import Json, Storage, Study, print_json

__all__ = ["command"]


def command(study: Study, storage: Storage = None, as_json: Json = False) -> None:
    """Show where a study stands: trials by state, hosts, best so far, verdict.

    Example: autotune status --study demo
    """
    from autotune.cli.tables import print_status
    from autotune.reading import load_stored
    from autotune.views import status_view

    view = status_view(load_stored(study, storage))
    print_json(view) if as_json else print_status(view)
