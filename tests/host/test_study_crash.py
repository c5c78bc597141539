"""Servers that do not live: whose fault it is decides what the sampler is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.host.services import found, install, require_as_found
from tests.host.studies import deploy, require_proof
from tests.testhost import SystemdHost

FAULT = "AUTOTUNE_SIM_FAULT"
BUDGET = "--speculative-ddtree-budget"


@pytest.mark.slow
def test_every_way_to_die(host: SystemdHost, tmp_path: Path) -> None:
    install(
        host,
        launcher=(
            (f"{BUDGET} 16 ", FAULT, "crash-bucket:12"),
            (f"{BUDGET} 32 ", FAULT, "hang-load"),
            (f"{BUDGET} 12 ", FAULT, "oom-first-batch:4"),
        ),
    )
    points = [[16, 4, 2048], [32, 4, 2048], [64, 16, 8192], [12, 6, 512]]
    lines = {"enqueue": f"enqueue = {points}", "load_timeout_s": "load_timeout_s = 6"}
    study = deploy(host, tmp_path, lines=lines)
    before = found(host)
    ended = study.run("run")
    assert ended.returncode == 0, ended.stderr
    require_as_found(host, before)
    require_proof(study)

    reference, crash, hang, wide, batch = study.trials()
    assert reference["state"] == "complete"
    assert all(trial["score"] is None for trial in (crash, hang, wide, batch))

    # Gone by signal 9 without a word: nobody knows whose fault it was.
    assert crash["state"] == "failed"
    assert crash["failure"]["kind"] == "ServerEnded"
    assert "nothing says why" in crash["failure"]["message"]
    assert {link["link"] for link in crash["proof"]} >= {"argv", "nonce", "generation"}

    assert hang["state"] == "failed"
    assert hang["failure"]["kind"] == "NotReady"
    assert "not ready after 6 s, last seen loading" in hang["failure"]["message"]
    assert hang["proof"] == hang["buckets"] == []

    # The tree does not fit into memory: the parameters' fault, with the line that says so.
    assert wide["state"] == "infeasible"
    assert wide["failure"]["kind"] == "ServerStartError"
    assert "ran out of GPU memory while it captured CUDA graphs" in wide["failure"]["message"]
    assert any("OutOfMemoryError" in line for line in wide["failure"]["log_tail"])

    assert batch["state"] == "infeasible"
    assert batch["failure"]["kind"] == "ServerCrashed"
    assert "ran out of GPU memory under load" in batch["failure"]["message"]
    assert any("OutOfMemoryError" in line for line in batch["failure"]["log_tail"])

    # Infeasible is told as the worst value with a constraint, failed has no value at all.
    assert set(study.optuna_values()) == {0, 3, 4}
    states = study.optuna_states()
    assert [states[number] for number in range(5)] == [
        *("COMPLETE", "FAIL", "FAIL", "COMPLETE", "COMPLETE")
    ]
    # Both that failed are queued again.
    assert list(states.values())[5:] == ["WAITING", "WAITING"]
