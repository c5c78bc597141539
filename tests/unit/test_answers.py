"""Greedy texts against the reference's: what is compared with what, and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.answers import compare, greedy_prompts, sample_key, study_answers
from autotune.coding.lossless import Comparison, Losslessness
from autotune.config import load_study
from autotune.errors import ObjectiveError
from autotune.gate_caveats import gate_caveats
from autotune.measurement import CodingResult
from autotune.stored import StoredStart
from tests.builders import a_start, a_study, a_trial
from tests.scripted import some_answers

TEXTS = {f"greedy/{n}": f"def f{n}():\n    return {n}\n" for n in range(16)}
GARBAGE = dict.fromkeys(TEXTS, "\ufffd\ufffd \ufffd \ufffd" * 9)


def parted(count: int) -> dict[str, str]:
    """The texts, the first `count` of them parted at the fourth character."""
    return {
        key: "def other" if index < count else text
        for index, (key, text) in enumerate(TEXTS.items())
    }


def test_a_first_reference_is_compared_with_its_second_answers() -> None:
    answers = some_answers(reference={}, own=(), own_texts=True)
    found = compare(answers, TEXTS, parted(2))
    assert (found.verdict, found.own, found.reason) == (Losslessness.LOSSLESS, True, "")
    assert list(found.positions.values()) == [4, 4] + [None] * 14


def test_a_repeat_of_the_reference_adds_to_what_it_does_to_itself() -> None:
    answers = some_answers(reference=TEXTS, own=(None,) * 16, own_texts=True)
    found = compare(answers, parted(9))
    assert (found.verdict, found.own) == (Losslessness.LOSSLESS, True)
    assert sum(at == 4 for at in found.positions.values()) == 9


def test_a_trial_drifts_only_beyond_the_references_own_divergence() -> None:
    quiet = some_answers(reference=TEXTS, own=(None,) * 32)
    noisy = some_answers(reference=TEXTS, own=(4,) * 16 + (None,) * 16)
    assert compare(quiet, TEXTS).verdict is Losslessness.LOSSLESS
    assert compare(quiet, parted(8)).verdict is Losslessness.DRIFTING
    assert compare(quiet, parted(8)).p_value < 0.001
    assert compare(noisy, parted(8)).verdict is Losslessness.LOSSLESS


def test_garbage_is_named_in_a_trial_and_in_a_reference() -> None:
    trial = compare(some_answers(reference=TEXTS, own=(None,) * 16), GARBAGE)
    assert (trial.verdict, trial.own) == (Losslessness.CORRUPTED, False)
    alone = compare(some_answers(reference={}, own=(), own_texts=True), GARBAGE, GARBAGE)
    assert (alone.verdict, alone.own) == (Losslessness.CORRUPTED, True)
    same = compare(some_answers(reference=GARBAGE, own=(None,) * 16), GARBAGE)
    assert same.verdict is Losslessness.LOSSLESS


def test_nothing_to_compare_is_no_drift() -> None:
    assert compare(some_answers(reference=TEXTS, own=()), parted(16)).p_value == 1.0
    assert compare(some_answers(reference={}, own=()), {}).verdict is Losslessness.LOSSLESS
    assert len(greedy_prompts(64)) == len(set(greedy_prompts(64).values())) == 64


# -- what a reader is told ------------------------------------------------------------------------


def judged(start: StoredStart, lossless: Comparison | None, passed: int = 200) -> StoredStart:
    assert start.record is not None
    coding = CodingResult({}, passed, 200 - passed, {})
    return replace(start, record=replace(start.record, lossless=lossless, coding=coding))


def caveats(
    reference: Comparison | None, trial: Comparison | None = None, *, passed: int = 200
) -> tuple[str, ...]:
    study = a_study(
        a_trial(0, judged(a_start(1.0), reference, passed), reference=True),
        a_trial(1, judged(a_start(1.1, at_h=1.0), trial), budget=16),
    )
    return gate_caveats(study, trial=1)


POSITIONS: Mapping[str, int | None] = {"greedy/0": 3}


def test_a_blind_gate_is_said() -> None:
    assert caveats(Comparison(Losslessness.LOSSLESS, True, POSITIONS)) == ()
    (garbage,) = caveats(Comparison(Losslessness.CORRUPTED, True, POSITIONS, reason="loops"))
    assert "the reference on gpu-a itself writes garbage" in garbage
    assert garbage.endswith("loops")
    (few,) = caveats(None, passed=40)
    assert "passes only 40 of 200 coding samples" in few


def test_drift_of_the_shown_trial_is_said() -> None:
    drifting = Comparison(Losslessness.DRIFTING, False, POSITIONS, 0.01, "1 of 1 texts part")
    assert caveats(None, drifting) == ("trial 1 on gpu-a: 1 of 1 texts part",)


def test_final_rounds_ask_other_samples_than_the_search() -> None:
    answers = study_answers(load_study("demo"))
    sets = [answers.samples, *answers.more]
    keys = [sample_key(one) for samples in sets for one in samples]
    assert len(sets) > 10
    assert {len(samples) for samples in answers.more} == {67}, "200 in three rounds"
    assert len(answers.samples) == 60
    assert len(set(keys)) == len(keys), "no sample is asked in two rounds"
    search, first, second = (answers.of_start(round_) for round_ in (None, 0, 1))
    assert search.samples == answers.samples
    assert (first.samples, second.samples) == answers.more[:2]
    assert answers.of_start(len(answers.more)).samples == first.samples
    assert search.more == first.more == (), "a start carries its own samples only"


def test_a_suite_without_more_samples_asks_the_same_again(tmp_path: Path) -> None:
    suite = tmp_path / "one.toml"
    suite.write_text(
        """
        [[task]]
        name = "one"
        kind = "numbers"
        difficulty = "easy"
        prompt = "Write a function `one()` that returns the number 1."
        entry_point = "one"
        checks = ["one() == 1"]
        solution = "def one(): return 1"
        near_miss = "def one(): return 2"
        """
    )
    config = load_study("demo")
    config = replace(config, suite=suite, coding=config.coding.model_copy(update={"samples": 40}))
    answers = study_answers(config)
    assert answers.more == ()
    assert answers.of_start(2).samples == answers.samples
    few = replace(config, coding=config.coding.model_copy(update={"samples": 15}))
    assert [len(samples) for samples in study_answers(few).more] == [25], "all that are left"
    many = replace(config, coding=config.coding.model_copy(update={"samples": 41}))
    with pytest.raises(ObjectiveError, match=r"coding.samples = 41 is too much"):
        study_answers(many)
