"""The whole job on a real host: search, proof, verdict, and the host as it was found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.host.studies import (
    LOAD_S,
    StudyOnHost,
    deploy,
    found,
    install,
    require_as_found,
    require_proof,
)
from tests.testhost import SystemdHost

TRIALS = 8


@pytest.mark.slow
def test_a_whole_study(host: SystemdHost, tmp_path: Path) -> None:
    install(
        host, load_s=LOAD_S, faults="slow-drain", variables={"AUTOTUNE_SIM_DRAIN_S": "3"}
    )
    study = deploy(host, tmp_path, samples=4, lines={
        "trials": f"trials = {TRIALS}",
        "finalists": "finalists = 1",
        "final_rounds": "final_rounds = 2",
        "enqueue": 'enqueue = [[8, 4, 2048], [16, 4, 2048], [4, 4, 2048], [12, 6, 2048]]',
    })
    before = found(host)
    ended = study.run("run")
    print(ended.stdout, ended.stderr)
    assert ended.returncode == 0, ended.stderr
    require_as_found(host, before)
    require_proof(study)
