"""Results on this machine's own disk until the database has them.

One file for each ended start, named after its claim and written whole before anything else is done
with it: a database that is away, and a driver that dies meanwhile, lose no measurement.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from autotune.errors import StorageError
from autotune.measurement import StartRecord
from autotune.objective import Score

__all__ = ["Spool", "Spooled", "spool_folder"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Spooled:
    """How one start ended, and its score."""

    claim_id: str
    record: StartRecord
    score: Score | None


_FORM = TypeAdapter(Spooled)


def spool_folder(data: Path, url: str) -> Path:
    """Where the results of a study wait for one database, below the folder of its data."""
    return data / hashlib.sha256(url.encode()).hexdigest()[:8]


class Spool:
    """The folder of one study's waiting results."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, entry: Spooled) -> None:
        """Write one result durably.

        Raises:
            StorageError: This machine's disk refuses.
        """
        path = self._path(entry.claim_id)
        text = json.dumps(_FORM.dump_python(entry, mode="json"))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(".new")
            with new.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError as error:
            raise StorageError(f"a result cannot be written to {path}: {error}") from error

    def remove(self, claim_id: str) -> None:
        """The database has this result."""
        with contextlib.suppress(FileNotFoundError):
            self._path(claim_id).unlink()

    def waiting(self) -> Iterator[Spooled]:
        """Results that an earlier run could not save; what cannot be read is named and kept."""
        for path in sorted(self._folder.glob("*.json")):
            try:
                yield _FORM.validate_python(json.loads(path.read_text("utf-8")))
            except (OSError, ValueError, ValidationError) as error:
                log.warning("a spooled result cannot be read: %s: %s", path, error)

    def _path(self, claim_id: str) -> Path:
        return self._folder / f"{claim_id}.json"
