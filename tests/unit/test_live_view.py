"""What a run shows: calm lines where nobody watches, a table where somebody does."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

from autotune.cli.console import Console
from autotune.cli.live import Live
from autotune.config import load_study
from tests.builders import a_bucket, a_start, a_study, a_trial


def opened(*trials: Any, most: int) -> tuple[Live, io.StringIO]:
    """A view of the demo, which may have so many trials."""
    config = load_study("demo")
    config = replace(config, study=config.study.model_copy(update={"trials": most}))
    out = io.StringIO()
    live = Live(Console(file=out, width=200), as_json=False)
    live.opened(config, a_study(*trials), again=0, storage="sqlite:///autotune.db")
    return live, out


def test_a_spent_budget_says_how_to_search_on() -> None:
    ended = a_trial(0, a_start(1.0), reference=True)
    _, out = opened(ended, most=1)
    assert "1 of 1 trials done" in out.getvalue()
    assert "the budget of trials is spent" in out.getvalue()
    assert "--trials 11" in out.getvalue()
    _, out = opened(ended, most=2)
    assert "spent" not in out.getvalue()


def test_the_table_shows_buckets_with_their_intervals_and_earlier_loads() -> None:
    live, out = opened(a_trial(0, a_start(1.0, host="demo-a"), reference=True), most=4)
    row = live._row("demo-a")
    row.phase = "load 40%"
    watcher = live.watcher(load_study("demo"))
    spec: Any = type("Spec", (), {"plan": type("Plan", (), {"host": "demo-a"})})
    watcher.bucket(spec, a_bucket(60, 8, 812.0, relative_half_width=0.019))
    Console(file=out, width=200).print(live._table())
    text = out.getvalue()
    assert "1 of 4 trials" in text
    assert "1 of 4" in text
    assert "60x8: 812 tok/s ±1.9%" in text
    assert "of about 360 s" in text
