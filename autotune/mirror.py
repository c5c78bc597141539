"""A stored study in memory, brought up to date by asking only for what has changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autotune.repository import Repository
from autotune.stored import StoredStart, StoredStudy, StoredTrial

__all__ = ["Mirror"]


class Mirror:
    """What the driver knows of its study, whoever wrote it, without proofs and services as found.

    Attributes:
        revision: Of the study at the last look.
    """

    def __init__(self, repository: Repository, name: str) -> None:
        self._repository = repository
        self._name = name
        self.revision, self._stored = repository.load_since(name, -1, originals=False)
        self._trials = {trial.number: trial for trial in self._stored.trials}

    @property
    def stored(self) -> StoredStudy:
        """The study as it was at the last look."""
        return self._stored

    def trial(self, number: int) -> StoredTrial:
        """One trial as it was at the last look.

        Raises:
            KeyError: There was no such trial.
        """
        return self._trials[number]

    def refresh(self) -> StoredStudy:
        """Look again.

        Raises:
            StorageAway: The database does not answer; what is known stays.
        """
        self.revision, changed = self._repository.load_since(
            self._name, self.revision, originals=False
        )
        if changed.trials:
            self._trials.update((trial.number, trial) for trial in changed.trials)
            trials = tuple(self._trials[number] for number in sorted(self._trials))
            self._stored = replace(changed, trials=trials)
        else:
            self._stored = replace(changed, trials=self._stored.trials)
        return self._stored

    def open_starts(self) -> Iterator[StoredStart]:
        """The last start of each trial that nobody has told an end yet."""
        for trial in self._stored.trials:
            if not trial.told and trial.starts:
                yield trial.starts[-1]
