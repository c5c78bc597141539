"""`init`, then `check` without an edit, on a unit of vLLM with made-up facts and a server.

What a host would say of itself (ssh, lease, kernel) is a fake of the supervisor; what the engine
would say is the stand-in for vLLM.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.checking.findings import CheckState
from autotune.checking.whole import check_study
from autotune.config import load_study
from autotune.hosts import HostPlan
from autotune.json_outputs import SHAPES
from autotune.supervisors.base import Launch
from autotune.testing.fake_supervisor import FakeHost, FakeRun, FakeSupervisor
from tests.command_line import called
from tests.integration.sglang_server.server_process import free_port
from tests.vllm_package import install_vllm
from tests.waiting import until

ROOT = Path(__file__).parents[2]
SETTINGS = (
    *("--speculative-config.method", "ngram"),
    *("--speculative-config.num_speculative_tokens", "4"),
    *("--speculative-config.prompt_lookup_max", "5"),
)


@pytest.fixture
def unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHost]:
    """A unit of vLLM that runs on this machine, as far as anybody can see."""
    port = free_port()
    arguments = ("serve", "model", "--port", str(port), "--max-num-seqs", "64", *SETTINGS)
    monkeypatch.syspath_prepend(str(install_vllm(tmp_path / "packages")))

    def started(launch: Launch) -> FakeRun:
        return FakeRun(["INFO:     Application startup complete."])

    host = FakeHost("local", ("/opt/vllm/bin/vllm", *arguments), port, True, started)

    def opened(plan: HostPlan) -> FakeSupervisor:
        assert plan.unit == "llm.service"
        return FakeSupervisor(host)

    monkeypatch.setattr("autotune.initialising.open_supervisor", opened)
    monkeypatch.setattr("autotune.checking.host.open_supervisor", opened)
    log = tmp_path / "server.log"
    with (
        log.open("w") as said,
        subprocess.Popen(
            [sys.executable, "-m", "tests.vllm_server", *arguments],
            cwd=ROOT,
            stdout=said,
            stderr=said,
        ) as server,
    ):
        try:
            until(lambda: "startup complete" in log.read_text(), "the stand-in serves")
            yield host
        finally:
            server.kill()


def test_init_then_check_without_an_edit(unit: FakeHost, tmp_path: Path) -> None:
    made = called(*["init", "--host", "local", "--unit", "llm.service", "--json"], folder=tmp_path)
    assert made.code == 0, made.err
    SHAPES["init"].model_validate_json(made.out)
    assert json.loads(made.out)["engine"] == "vllm"
    assert json.loads(made.out)["deployed"] == {"draft_tokens": 4, "lookup_max": 5}
    config = load_study(str(tmp_path / "search_spaces" / "llm.toml"))
    checked = check_study(config, f"sqlite:///{tmp_path}/autotune.db")
    assert checked.bad == ()
    found = {one.what: one for one in checked.findings if one.place == "local"}
    assert found["server"].found.startswith("vLLM 0.11.0 answers at http://127.0.0.1:")
    assert {what for what, one in found.items() if one.state is CheckState.OK} >= {
        *("ssh", "rights and lease", "unit", "port", "journal", "server", "concurrency"),
        *("flag of draft_tokens", "flag of lookup_max", "deployed"),
    }
    # Nothing was asked of the unit but to look.
    assert not {"apply", "stop", "start", "take_lease"} & set(unit.methods())


def test_a_named_engine_that_it_is_not(unit: FakeHost, tmp_path: Path) -> None:
    words = "init --host local --unit llm.service --engine sglang"
    ended = called(*words.split(), folder=tmp_path)
    assert ended.code == 1
    assert "runs without speculative decoding" in ended.err
    assert not (tmp_path / "search_spaces").exists()
