"""How many files this process may have open: each stream of a bucket is a connection.

A server whose client runs out of descriptors looks like one that refuses connections.
"""

from __future__ import annotations

import resource

from autotune.errors import StudyError

__all__ = ["BESIDES_STREAMS", "allow_streams"]

BESIDES_STREAMS = 256
"""Descriptors for everything else: databases, ssh to every host, logs, pipes of load processes."""

# Programs that close every descriptor they may have, one by one, take long under a higher limit.
_PLENTY = 1 << 16


def allow_streams(concurrency: int) -> str:
    """Raise this process's limit of open files as far as the system allows, to 65536 or what is
    needed; children inherit it.

    Args:
        concurrency: Streams at once of the largest bucket.

    Returns:
        One sentence on what there is.

    Raises:
        StudyError: The system allows fewer than so many streams need.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = concurrency + BESIDES_STREAMS
    endless = hard == resource.RLIM_INFINITY
    wanted = max(needed, _PLENTY) if endless else min(hard, max(needed, _PLENTY))
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if not endless and hard < needed:
        raise StudyError(
            f"{concurrency} streams at once need {needed} open files, this machine lets a process "
            f"have {hard}",
            hint=f"raise the hard limit of open files to {needed} (`ulimit -Hn`, LimitNOFILE= of a "
            "systemd unit), or drop the bucket",
        )
    allowed = "any number" if endless else str(hard)
    return f"{concurrency} streams at once need {needed} open files, {allowed} are allowed"
