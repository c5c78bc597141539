"""What did not run is never scored: a flag that is ignored, an old process that still answers."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.host.services import (
    PORT,
    found,
    install,
    journal,
    listeners,
    require_as_found,
    restoring,
    show,
    until,
)
from tests.host.studies import deploy, require_proof
from tests.testhost import UNIT, SystemdHost


def test_a_flag_that_the_engine_ignores(host: SystemdHost, tmp_path: Path) -> None:
    install(host, faults="ignore-window")
    study = deploy(host, tmp_path)
    before = found(host)
    ended = study.run("run")
    assert ended.returncode == 1
    assert "the study stops: the same proof link broke twice" in ended.stderr
    assert "proof link 'window: log' is broken: wanted draft_window_size=512" in ended.stderr
    assert "seen draft_window_size=None" in ended.stderr
    require_as_found(host, before)

    trials = study.trials()
    assert [trial["state"] for trial in trials[:3]] == ["complete", "failed", "failed"]
    for trial in trials[1:3]:
        assert trial["failure"]["kind"] == "SettingsNotApplied"
        assert trial["failure"]["link"] == "window: log"
        assert trial["score"] is None
        assert trial["buckets"] == []
        held = {link["link"]: link["ok"] for link in trial["proof"]}
        assert held["argv"]
        assert not held["window: log"]
    states = study.optuna_states()
    assert [states[number] for number in range(3)] == ["COMPLETE", "FAIL", "FAIL"]
    assert set(study.optuna_values()) == {0}


@contextmanager
def stream(host: SystemdHost) -> Iterator[http.client.HTTPResponse]:
    """A long answer of the server that runs now, its first bytes read."""
    connection = http.client.HTTPConnection(host.host, PORT, timeout=30)
    body = {
        "text": "def add(a, b):",
        "sampling_params": {"max_new_tokens": 15000, "ignore_eos": True},
        "stream": True,
    }
    try:
        connection.request("POST", "/generate", json.dumps(body))
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.readline()
        yield answer
    finally:
        connection.close()


def test_the_old_process_is_never_measured_while_it_drains(
    host: SystemdHost, tmp_path: Path
) -> None:
    """A stream of the deployed server is still running when it is told to stop."""
    fast = ("--max-running-requests 64", "AUTOTUNE_SIM_TIME_SCALE", "8")
    install(host, launcher=(fast,), variables={"AUTOTUNE_SIM_TIME_SCALE": "0.5"})
    study = deploy(host, tmp_path, lines={"trials": "trials = 1"})
    before, old = found(host), show(host, "MainPID")
    with study.start() as process:
        with stream(host) as answer:
            process.until(lambda: show(host, "ActiveState") == "deactivating", "the stop begins")
            for _ in range(20):
                assert answer.readline()
            assert show(host, "MainPID") == old
            assert listeners(host) == old
            assert study.rows("SELECT * FROM autotune_bucket") == []
        assert process.wait() == 0, process.stderr
    require_proof(study)
    (trial,) = study.trials()
    (link,) = [link for link in trial["proof"] if link["link"] == "invocation"]
    assert link["seen"] == f"before {before.invocation_id}, now {trial['invocation_id']}"
    asked = "POST /v1/chat/completions"
    assert asked in journal(host, f"_SYSTEMD_INVOCATION_ID={trial['invocation_id']}")
    assert asked not in journal(host, f"_SYSTEMD_INVOCATION_ID={before.invocation_id}")
    require_as_found(host, before)


def test_an_orphan_on_the_port_is_never_measured(host: SystemdHost, tmp_path: Path) -> None:
    """The unit ends and leaves a child that answers on the port with the old settings."""
    install(host, faults="orphan:600", start=False)
    host.write(f"/etc/systemd/system/{UNIT}.d/kill.conf", "[Service]\nKillMode=process\n")
    host.run(f"systemctl daemon-reload && systemctl start {UNIT}")
    until(lambda: listeners(host), "the deployed server serves")
    study = deploy(host, tmp_path, lines={"stop_timeout_s": "stop_timeout_s = 2"})
    before = found(host)
    with study.start() as process:
        process.until(lambda: restoring(host), "the way back begins")
        orphan = listeners(host)
        assert orphan not in ("", show(host, "MainPID"))
        assert json.loads(host.run(f"curl -s http://127.0.0.1:{PORT}/v1/models").stdout)["data"], (
            "it does answer"
        )
        host.run(f"kill -9 {orphan}")
        assert process.wait() == 1
        said = process.stderr
    assert "no host is left: the reference could not be measured on gpu-a" in said
    assert f"the stop left pid {orphan} " in said
    for trial in study.trials():
        assert trial["state"] == "failed"
        assert trial["failure"]["kind"] == "HostBusy"
        assert trial["score"] is None
        assert trial["buckets"] == trial["proof"] == []
    assert study.optuna_values() == {}
    assert set(study.optuna_states().values()) == {"FAIL"}
    require_as_found(host, before)
