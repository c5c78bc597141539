"""What can be known on this machine: definition, storage, dashboard, sandbox, prompts, time."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.engine import make_url

from autotune.answers import study_answers
from autotune.checking.findings import HERE, CheckState, Finding, tried
from autotune.config import StudyConfig
from autotune.dashboard import ADDRESS
from autotune.errors import StorageError, StudyMismatch, UnknownStudy
from autotune.estimating import estimate, remaining_trials
from autotune.open_files import allow_streams
from autotune.repository import Repository
from autotune.storage import open_engine, storage_url
from autotune.stored import StoredStudy
from autotune.supervisors.owner import describe_owner, owner_lives

__all__ = ["findings_here", "stored_study"]

DASHBOARD_PORT = 8080
FREE_DISK_BYTES = 200 * 1024 * 1024
"""Room for the database and the report of a long study."""


def stored_study(config: StudyConfig, storage: str | None) -> StoredStudy | None:
    """The study as it is stored; None when it has not begun.  No database is made.

    Raises:
        StorageError: A database that is there cannot be used.
    """
    url = make_url(storage_url(storage))
    if url.drivername.startswith("sqlite") and not os.path.exists(url.database or ""):
        return None
    engine = open_engine(storage_url(storage), create=False)
    try:
        return Repository(engine).load(config.name)
    except UnknownStudy:
        return None
    finally:
        engine.dispose()


def findings_here(
    config: StudyConfig, storage: str | None, stored: StoredStudy | None
) -> Iterator[Finding]:
    """Everything that needs no host."""
    yield tried(HERE, "search space", lambda: _space(config))
    yield tried(HERE, "objective", lambda: _objective(config))
    yield tried(HERE, "storage", lambda: _storage(config, storage, stored))
    yield tried(HERE, "disk", _disk)
    yield tried(HERE, "open files", lambda: allow_streams(config.workload.largest_concurrency))
    yield tried(HERE, "coding tasks", lambda: _coding(config))
    yield tried(HERE, "sandbox", lambda: _sandbox(config))
    yield _dashboard()
    yield tried(HERE, "time", lambda: _time(config, stored))


def _space(config: StudyConfig) -> str:
    names = ", ".join(
        f"{p.name} ({p.low} to {p.high})"
        if not p.choices
        else f"{p.name} ({len(p.choices)} values)"
        for p in config.space.parameters
    )
    return f"{config.path}: {names}"


def _objective(config: StudyConfig) -> str:
    buckets = config.workload.buckets
    longest = max(bucket.context_tokens for bucket in buckets)
    return (
        f"{config.objective_path}: {len(buckets)} buckets, up to {longest} tokens of context and "
        f"{config.workload.largest_concurrency} requests at once; {config.score.aggregate} score"
    )


def _storage(config: StudyConfig, storage: str | None, stored: StoredStudy | None) -> str:
    url = make_url(storage_url(storage))
    shown = url.render_as_string()
    if url.drivername.startswith("sqlite"):
        path = Path(url.database or "").absolute()
        shown = str(path)
        folder = path.parent
        if not folder.is_dir():
            raise StorageError(f"the folder {folder} of the database is not there", hint="make it")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise StorageError(f"{path} cannot be written", hint="give another --storage")
    if stored is None:
        return f"{shown}: the study begins"
    living = [d.owner for d in stored.drivers if d.left_at_s is None and owner_lives(d.owner)]
    if living and url.drivername.startswith("sqlite"):
        raise StorageError(
            f"the study is being run: {describe_owner(living[0])}",
            hint="watch it with `autotune status`, or end it first",
        )
    if stored.fingerprint != config.fingerprint():
        raise StudyMismatch(
            f"{shown} holds study {config.name!r} made from another definition",
            hint="`autotune run` says what differs; copy the file under another name for a new one",
        )
    return f"{shown}: goes on after {len(stored.trials)} trials"


def _disk() -> str:
    free = shutil.disk_usage(Path.cwd()).free
    if free < FREE_DISK_BYTES:
        raise StorageError(
            f"{free / 1e6:.0f} MB free in {Path.cwd()}",
            hint=f"{FREE_DISK_BYTES / 1e6:.0f} MB are needed for database and report",
        )
    return f"{free / 1e9:.0f} GB free in {Path.cwd()}"


def _coding(config: StudyConfig) -> str | Finding:
    answers = study_answers(config)
    if not answers.samples:
        return Finding(
            HERE,
            "coding tasks",
            CheckState.NOTE,
            "none: nothing watches over the code that the model writes",
            "samples = 200 under [coding] of the objective",
        )
    return f"{len(answers.samples)} answers of each start are run, {len(answers.greedy)} compared"


def _sandbox(config: StudyConfig) -> str | Finding:
    if not config.coding.samples:
        return "not needed"
    from autotune.coding.sandbox import choose_sandbox

    sandbox = choose_sandbox(allow_weak=config.coding.sandbox == "weak")
    if sandbox.weaknesses:
        return Finding(
            HERE,
            "sandbox",
            CheckState.NOTE,
            f"{sandbox.name}: {'; '.join(sandbox.weaknesses)}",
            "install bubblewrap",
        )
    return f"{sandbox.name}: runs a program and holds its process limit"


def _dashboard() -> Finding:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, DASHBOARD_PORT))
        except OSError as error:
            return Finding(
                HERE,
                "dashboard",
                CheckState.NOTE,
                f"port {DASHBOARD_PORT}: {error.strerror}",
                "`autotune dashboard --port N` takes another",
            )
    return Finding(HERE, "dashboard", CheckState.OK, f"port {DASHBOARD_PORT} is free")


def _time(config: StudyConfig, stored: StoredStudy | None) -> str:
    left = remaining_trials(config, stored)
    budget = "" if left is None else f"{left} of {config.study.trials} trials are left; "
    return budget + estimate(config, stored).sentence
