"""The phases of a run, and the point within each at which the drill holds it."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Point"]


class Point(StrEnum):
    """A phase of the first trial that a run makes.

    The run is held at the first event of the phase: what the event announces has begun on the host
    or is just being written down, and nothing after it has.
    """

    APPLY = "apply"
    """The drop-in is written and systemd has reloaded; nobody has looked at it yet."""
    STOP = "stop"
    """The running service was told to stop."""
    START = "start"
    """The trial's service was told to start."""
    LOAD = "load"
    """It runs, logs, and does not listen."""
    PROOF = "proof"
    """It is ready; no link of the proof was looked at."""
    BUCKET = "bucket"
    """It is proven; the first bucket begins."""
    EVAL = "eval"
    """Every bucket is measured and saved; the coding tasks begin."""
    SAVE = "save"
    """All is measured; the score is not saved."""
    TELL = "tell"
    """The score is saved; Optuna was not told."""
    RESTORE = "restore"
    """The host was told to go back."""
