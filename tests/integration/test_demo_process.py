"""A whole study of the simulated server over real HTTP, by the real command line.

Small: few trials, two buckets, short windows.  Whether its verdict is right is tested elsewhere
(`test_simulated_study.py`); here it is the walk, the contract of `--json`, and every way to stop.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from autotune.reading import load_stored
from autotune.repository import Role
from autotune.views import trial_views
from tests.integration.small_study import SmallStudy, assert_total, until

pytestmark = pytest.mark.slow

ONE_HOST = ("--executor", "serial", "--host", "alone")
TRIALS = 3
FINAL_STARTS = 3 * 2  # rounds x (reference and one finalist)


def scored(study: SmallStudy) -> Counter[int]:
    """Starts with a score by the trial that they were made for, repeats left out."""
    return Counter(
        trial.number
        for trial in study.stored.trials
        for start in trial.starts[:1]
        if start.score is not None
    )


# -- from the first start to the export -----------------------------------------------------------


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> SmallStudy:
    """A study that ran to its end."""
    study = SmallStudy(tmp_path_factory.mktemp("done"))
    with study.running(*ONE_HOST) as run:
        assert run.wait() == 0, run.said
    assert "verdict: " in run.said
    return study


def test_the_run_leaves_verdict_report_and_no_process(done: SmallStudy) -> None:
    assert_total(done, TRIALS)
    assert done.processes() == []
    assert (done.folder / "small-report.html").stat().st_size > 10_000
    stored = done.stored
    assert all(driver.left_at_s is not None for driver in stored.drivers)
    assert stored.verdict is not None
    assert [host.restored_at_s is not None for host in stored.hosts] == [True]
    finals = [start for start in done.starts() if start.role is Role.FINAL]
    assert len(finals) == FINAL_STARTS
    assert all(start.score is not None for start in finals)
    nonces = [start.nonce for start in done.starts()]
    assert len(set(nonces)) == len(nonces)


def test_the_requests_are_kept_and_may_go(done: SmallStudy) -> None:
    folder = done.folder / "small.db-requests" / "small"
    files = sorted(folder.glob("*.parquet"))
    assert len(files) == len(done.starts())
    start = done.stored.trials[0].starts[0]
    frame = pd.read_parquet(folder / f"000000-{start.claim_id}.parquet")
    measured = {bucket.key: bucket for bucket in start.buckets}
    first = frame[frame["measured"] == 0]
    counts = first[first["outcome"] != "incomplete"].groupby("bucket").size().to_dict()
    assert counts == {key: bucket.requests for key, bucket in measured.items()}
    good = first[first["outcome"] == "successful"]
    tokens = [float(np.sum(chunks)) for chunks in good["chunk_tokens"].tolist()]
    assert tokens == pytest.approx(good["completion_tokens"].tolist())

    def answers() -> list[str]:
        found = []
        for words in (("rescore", "--json"), ("export", "--format", "json"), ("report",)):
            ended = done.autotune(words[0], "--study", str(done.path), *words[1:])
            assert ended.returncode == 0, ended.stderr
            found.append(ended.stdout)
        return [*found, (done.folder / "small-report.html").read_text("utf-8")]

    before = answers()
    pruned = done.autotune("prune", "--study", str(done.path), "--keep-mb", "0", "--json")
    assert pruned.returncode == 0, pruned.stderr
    assert json.loads(pruned.stdout)["removed"] == len(files)
    assert list(folder.iterdir()) == []
    assert answers() == before


TRIAL_KEYS: dict[str, tuple[type, ...]] = {
    "number": (int,),
    "state": (str,),
    "parameters": (dict,),
    "score": (float,),
    "score_interval": (list,),
    "score_ratio": (float,),
    "host": (str,),
    "buckets": (list,),
    "proof": (list,),
    "coding": (dict,),
    "failure": (type(None),),
    "started_at": (float,),
    "load_s": (float,),
    "measure_s": (float,),
}
BUCKET_KEYS: dict[str, tuple[type, ...]] = {
    "context_tokens": (int,),
    "concurrency": (int,),
    "output_tok_per_s": (float,),
    "interval": (list,),
    "accept_length": (float,),
    "ttft_ms": (float,),
    "tpot_ms": (float,),
    "valid": (bool,),
}
PROOF_KEYS: dict[str, tuple[type, ...]] = {
    "link": (str,),
    "wanted": (str,),
    "seen": (str,),
    "ok": (bool,),
    "at": (float,),
}
CODING_KEYS: dict[str, tuple[type, ...]] = {"passed": (int,), "failed": (int,), "outcomes": (dict,)}


def assert_typed(value: dict[str, Any], keys: dict[str, tuple[type, ...]]) -> None:
    for key, kinds in keys.items():
        assert type(value[key]) in kinds, (key, value[key])


def test_trials_keeps_its_contract(done: SmallStudy) -> None:
    ran = done.autotune("trials", "--study", str(done.path), "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    trials = json.loads(ran.stdout)
    assert [trial["number"] for trial in trials] == list(range(TRIALS))
    assert {trial["state"] for trial in trials} <= {"complete", "pruned", "infeasible"}
    complete = [trial for trial in trials if trial["state"] == "complete"]
    assert len(complete) >= 2
    for trial in complete:
        assert_typed(trial, TRIAL_KEYS)
        assert set(trial["parameters"]) == {"budget", "topk", "window"}
        low, high = trial["score_interval"]
        assert low <= trial["score"] <= high
        assert trial["host"] == "alone"
        for bucket in trial["buckets"]:
            assert_typed(bucket, BUCKET_KEYS)
            assert bucket["interval"][0] <= bucket["output_tok_per_s"] <= bucket["interval"][1]
        matrix = sorted((b["context_tokens"], b["concurrency"]) for b in trial["buckets"])
        assert matrix == [(60, 1), (60, 4)]
        for link in trial["proof"]:
            assert_typed(link, PROOF_KEYS)
        assert all(link["ok"] for link in trial["proof"])
        links = {link["link"] for link in trial["proof"]}
        assert {"invocation", "process", "argv", "listener", "bound", "nonce"} <= links
        assert {"budget: server_info", "window: log", "generation"} <= links
        assert_typed(trial["coding"], CODING_KEYS)
        assert trial["coding"]["passed"] + trial["coding"]["failed"] == 2
    reference = trials[0]
    assert reference["parameters"] == {"budget": 8, "topk": 4, "window": None}
    assert reference["score_ratio"] == 1.0


def test_status_tells_where_the_study_stands(done: SmallStudy) -> None:
    ran = done.autotune("status", "--study", str(done.path), "--json")
    status = json.loads(ran.stdout)
    assert sum(status["trials"].values()) == TRIALS
    assert status["starts"] == len(done.starts())
    assert status["final_starts"] == FINAL_STARTS
    assert status["driver"] is None
    assert status["verdict"]["sentence"]
    shown = done.autotune("status", "--study", str(done.path))
    assert "host alone: restored" in shown.stdout


def test_export_prints_what_the_verdict_names(done: SmallStudy) -> None:
    verdict = done.stored.verdict
    assert verdict is not None
    budget = verdict["parameters"]["budget"]

    def exported(form: str) -> str:
        ran = done.autotune("export", "--study", str(done.path), "--format", form)
        assert (ran.returncode, ran.stderr) == (0, ""), ran
        return ran.stdout

    document = json.loads(exported("json"))
    assert document["study"] == "small"
    assert document["parameters"] == verdict["parameters"]
    assert document["verdict"] == verdict["sentence"]
    assert set(document) == {
        *("study", "trial", "parameters", "score", "interval", "reference_score", "verdict"),
        "findings",
    }
    flags = exported("flags").split()
    assert flags[flags.index("--speculative-ddtree-budget") + 1] == str(budget)
    assert "--weight-version" not in flags
    assert exported("env").startswith("#") or "=" in exported("env")
    dropin = done.autotune("export", "--study", str(done.path), "--format", "dropin")
    assert dropin.returncode in (1, 2)
    assert "Traceback" not in dropin.stderr


# -- started again --------------------------------------------------------------------------------


@pytest.fixture
def copy(done: SmallStudy, tmp_path: Path) -> SmallStudy:
    """The finished study in another folder."""
    study = SmallStudy(tmp_path)
    shutil.copyfile(done.folder / "small.db", tmp_path / "small.db")
    return study


def test_a_finished_study_starts_nothing(done: SmallStudy, copy: SmallStudy) -> None:
    with copy.running(*ONE_HOST) as run:
        assert run.wait() == 0, run.said
    assert len(copy.starts()) == len(done.starts())


def test_another_definition_is_refused(copy: SmallStudy) -> None:
    text = copy.path.read_text("utf-8")
    copy.path.write_text(text.replace("\nhigh = 64\n", "\nhigh = 32\n"), "utf-8")
    ran = copy.autotune("run", "--study", str(copy.path), *ONE_HOST)
    assert ran.returncode == 1
    assert "the definition of study 'small' has changed since it was started" in ran.stderr
    assert "parameters.budget.high" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_another_study_begins_with_what_this_one_knows(copy: SmallStudy) -> None:
    """In a narrower space: what fits is known to the search, the best of it is measured first."""
    known = [one for one in copy.trials() if one["parameters"]["budget"] <= 48]
    best = max(known[1:], key=lambda one: one["score_ratio"] or 0.0)
    assert best["state"] == "complete"
    text = copy.path.read_text("utf-8")
    for old, new in (
        ("high = 64", "high = 48"),
        ("trials = 3", "trials = 2"),
        ("finalists = 1", "finalists = 0"),
    ):
        assert text.count(f"\n{old}\n") == 1
        text = text.replace(f"\n{old}\n", f"\n{new}\n")
    second = copy.path.with_name("second.toml")
    second.write_text(text, "utf-8")
    ran = copy.autotune("run", "--study", str(second), "--from", "small", *ONE_HOST)
    assert ran.returncode == 0, ran.stderr
    assert f"{len(known)} trials of study small are known to the search" in ran.stdout
    first, reference = trial_views(load_stored(str(second), copy.url))  # it was queued before
    assert first["parameters"] == best["parameters"]
    assert reference["score_ratio"] == 1.0
    assert len(copy.trials()) == TRIALS


# -- stopped --------------------------------------------------------------------------------------


def test_ctrl_c_ends_server_and_run(tmp_path: Path) -> None:
    study = SmallStudy(tmp_path, windows=40)
    with study.running(*ONE_HOST) as run:
        until(study.begun_buckets, "the first bucket")
        assert len(study.servers()) >= 1
        run.signal(signal.SIGINT)
        assert run.wait() == 130, run.said
        assert study.processes() == []
    assert "Traceback" not in run.said
    assert "stopped; next: " in run.said
    stored = study.stored
    assert all(driver.left_at_s is not None for driver in stored.drivers)
    assert [trial.state for trial in stored.trials] == ["failed"]
    assert stored.hosts[0].restored_at_s is not None


def test_ctrl_c_at_a_terminal_lets_the_trial_end(tmp_path: Path) -> None:
    study = SmallStudy(tmp_path)
    terminal, typed_at = os.openpty()
    try:
        with study.running(*ONE_HOST, stdin=typed_at) as run:
            until(study.begun_buckets, "the first bucket")
            run.signal(signal.SIGINT)
            assert run.wait() == 0, run.said
            assert study.processes() == []
    finally:
        os.close(terminal)
        os.close(typed_at)
    assert "once more abandons them" in run.said
    assert "stopped; next: " in run.said
    stored = study.stored
    assert [trial.state for trial in stored.trials] == ["complete"]
    assert stored.hosts[0].restored_at_s is not None


def test_a_killed_run_leaves_no_server_and_goes_on_to_its_total(tmp_path: Path) -> None:
    study = SmallStudy(tmp_path, changes={"\nfinal_rounds = 3\n": "\nfinal_rounds = 0\n"})
    with study.running(*ONE_HOST) as run:
        until(lambda: study.begun_buckets() > 2, "the second start in its buckets")
        run.signal(signal.SIGKILL)
        run.wait()
        until(lambda: not study.processes(), "no server is left")
    before = scored(study)
    assert before == {0: 1}
    with study.running(*ONE_HOST) as run:
        assert run.wait() == 0, run.said
        assert study.processes() == []
    assert_total(study, TRIALS)
    (cut,) = [t for t in study.stored.trials if t.state == "failed"]
    again = [t for t in study.stored.trials if t.retry_of is not None]
    assert [(t.retry_of, t.parameters) for t in again] == [(cut.number, cut.parameters)]
    assert scored(study)[0] == 1
    kept = study.trials()
    with study.running(*ONE_HOST, "--trials", str(TRIALS + 1)) as run:
        assert run.wait() == 0, run.said
    assert_total(study, TRIALS + 1)
    assert without_repeats(study.trials()[: len(kept)]) == without_repeats(kept)


def without_repeats(trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was measured for the trials themselves; the reference may be repeated."""
    return [{k: v for k, v in trial.items() if k != "repeats"} for trial in trials]
