"""Another engine by entry point: the worked example for vLLM, against a stand-in for its server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.engines import SGLANG, engine_of
from autotune.errors import ConfigError
from autotune.supervisors.log_lines import LogLine
from tests.unit.test_plugins import installed
from tests.vllm_package import VLLM_EXAMPLE, install_vllm

ROOT = Path(__file__).parents[2]
LINES = """\
(APIServer pid=7) INFO 11-03 05:51:44 [utils.py:233] non-default args: {'model_tag': 'm', \
'port': 8005, 'served_model_name': ['autotune-1'], 'speculative_config': {'method': 'ngram', \
'num_speculative_tokens': 5, 'prompt_lookup_max': 4}}
(EngineCore_DP0 pid=9) INFO 11-03 05:51:50 [core.py:77] Initializing a V1 LLM engine (v0.11.0) \
with config: model='m', speculative_config=SpeculativeConfig(method='ngram', model=None, \
num_spec_tokens=3), tokenizer='m'
Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00,  9.74it/s]
(APIServer pid=7) INFO 11-03 05:52:05 [api_server.py:1945] Starting vLLM API server 0 on \
http://0.0.0.0:8005
INFO:     Application startup complete.
""".replace("\\\n", "")
OBJECTIVE = """\
[[buckets]]
context_tokens = 60
concurrency = 2
output_tokens = 48
weight = 1.0
[coding]
samples = 0
[lossless]
prompts = 0
[measure]
target_half_width = 0.3
least_windows = 4
most_windows = 6
window_s = 0.1
warm_up_most_s = 3
client_cpu_most = 1.0
loop_lag_most_ms = 5000
drift_most = 1
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder with the example as an installed package."""
    return install_vllm(tmp_path / "packages")


def a_study(folder: Path, *, environment: str = "{}") -> Path:
    """The example's own study, with the stand-in for `vllm` and a small objective."""
    text = (VLLM_EXAMPLE / "vllm-ngram.toml").read_text()
    for old, new in (
        ('"vllm serve Qwen/Qwen3-8B', '"{python} -m tests.vllm_server serve model'),
        ('objective = "general"', 'objective = "tiny"'),
        ("trials = 20", "trials = 2\nfinalists = 0\nenqueue = [[12, 4]]"),
        ('hosts = ["here"]', f'hosts = ["here"]\nenvironment = {environment}'),
    ):
        assert old in text
        text = text.replace(old, new)
    (folder / "tiny.toml").write_text(OBJECTIVE)
    (folder / "ngram.toml").write_text(text)
    return folder / "ngram.toml"


def autotune(folder: Path, packages: Path, *words: str) -> subprocess.CompletedProcess[str]:
    paths = (str(packages), str(ROOT))
    return subprocess.run(
        [sys.executable, "-m", "autotune", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "AUTOTUNE_DATA": str(folder)},
        capture_output=True,
        text=True,
        timeout=240,
    )


def links(trial: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {link["link"]: link for link in trial["proof"]}


@pytest.mark.slow
def test_a_study_of_vllm_with_its_proof(tmp_path: Path, packages: Path) -> None:
    study = str(a_study(tmp_path))
    ended = autotune(tmp_path, packages, "run", "--study", study, "--executor", "serial")
    assert ended.returncode == 0, ended.stderr
    shown = autotune(tmp_path, packages, "trials", "--study", study, "--json")
    trials = json.loads(shown.stdout)
    # Whether the queued one is measured to its end is a matter of this machine's pace.
    assert [trial["state"] in ("complete", "pruned") for trial in trials] == [True, True]
    assert trials[0]["state"] == "complete"
    for trial in trials:
        proof = links(trial)
        assert set(proof) == {
            *("invocation", "process", "argv", "listener", "bound", "nonce", "generation"),
            *("draft_tokens: server_args", "lookup_max: server_args"),
        }
        assert all(link["ok"] for link in proof.values())
        assert proof["nonce"]["wanted"].startswith("served_model_name: ")
    # One token a step and half of what is drafted, by the engine's own counters.
    assert trials[0]["buckets"][0]["accept_length"] == pytest.approx(3.0)
    assert trials[1]["parameters"] == {"draft_tokens": 12, "lookup_max": 4}
    assert links(trials[1])["draft_tokens: server_args"]["seen"].endswith("=12")


def test_its_limits_are_held_against_the_buckets(tmp_path: Path, packages: Path) -> None:
    study = a_study(tmp_path)
    text = study.read_text()
    study.write_text(text.replace("serve model", "serve model --max-num-seqs 1 --max-model-len 90"))
    ended = autotune(tmp_path, packages, "check", "--study", str(study), "--json")
    found = {one["what"]: one for one in json.loads(ended.stdout)["findings"]}
    assert ended.returncode == 1
    assert (found["concurrency"]["state"], found["context"]["state"]) == ("bad", "bad")
    assert "admits 1" in found["concurrency"]["found"]
    assert "--max-num-seqs" in found["concurrency"]["todo"]
    assert "--max-model-len" in found["context"]["todo"]
    study.write_text(text)
    ended = autotune(tmp_path, packages, "check", "--study", str(study), "--json")
    found = {one["what"]: one for one in json.loads(ended.stdout)["findings"]}
    assert found["concurrency"]["todo"] == "--max-num-seqs says it"
    assert "SGLang" not in ended.stdout


@pytest.mark.slow
def test_an_engine_that_drafts_otherwise_is_never_scored(tmp_path: Path, packages: Path) -> None:
    study = str(a_study(tmp_path, environment='{ STANDIN_IGNORES = "1" }'))
    ended = autotune(tmp_path, packages, "run", "--study", study, "--executor", "serial")
    assert ended.returncode == 1
    assert "draft_tokens: server_args" in ended.stdout + ended.stderr
    shown = autotune(tmp_path, packages, "trials", "--study", study, "--json")
    _, ignored, *_ = json.loads(shown.stdout)
    assert ignored["state"] == "failed"
    assert ignored["score"] is None
    link = links(ignored)["draft_tokens: server_args"]
    assert (link["ok"], link["wanted"].split("=")[1], link["seen"].split("=")[1]) == (
        *(False, "12"),
        "4",
    )


def test_the_log_says_what_the_engine_core_resolved(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(packages))
    log = engine_of("vllm").new_log(secrets=())
    for line in LINES.splitlines():
        assert not log.ready
        log.feed(LogLine(line, 0.0))
    assert log.ready
    assert log.bound == "http://0.0.0.0:8005"
    assert log.server_args is not None
    assert log.server_args["served_model_name"] == "autotune-1"
    assert log.server_args["speculative_config.prompt_lookup_max"] == 4
    assert log.server_args["speculative_config.num_speculative_tokens"] == 3


def test_an_engine_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, "MODULE:NUMBER", group="autotune.engines")
    with pytest.raises(ConfigError, match=r"is no autotune\.engines\.Engine"):
        engine_of("mine")
    with pytest.raises(ConfigError, match="no installed package gives the engine 'other'"):
        engine_of("other")
    assert engine_of("sglang") is SGLANG
