"""Doubtful values are shown with their reasons wherever a trial is shown."""

from __future__ import annotations

import pytest

from autotune.cli.tables import print_trials
from autotune.config import load_study
from autotune.doubts import doubts
from autotune.report.caveats import caveats
from autotune.views import trial_views
from tests.builders import a_definition, a_start, a_study, a_trial

REASON = "the drafter was trained with 2048"


def test_the_packaged_study_names_its_doubtful_windows() -> None:
    definition = load_study("kimi-k26").definition
    assert doubts(definition, {"budget": 8, "topk": 4, "window": 4096}) == (
        f"window 4096 is doubtful: {REASON}",
    )
    assert doubts(definition, {"budget": 8, "topk": 4, "window": 2048}) == ()
    assert doubts(definition, {"budget": 8, "topk": 4, "window": None}) == ()


def test_a_value_that_is_left_out_may_be_doubtful_too() -> None:
    definition = {"parameters": {"window": {"doubtful": {"none": "no bound"}}}}
    assert doubts(definition, {"window": None}) == ("window none is doubtful: no bound",)
    assert doubts(definition, {}) == ()


def test_table_json_and_report_show_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    definition = a_definition()
    definition["parameters"]["window"]["doubtful"] = {"2048": "why not"}
    study = a_study(
        a_trial(0, a_start(1.0), reference=True),
        a_trial(1, a_start(1.1), window=2048),
        definition=definition,
    )
    assert [view["doubts"] for view in trial_views(study)] == [
        [],
        ["window 2048 is doubtful: why not"],
    ]
    assert "window 2048 is doubtful: why not. In trial 1." in caveats(study)
    print_trials(study)
    assert "is doubtful: why not" in capsys.readouterr().out
