"""Scores from stored records: the stored ones come out again, other rules give others."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.measurement import Ending, FailureRecord
from autotune.objective import Rule, score_start
from autotune.rescoring import objective_of, rescore
from autotune.standing import as_reference
from autotune.starting import rule_of
from autotune.stored import Role, StoredScore, StoredStart, StoredStudy
from autotune.workload import Bucket, Workload
from tests.builders import a_bucket, a_start, a_study, a_trial

WORKLOAD = Workload((Bucket(60, 1, 128, 0.75), Bucket(1024, 8, 128, 0.25)))
RULE = Rule()


def start(low: float, high: float, **changes: object) -> StoredStart:
    """A start with two buckets; its stored score is set by `scored`."""
    buckets = (a_bucket(60, 1, low), a_bucket(1024, 8, high))
    return a_start(buckets=buckets, **changes)  # type: ignore[arg-type]


def scored(own: StoredStart, reference: StoredStart | None) -> StoredStart:
    """With the score that the driver would have saved."""
    base = None
    if reference is not None and reference.score is not None:
        base = as_reference(reference, reference.score.value, before=None)
    score = score_start(own.buckets, None, workload=WORKLOAD, rule=RULE, reference=base)
    assert score is not None
    return replace(own, score=StoredScore(score.value, score.interval, score.ratio, score.gate))


REFERENCE = scored(start(100.0, 400.0, at_h=0), None)
FASTER = scored(start(120.0, 400.0, at_h=1), REFERENCE)
LATER = scored(start(110.0, 400.0, at_h=2, role=Role.REFERENCE, round_=1), None)
AFTER = scored(start(110.0, 400.0, at_h=3), LATER)


def a_study_of_four() -> StoredStudy:
    return a_study(
        a_trial(0, REFERENCE, LATER, reference=True),
        a_trial(1, FASTER, budget=16),
        a_trial(2, AFTER, budget=32),
    )


def test_the_studys_own_rule_gives_the_stored_scores() -> None:
    rows = rescore(a_study_of_four(), workload=WORKLOAD, rule=RULE)
    assert [row.trial for row in rows] == [0, 1, 0, 2]
    assert all(row.same for row in rows)
    assert rows[1].score is not None
    assert rows[1].score.value == pytest.approx(0.75 * 120 + 0.25 * 400)
    assert rows[1].arithmetic_tok_per_s == pytest.approx(190.0)
    assert rows[1].geometric == pytest.approx(1.2**0.75)
    assert rows[0].geometric == 1.0


def test_a_start_is_compared_with_the_reference_of_its_time() -> None:
    rows = rescore(a_study_of_four(), workload=WORKLOAD, rule=RULE)
    assert [row.score and round(row.score.ratio, 6) for row in rows] == [
        1.0,
        round(190 / 175, 6),
        1.0,
        1.0,
    ]


def test_another_rule_gives_other_scores_and_says_that_they_differ() -> None:
    rows = rescore(a_study_of_four(), workload=WORKLOAD, rule=Rule(aggregate="geometric"))
    assert rows[1].score is not None
    assert rows[1].score.value == pytest.approx(1.2**0.75)
    assert not rows[1].same


def test_a_missing_bucket_gives_no_score_and_is_never_divided_away() -> None:
    more = Workload((*(replace(b, weight=b.weight / 2) for b in WORKLOAD.buckets), BIG))
    assert all(row.score is None for row in rescore(a_study_of_four(), workload=more, rule=RULE))


BIG = Bucket(8192, 64, 128, 0.5)


def test_an_invalid_bucket_counts_again_once_no_rule_asks_for_it() -> None:
    bad = a_bucket(1024, 8, 400.0, valid=False)
    failed = replace(
        a_start(
            None,
            at_h=1,
            ending=Ending.FAILED,
            failure=FailureRecord("InvalidBucket", "bucket 1024x8 is not valid"),
            buckets=(a_bucket(60, 1, 120.0), bad),
        )
    )
    study = a_study(a_trial(0, REFERENCE, reference=True), a_trial(1, failed))
    assert [row.score for row in rescore(study, workload=WORKLOAD, rule=RULE)][1] is None
    one = rescore(study, workload=Workload((Bucket(60, 1, 128, 1.0),)), rule=RULE)
    assert one[1].score is not None
    assert one[1].score.ratio == pytest.approx(1.2)


def test_a_start_without_proof_is_never_scored() -> None:
    unproved = a_start(
        None,
        at_h=1,
        ending=Ending.FAILED,
        failure=FailureRecord("SettingsNotApplied", "argv differs", link="argv"),
        buckets=FASTER.buckets,
    )
    study = a_study(a_trial(0, REFERENCE, reference=True), a_trial(1, unproved))
    assert [row.trial for row in rescore(study, workload=WORKLOAD, rule=RULE)] == [0]


def test_without_a_reference_nothing_else_has_a_score() -> None:
    (row,) = rescore(a_study(a_trial(1, FASTER)), workload=WORKLOAD, rule=RULE)
    assert row.score is None
    assert not row.same


def test_the_stored_objective_is_read_back() -> None:
    file = objective_of(a_study_of_four())
    assert math.isclose(sum(b.weight for b in file.workload().buckets), 1.0)
    assert rule_of(file.score).floor == 0.85


def test_the_command_prints_table_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune import reading
    from autotune.cli import rescore as command

    file = tmp_path / "mine.toml"
    file.write_text(
        "".join(
            f"[[buckets]]\ncontext_tokens = {b.context_tokens}\nconcurrency = {b.concurrency}\n"
            f"output_tokens = 128\nweight = {b.weight * 4}\n"
            for b in WORKLOAD.buckets
        )
    )
    monkeypatch.setattr(reading, "load_stored", lambda *_, **__: a_study_of_four())
    command.command("demo", objective=str(file), as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert [row["same"] for row in rows] == [True] * 4
    assert rows[1]["score_ratio"] == pytest.approx(190 / 175, rel=1e-5)  # printed to six digits
    command.command("demo", objective=str(file), as_json=False)
    assert "4 starts by this objective: 0 scores differ" in capsys.readouterr().out
