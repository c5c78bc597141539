"""Optuna's dashboard on a storage, bound to the loopback address.

Notes and artifacts are written here, from what is stored, and not by the runs: a run must not wait
for them, and a look at them changes no measurement.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import HostBusy, StorageError
from autotune.reading import load_shown
from autotune.repository import Repository
from autotune.storage import open_engine, open_optuna, storage_url
from autotune.stored import StoredStudy

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

__all__ = ["ADDRESS", "Notes", "serve"]

log = logging.getLogger(__name__)

ADDRESS = "127.0.0.1"
"""The dashboard has no login and can delete a study: no other machine may reach it."""

EVERY_S = 30.0
NEWEST = 300
"""Trials with a note: Optuna reads all notes of a study at once."""

_MARK = re.compile(r"\n\n<!-- autotune (?P<hash>[0-9a-f]{16}) -->$")


def serve(storage: str | None, *, port: int) -> None:
    """Serve until interrupted.

    Raises:
        StorageError: There is no such database.
        HostBusy: The port is taken.
    """
    url = storage_url(storage)
    engine = open_engine(url, create=False)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError as error:
            engine.dispose()
            raise HostBusy(
                f"port {port} of this machine is taken: {error.strerror}",
                hint="give another --port",
            ) from error
    from optuna.artifacts import FileSystemArtifactStore
    from optuna_dashboard import run_server

    optuna_storage = open_optuna(url)
    with tempfile.TemporaryDirectory(prefix="autotune-dashboard-") as folder:
        notes = Notes(Repository(engine), optuna_storage, Path(folder))
        stopping = threading.Event()
        writer = threading.Thread(target=notes.keep, args=(stopping,), name="notes", daemon=True)
        writer.start()
        try:
            print(f"dashboard: http://{ADDRESS}:{port}/dashboard/  (Ctrl-C ends it)", flush=True)
            store = FileSystemArtifactStore(folder)
            run_server(optuna_storage, host=ADDRESS, port=port, artifact_store=store)
        finally:
            stopping.set()
            writer.join()


class Notes:
    """Writes what studies and trials say about themselves where the dashboard shows it.

    Args:
        folder: The dashboard's artifact store; made anew by each dashboard.
    """

    def __init__(self, repository: Repository, storage: BaseStorage, folder: Path) -> None:
        self._repository = repository
        self._storage = storage
        self._folder = folder
        self._seen: dict[str, tuple[int, str]] = {}

    def keep(self, stopping: threading.Event) -> None:
        """Write at once, and again while studies change, until told to stop."""
        pause_s = 0.0
        while not stopping.wait(pause_s):
            begun = time.monotonic()
            try:
                self.write()
            except StorageError as error:
                log.warning("the notes of the dashboard are not up to date: %s", error)
            pause_s = max(EVERY_S, 10 * (time.monotonic() - begun))

    def write(self) -> None:
        """Bring the notes of every study that has changed up to date.

        Raises:
            StorageError: The database does not answer.
        """
        from autotune.study import optuna_errors

        for name in self._repository.names():
            before = self._seen.get(name, (-1, ""))
            revision, study = self._repository.load_since(name, before[0])
            now = (revision, json.dumps(study.verdict, sort_keys=True))
            if now == before:
                continue
            with optuna_errors():
                self._write(self._loaded(name))
            self._seen[name] = now

    def _loaded(self, name: str) -> StoredStudy:
        """A study with its proofs; of a long one with that of the trial that its report shows."""
        shown = load_shown(self._repository, name)
        return shown if len(shown.trials) > NEWEST else self._repository.load(name, raw=False)

    def _write(self, study: StoredStudy) -> None:
        from autotune.report.notes import log_of, study_note, trial_note
        from autotune.report.page import render

        known = {one.study_name: one._study_id for one in self._storage.get_all_studies()}
        if study.name not in known:
            return  # deleted in the dashboard: our rows stay
        study_id = known[study.name]
        attributes = self._storage.get_study_system_attrs(study_id)
        self._note(study_id, None, study_note(study), attributes)
        self._artifact(study_id, None, f"{study.name}-report.html", "text/html", render(study))
        ids = {one.number: one._trial_id for one in self._storage.get_all_trials(study_id, False)}
        for trial in study.trials[-NEWEST:]:
            if trial.number not in ids:
                continue
            trial_id = ids[trial.number]
            self._note(study_id, trial_id, trial_note(study, trial), attributes)
            if text := log_of(trial):
                self._artifact(study_id, trial_id, f"trial-{trial.number}.log", "text/plain", text)

    def _note(
        self, study_id: int, trial_id: int | None, text: str, attributes: Mapping[str, Any]
    ) -> None:
        """Write a note; one that somebody has edited is his."""
        # The public `save_note` needs a trial that still runs.
        from optuna_dashboard._note import get_note_from_system_attrs, save_note_with_version

        there = get_note_from_system_attrs(dict(attributes), trial_id)
        mark = _MARK.search(there["body"])
        ours = mark is not None and mark["hash"] == _hash(there["body"][: mark.start()])
        marked = f"{text}\n\n<!-- autotune {_hash(text)} -->"
        if marked != there["body"] and (ours or not there["body"]):
            version = int(there["version"]) + 1
            save_note_with_version(self._storage, study_id, trial_id, version, marked)

    def _artifact(
        self, study_id: int, trial_id: int | None, name: str, mimetype: str, text: str
    ) -> None:
        """Put a file into the store; its id is always the same, so it is listed once."""
        key = str(uuid.uuid5(uuid.NAMESPACE_OID, f"autotune {study_id} {trial_id} {name}"))
        (self._folder / key).write_text(text, encoding="utf-8")
        prefix = "artifacts:" if trial_id is None else f"dashboard:artifacts:{trial_id}:"
        meta = {"artifact_id": key, "filename": name, "mimetype": mimetype, "encoding": "utf-8"}
        self._storage.set_study_system_attr(study_id, prefix + key, json.dumps(meta))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
