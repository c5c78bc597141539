"""A winner is exported only while its records speak of what is there now."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.applying import remeasured
from autotune.errors import StaleWinner
from autotune.exporting import Choice, ExportFormat, choose, rendered
from autotune.holding import (
    measured_fingerprint,
    require_records,
    require_same_engine,
    require_same_unit,
)
from autotune.measurement import Ending, Evidence
from autotune.rows import plain_original
from autotune.sglang.server import ServerInfo
from autotune.stored import StoredHost, StoredStart, StoredStudy
from autotune.supervisors.base import Launch, Original, Word
from tests.builders import a_bucket, a_conclusion, a_start, a_study, a_trial
from tests.command_line import called
from tests.scripted import a_space, an_original

WINNER = {"budget": 16, "topk": 4, "window": None}


def a_host(name: str, original: Mapping[str, Any]) -> StoredHost:
    return StoredHost(name, original, lease_id="l", taken_at_s=1.0, restored_at_s=2.0)


def ended(
    start: StoredStart | None = None, *, hosts: tuple[StoredHost, ...] = (), **changes: Any
) -> StoredStudy:
    """A study whose winner is trial 1."""
    reference = a_trial(0, a_start(1.0), reference=True)
    winner = a_trial(1, start or a_start(1.1), budget=16)
    study = a_study(reference, winner, verdict=a_conclusion(trial=1, parameters=WINNER))
    return replace(study, hosts=hosts, **changes)


def test_a_winner_with_its_records_is_exported() -> None:
    require_records(choose(ended()))


@pytest.mark.parametrize(
    "start",
    [
        a_start(1.1, ending=None),
        a_start(None, ending=Ending.FAILED),
        a_start(1.1, proof=()),
        a_start(1.1, proof=(Evidence("argv", "8", "4", False, 1.0, ""),)),
        a_start(1.1, buckets=()),
    ],
    ids=["not ended", "failed", "no proof", "a broken link", "no bucket"],
)
def test_a_winner_without_its_records_is_not(start: StoredStart) -> None:
    with pytest.raises(StaleWinner, match="no record of a start that was proved and measured"):
        require_records(choose(ended(start)))


def test_a_winner_whose_trial_is_gone_is_not() -> None:
    study = ended()
    with pytest.raises(StaleWinner, match="trial 1, which the storage does not hold"):
        choose(replace(study, trials=study.trials[:1]))


# -- unit -----------------------------------------------------------------------------------------


def other(original: Original, **changes: Any) -> Original:
    return replace(original, **changes)


def with_words(original: Original, *words: str) -> Original:
    return replace(original, launch=Launch(tuple(Word(word) for word in words)), live_argv=words)


def test_the_unit_as_it_was_measured_holds() -> None:
    found = an_original()
    study = ended(hosts=(a_host("gpu-a", plain_original(found)),))
    assert require_same_unit(study, "gpu-a", found) == ""
    stopped = other(found, live_argv=(), active=False)
    assert require_same_unit(study, "gpu-a", stopped) == ""


def test_another_file_with_the_same_words_is_told() -> None:
    found = an_original()
    study = ended(hosts=(a_host("gpu-a", plain_original(found)),))
    moved = other(found, files={**found.files, "/etc/default/llm": "1"})
    said = require_same_unit(study, "gpu-a", moved)
    assert said == "/etc/default/llm changed since the study, the command line did not"


def test_another_word_is_refused_wherever_it_comes_from() -> None:
    found = an_original()
    words = found.launch.texts()
    study = ended(hosts=(a_host("gpu-a", plain_original(found)),))
    more = with_words(found, *words, "--dtype", "fp8")
    with pytest.raises(StaleWinner, match=r"gpu-a: .*: '--dtype' is new"):
        require_same_unit(study, "gpu-a", more)
    with pytest.raises(StaleWinner, match=f"'{words[-1]}' is gone"):
        require_same_unit(study, "gpu-a", with_words(found, *words[:-1]))
    by_variable = other(found, live_argv=(*found.live_argv, "--tp", "4"))
    with pytest.raises(StaleWinner, match="'--tp' is new"):
        require_same_unit(study, "gpu-a", by_variable)


def test_a_host_that_was_never_measured_needs_the_words_of_one_that_was() -> None:
    found = an_original()
    study = ended(hosts=(a_host("gpu-a", plain_original(found)), a_host("gpu-c", {})))
    assert require_same_unit(study, "gpu-b", found) == ""
    assert require_same_unit(study, "gpu-c", found) == ""
    with pytest.raises(StaleWinner, match="'--dtype' is new"):
        require_same_unit(study, "gpu-b", with_words(found, *found.launch.texts(), "--dtype"))
    with pytest.raises(StaleWinner, match="does not say what gpu-a ran"):
        require_same_unit(ended(), "gpu-a", found)


# -- engine ---------------------------------------------------------------------------------------


def seen(start: StoredStart, order: int, **fingerprint: str) -> StoredStart:
    assert start.record is not None
    return replace(start, order=order, record=replace(start.record, fingerprint=fingerprint))


def test_the_newest_start_of_the_host_says_what_was_measured() -> None:
    starts = (
        seen(a_start(1.1, host="gpu-a"), 3, version="0.5.17"),
        seen(a_start(1.1, host="gpu-a"), 7, version="0.5.21"),
        seen(a_start(1.1, host="gpu-b"), 9, version="0.5.23"),
    )
    study = ended()
    trials = (study.trials[0], replace(study.trials[1], starts=starts))
    study = replace(study, trials=trials)
    choice = choose(study)
    assert measured_fingerprint(study, choice, "gpu-a") == {"version": "0.5.21"}
    assert measured_fingerprint(study, choice, "gpu-z") == {"version": "0.5.23"}
    assert measured_fingerprint(ended(), choose(ended()), "gpu-a") == {}


def test_another_engine_is_refused() -> None:
    same = ServerInfo({"version": "0.5.21", "model_path": "/m"})
    measured = {"version": "0.5.21", "model_path": "/m"}
    require_same_engine(measured, "gpu-a", same)
    require_same_engine(measured, "gpu-a", None)
    newer = ServerInfo({"version": "0.5.23", "model_path": "/m"})
    with pytest.raises(StaleWinner, match=r"gpu-a: the server has version 0\.5\.23"):
        require_same_engine(measured, "gpu-a", newer)


# -- what is printed ------------------------------------------------------------------------------


def test_yaml_says_what_json_says() -> None:
    choice: Choice = choose(ended())
    text = rendered(choice, a_space(), ExportFormat.YAML)
    assert yaml.safe_load(text) == json.loads(rendered(choice, a_space(), ExportFormat.JSON))
    assert "\n  budget: 16\n" in text


def test_the_bucket_that_is_measured_again_is_told_beside_the_study() -> None:
    now = a_bucket(60, 1, 90.0)
    assert remeasured(now, ()) == "bucket 60x1: 90.0 tok/s [88.2, 91.8] now"
    earlier = (a_bucket(60, 1, 100.0), a_bucket(60, 1, 110.0), a_bucket(60, 8, 900.0))
    said = "bucket 60x1: 90.0 tok/s [88.2, 91.8] now, 105.0 tok/s in the study"
    assert remeasured(now, earlier) == f"{said}; slower than every measurement there"
    assert remeasured(now, (a_bucket(60, 1, 92.0),)) == said.replace("105.0", "92.0")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--in-place", "--in-place says how to apply"),
        ("--dry-run", "--dry-run says how to apply"),
        ("--apply --undo", "--undo takes away what --apply has written"),
    ],
)
def test_words_that_do_not_go_together(words: str, said: str, tmp_path: Path) -> None:
    told = called("export", "--study", "demo", *words.split(), folder=tmp_path)
    assert (told.code, said in told.err) == (2, True), told.err
