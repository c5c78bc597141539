"""Every command: help with an example that can be typed, and bad input that says what is wrong."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune import __version__
from autotune.cli.options import rounded
from autotune.repository import Repository
from autotune.storage import open_engine
from tests.command_line import called, command_tree
from tests.databases import template

COMMANDS = sorted(command_tree())
ROOT = Path(__file__).parents[2]


def example(command: str) -> list[str]:
    """The words of a command's example."""
    found = re.search(r"Example: (autotune .*)", command_tree()[command].help or "")
    assert found, f"{command} has no example"
    return shlex.split(found[1])


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_it_does_and_has_an_example(command: str, tmp_path: Path) -> None:
    ended = called(*command.split(), "--help", folder=tmp_path)
    assert ended.code == 0
    assert "Example: autotune" in ended.out
    for parameter in command_tree()[command].params:
        assert parameter.help, f"{command}: {parameter.name} has no help"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_example_can_be_typed(command: str) -> None:
    program, *words = example(command)
    assert program == "autotune"
    assert words[: len(command.split())] == command.split()
    command_tree()[command].make_context(command, words[len(command.split()) :])


@pytest.mark.parametrize("command", COMMANDS)
def test_the_readme_names_it(command: str) -> None:
    assert f"`autotune {command}" in (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option_is_refused(command: str, tmp_path: Path) -> None:
    ended = called(*command.split(), "--no-such-option", folder=tmp_path)
    assert ended.code == 2
    assert "--no-such-option" in ended.err
    assert list(tmp_path.iterdir()) == []


NO_STUDY = "no study 'nope'"
NO_DATABASE = "there is no database {folder}/autotune.db"


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("init", 2, "--host"),
        ("init --host gpu-a --unit x.socket", 2, "--unit x.socket is no service"),
        ("init --host gpu-a --unit x --name a/b", 2, "--name 'a/b' is no name"),
        ("init --host gpu-a --unit x --api-key-env NO_SUCH", 2, "NO_SUCH"),
        ("check --study nope", 2, NO_STUDY),
        ("run", 2, "--study"),
        ("run --study nope", 2, NO_STUDY),
        ("run --study demo --trials 0", 2, "--trials"),
        ("run --study demo --executor none", 2, "--executor"),
        ("run --study demo --host a --host a --dry-run", 2, "--host names a twice"),
        ("status", 1, NO_DATABASE),
        ("status --study demo", 1, NO_DATABASE),
        ("status --study demo --storage nonsense", 2, "is not a database URL"),
        ("trials --study demo", 1, NO_DATABASE),
        ("verify --study nope", 2, NO_STUDY),
        ("report --study demo", 1, NO_DATABASE),
        ("export --study demo", 1, NO_DATABASE),
        ("export --study demo --format xml", 2, "--format"),
        ("revert", 2, "say what to restore"),
        ("revert --study nope", 2, NO_STUDY),
        ("prune", 2, "--study"),
        ("prune --study demo", 1, NO_DATABASE),
        ("prune --study demo --keep-mb -1", 2, "--keep-mb"),
        ("prune --study demo --keep-mb nan", 2, "--keep-mb"),
        ("prune --study demo --keep-mb inf", 2, "--keep-mb inf: give a finite number of mb"),
        ("prune --study demo --older-than-days x", 2, "--older-than-days"),
        ("dashboard --port 99999", 2, "--port"),
        ("dashboard", 1, NO_DATABASE),
        ("db upgrade", 1, NO_DATABASE),
        ("nonsense", 2, "nonsense"),
    ],
)
def test_bad_input_is_told_in_one_place(line: str, code: int, said: str, tmp_path: Path) -> None:
    ended = called(*line.split(), folder=tmp_path)
    assert ended.code == code, ended.err
    assert said.format(folder=tmp_path.resolve()) in ended.err
    assert "Traceback" not in ended.err
    assert list(tmp_path.iterdir()) == []


def test_the_version(tmp_path: Path) -> None:
    assert called("--version", folder=tmp_path).out == f"autotune {__version__}\n"


def test_status_without_a_study_lists_them(tmp_path: Path) -> None:
    template(tmp_path).rename(tmp_path / "autotune.db")
    assert "no study yet" in called("status", folder=tmp_path).out
    engine = open_engine(f"sqlite:///{tmp_path}/autotune.db", create=False)
    for name in ("one", "two"):
        Repository(engine).open_study(name, definition={}, fingerprint="f", provenance={})
    engine.dispose()
    listed = json.loads(called("status", "--json", folder=tmp_path).out)
    assert [study["study"] for study in listed] == ["one", "two"]
    assert "study two: no trial yet; no verdict yet" in called("status", folder=tmp_path).out


def test_a_stored_study_is_found_by_its_name_and_says_when_its_file_is_gone(
    tmp_path: Path,
) -> None:
    template(tmp_path).rename(tmp_path / "autotune.db")
    engine = open_engine(f"sqlite:///{tmp_path}/autotune.db", create=False)
    file = tmp_path / "elsewhere" / "mine.toml"
    where = {"search_space": str(file)}
    Repository(engine).open_study("mine", definition={}, fingerprint="f", provenance=where)
    engine.dispose()
    gone = called("export", "--study", "mine", folder=tmp_path)
    assert gone.code == 2
    assert f"its definition {file} is gone" in gone.err
    file.parent.mkdir()
    file.write_text((ROOT / "search_spaces" / "demo.toml").read_text("utf-8"), encoding="utf-8")
    for command in ("export", "run"):
        found = called(command, "--study", "mine", folder=tmp_path)
        assert found.code == 1, found.err
        assert "'mine'" in found.err


def test_printed_numbers_have_six_digits_and_times_their_tenths() -> None:
    value = {"a": [6203.123456789, float("inf")], "b": 1_767_225_600.123, "c": 1, "d": True}
    assert rounded(value) == {"a": [6203.12, None], "b": 1_767_225_600.1, "c": 1, "d": True}


def piped(words: str, shell: str) -> tuple[int, str]:
    """Exit code and error output of `autotune WORDS` with its output as the shell says."""
    line = f"{shlex.quote(sys.executable)} -m autotune {words} {shell}"
    ended = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    return ended.returncode, ended.stderr


def test_a_full_disk_is_told_and_a_reader_who_leaves_is_no_failure(tmp_path: Path) -> None:
    code, said = piped("db upgrade --help", ">/dev/full")
    assert code == 1
    assert said == "autotune: the output cannot be written: No space left on device\n"
    code, said = piped("--help", "| true; echo ${PIPESTATUS[0]} >&2")
    assert said == "0\n"


def test_completion_is_offered(tmp_path: Path) -> None:
    ended: Any = called("--help", folder=tmp_path)
    assert "--install-completion" in ended.out
