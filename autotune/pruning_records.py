"""Delete what is old or too much of a study's raw request records on this machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.definition_files import StudySection
from autotune.errors import ConfigError, StorageError
from autotune.opening import data_root
from autotune.raw_store import MB, RawFile, RawStore, raw_folder
from autotune.reading import open_stored, study_name
from autotune.storage import storage_url

__all__ = ["Pruned", "prune"]

DAY_S = 86_400.0
_DEFAULT_MB = StudySection.model_fields["raw_records_mb"].default


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was deleted, or would be.

    Attributes:
        removed, kept: Numbers of files; one holds the requests of one start.
        removed_bytes, kept_bytes: Their sizes together.
    """

    study: str
    folder: Path
    dry_run: bool
    removed: int
    removed_bytes: int
    kept: int
    kept_bytes: int

    def json(self) -> dict[str, Any]:
        return {
            "study": self.study,
            "folder": str(self.folder),
            "dry_run": self.dry_run,
            "removed": self.removed,
            "removed_bytes": self.removed_bytes,
            "kept": self.kept,
            "kept_bytes": self.kept_bytes,
        }

    def sentence(self) -> str:
        if not self.removed and not self.kept:
            return f"no raw request records of {self.study} lie in {self.folder}"
        verb = "would be deleted" if self.dry_run else "deleted"
        return (
            f"{self.folder}: requests of {self.removed} starts {verb} "
            f"({self.removed_bytes / MB:.1f} MB), of {self.kept} kept "
            f"({self.kept_bytes / MB:.1f} MB)"
        )


def prune(
    study: str,
    storage: str | None,
    *,
    keep_mb: float | None,
    older_than_days: float | None,
    dry_run: bool,
) -> Pruned:
    """Delete the raw records that are too old or too much.

    Args:
        keep_mb: Megabytes that may stay; None for the study's own budget, or for no bound where an
            age is given.

    Raises:
        ConfigError: A bound is no finite number.
        StorageError: There is no such database, or a file cannot be deleted.
        UnknownStudy: The database holds no such study.
    """
    for option, value in (("--keep-mb", keep_mb), ("--older-than-days", older_than_days)):
        if value is not None and not math.isfinite(value):
            unit = option.split("-")[-1]
            raise ConfigError(
                f"{option} {value}: give a finite number of {unit}",
                hint=f"for example {option} 200",
            )
    name = study_name(study)
    with open_stored(storage) as repository:
        definition = repository.definition(name)
    if keep_mb is None and older_than_days is None:
        keep_mb = float(definition.get("study", {}).get("raw_records_mb", _DEFAULT_MB))
    store = RawStore(raw_folder(storage_url(storage), name, data=data_root()), most_bytes=math.inf)
    try:
        gone, left = store.prune(
            most_bytes=None if keep_mb is None else keep_mb * MB,
            older_than_s=None if older_than_days is None else older_than_days * DAY_S,
            dry_run=dry_run,
        )
    except OSError as error:
        raise StorageError(
            f"{error.filename or store.folder} cannot be deleted: {error.strerror or error}"
        ) from error
    return Pruned(name, store.folder, dry_run, len(gone), _size(gone), len(left), _size(left))


def _size(files: Sequence[RawFile]) -> int:
    return sum(one.size for one in files)
