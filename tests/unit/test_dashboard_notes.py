"""Notes and files of the dashboard: made from what is stored, never over what somebody wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna_dashboard._note import get_note_from_system_attrs, save_note_with_version

from autotune.config import load_study
from autotune.dashboard import Notes
from autotune.measurement import Ending
from autotune.report.notes import log_of, study_note, trial_note
from autotune.repository import Repository
from autotune.storage import open_engine, open_optuna
from autotune.study import TrialStudy
from tests.builders import OWNER, a_conclusion, a_failure, a_start, a_study, a_trial
from tests.databases import template
from tests.unit.test_report_page import STUDIES, whole_study


def test_a_note_says_how_each_start_ended() -> None:
    study = whole_study()
    note = trial_note(study, study.trials[1])
    assert note.startswith("## Trial 1: complete")
    assert "budget 16" in note
    assert "--speculative-ddtree-budget 16" in note
    assert note.count("**Score ") == 3
    assert note.count("| 1024 x 8 |") == 3
    assert "all hold; start 0123456789abcdef" in note


def test_a_failure_comes_with_its_lines_and_its_whole_log() -> None:
    failure = replace(a_failure(), log_tail=tuple(f"line {n}" for n in range(40)))
    trial = a_trial(1, a_start(None, ending=Ending.INFEASIBLE, failure=failure))
    note = trial_note(a_study(trial), trial)
    assert f"**{failure.kind}**: " in note
    assert "line 39" in note
    assert "line 24" not in note
    assert log_of(trial).splitlines()[1] == "line 0"
    assert log_of(a_trial(2, a_start())) == ""


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_every_study_has_a_note(study: Any) -> None:
    assert study_note(study).startswith("## ")
    for trial in study.trials:
        assert trial_note(study, trial).startswith(f"## Trial {trial.number}")


def test_foreign_text_is_no_markdown() -> None:
    evil = "```\n# big <script>alert(1)</script> [x](javascript:1)\x1b[31m"
    failure = replace(a_failure(), message=evil, log_tail=(evil,))
    trial = a_trial(1, a_start(None, ending=Ending.FAILED, failure=failure))
    note = trial_note(a_study(trial), trial)
    _, _, sentence, fenced, _ = note.split("```")
    assert "\\<script\\>" in sentence
    assert "\\[x\\](javascript:1)" in sentence
    assert "<script>" in fenced  # inside a code block it is text
    assert "\x1b" not in note


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    """The notes of a study with its reference, on SQLite."""
    template(tmp_path).rename(tmp_path / "autotune.db")
    url = f"sqlite:///{tmp_path}/autotune.db"
    config = load_study("demo")
    storage = open_optuna(url)
    repository = Repository(open_engine(url, create=False))
    repository.open_study("demo", definition=config.definition, fingerprint="f", provenance={})
    study = TrialStudy("demo", storage, space=config.space)
    asked = study.add_reference(config.space.deployed(), host="demo-a")
    start = a_start(None, host="demo-a", ending=Ending.FAILED, failure=a_failure())
    assert start.record is not None
    repository.begin_trial("demo", 0, parameters=asked.values, reference=True, retry_of=None)
    repository.begin_start(
        "demo",
        0,
        role=start.role,
        round_=0,
        host="demo-a",
        claim_id="claim",
        nonce="",
        owner=OWNER,
        argv=start.argv,
    )
    repository.end_start("claim", start.record, None)
    study.tell_failed(0)
    repository.end_trial("demo", 0, "failed")
    (tmp_path / "store").mkdir()
    return Notes(repository, storage, tmp_path / "store")


def shown(notes: Notes, trial: int | None = None) -> Any:
    return get_note_from_system_attrs(notes._storage.get_study_system_attrs(1), trial)


def test_notes_are_written_once_and_again_when_the_study_changes(notes: Notes) -> None:
    notes.write()
    assert "There is no verdict" in shown(notes)["body"]
    assert "## Trial 0: failed" in shown(notes, 1)["body"]
    notes.write()
    assert (shown(notes)["version"], shown(notes, 1)["version"]) == (1, 1)
    notes._repository.set_verdict("demo", a_conclusion(trial=0))
    notes.write()
    assert "it scores 12.0" in shown(notes)["body"]
    assert (shown(notes)["version"], shown(notes, 1)["version"]) == (2, 1)


def test_a_note_that_somebody_has_edited_stays(notes: Notes) -> None:
    notes.write()
    mine = shown(notes)["body"] + "\nmine"
    save_note_with_version(notes._storage, 1, None, 2, mine)
    notes._repository.set_verdict("demo", a_conclusion(trial=0))
    notes.write()
    assert shown(notes)["body"] == mine


def test_report_and_log_are_artifacts_once(notes: Notes) -> None:
    notes.write()
    notes._repository.set_verdict("demo", a_conclusion(trial=0))
    notes.write()
    attributes = notes._storage.get_study_system_attrs(1)
    files = [key for key in attributes if key.startswith(("artifacts:", "dashboard:artifacts:1:"))]
    assert len(files) == 2
    for key in files:
        assert (notes._folder / key.rpartition(":")[2]).stat().st_size > 50


def test_a_study_that_was_deleted_in_the_dashboard_is_left_alone(notes: Notes) -> None:
    notes._storage.delete_study(1)
    notes.write()
    assert list(notes._folder.iterdir()) == []
