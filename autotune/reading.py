"""Open a stored study for reading, by name or by the path of its definition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autotune.config import StudyConfig, load_study
from autotune.errors import StorageError, UnknownStudy
from autotune.repository import Repository
from autotune.storage import open_engine, storage_url
from autotune.stored import StoredStudy

__all__ = ["find_study", "load_all", "load_shown", "load_stored", "open_stored", "study_name"]


def study_name(study: str) -> str:
    """The name under which a study is stored: a path stands for its stem."""
    return Path(study).stem if study.endswith(".toml") else study


@contextmanager
def open_stored(storage: str | None) -> Iterator[Repository]:
    """The repository of an existing storage.

    Raises:
        StorageError: There is no such database.
    """
    engine = open_engine(storage_url(storage), create=False)
    try:
        yield Repository(engine)
    finally:
        engine.dispose()


def load_stored(
    study: str, storage: str | None, *, evidence: bool = True, raw: bool = True
) -> StoredStudy:
    """Load a study from the storage.

    Args:
        evidence: Whether the links of the proofs are wanted: they are most of the rows.
        raw: Whether their raw texts are wanted: they are most of the bytes.

    Raises:
        StorageError: There is no such database.
        UnknownStudy: It holds no such study.
    """
    with open_stored(storage) as repository:
        return repository.load(study_name(study), evidence=evidence, raw=raw)


def load_shown(repository: Repository, study: str) -> StoredStudy:
    """A study as its report shows it: only with the proof of the trial that it shows.

    Raises:
        UnknownStudy: The storage holds no such study.
    """
    from autotune.report.story import shown_trial

    stored = repository.load(study, evidence=False)
    shown = shown_trial(stored)
    return stored if shown is None else repository.with_proof(stored, shown.number)


def load_all(storage: str | None) -> tuple[StoredStudy, ...]:
    """Every study of the storage, oldest first.

    Raises:
        StorageError: There is no such database.
    """
    with open_stored(storage) as repository:
        return tuple(repository.load(name, evidence=False) for name in repository.names())


def find_study(study: str, storage: str | None) -> StudyConfig:
    """The definition that `study` means: a path, a name of a definition, or the name of a stored
    study, which knows the file that it was made from.

    Raises:
        ConfigError: There is none, or the file is wrong.
    """
    try:
        return load_study(study)
    except UnknownStudy as unknown:
        if study.endswith(".toml"):
            raise
        try:
            stored = load_stored(study, storage, evidence=False)
        except (StorageError, UnknownStudy):
            raise unknown from None
        path = Path(str(stored.provenance.get("search_space", "")))
        if not path.is_file():
            raise UnknownStudy(
                f"study {study!r} is stored, but its definition {path} is gone",
                hint="put it back, or give the path where it is now; status, trials and report "
                "need no definition",
            ) from unknown
        return load_study(str(path))
