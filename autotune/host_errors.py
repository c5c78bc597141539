"""What went wrong at the hosts of a run, as errors of ours."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from autotune.errors import AutotuneError, RestoreFailed, TargetError

__all__ = ["reason_of", "unrestored"]

log = logging.getLogger(__name__)


def reason_of(label: str, error: BaseException) -> AutotuneError:
    """Why a thread has failed, as an error of ours: no other host may suffer from it."""
    if isinstance(error, AutotuneError):
        return error
    if isinstance(error, OSError):  # a full disk of this machine, for example
        return TargetError(f"{label}: {error}")
    log.error("a mistake in autotune itself, at host %s", label, exc_info=error)
    return TargetError(f"{label}: {error!r}")


def unrestored(failed: Mapping[str, AutotuneError], ended: BaseException | None) -> RestoreFailed:
    """What is told at the end of a run that leaves hosts unrestored.

    Args:
        ended: What ended the run; None when it came to its end.
    """
    match ended:
        case None:
            why = []
        case KeyboardInterrupt():
            why = ["interrupted"]
        case AutotuneError():
            why = [ended.message]
        case _:
            log.error("the run has failed", exc_info=ended)
            why = [repr(ended)]
    by_itself = "the host restores itself when its timer fires; `autotune revert` does it now"
    unproven = all(isinstance(error, RestoreFailed) for error in failed.values())
    return RestoreFailed(
        "; ".join([*why, *map(str, failed.values())]), hint="" if unproven else by_itself
    )
