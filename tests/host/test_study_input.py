"""Bad input: one sentence that says what is wrong and where, and a host that nobody touched."""

from __future__ import annotations

import re
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.storage import open_engine
from tests.host.conftest import HostFactory
from tests.host.services import Found, found, install, require_as_found
from tests.host.studies import StudyOnHost
from tests.testhost import SystemdHost


@dataclass(frozen=True)
class Served:
    """A host whose service runs, shared by tests that must not touch it."""

    host: SystemdHost
    before: Found


@pytest.fixture(scope="module")
def served(systemd_hosts: HostFactory) -> Served:
    host = systemd_hosts("gpu-a")
    install(host)
    return Served(host, found(host))


@pytest.fixture
def study(served: Served, tmp_path: Path) -> StudyOnHost:
    return StudyOnHost(served.host, tmp_path)


def require_refused(
    ended: subprocess.CompletedProcess[str], code: int, sentence: str, hint: str = ""
) -> None:
    """One sentence, one hint at most, and the exit code."""
    lines = ended.stderr.splitlines()
    assert ended.returncode == code, ended.stderr
    assert re.fullmatch(f"autotune: {sentence}", lines[0]), ended.stderr
    assert len(lines) <= 2, ended.stderr
    assert re.fullmatch(rf" {{10}}\S.*{hint}.*" if hint else r".*", "".join(lines[1:])), lines


# -- the user's file: exit 2, before any contact ---------------------------------------------------
def test_an_unknown_key(served: Served, study: StudyOnHost) -> None:
    study.define(lines={"finalists": "finalist = 2"})
    require_refused(
        study.run("run"), 2, rf"{study.file}:\d+: unknown key 'study\.finalist'", "finalists"
    )
    require_as_found(served.host, served.before, untouched=True)


def test_a_weight_below_zero(served: Served, study: StudyOnHost) -> None:
    study.define()
    objective = study.folder / "tiny.toml"
    objective.write_text(objective.read_text().replace("weight = 0.5", "weight = -1", 1))
    require_refused(
        study.run("run"),
        2,
        rf"{objective}:\d+: buckets\.0\.weight: must be at least 0(\.0)? \(given: -1\)",
    )
    require_as_found(served.host, served.before, untouched=True)


def test_an_enqueued_point_that_breaks_a_rule(served: Served, study: StudyOnHost) -> None:
    study.define(lines={"enqueue": "enqueue = [[16, 4, 2048], [4, 8, 2048]]"})
    require_refused(
        study.run("run"),
        2,
        rf"{study.file}:\d+: point 2 of enqueue \[4, 8, 2048\]: .*topk.*budget.*",
    )
    require_as_found(served.host, served.before, untouched=True)


def test_no_such_study(served: Served, study: StudyOnHost) -> None:
    study.file = Path("kimi-k27")
    require_refused(
        study.run("run"),
        2,
        r"no study 'kimi-k27': there is no search_spaces/kimi-k27\.toml",
        "kimi-k26",
    )
    require_as_found(served.host, served.before, untouched=True)


# -- host, storage, port: exit 1 -------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"HostName": "no-such-host.invalid"}, r"gpu-a \(no-such-host\.invalid:22\): .*not known"),
        ({"Port": "1"}, r"gpu-a \(127\.\S+:1\): .*refused"),
        (
            {"UserKnownHostsFile": "/dev/null"},
            r"deploy@gpu-a: the host key is not known: 127\.\S+ offers ssh-ed25519 \S+",
        ),
    ],
    ids=["a name that nobody knows", "a port that is closed", "a key that is not known"],
)
def test_a_host_that_cannot_be_reached(
    served: Served, study: StudyOnHost, options: dict[str, str], sentence: str
) -> None:
    study.define()
    study.ssh_config(**options)
    require_refused(study.run("run"), 1, sentence)
    require_as_found(served.host, served.before, untouched=True)


@pytest.mark.parametrize(
    ("lines", "sentence", "hint"),
    [
        (
            {"unit": 'unit = "sglang-nothing.service"'},
            r"gpu-a: sglang-nothing\.service: there is no such unit",
            "",
        ),
        (
            {"deployed": "deployed = 16"},
            r"parameters\.budget: deployed = 16, but gpu-a runs 8 \(--speculative-ddtree-budget\)",
            "deploy",
        ),
        (
            {"  { flag": None},
            r"a bucket asks for 64 requests at once, but the server on gpu-a admits 48",
            "--max-running-requests",
        ),
    ],
    ids=["no such unit", "deployed is not what runs", "a bucket above the limit"],
)
def test_a_definition_that_does_not_fit_the_host(
    served: Served, study: StudyOnHost, lines: dict[str, str | None], sentence: str, hint: str
) -> None:
    study.define(lines=lines, concurrency=64)
    require_refused(study.run("run"), 1, sentence, hint)
    require_as_found(served.host, served.before, untouched=True)


def test_a_storage_that_cannot_be_reached(served: Served, study: StudyOnHost) -> None:
    study.define()
    url = "postgresql://tuner:secret@127.0.0.1:1/studies"
    ended = study.run("run", "--storage", url)
    require_refused(ended, 1, r"storage postgresql.*127\.0\.0\.1:1/studies failed: .*refused.*")
    assert "secret" not in ended.stderr
    require_as_found(served.host, served.before, untouched=True)


def test_a_dashboard_port_that_is_taken(study: StudyOnHost) -> None:
    url = f"sqlite:///{study.database}"
    open_engine(url, create=True).dispose()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = study.run("dashboard", "--storage", url, "--port", str(port))
    require_refused(ended, 1, f"port {port} of this machine is taken: .*", "--port")


def test_a_dry_run_changes_nothing(served: Served, study: StudyOnHost) -> None:
    study.define()
    ended = study.run("run", "--dry-run")
    assert ended.returncode == 0, ended.stderr
    assert "--speculative-ddtree-budget 8" in ended.stdout
    require_as_found(served.host, served.before, untouched=True)
