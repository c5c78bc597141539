"""The whole job on a real host: search, proof, verdict, and the host as it was found."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.host.services import LOAD_S, found, install, require_as_found
from tests.host.studies import StudyOnHost, deploy, require_proof
from tests.testhost import SystemdHost

TRIALS = 8
NUMBER = (int, float)
NONE = type(None)

TRIAL = {
    "number": int,
    "state": str,
    "parameters": dict,
    "score": (*NUMBER, NONE),
    "score_interval": (list, NONE),
    "score_ratio": (*NUMBER, NONE),
    "host": str,
    "buckets": list,
    "proof": list,
    "coding": (dict, NONE),
    "failure": (dict, NONE),
    "started_at": NUMBER,
    "load_s": NUMBER,
    "measure_s": NUMBER,
}
BUCKET = {
    "context_tokens": int,
    "concurrency": int,
    "output_tok_per_s": NUMBER,
    "interval": list,
    "accept_length": NUMBER,
    "ttft_ms": NUMBER,
    "tpot_ms": NUMBER,
    "valid": bool,
}
LINK = {"link": str, "wanted": str, "seen": str, "ok": bool, "at": NUMBER}
CODING = {"passed": int, "failed": int, "outcomes": dict}
EXPORT = {
    "study": str,
    "trial": int,
    "parameters": dict,
    "score": NUMBER,
    "interval": (list, NONE),
    "reference_score": NUMBER,
    "verdict": str,
}


def require_shape(value: dict[str, Any], shape: dict[str, Any]) -> None:
    """Every key is there and of its type."""
    for key, kind in shape.items():
        assert key in value, key
        assert isinstance(value[key], kind), (key, value[key])


def require_contract(trials: list[dict[str, Any]]) -> None:
    """What programs that read `autotune trials --json` rely on."""
    for trial in trials:
        require_shape(trial, TRIAL)
        assert trial["state"] in ("complete", "infeasible", "failed", "pruned", "running")
        for bucket in trial["buckets"]:
            require_shape(bucket, BUCKET)
            assert bucket["interval"][0] <= bucket["output_tok_per_s"] <= bucket["interval"][1]
        for link in trial["proof"]:
            require_shape(link, LINK)
        if trial["failure"] is not None:
            require_shape(trial["failure"], {"kind": str, "message": str})
        if trial["state"] == "complete":
            require_shape(trial["coding"], CODING)
            low, high = trial["score_interval"]
            assert low <= trial["score"] <= high
            assert trial["score_ratio"] > 0
            assert len(trial["buckets"]) == 2


def require_outputs(study: StudyOnHost, trials: list[dict[str, Any]]) -> None:
    """Every command that reads the finished study."""
    status = json.loads(study.run("status", "--json").stdout)
    assert status["trials"] == Counter(trial["state"] for trial in trials)
    assert status["driver"] is None
    assert status["hosts"][0]["restored_at"] is not None

    exported = json.loads(study.run("export", "--format", "json").stdout)
    require_shape(exported, EXPORT)
    values = exported["parameters"]
    assert values == trials[exported["trial"]]["parameters"]

    words = {
        "budget": "--speculative-ddtree-budget",
        "topk": "--speculative-ddtree-topk-cap",
        "window": "--speculative-draft-window-size",
    }
    flags = study.run("export", "--format", "flags").stdout.split()
    assert dict(zip(flags[::2], flags[1::2], strict=True)).items() >= {
        (words[name], str(values[name])) for name in ("budget", "topk")
    }
    variables = study.run("export", "--format", "env").stdout.splitlines()
    assert f"BUDGET={values['budget']}" in variables
    dropin = study.run("export", "--format", "dropin")
    assert dropin.returncode == 0, dropin.stderr
    assert f"{words['budget']} {values['budget']}" in dropin.stdout.replace('"', "")
    assert "--weight-version" not in dropin.stdout + " ".join(flags)

    report = study.folder / "whole.html"
    assert study.run("report", "--output", str(report)).returncode == 0
    text = " ".join(re.sub("<[^>]*>", " ", report.read_text()).split())
    assert f"{words['budget']} {values['budget']}" in text


@pytest.mark.slow
def test_a_whole_study(host: SystemdHost, tmp_path: Path) -> None:
    install(host, load_s=LOAD_S, faults="slow-drain", variables={"AUTOTUNE_SIM_DRAIN_S": "3"})
    study = deploy(
        host,
        tmp_path,
        samples=4,
        lines={
            "trials": f"trials = {TRIALS}",
            "finalists": "finalists = 1",
            "final_rounds": "final_rounds = 3",
            "enqueue": "enqueue = [[8, 4, 2048], [16, 4, 2048], [4, 4, 2048], [12, 6, 2048]]",
        },
    )
    before = found(host)
    ended = study.run("run")
    assert ended.returncode == 0, ended.stderr
    require_as_found(host, before)
    require_proof(study)

    listed = study.run("trials", "--json")
    trials = json.loads(listed.stdout)
    require_contract(trials)
    ends = Counter(trial["state"] for trial in trials)
    assert ends["complete"] + ends["infeasible"] + ends["pruned"] == TRIALS
    assert trials[0]["reference"]
    assert trials[0]["parameters"] == {"budget": 8, "topk": 4, "window": None}
    assert all(again["proof_ok"] for trial in trials for again in trial["repeats"])
    invocations = [trial["invocation_id"] for trial in trials if trial["state"] == "complete"]
    assert len(set(invocations)) == len(invocations)
    assert "verdict: " in ended.stdout
    require_outputs(study, trials)
    require_as_found(host, before)
