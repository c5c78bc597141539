"""Open a stored study for reading, by name or by the path of its definition."""

from __future__ import annotations

from pathlib import Path

from autotune.repository import Repository, StoredStudy
from autotune.storage import open_engine, storage_url

__all__ = ["load_stored", "study_name"]


def study_name(study: str) -> str:
    """The name under which a study is stored: a path stands for its stem."""
    return Path(study).stem if study.endswith(".toml") else study


def load_stored(study: str, storage: str | None) -> StoredStudy:
    """Load a study from the storage.

    Raises:
        StorageError: There is no such database.
        UnknownStudy: It holds no such study.
    """
    engine = open_engine(storage_url(storage), create=False)
    try:
        return Repository(engine).load(study_name(study))
    finally:
        engine.dispose()
