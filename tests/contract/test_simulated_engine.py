"""The simulated server shows what a real one shows."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.space import ParameterValue
from tests.contract.engine_contract import LIMIT, WINDOW, EngineContract
from tests.contract.engine_witness import Witness, observe

NONCE = "study-3-abcdef"
DRAFT = ("--speculative-draft-model-path", "draft")
KINDS: dict[str, tuple[tuple[str, ...], dict[str, ParameterValue]]] = {
    "none": ((), {"--speculative-num-draft-tokens": None}),
    "ngram": (
        ("--speculative-algorithm", "NGRAM"),
        {"--speculative-num-draft-tokens": 6, "--speculative-ngram-max-bfs-breadth": 2},
    ),
    "dflash": (
        ("--speculative-algorithm", "DFLASH", *DRAFT),
        {"--speculative-num-draft-tokens": 8, WINDOW: 64},
    ),
    "dflash-all": (("--speculative-algorithm", "DFLASH", *DRAFT), {WINDOW: None}),
    "ddtree": (
        ("--speculative-algorithm", "DDTREE", *DRAFT),
        {"--speculative-ddtree-budget": 8, "--speculative-ddtree-topk-cap": 4, WINDOW: 512},
    ),
}
READY = "The server is fired up and ready to roll!"


@pytest.fixture(scope="module", params=[*KINDS, "dflash/0.5.11", "ddtree/0.5.11"])
def witness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Witness:
    kind, _, style = str(request.param).partition("/")
    return show(kind, style or "0.5.23", tmp_path_factory.mktemp(kind) / "log")


def show(kind: str, style: str, log: Path) -> Witness:
    """Start the server, ask it, end it.

    Args:
        style: Wording of the log and metrics: 0.5.11 or 0.5.23.
    """
    flags, parameters = KINDS[kind]
    port = free_port()
    tuned = [
        word for f, value in parameters.items() if value is not None for word in (f, str(value))
    ]
    command = [sys.executable, "-m", "autotune.testing.sglang_server", "--model-path", "m"]
    command += ["--port", str(port), "--max-running-requests", str(LIMIT), "--enable-metrics"]
    command += ["--weight-version", NONCE, *flags, *tuned]
    settings = {"TIME_SCALE": "20", "WATCH_S": "0.1", "LOG_STYLE": style}
    environment = {**os.environ, **{f"AUTOTUNE_SIM_{key}": text for key, text in settings.items()}}
    with (
        log.open("w") as out,
        subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                out.write(line)
                if READY in line:
                    break
            url = f"http://127.0.0.1:{port}"
            seen = observe(url, engine="simulated", nonce=NONCE, parameters=parameters)
        finally:
            process.kill()
    return replace(seen, lines=tuple(log.read_text().splitlines()))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class TestSimulatedEngine(EngineContract):
    pass
