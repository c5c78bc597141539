"""`autotune bench` against a server that knows the truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.cli.bench import command
from autotune.errors import ConfigError, ConnectError, InvalidBucket
from autotune.json_outputs import SHAPES
from tests.truth_server import Behaviour, TruthServer

OBJECTIVE = """
[[buckets]]
context_tokens = 200
concurrency = 2
output_tokens = 48
weight = 3
[[buckets]]
context_tokens = 100
concurrency = 4
output_tokens = 48
weight = 1
[measure]
target_half_width = 0.5
least_windows = 4
most_windows = 5
window_s = 0.1
warm_up_most_s = 1
client_cpu_most = 1
loop_lag_most_ms = 5000
"""


@pytest.fixture
def objective(tmp_path: Path) -> str:
    path = tmp_path / "short.toml"
    path.write_text(OBJECTIVE)
    return str(path)


def bench(**options: Any) -> None:
    command(**{"study": None, "seed": 5, **options})


def test_json_has_every_bucket_the_drift_and_what_is_needed_to_repeat_it(
    objective: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with TruthServer(Behaviour(ttft_s=0.02, gap_s=0.01)) as server:
        bench(url=f"{server.url}/v1", objective=objective, as_json=True)
        prompts = server.record.prompts
    view = json.loads(capsys.readouterr().out)
    SHAPES["bench"].model_validate(view)
    assert (view["url"], view["model"], view["seed"]) == (server.url, "truth", 5)
    assert [bucket["context_tokens"] for bucket in view["buckets"]] == [200, 100]
    assert [bucket["weight"] for bucket in view["buckets"]] == [0.75, 0.25]
    assert all(bucket["valid"] for bucket in view["buckets"])
    assert all(bucket["accept_length"] > 1 for bucket in view["buckets"])
    assert view["drift"]["bucket"] == "200x2"
    assert len(set(prompts)) == len(prompts)


def test_the_table_shows_intervals_limits_and_drift(
    objective: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with TruthServer(Behaviour(ttft_s=0.02, gap_s=0.01, max_running_requests=3)) as server:
        bench(url=server.url, objective=objective, as_json=False)
    out = capsys.readouterr().out
    assert "output tok/s" in out
    assert "queued" in out
    assert "admits 3 requests at once" in out
    assert "drift: 200x2 measured again at the end" in out
    assert "weighted mean:" in out


def test_buckets_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with TruthServer(Behaviour()) as server:
        bench(url=server.url, bucket=["80x1x24"], model="named", as_json=True, objective=None)
    view = json.loads(capsys.readouterr().out)
    assert view["model"] == "named"
    SHAPES["bench"].model_validate(view)
    assert view["drift"] is None
    (one,) = view["buckets"]
    assert (one["context_tokens"], one["concurrency"], one["output_tokens"]) == (80, 1, 24)


def test_what_is_not_valid_is_shown_and_ends_with_an_error(
    objective: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        TruthServer(Behaviour(miscount=-20)) as server,
        pytest.raises(InvalidBucket, match="2 of 2 buckets are not valid"),
    ):
        bench(url=server.url, objective=objective)
    out = capsys.readouterr().out
    assert "NOT VALID" in out
    assert "the server counted" in out
    assert "weighted mean" not in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "either --study or --url"),
        ({"study": "demo", "url": "http://x"}, "either --study or --url"),
        ({"study": "demo", "model": "m"}, "belong to --url"),
        ({"url": "http://x", "host": ["a"]}, "belongs to --study"),
        ({"url": "http://x"}, "say what to measure"),
        ({"url": "http://x", "bucket": ["1x2"]}, "is not CONTEXTxCONCURRENCYxOUTPUT"),
        ({"url": "http://x", "bucket": ["0x2x3"]}, "is not CONTEXTxCONCURRENCYxOUTPUT"),
        ({"url": "http://x", "bucket": ["1x2x3"], "api_key_env": "NO_SUCH"}, "is not set"),
    ],
)
def test_mistakes_are_told_before_any_contact(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        bench(**options)


def test_a_process_of_the_tuner_does_not_stand_between_runs() -> None:
    with pytest.raises(ConfigError, match="runs only while it is tuned"):
        bench(study="demo")


def test_nobody_there() -> None:
    with pytest.raises(ConnectError):
        bench(url="http://127.0.0.1:9", bucket=["1x2x3"])
