"""The real engine keeps the contract that the simulated server and the recordings keep.

With AUTOTUNE_RECORD_ENGINE=FOLDER what it shows is written there: how the recordings are made.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.space import ParameterValue
from tests.contract.engine_contract import WINDOW, EngineContract
from tests.contract.engine_witness import Witness, observe
from tests.contract.test_simulated_engine import READY, free_port
from tests.real_engine.place import VERSION, RealEngine

NONCE = "study-3-abcdef"
KINDS: dict[str, dict[str, ParameterValue]] = {
    "ngram": {"--speculative-num-draft-tokens": 6, "--speculative-ngram-max-bfs-breadth": 2},
    "dflash": {"--speculative-num-draft-tokens": 8, WINDOW: 64},
}


@pytest.fixture(scope="module", params=KINDS)
def witness(
    request: pytest.FixtureRequest, engine: RealEngine, tmp_path_factory: pytest.TempPathFactory
) -> Witness:
    kind = str(request.param)
    seen = show(engine, kind, tmp_path_factory.mktemp(kind))
    if folder := os.environ.get("AUTOTUNE_RECORD_ENGINE"):
        shortened(seen, engine).save(Path(folder) / f"{VERSION}-cpu-{kind}")
    return seen


def show(engine: RealEngine, kind: str, folder: Path) -> Witness:
    """Start the server, ask it, end it."""
    parameters, port = KINDS[kind], free_port()
    tuned = [word for flag, value in parameters.items() for word in (flag, str(value))]
    command = engine.command(port=port, speculation=kind, flags=(*tuned, "--weight-version", NONCE))
    lines: list[str] = []
    with subprocess.Popen(
        command,
        env=engine.environment(str(folder)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line.rstrip("\n"))
                if READY in line:
                    break
            assert lines, "it said nothing"
            assert READY in lines[-1], "\n".join(lines[-20:])
            seen = observe(
                f"http://127.0.0.1:{port}",
                engine=f"SGLang {VERSION} on CPU, with stubs",
                nonce=NONCE,
                parameters=parameters,
            )
        finally:
            os.killpg(process.pid, 9)
    return replace(seen, lines=tuple(lines))


def shortened(seen: Witness, engine: RealEngine) -> Witness:
    """Without this machine's paths, repeated lines of the access log, and metrics nobody reads."""
    python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    names = {
        str(engine.models): "models",
        f"{engine.folder}/venv/lib/{python}/site-packages": "SITE-PACKAGES",
        str(engine.folder): "ENGINE",
    }

    def plain(text: str) -> str:
        for path, name in names.items():
            text = text.replace(path, name)
        return text

    read = ("generation_tokens", "spec_", "cached_tokens", "num_running", "num_queue")
    metrics = [
        line
        for line in seen.answers["/metrics"].decode().splitlines()
        if any(f"sglang:{name}" in line for name in read)
    ]
    answers = {path: plain(body.decode()).encode() for path, body in seen.answers.items()}
    answers["/metrics"] = "\n".join([*map(plain, metrics), ""]).encode()
    return replace(
        seen,
        lines=tuple(plain(line) for line in seen.lines if len(line) < 200 or "server_args" in line),
        answers=answers,
    )


class TestRealEngine(EngineContract):
    pass
