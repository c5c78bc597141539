"""Recorded engines show what the product reads: versions that are not at hand in a test run.

The recordings are of the real SGLang, see tests/cases/sglang/README.md.  Two more are made of them
by rewriting what other releases spell differently.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.sglang.arguments import parse_server_args
from tests.contract.engine_contract import OLD_WINDOW, WINDOW, EngineContract
from tests.contract.engine_witness import Witness

ENGINES = Path(__file__).parents[1] / "cases" / "sglang" / "engines"
RECORDED = sorted(folder.name for folder in ENGINES.iterdir())

_NEW_KEY = WINDOW.lstrip("-").replace("-", "_")
_OLD_KEY = OLD_WINDOW.lstrip("-").replace("-", "_")


def as_0_5_11(witness: Witness) -> Witness:
    """As the release before the window flag was renamed spells it: a call in the log, old names."""

    def line(text: str) -> str:
        head, found, rest = text.partition("server_args=")
        settings = parse_server_args(rest) if found else None
        if settings is None:
            return text
        pairs = ", ".join(f"{_renamed(key)}={value!r}" for key, value in settings.items())
        return f"{head}server_args=ServerArgs({pairs})"

    answers = dict(witness.answers)
    info = answers.pop("/server_info").decode().replace(f'"{_NEW_KEY}"', f'"{_OLD_KEY}"')
    answers["/get_server_info"] = info.encode()
    answers["/get_model_info"] = answers.pop("/model_info")
    answers["/metrics"] = re.sub(rb"(?m)^.*spec_verify_calls.*\n", b"", answers["/metrics"])
    return replace(
        witness,
        engine="0.5.11 forms",
        parameters={flag.replace(WINDOW, OLD_WINDOW): v for flag, v in witness.parameters.items()},
        lines=tuple(line(text) for text in witness.lines),
        answers=answers,
    )


def as_0_5_23(witness: Witness) -> Witness:
    """As 0.5.23 spells it: other names in `meta_info`, drafts counted as correct ones."""
    body = json.loads(witness.answers["/generate"])
    renamed = {"accepted": "num_correct", "accept_histogram": "correct_drafts_histogram"}
    for old, new in renamed.items():
        body["meta_info"] = {k.replace(old, new): v for k, v in body["meta_info"].items()}
    return replace(
        witness,
        engine="0.5.23 forms",
        lines=tuple(
            text.replace("Capture cuda graph", "Capture target verify CUDA graph")
            for text in witness.lines
        ),
        answers={**witness.answers, "/generate": json.dumps(body).encode()},
    )


def _renamed(key: str) -> str:
    return _OLD_KEY if key == _NEW_KEY else key


@pytest.mark.parametrize("name", RECORDED)
def test_a_recording_is_small(name: str) -> None:
    size = sum(file.stat().st_size for file in (ENGINES / name).iterdir())
    assert size < 150_000


class TestRecordedEngine(EngineContract):
    @pytest.fixture(params=RECORDED)
    def witness(self, request: pytest.FixtureRequest) -> Witness:
        return Witness.load(ENGINES / str(request.param))


class TestFormsOf0511(EngineContract):
    @pytest.fixture(params=RECORDED)
    def witness(self, request: pytest.FixtureRequest) -> Witness:
        return as_0_5_11(Witness.load(ENGINES / str(request.param)))


class TestFormsOf0523(EngineContract):
    @pytest.fixture(params=RECORDED)
    def witness(self, request: pytest.FixtureRequest) -> Witness:
        return as_0_5_23(Witness.load(ENGINES / str(request.param)))
