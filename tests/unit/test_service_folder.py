"""The folder and the port of a service of the `process` supervisor: one for every command."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.config import StudyConfig, load_study
from autotune.errors import ConfigError
from autotune.opening import plan_host, service_folder
from autotune.supervisors.process_state import keep_port

ROOT = Path(__file__).resolve().parents[2]
STUDY = ROOT / "tests" / "cases" / "search_spaces" / "good" / "minimal.toml"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyConfig:
    monkeypatch.setenv("AUTOTUNE_DATA", str(tmp_path))
    return load_study(str(STUDY))


def test_it_does_not_depend_on_where_a_command_is_started(
    config: StudyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = service_folder(config, "one")
    monkeypatch.chdir(tmp_path)
    assert service_folder(load_study(str(STUDY)), "one") == folder
    assert folder.is_relative_to(tmp_path)


def test_two_definitions_of_one_name_have_folders_of_their_own(
    config: StudyConfig, tmp_path: Path
) -> None:
    other = tmp_path / STUDY.name
    other.write_text(STUDY.read_text())
    assert service_folder(load_study(str(other)), "one") != service_folder(config, "one")


def test_the_port_stays_until_somebody_else_has_it(config: StudyConfig) -> None:
    folder = service_folder(config, "one")
    folder.mkdir(parents=True)
    keep_port(folder, plan_host(config, "one").port)
    first = plan_host(config, "one").port
    assert plan_host(config, "one").port == first
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", first))
        stranger.listen()
        assert plan_host(config, "one").port != first


def test_revert_names_a_host_that_the_study_never_had(config: StudyConfig) -> None:
    words = ["revert", "--study", str(STUDY), "--host", "unknown"]
    with pytest.raises(ConfigError, match=r"has no host 'unknown'.*its hosts: one"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    known = CliRunner().invoke(app, ["revert", "--study", str(STUDY), "--host", "one"])
    assert known.exit_code == 0
    assert "one: nothing to restore" in known.stdout


@pytest.mark.parametrize(
    "words", [[], ["--unit", "a.service"], ["--host", "a"], ["--study", "demo", "--unit", "a"]]
)
def test_revert_needs_a_study_or_a_host_and_a_unit(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="say what to restore"):
        CliRunner().invoke(app, ["revert", *words], catch_exceptions=False)
