"""A page of a very large study stays small, and says beside each figure what it does not draw."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

from autotune.measurement import CodingResult, Ending
from autotune.report.files import study_tables
from autotune.report.page import MOST_BYTES, render
from autotune.report.thinning import PARTS, Detail, per_stretch, thinned, thinned_words, value_kinds
from autotune.repository import Role, StoredStudy, StoredTrial
from tests.builders import a_bucket, a_definition, a_failure, a_start, a_study, a_trial
from tests.unit.test_report_page import Page

TRIALS = 10_000
CODING = CodingResult({}, 190, 10, {"passed": 190, "wrong": 7, "no_answer": 3})


def trials_of(chance: random.Random, **parameters: Any) -> Iterator[StoredTrial]:
    """Trials on two hosts: a reference in eight, some that gave no score."""
    for n in range(TRIALS):
        host = f"gpu-{'ab'[n % 2]}"
        at_h = n // 2 * 0.6
        if n < 2 or n % 8 == 7:
            start = a_start(chance.gauss(1, 0.01), at_h=at_h, host=host, role=Role.REFERENCE)
        elif n % 50 == 3:
            start = a_start(
                None, at_h=at_h, host=host, ending=Ending.INFEASIBLE, failure=a_failure()
            )
        else:
            start = a_start(
                chance.gauss(1.05, 0.05),
                at_h=at_h,
                host=host,
                coding=CODING,
                accept_length=chance.uniform(2, 4),
                proof=(),
            )
        point: dict[str, Any] = {name: chance.randint(1, most) for name, most in parameters.items()}
        yield a_trial(n, start, reference=n < 2, **point)


@pytest.fixture(scope="module")
def large() -> StoredStudy:
    return a_study(*trials_of(random.Random(1), budget=64, topk=16))


def test_a_page_of_ten_thousand_trials_is_small_and_says_what_it_leaves_out(
    large: StoredStudy,
) -> None:
    html = render(large)
    assert len(html.encode()) < MOST_BYTES
    words = Page(html).words
    for said in (
        "points 600 are drawn: a random sample of each kind",  # the slices
        "the last 250 of 10000; autotune report --tables FOLDER writes all of them",
        "the last 1000 of 10000; autotune report --tables FOLDER writes all of them",
        "for 10000 starts it sums what a host did in each stretch of",
        "the last 250 of 8598",  # coding answers
    ):
        assert said in words
    assert len(study_tables(large)["starts"]) == TRIALS


def test_a_page_that_would_be_too_large_shows_less_of_everything(large: StoredStudy) -> None:
    """Many parameters, concurrencies and kinds of failure: at full detail beyond the bound."""
    chance = random.Random(2)
    names = [f"parameter-{n}" for n in range(16)]
    buckets = tuple(
        a_bucket(context, at_once, chance.uniform(90, 110), accept_length=chance.uniform(2, 4))
        for context in (60, 1024, 8192)
        for at_once in range(1, 13)
    )
    points: list[dict[str, Any]] = [
        {name: chance.randint(1, 10**6) for name in names} for _ in range(2000)
    ]
    trials = [
        a_trial(
            n,
            a_start(1 + chance.random(), at_h=n, host=f"gpu-{n % 9}", buckets=buckets),
            **point,
        )
        for n, point in enumerate(points)
    ]
    tail = [f"line {n} {'x' * 500}" for n in range(60)]
    trials += [
        a_trial(
            2000 + n,
            a_start(
                None,
                at_h=n,
                ending=Ending.FAILED,
                failure=a_failure("SettingsNotApplied", "no", link=f"link-{n}", log_tail=tail),
            ),
        )
        for n in range(200)
    ]
    section = large.definition["parameters"]["budget"]
    definition = {**a_definition(), "parameters": dict.fromkeys(names, section)}
    html = render(a_study(*trials, definition=definition))
    assert len(html.encode()) < MOST_BYTES
    full = 4 * Detail().rows
    words = Page(html).words
    assert f"the last {full} of 2200" not in words
    assert any(f"the last {full // 2**n} of 2200;" in words for n in range(1, 6))
    assert "line 59 " in html


def a_cloud(rows: int) -> pd.DataFrame:
    chance = np.random.default_rng(3)
    height = chance.normal(1, 0.1, rows)
    height[rows // 7], height[rows // 3], height[5] = 9.0, -9.0, np.nan
    return pd.DataFrame({"height": height, "kind": np.arange(rows) % 10 == 0})


def test_a_sample_keeps_its_size_its_order_and_the_outline() -> None:
    whole = a_cloud(3000)
    some = thinned(whole, 200, value="height", by=["kind"])
    assert len(some) == 200
    assert some.index.is_monotonic_increasing
    for kind, group in whole.groupby("kind"):
        kept = some[some["kind"] == kind]
        assert len(kept) == 100
        for label in (group.index[0], group.index[-1]):
            assert label in kept.index
        assert (kept["height"].min(), kept["height"].max()) == (
            group["height"].min(),
            group["height"].max(),
        )
    pd.testing.assert_frame_equal(some, thinned(whole, 200, value="height", by=["kind"]))


def test_a_sample_is_not_every_nth() -> None:
    """Hosts take turns: every second row would be one host alone."""
    whole = pd.DataFrame({"height": 1.0, "kind": 0, "host": np.arange(4000) % 2})
    some = thinned(whole, 500, value="height", by=["kind"])
    assert 0.4 < some["host"].mean() < 0.6


def test_no_value_that_was_tried_is_missing_from_its_slice() -> None:
    rare, numbers = ["often"] * 4998 + ["rare"] * 2, [*range(4999), 100_000]
    for values, levels in ((rare, ["often", "rare"]), (numbers, [])):
        kinds = value_kinds(values, levels)
        frame = pd.DataFrame({"reference": False, "kind": kinds, "value": 1.0, "at": values})
        drawn = thinned(frame, 600, value="value", by=["reference", "kind"])
        assert set(drawn["at"]) >= {values[-1], values[0]}
        assert len(drawn) <= 640
    assert value_kinds([None, 7], []) == ["None", "7"]


def test_what_fits_is_drawn_whole_and_nothing_is_said() -> None:
    whole = a_cloud(200)
    assert thinned(whole, 200, value="height", by=["kind"]) is whole
    assert thinned_words(200, 200) == ""
    assert "Of 3000 points 200 are drawn" in thinned_words(200, 3000)


def test_stretches_of_time_keep_every_second() -> None:
    starts = pd.DataFrame(
        [
            {"host": host, "started_at_s": 100.0 * n, "ended_at_s": 100.0 * n + 90.0,
             "stop_s": 10.0, "load_s": 30.0, "measure_s": np.nan if n == 3 else 50.0}
            for host in ("a", "b")
            for n in range(50)
        ]
    )  # fmt: skip
    bars, stretch_s = per_stretch(starts, 20)
    assert stretch_s == pytest.approx(499.0)
    assert len(bars) == 20
    for part in PARTS:
        for host, own in starts.groupby("host"):
            kept = bars[bars["host"] == host][part].sum()
            assert kept == pytest.approx(own[part].sum())
    assert (bars[list(PARTS)].sum(axis=1) <= stretch_s + 1e-6).all()
    # 499 s: five starts without the last 1 s of the fifth's own 10 idle ones, one value lacking
    assert bars.iloc[0][list(PARTS)].tolist() == pytest.approx([50.0, 150.0, 200.0])


def test_an_idle_stretch_has_no_bar_and_few_starts_stay_as_they_are() -> None:
    starts = pd.DataFrame(
        {
            "host": ["a"] * 3,
            "started_at_s": [0.0, 10.0, 990.0],
            "ended_at_s": [10.0, 20.0, 1000.0],
            "stop_s": 1.0,
            "load_s": 2.0,
            "measure_s": 7.0,
        }
    )
    whole, none = per_stretch(starts, 3)
    assert whole is starts
    assert none == 0
    bars, stretch_s = per_stretch(starts, 2)
    assert stretch_s == 500
    assert len(bars) == 2
    starts["started_at_s"] = [0.0, 10.0, 20.0]
    starts["ended_at_s"] = [10.0, 20.0, 1000.0]
    assert len(per_stretch(starts, 2)[0]) == 1
