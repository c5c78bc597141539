"""What a stored study makes one believe, from starts made by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.believing import Outlook, findings, history_of, outlook
from autotune.concluding import conclude, contenders, enough, spent
from autotune.config import StudyConfig, load_study
from autotune.exporting import choose
from autotune.matters import matters
from autotune.measurement import Ending
from autotune.repository import Role, StoredStudy, StoredTrial
from autotune.verdict import VerdictKind
from autotune.workload import Bucket, Workload
from tests.builders import MATRIX, a_start, a_study, a_trial

DEMO = Path(__file__).parents[2] / "search_spaces" / "demo.toml"
BUDGETS = (4, 6, 10, 12, 16, 24, 32, 48)


@pytest.fixture(scope="module")
def config() -> StudyConfig:
    loaded = load_study(str(DEMO))
    workload = Workload(tuple(Bucket(c, n, 128, w) for c, n, w in MATRIX))
    study = loaded.study.model_copy(update={"finalists": 2, "trials": 16})
    return replace(loaded, workload=workload, study=study)


def hill(budget: int) -> float:
    """The best budget is 16, 20 % above the deployed 8; nothing else matters."""
    return 1.2 * math.exp(-0.18 * math.log2(budget / 16) ** 2)


def trials(*, lucky: int = 0) -> list[StoredTrial]:
    """The reference and one trial for each budget; the `lucky` one's only start flatters it."""
    made = [a_trial(0, a_start(1.0, role=Role.REFERENCE), reference=True)]
    for number, budget in enumerate(BUDGETS, start=1):
        ratio = hill(budget) * (1.25 if budget == lucky else 1.0)
        topk = 2 + number % 3
        made.append(a_trial(number, a_start(ratio, at_h=number), budget=budget, topk=topk))
    return made


def hilly(**changes: Any) -> StoredStudy:
    return a_study(*trials(**changes))


def test_the_history_has_references_and_search_but_no_final_rounds(config: StudyConfig) -> None:
    made = trials()
    final = a_start(1.1, at_h=20, role=Role.FINAL)
    made[3] = replace(made[3], starts=(*made[3].starts, final))
    made.append(a_trial(9, a_start(None, at_h=9, ending=Ending.FAILED), budget=20))
    made.append(a_trial(10, a_start(None, at_h=10, ending=Ending.INFEASIBLE), budget=64))
    history = history_of(config, a_study(*made))
    assert len(history.outcomes) == 1 + len(BUDGETS) + 1
    assert [one.feasible for one in history.outcomes].count(False) == 1


def test_the_first_finalist_is_what_is_believed_not_the_luckiest(config: StudyConfig) -> None:
    """Budget 6 is far down the hill; one lucky start shows it as high as the top."""
    stored = hilly(lucky=6)
    observed = max(stored.trials, key=lambda t: t.starts[0].score.ratio if t.starts[0].score else 0)
    assert observed.parameters["budget"] in (6, 12, 16)
    first = contenders(config, stored)[0]
    assert stored.trials[first].parameters["budget"] in (12, 16, 24)


def test_a_parameter_that_matters_is_told_from_those_that_do_not(config: StudyConfig) -> None:
    found = findings(config, hilly())["parameters"]
    assert found[0]["parameter"] == "budget"
    assert not found[0]["within_noise"]
    assert sum(one["share"] for one in found) == pytest.approx(1.0)
    window = next(one for one in found if one["parameter"] == "window")
    assert window["within_noise"]
    assert window["sentence"] == "window moves nothing beyond the noise"


def test_each_concurrency_gets_its_best_tested_values(config: StudyConfig) -> None:
    found = findings(config, hilly())["concurrencies"]
    assert [one["concurrency"] for one in found] == [1, 8]
    for one in found:
        assert one["parameters"]["budget"] in BUDGETS
        assert one["parameters"]["window"] == "none"
        assert one["expected_gain"] > 0.05


def test_nothing_is_found_in_a_handful_of_trials(config: StudyConfig) -> None:
    assert findings(config, a_study(*trials()[:3])) == {}
    assert outlook(config, a_study(*trials()[:3])) is None


