"""Optuna's dashboard on our storage: started as a user starts it, asked through its API."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from autotune.config import load_study
from autotune.repository import Repository
from autotune.storage import open_engine, open_optuna
from autotune.study import TrialStudy

DEADLINE_S = 90.0
BUCKETS = {"60x1": {"output_tok_per_s": 123.4, "accept_length": 2.5}}


@pytest.fixture
def storage(tmp_path: Path) -> str:
    """A study with a reference, an infeasible and a failed trial."""
    url = f"sqlite:///{tmp_path / 'autotune.db'}"
    open_engine(url, create=True).dispose()
    config = load_study("demo")
    optuna_storage = open_optuna(url)
    study = TrialStudy("demo", optuna_storage, space=config.space)
    reference = study.add_reference(config.space.deployed(), host="demo-a")
    study.note(reference.number, {"host": "demo-a", "buckets": BUCKETS, "tok/s 60x1": 123.4})
    study.tell_complete(reference.number, 1.0, violated=False)
    study.enqueue_once(config.enqueue)
    study.tell_infeasible(study.ask().number)
    study.tell_failed(study.ask().number)
    optuna_storage.engine.dispose()
    engine = open_engine(url, create=False)
    repository = Repository(engine)
    repository.open_study("demo", definition=config.definition, fingerprint="f", provenance={})
    deployed = config.space.deployed()
    repository.begin_trial("demo", 0, parameters=deployed, reference=True, retry_of=None)
    repository.end_trial("demo", 0, "complete")
    engine.dispose()
    return url


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def dashboard(storage: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    port = free_port()
    command = [sys.executable, "-m", "autotune", "dashboard", "--storage", storage]
    process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL)
    try:
        yield process, port
    finally:
        process.kill()
        process.wait()


def ask(process: subprocess.Popen[bytes], port: int, path: str) -> Any:
    """The answer of the API, as soon as it listens."""
    ends_at = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while True:
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}{path}", trust_env=False, timeout=30)
        except httpx.ConnectError:
            assert process.poll() is None, "the dashboard has ended"
            assert time.monotonic() < ends_at, "the dashboard does not listen"
            pause.wait(0.1)
            continue
        assert answer.status_code == 200, answer.text
        return answer.json()


def test_it_shows_trials_with_their_buckets_on_the_loopback_address_only(
    dashboard: tuple[subprocess.Popen[bytes], int],
) -> None:
    process, port = dashboard
    (summary,) = ask(process, port, "/api/studies")["study_summaries"]
    assert summary["study_name"] == "demo"
    trials = ask(process, port, f"/api/studies/{summary['study_id']}")["trials"]
    assert [trial["state"] for trial in trials] == ["Complete", "Complete", "Fail"]
    attributes = {entry["key"]: entry["value"] for entry in trials[0]["user_attrs"]}
    assert attributes["tok/s 60x1"] == "123.4"
    assert "123.4" in attributes["buckets"]
    assert trials[0]["constraints"] == [-1.0]
    assert trials[1]["constraints"] == [1.0]
    listening = [
        c.laddr.ip
        for c in psutil.Process(process.pid).net_connections("inet")
        if c.status == "LISTEN"
    ]
    assert set(listening) == {"127.0.0.1"}


def test_study_and_trials_have_notes_and_the_report_can_be_fetched(
    dashboard: tuple[subprocess.Popen[bytes], int],
) -> None:
    process, port = dashboard
    study_id = ask(process, port, "/api/studies")["study_summaries"][0]["study_id"]
    ends_at = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while not (study := ask(process, port, f"/api/studies/{study_id}"))["artifacts"]:
        assert time.monotonic() < ends_at, "the notes are not written"
        pause.wait(0.1)
    assert "There is no verdict" in study["note"]["body"]
    (report,) = study["artifacts"]
    assert report["filename"] == "demo-report.html"
    url = f"http://127.0.0.1:{port}/artifacts/{study_id}/{report['artifact_id']}"
    fetched = httpx.get(url, trust_env=False, timeout=30)
    assert fetched.headers["content-type"].startswith("text/html")
    assert "<html" in fetched.text
    while (
        "Trial 0" not in ask(process, port, f"/api/studies/{study_id}")["trials"][0]["note"]["body"]
    ):
        assert time.monotonic() < ends_at, "the note of the trial is not written"
        pause.wait(0.1)
