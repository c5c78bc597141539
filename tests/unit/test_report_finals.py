"""What the report says of the coding answers of the final rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autotune.report import panels
from autotune.report.finals import coding_cell, coding_details
from autotune.report.frames import finalists_frame, starts_frame
from autotune.report.page import render
from autotune.report.story import headline
from autotune.stored import StoredStudy
from autotune.verdict import VerdictKind
from tests.builders import DEPLOYED, a_conclusion, a_start, a_study, a_trial

CLEAN = {"asked": 54, "only_finalist_failed": 1, "only_reference_failed": 2}
SPOILT = {"asked": 54, "only_finalist_failed": 9, "only_reference_failed": 0}
REFUSED = "9 of 54, 0 fewer (p = 0.002): refused"


def finalist(trial: int, ratio: float, counts: dict[str, int], *, refused: bool) -> dict[str, Any]:
    p_value = 0.002 if refused else 0.88
    return {
        "key": str(trial),
        "ratio": ratio,
        "interval": {"low": ratio - 0.02, "high": ratio + 0.02},
        "changes": 1,
        "repeats": 3,
        "trial": trial,
        "parameters": {**DEPLOYED, "budget": 8 + trial},
        "coding": {**counts, "p_value": p_value, "level": 0.01, "refused": refused},
    }


def a_study_with(*finalists: dict[str, Any], **conclusion: Any) -> StoredStudy:
    verdict = {**a_conclusion(**conclusion), "finalists": list(finalists)}
    trials = [a_trial(n, a_start(1.1), budget=8 + n) for n in (1, 2)]
    return a_study(a_trial(0, a_start(), reference=True), *trials, verdict=verdict)


WON = a_study_with(
    finalist(2, 1.4, SPOILT, refused=True), finalist(1, 1.12, CLEAN, refused=False), trial=1
)
STAYED = a_study_with(
    finalist(2, 1.4, SPOILT, refused=True),
    finalist(1, 1.01, CLEAN, refused=False),
    kind=VerdictKind.NO_SIGNIFICANT_DIFFERENCE,
    trial=0,
    ratio=1.01,
)


def test_the_headline_says_who_may_not_win_and_what_the_winner_passed() -> None:
    refused, passed = headline(WON).details[1:3]
    assert refused.startswith(
        "Trial 2 (budget 10, topk 4, window none), measured at +40.0\xa0%, may"
    )
    assert "9 failed here alone" in refused
    assert passed.startswith("Its coding answers passed: 1 new failure and 2 fewer among 54")


def test_a_gain_that_is_not_the_quotient_of_the_means_says_why() -> None:
    assert WON.verdict is not None
    lucky = {**WON.verdict, "score": 1.14 * WON.verdict["reference_score"]}
    said = headline(replace(WON, verdict=lucky))
    assert "12.0\xa0% above" in said.sentence
    assert "quotient of these means is +14.0\xa0%; what is named first is less" in said.details[0]
    assert "quotient" not in headline(WON).details[0]


def test_the_best_finalist_is_one_that_might_have_won() -> None:
    said = headline(STAYED)
    assert "the best finalist (budget 9, topk 4, window none)" in said.sentence
    assert any("Trial 2" in detail and "may not win" in detail for detail in said.details)


def test_the_table_of_finalists_shows_new_failures() -> None:
    panel = panels.finalists_panel(WON, starts_frame(WON))
    assert panel is not None
    assert [row[-1] for row in panel.table.rows] == [REFUSED, "1 of 54, 2 fewer (p = 0.88)"]
    assert REFUSED in render(WON)
    assert finalists_frame(WON)["coding_refused"].tolist() == [True, False]


def test_a_verdict_without_compared_answers_shows_none() -> None:
    """As those that were stored before answers were judged together."""
    verdict = a_conclusion()
    assert coding_details(verdict) == ()
    assert coding_cell(verdict["finalists"][0]) == "–"
