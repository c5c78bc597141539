"""What `autotune run` prints of a start."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest

from autotune.cli.console import Console
from autotune.cli.live import Live
from autotune.config import load_study
from autotune.measurement import Ending, Interval, StartRecord
from autotune.objective import Score
from autotune.testing.fake_supervisor import FakeHost
from autotune.workbench import ServerBench
from tests.builders import a_study
from tests.scripted import a_spec, some_answers

SCORE = Score(2.718, Interval(2.5, 3.0), 2.718, 1.0, 0, ())
RECORD = StartRecord(Ending.COMPLETE, started_at_s=0.0, load_s=41.0, measure_s=23.0)


@pytest.mark.parametrize(
    ("aggregate", "said"),
    [("arithmetic", "2.7 tok/s [2.5, 3.0]"), ("geometric", "2.718 [2.500, 3.000]")],
)
def test_a_ratio_is_not_shown_as_a_throughput(aggregate: str, said: str) -> None:
    config = load_study("demo")
    config = replace(config, score=config.score.model_copy(update={"aggregate": aggregate}))
    text = StringIO()
    live = Live(Console(file=text, width=200), as_json=False)
    live.opened(config, a_study(), again=0, storage="sqlite:///autotune.db")
    spec = a_spec(FakeHost("gpu-a"))
    live.watcher(config).ended(spec, RECORD, SCORE)
    assert f"): {said}, +171.8% against the reference; load 41 s" in text.getvalue()


def test_a_study_without_coding_samples_needs_neither_server_nor_sandbox() -> None:
    answers = some_answers(allow_weak=False)
    assert not answers.samples
    coding = ServerBench(a_spec(FakeHost("gpu-a"))).code(answers)
    assert (coding.passed, coding.failed, coding.samples) == (0, 0, {})
