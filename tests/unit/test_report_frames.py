"""Stored starts as tables, and tables as figures: numbers by hand."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from autotune.measurement import Ending
from autotune.report import panels, tables, words
from autotune.report.frames import buckets_frame, proof_frame, starts_frame
from autotune.report.thinning import Detail
from autotune.repository import Role
from tests.builders import (
    a_conclusion,
    a_definition,
    a_failure,
    a_start,
    a_study,
    a_trial,
    proof_links,
)


def drawn(panel: panels.Panel | None) -> dict[str, Any]:
    assert panel is not None
    figure: dict[str, Any] = json.loads(panel.figure.to_json() or "", object_hook=listed)
    return figure


def listed(found: dict[str, Any]) -> Any:
    """Numbers of a figure: plotly writes them as the bytes of typed arrays."""
    if set(found) != {"dtype", "bdata"}:
        return found
    return np.frombuffer(base64.b64decode(found["bdata"]), found["dtype"]).tolist()


def test_gpu_hours_add_up_in_the_order_of_the_ends() -> None:
    study = a_study(
        a_trial(0, a_start(at_h=0, hours=0.5), a_start(at_h=2, hours=0.5), reference=True),
        a_trial(1, a_start(1.1, at_h=1, hours=0.25)),
        a_trial(2, a_start(None, at_h=3, ending=None)),
        definition=a_definition(gpus_per_host=8),
    )
    starts = starts_frame(study)
    assert starts["trial"].tolist() == [0, 1, 0, 2]
    assert starts["gpu_hours"].tolist() == pytest.approx([4, 2, 4, 0])
    assert starts["spent_gpu_hours"].tolist() == pytest.approx([4, 6, 10, 10])
    assert starts["state"].tolist()[-1] == "running"


def test_the_ratio_interval_is_the_score_interval_over_the_same_reference() -> None:
    study = a_study(a_trial(1, a_start(1.2, reference_score=50.0)))
    row = starts_frame(study).iloc[0]
    assert row["score"] == pytest.approx(60.0)
    assert row["ratio_low"] == pytest.approx(1.2 * 0.985)
    assert row["ratio_high"] == pytest.approx(1.2 * 1.015)


def test_a_violated_limit_and_a_broken_link_are_named() -> None:
    study = a_study(
        a_trial(1, a_start(1.2, violations=("bucket 60x1 is slow",)), state="infeasible"),
        a_trial(
            2,
            a_start(
                None,
                at_h=1,
                ending=Ending.FAILED,
                failure=a_failure("SettingsNotApplied", "no", link="nonce"),
                proof=proof_links(broken="nonce"),
            ),
        ),
    )
    starts = starts_frame(study)
    assert starts["failure_kind"].tolist() == ["LimitViolated", "SettingsNotApplied"]
    assert starts["failure_link"].tolist() == ["", "nonce"]
    assert proof_frame(study)["ok"].tolist().count(False) == 1


def test_frames_of_an_empty_study_keep_their_columns() -> None:
    study = a_study()
    for frame in (starts_frame(study), buckets_frame(study), proof_frame(study)):
        assert len(frame) == 0
        assert "trial" in frame.columns


def test_the_best_so_far_ignores_references_limits_and_final_rounds() -> None:
    study = a_study(
        a_trial(0, a_start(1.05), reference=True),
        a_trial(1, a_start(0.9, at_h=1), a_start(1.5, at_h=5, role=Role.FINAL)),
        a_trial(2, a_start(1.4, at_h=2, violations=("slow",)), state="infeasible"),
        a_trial(3, a_start(1.1, at_h=3)),
    )
    figure = drawn(panels.progress_panel(starts_frame(study), ["budget"], Detail()))
    best = next(trace for trace in figure["data"] if trace["name"] == "best observed so far")
    assert best["y"] == [0.9, 1.1]


def test_states_differ_by_shape_as_well_as_colour() -> None:
    ended = (Ending.INFEASIBLE, Ending.FAILED, Ending.PRUNED)
    study = a_study(
        a_trial(0, a_start(), reference=True),
        a_trial(1, a_start(1.1, at_h=1)),
        *(a_trial(n, a_start(None, at_h=n, ending=end)) for n, end in enumerate(ended, start=2)),
    )
    figure = drawn(panels.progress_panel(starts_frame(study), [], Detail()))
    symbols = [trace["marker"]["symbol"] for trace in figure["data"] if "marker" in trace]
    assert len(set(symbols)) == len(symbols) == 5


def test_the_ratio_of_a_bucket_uses_references_of_the_same_host() -> None:
    study = a_study(
        a_trial(0, a_start(1.0, host="gpu-a", reference_score=100), reference=True),
        a_trial(1, a_start(1.0, host="gpu-b", reference_score=200), reference=True),
        a_trial(2, a_start(1.5, at_h=1, host="gpu-b", reference_score=200)),
    )
    shown = panels.heat_panels(buckets_frame(study), study.trials[2])
    ratio = next(panel for panel in shown if panel.key == "heat-ratio")
    assert {row[2] for row in ratio.table.rows} == {"1.500"}


def test_a_round_is_compared_with_its_own_reference() -> None:
    study = a_study(
        a_trial(
            0,
            a_start(1.0, role=Role.FINAL, round_=0),
            a_start(1.2, at_h=2, role=Role.FINAL, round_=1),
            reference=True,
        ),
        a_trial(
            1,
            a_start(1.1, at_h=1, role=Role.FINAL, round_=0),
            a_start(1.5, at_h=3, role=Role.FINAL, round_=1),
        ),
        verdict=a_conclusion(),
    )
    figure = drawn(panels.finalists_panel(study, starts_frame(study)))
    rounds = next(trace for trace in figure["data"] if trace["name"] == "one round")
    assert rounds["x"] == pytest.approx([1.1, 1.25])


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (words.percent(1.123), "+12.3\xa0%"),
        (words.percent(0.95), "−5.0\xa0%"),
        (words.number(None), "–"),
        (words.number(12345.67), "12\u202f345.7"),
        (words.duration(5.04), "5.0 s"),
        (words.duration(59.7), "1 min 00 s"),
        (words.duration(370), "6 min 10 s"),
        (words.duration(7500), "2 h 05 min"),
        (words.clock(1_767_225_600.0), "2026-01-01 00:00:00"),
        (words.listed(["a", "b", "c"]), "a, b and c"),
        (words.plain("\x1b]0;title\x07\x1b[1mbold"), "bold"),
        (words.plain("abcdef", most=4), "abc…"),
    ],
)
def test_words(said: str, shown: str) -> None:
    assert said == shown


def test_of_very_many_starts_the_last_are_shown_and_the_caption_says_where_all_are() -> None:
    starts = starts_frame(a_study(*(a_trial(n, a_start()) for n in range(3))))
    whole = tables.trials_table(starts, ["budget"], most=3)
    shown = tables.trials_table(starts, ["budget"], most=2)
    assert len(whole.rows) == len(starts)
    assert "--tables" not in whole.caption
    assert [row[0] for row in shown.rows] == ["1", "2"]
    assert "the last 2 of 3;" in shown.caption
    assert "--tables" in shown.caption
