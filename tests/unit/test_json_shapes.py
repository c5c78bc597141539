"""What `--json` prints is what its schema says, and the committed schemas are those of the code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.checking.whole import check_study
from autotune.cli.options import rounded
from autotune.config import load_study
from autotune.exporting import choose
from autotune.json_outputs import SHAPES
from autotune.pruning_records import Pruned
from autotune.schemas import output_schema_text
from autotune.stored import StoredStudy
from autotune.views import status_view, studies_view, trial_views
from tests.builders import a_study
from tests.unit.test_report_page import nothing_completed, whole_study

ROOT = Path(__file__).parents[2]


def held(name: str, value: Any) -> None:
    """The value as it is printed fits the schema."""
    SHAPES[name].model_validate_json(json.dumps(rounded(value), allow_nan=False))


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_committed_schemas_are_current(name: str) -> None:
    path = ROOT / "docs" / "schemas" / f"{name}.json"
    assert json.loads(path.read_text("utf-8")) == json.loads(output_schema_text(name))
    assert f"schemas/{name}.json" in (ROOT / "docs" / "json.md").read_text("utf-8")


@pytest.mark.parametrize("study", [whole_study(), nothing_completed(), a_study()])
def test_stored_studies(study: StoredStudy) -> None:
    held("trials", trial_views(study))
    held("status", status_view(study))
    held("studies", studies_view([study, replace(study, name="other")]))


def test_the_choice_and_the_verdict() -> None:
    study = whole_study()
    held("export", choose(study).json())
    held("run", {"study": study.name, "verdict": study.verdict, "report": "a.html"})
    held("run", {"over": "study demo: 4 of 4 trials done"})


def test_what_prune_says() -> None:
    held("prune", Pruned("demo", Path("records"), False, 1, 10, 2, 20).json())


def test_a_check(tmp_path: Path) -> None:
    held("check", check_study(load_study("demo"), f"sqlite:///{tmp_path}/none.db").json())


def test_a_key_that_nobody_knows_is_found() -> None:
    with pytest.raises(ValueError, match="extra"):
        held("verify", [{"host": "a", "surprise": 1}])
