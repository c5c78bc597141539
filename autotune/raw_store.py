"""Raw request records: one Parquet file for each start, beside the database, within a size budget.

Nothing is computed from them: scores, reports and exports read the database alone.  They are for
whoever doubts a number: every request with the time of each of its chunks.

    trial, host, bucket   which start and which cell of the matrix
    measured              0 for the first time that the bucket was measured on the start, 1 for ...
    sent_s, ended_s       seconds since the first request of the bucket
    ttft_ms, tpot_ms      as in docs/metrics.md; null without
    chunk_ms              when each chunk with tokens was read, ms since the request was sent
    chunk_tokens          tokens of each chunk

and the fields of `autotune.benchmark.requests.RequestTimings` under their own names.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy.engine import make_url

from autotune.raw import RawRequests

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MB", "RawFile", "RawStore", "raw_folder", "surplus"]

log = logging.getLogger(__name__)

MB = 1_000_000


@dataclass(frozen=True, slots=True, order=True)
class RawFile:
    """One file: when it was written, Unix seconds, its path and its size in bytes."""

    at_s: float
    path: Path
    size: int = field(compare=False)


def surplus(
    files: Sequence[RawFile], *, most_bytes: float | None, before_s: float | None
) -> list[RawFile]:
    """Which files go: all that are older than a moment, then the oldest beyond a size.  Pure."""
    ordered = sorted(files)
    old = [one for one in ordered if before_s is not None and one.at_s < before_s]
    left = ordered[len(old) :]
    too_much = sum(one.size for one in left) - (most_bytes if most_bytes is not None else np.inf)
    for one in left:
        if too_much <= 0:
            break
        too_much -= one.size
        old.append(one)
    return old


def raw_folder(url: str, study: str, *, data: Path) -> Path:
    """Where the records of a study lie on this machine: beside a SQLite file, else below `data`."""
    parsed = make_url(url)
    if parsed.drivername.startswith("sqlite"):
        path = Path(str(parsed.database)).absolute()
        return path.with_name(f"{path.name}-requests") / study
    place = hashlib.sha256(parsed.render_as_string(hide_password=True).encode()).hexdigest()[:8]
    return data / "requests" / place / study


class RawStore:
    """The records of one study on this machine.

    Args:
        most_bytes: What all files together may take; the oldest go first.  0 keeps none.
    """

    def __init__(self, folder: Path, *, most_bytes: float) -> None:
        self.folder = folder
        self._most_bytes = most_bytes

    def keep(
        self, number: int, *, host: str, claim_id: str, measured: Sequence[RawRequests]
    ) -> None:
        """Write what one start gave; a disk that refuses costs these records and nothing else."""
        if not measured or self._most_bytes <= 0:
            return
        import pyarrow as pa
        from pyarrow import parquet

        path = self.folder / f"{number:06d}-{claim_id}.parquet"
        part = path.with_suffix(".part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            parquet.write_table(_table(number, host, measured), part, compression="zstd")
            os.replace(part, path)
            self.remove(surplus(self.files(), most_bytes=self._most_bytes, before_s=None))
        except (OSError, pa.ArrowException) as error:
            log.warning("the raw requests of trial %d were not kept: %s", number, error)
            with suppress(
                OSError
            ):  # half a file would fill a full disk for ever: no budget sees it
                part.unlink(missing_ok=True)

    def files(self) -> list[RawFile]:
        """What is there, oldest first; a file that goes meanwhile is left out."""
        found = []
        for path in self.folder.glob("*.parquet"):
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue
            found.append(RawFile(stat.st_mtime, path, stat.st_size))
        return sorted(found)

    def remove(self, files: Sequence[RawFile]) -> None:
        """Delete these files.

        Raises:
            OSError: One of them cannot be deleted.
        """
        for one in files:
            one.path.unlink(missing_ok=True)

    def prune(
        self, *, most_bytes: float | None, older_than_s: float | None, dry_run: bool
    ) -> tuple[list[RawFile], list[RawFile]]:
        """Delete what is too old or too much.

        Returns:
            The files that went, or would go, and those that stay.

        Raises:
            OSError: A file cannot be deleted.
        """
        before_s = None if older_than_s is None else time.time() - older_than_s
        files = self.files()
        gone = surplus(files, most_bytes=most_bytes, before_s=before_s)
        if not dry_run:
            self.remove(gone)
        return gone, [one for one in files if one not in gone]


def _table(number: int, host: str, measured: Sequence[RawRequests]) -> pa.Table:
    import pyarrow as pa

    types = {
        **dict.fromkeys(("sent_s", "ended_s", "ttft_ms", "tpot_ms", "unread_ms"), pa.float64()),
        **dict.fromkeys(
            ("asked_tokens", "prompt_tokens", "completion_tokens", "cached_tokens"), pa.int64()
        ),
        **dict.fromkeys(("outcome", "failure", "message", "finish_reason"), pa.string()),
        "live": pa.bool_(),
    }
    tables, times = [], dict[str, int]()
    for one in measured:
        rows = len(one.chunks)
        again = times[one.bucket] = times.get(one.bucket, -1) + 1
        offsets = np.concatenate([[0], np.cumsum(one.chunks)]).astype(np.int32)
        columns = {
            "trial": pa.array([number] * rows, pa.int64()),
            "host": pa.array([host] * rows, pa.string()),
            "bucket": pa.array([one.bucket] * rows, pa.string()),
            "measured": pa.array([again] * rows, pa.int32()),
            **{name: pa.array(one.columns[name], kind) for name, kind in types.items()},
            "chunk_ms": pa.ListArray.from_arrays(offsets, pa.array(one.chunk_ms)),
            "chunk_tokens": pa.ListArray.from_arrays(offsets, pa.array(one.chunk_tokens)),
        }
        tables.append(pa.table(columns))
    return pa.concat_tables(tables)
