"""What a run says of itself to Prometheus, and its log as JSON."""

from __future__ import annotations

import json
import logging
from collections import Counter

import httpx
import pytest

from autotune.cli.logs import JsonLines
from autotune.errors import ConfigError
from autotune.metrics import Figures, exposition, serve_metrics

FIGURES = Figures(
    study='a "quoted" one',
    trials=Counter(complete=3, failed=1),
    hosts=Counter(usable=2, lost=1),
    flying=2,
    starts=6,
    waiting=1,
    storage_away=True,
    best_ratio=1.125,
)


def test_every_figure_is_one_line_with_its_type() -> None:
    lines = exposition(FIGURES).splitlines()
    study = r'study="a \"quoted\" one"'
    assert f'autotune_trials{{{study},state="complete"}} 3' in lines
    assert f'autotune_hosts{{{study},state="lost"}} 1' in lines
    assert f"autotune_storage_away{{{study}}} 1" in lines
    assert f"autotune_best_observed_ratio{{{study}}} 1.125" in lines
    assert "# TYPE autotune_starts_total counter" in lines
    assert len(lines) == len(set(lines))


def test_the_endpoint_answers_on_loopback_and_nowhere_else() -> None:
    with serve_metrics(0, lambda: FIGURES) as port:
        answer = httpx.get(f"http://127.0.0.1:{port}/metrics")
        assert answer.text == exposition(FIGURES)
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 404
        with pytest.raises(ConfigError, match="cannot be used"), serve_metrics(port, lambda: None):
            pass


def test_a_line_of_the_log_is_one_json_object() -> None:
    said = "host %s\nis"
    record = logging.LogRecord("autotune.fleet", logging.WARNING, "", 1, said, ("a",), None)
    line = JsonLines().format(record)
    assert "\n" not in line
    value = json.loads(line)
    assert (value["level"], value["logger"], value["message"]) == (
        "WARNING",
        "autotune.fleet",
        "host a\nis",
    )
    assert value["time"].endswith("+00:00")
