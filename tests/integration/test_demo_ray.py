"""Two simulated hosts that share a study on a private Ray instance, by the real command line."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.small_study import SmallStudy, assert_total, until

pytestmark = [pytest.mark.slow, pytest.mark.ray]

SHELL = {"RAY_ADDRESS": "127.0.0.1:1", "RAY_worker_register_timeout_seconds": "1"}
"""What a shell may hold: a cluster that is not there, and a time in which no worker can start."""
RAY = {
    "\ntrials = 16\n": "\ntrials = 4\n",
    "\nfinalists = 2\n": "\nfinalists = 0\n",
    "\nfinal_rounds = 3\n": "\nfinal_rounds = 0\n",
}


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[SmallStudy]:
    study = SmallStudy(tmp_path, changes=RAY)
    yield study
    study.kill_all()


def ray_folders(study: SmallStudy) -> set[Path]:
    """Temporary folders of the private instance, from the command lines of its processes."""
    words = [
        word for process in study.processes(holding="--log_dir=") for word in process.cmdline()
    ]
    logs = [Path(w.removeprefix("--log_dir=")) for w in words if w.startswith("--log_dir=")]
    return {log.parents[1] for log in logs}


def listening(study: SmallStudy) -> dict[str, set[str]]:
    """Addresses that the study's processes listen on, by the first word of the command line."""
    found: dict[str, set[str]] = {}
    for process in study.processes():
        try:
            sockets = process.net_connections("tcp")
            name = os.path.basename(process.cmdline()[0])
        except psutil.Error:
            continue
        for one in sockets:
            if one.status == psutil.CONN_LISTEN:
                found.setdefault(name, set()).add(one.laddr.ip)
    return found


def test_two_hosts_share_the_trials_on_a_private_ray(two_hosts: SmallStudy) -> None:
    study = two_hosts
    with study.running("--executor", "auto", env=SHELL) as run:
        until(study.begun_buckets, "the first bucket")
        folders = ray_folders(study)
        heard = listening(study)
        assert run.wait() == 0, run.said
        until(lambda: not study.processes(), "no process is left")
    assert_total(study, 4)
    references = [t["host"] for t in study.trials() if t["reference"]]
    assert sorted(references) == ["demo-a", "demo-b"]
    assert {t["host"] for t in study.trials() if not t["reference"]} == {"demo-a", "demo-b"}
    assert folders
    assert not any(folder.exists() for folder in folders)
    assert set().union(*heard.values()) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}, heard


def test_a_killed_ray_worker_costs_one_start(two_hosts: SmallStudy) -> None:
    study = two_hosts
    with study.running("--executor", "ray") as run:
        until(lambda: study.begun_buckets() >= 5, "starts of the search in their buckets")
        worker = until(lambda: study.processes(holding="ray::ImplicitFunc"), "a worker")[0]
        worker.kill()
        assert run.wait() == 0, run.said
        until(lambda: not study.processes(), "no process is left")
    assert_total(study, 4)
    lost = [t for t in study.trials() if t["failure"] and t["failure"]["kind"] == "WorkerLost"]
    assert len(lost) == 1, study.trials()
    assert lost[0]["state"] == "failed"
    retries = Counter(t["retry_of"] for t in study.trials())
    assert retries[lost[0]["number"]] == (0 if lost[0]["reference"] else 1)


def test_sigterm_under_ray_leaves_nothing(two_hosts: SmallStudy) -> None:
    study = two_hosts
    with study.running("--executor", "ray") as run:
        until(study.begun_buckets, "the first bucket")
        folders = ray_folders(study)
        run.signal(signal.SIGTERM)
        assert run.wait() == 130, run.said
        assert study.servers() == []
        until(lambda: not study.processes(), "no process of Ray is left", timeout_s=30)
    assert "Traceback" not in run.said
    assert folders
    assert not any(folder.exists() for folder in folders)
    stored = study.stored
    assert all(driver.left_at_s is not None for driver in stored.drivers)
    assert all(host.restored_at_s is not None for host in stored.hosts)
    assert "running" not in {trial.state for trial in stored.trials}