def test_the_outlook_has_the_price_of_a_start(config: StudyConfig) -> None:
    found = outlook(config, hilly())
    assert found is not None
    assert found.gpu_hours == pytest.approx(0.5 * config.service.gpus_per_host, rel=0.01)
    assert 0 <= found.gain <= found.left


def test_the_outlook_is_a_sentence() -> None:
    assert Outlook(0.004, 0.012, 2.1).sentence() == (
        "another trial costs 2.1 GPU-hours for an expected +0.4 %; "
        "at most 1.2 % are expected to be left"
    )


def test_the_search_ends_when_little_is_expected(config: StudyConfig) -> None:
    stored = hilly()
    greedy = replace(config, study=config.study.model_copy(update={"least_gain": 0.5}))
    assert enough(greedy, stored).startswith("another trial costs")
    assert enough(config, stored) == ""


def test_a_spent_budget_says_so_once_there_is_a_verdict(config: StudyConfig) -> None:
    starts = sum(len(trial.starts) for trial in trials())
    sentence = "no significant difference: +1.0 % [-2.0, +4.0]"
    verdict = {"sentence": sentence, "starts": starts}
    small = replace(config, study=config.study.model_copy(update={"trials": 5}))
    stored = a_study(*trials(), verdict=verdict)
    said = spent(small, stored, left=0)
    assert "the budget of 5 trials is spent (9 done)" in said
    assert "no host was touched" in said
    assert spent(small, stored, left=1) == ""
    assert spent(small, a_study(*trials()), left=0) == ""
    assert spent(config, stored, left=0) == ""


def test_a_run_that_was_stopped_before_its_verdict_is_not_over(config: StudyConfig) -> None:
    small = replace(config, study=config.study.model_copy(update={"trials": 5}))
    starts = sum(len(trial.starts) for trial in trials())
    yesterday = a_study(*trials(), verdict={"sentence": "better", "starts": starts - 1})
    assert spent(small, yesterday, left=0) == ""


def test_a_study_that_has_left_a_host_is_not_over(config: StudyConfig) -> None:
    small = replace(config, study=config.study.model_copy(update={"trials": 5}))
    starts = sum(len(trial.starts) for trial in trials())
    verdict = {"sentence": "better", "starts": starts}
    assert spent(small, a_study(*trials(), verdict=verdict), left=0)
    assert spent(small, a_study(*trials(), verdict=verdict, restored=False), left=0) == ""


def test_when_everything_was_stopped_early_the_deployed_configuration_stays(
    config: StudyConfig,
) -> None:
    made = trials()[:1]
    made += [
        a_trial(n, a_start(None, at_h=n, ending=Ending.PRUNED), budget=budget)
        for n, budget in enumerate(BUDGETS, start=1)
    ]
    stored = a_study(*made)
    concluded = conclude(config, stored)
    assert concluded.kind is VerdictKind.NO_SIGNIFICANT_DIFFERENCE
    assert "8 other(s) were stopped" in concluded.sentence
    verdict = {
        "kind": str(concluded.kind),
        "trial": concluded.trial,
        "parameters": dict(concluded.parameters),
        "sentence": concluded.sentence,
    }
    assert choose(replace(stored, verdict=verdict)).parameters["budget"] == 8


def test_what_was_found_is_said_in_sentences() -> None:
    findings_ = {
        "parameters": [{"sentence": "window moves nothing beyond the noise"}],
        "concurrencies": [
            {"concurrency": 1, "parameters": {"budget": 16}, "expected_gain": 0.1},
            {"concurrency": 8, "parameters": {"budget": 8}, "expected_gain": 0.0},
        ],
    }
    lines = matters({"findings": findings_, "outlook": "another trial costs 2.1 GPU-hours"})
    assert lines == [
        "window moves nothing beyond the noise.",
        "Best at 1 requests at once: budget 16 (+10.0 % expected).",
        "Best at 8 requests at once: budget 8 (+0.0 % expected).",
        "Another trial costs 2.1 GPU-hours.",
    ]
    assert matters({"kind": "better"}) == []
