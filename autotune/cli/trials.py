"""`autotune trials`: every trial of a study with its buckets, proof and coding answers."""

from __future__ import annotations

from autotune.cli.options import Json, Storage, Study, print_json

__all__ = ["command"]


def command(study: Study, storage: Storage = None, as_json: Json = False) -> None:
    """List the trials of a study.

    Example: autotune trials --study demo
    """
    from autotune.cli.tables import print_trials
    from autotune.reading import load_stored
    from autotune.views import trial_views

    stored = load_stored(study, storage, evidence=as_json, raw=False)
    if as_json:
        print_json(trial_views(stored))
    else:
        print_trials(stored)
