"""From a unit that nobody tuned before to a study that can run, over real ssh."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.json_outputs import SHAPES
from tests.host.services import install
from tests.host.studies import StudyOnHost, environment
from tests.testhost import UNIT, SystemdHost


class Newcomer:
    """A folder with nothing in it, and the command line."""

    def __init__(self, host: SystemdHost, folder: Path) -> None:
        self.folder = folder
        self.host = host
        self.ssh_config = StudyOnHost(host, folder).ssh_config()

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "autotune", *words],
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )

    def init(self, *words: str) -> subprocess.CompletedProcess[str]:
        known = ("--host", self.host.name, "--unit", UNIT, "--ssh-config", str(self.ssh_config))
        return self.run("init", *known, "--name", "mine", *words)

    def check(self) -> tuple[int, dict[str, dict[str, Any]]]:
        ended = self.run("check", "--study", "mine", "--json")
        found = json.loads(ended.stdout)["findings"]
        return ended.returncode, {f"{one['place']}: {one['what']}": one for one in found}


@pytest.fixture
def newcomer(host: SystemdHost, tmp_path: Path) -> Newcomer:
    return Newcomer(host, tmp_path)


def test_init_then_check_without_an_edit(host: SystemdHost, newcomer: Newcomer) -> None:
    install(host)
    made = newcomer.init()
    assert made.returncode == 0, made.stderr
    assert "runs DDTREE" in made.stdout
    code, found = newcomer.check()
    bad = {key: one for key, one in found.items() if one["state"] == "bad"}
    assert (code, bad) == (0, {})
    assert {one["what"] for one in found.values()} >= {
        *("ssh", "disk", "GPUs", "rights and lease", "unit", "port", "journal", "server"),
        *("flag of budget", "deployed", "concurrency", "context", "storage", "sandbox", "time"),
    }
    again = newcomer.init()
    assert again.returncode == 2
    assert "is there already" in again.stderr


def test_check_says_what_is_wrong_and_goes_on(host: SystemdHost, newcomer: Newcomer) -> None:
    install(host)
    made = newcomer.init("--json")
    assert made.returncode == 0
    SHAPES["init"].model_validate_json(made.stdout)
    file = newcomer.folder / "search_spaces" / "mine.toml"
    file.write_text(file.read_text().replace("deployed = 8", "deployed = 9", 1))
    code, found = newcomer.check()
    assert code == 1
    wrong = found[f"{host.name}: deployed"]
    assert wrong["state"] == "bad"
    assert "deployed = 9, but" in wrong["found"]
    assert wrong["todo"]
    host.run(f"systemctl stop {UNIT}")
    code, found = newcomer.check()
    assert found[f"{host.name}: server"]["state"] == "note"
    host.run(f"rm /etc/sudoers.d/{host.sudo_user}")
    try:
        code, found = newcomer.check()
        rights = found[f"{host.name}: rights and lease"]
        assert (code, rights["state"]) == (1, "bad")
        assert "NOPASSWD: /usr/bin/tee /run/autotune/" in rights["todo"]
    finally:
        host.write(
            f"/etc/sudoers.d/{host.sudo_user}", f"{host.sudo_user} ALL=(ALL) NOPASSWD: ALL\n"
        )


def test_a_unit_that_is_not_there(newcomer: Newcomer) -> None:
    ended = newcomer.init()
    assert ended.returncode == 1
    assert "there is no such unit" in ended.stderr
    assert not (newcomer.folder / "search_spaces").exists()
