"""What one engine start has shown: its log and its answers, live or recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from autotune.space import ParameterValue
from autotune.supervisors.log_lines import LogLine

__all__ = ["PROMPT", "STREAM_TOKENS", "Witness", "observe"]

PROMPT = "def total(values):"
STREAM_TOKENS = 24

_STREAM = {
    "messages": [{"role": "user", "content": PROMPT}],
    "max_tokens": STREAM_TOKENS,
    "temperature": 0.0,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
# The engine tells its accept length with every 40th step or so.
_LONG_TOKENS = 480


def _generate(tokens: int) -> dict[str, object]:
    sampling = {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
    return {"text": PROMPT, "sampling_params": sampling, "stream": False}


@dataclass(frozen=True)
class Witness:
    """One start.

    Attributes:
        engine: Name and version, for people.
        nonce: What `--weight-version` was given.
        parameters: Tuned flags and their values; None for a flag that is left out.
        lines: The log, from the start until it was ready at least.
        answers: Bodies by the path that gave them.
    """

    engine: str
    nonce: str
    parameters: Mapping[str, ParameterValue]
    lines: tuple[str, ...]
    answers: Mapping[str, bytes] = field(repr=False)

    def log_lines(self) -> list[LogLine]:
        return [LogLine(line, 0.0) for line in self.lines]

    def respond(self, request: httpx.Request) -> httpx.Response:
        """The recorded answer to a request; 404 for a path that the engine does not have."""
        body = self.answers.get(request.url.path)
        return httpx.Response(404 if body is None else 200, stream=httpx.ByteStream(body or b""))

    def save(self, folder: Path) -> None:
        """Write the witness as files that people can read."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "start.log").write_text("\n".join(self.lines) + "\n")
        described = {"engine": self.engine, "nonce": self.nonce, "parameters": self.parameters}
        (folder / "witness.json").write_text(json.dumps(described, indent=1) + "\n")
        for path, body in self.answers.items():
            (folder / f"{path.strip('/').replace('/', '.')}.answer").write_bytes(body)

    @classmethod
    def load(cls, folder: Path) -> Witness:
        described = json.loads((folder / "witness.json").read_text())
        answers = {
            "/" + file.stem.replace(".", "/"): file.read_bytes()
            for file in sorted(folder.glob("*.answer"))
        }
        lines = tuple((folder / "start.log").read_text().splitlines())
        return cls(**described, lines=lines, answers=answers)


def observe(
    url: str, *, engine: str, nonce: str, parameters: Mapping[str, ParameterValue]
) -> Witness:
    """Ask a server that is ready; the log is left to the caller.

    The stream and the generations come before the counters, which they move.
    """
    with httpx.Client(base_url=url, timeout=60.0, trust_env=False) as client:
        client.post("/generate", json=_generate(_LONG_TOKENS)).raise_for_status()
        answers = {
            "/v1/chat/completions": client.post("/v1/chat/completions", json=_STREAM).content,
            "/generate": client.post("/generate", json=_generate(8)).content,
            "/tokenize": client.post("/tokenize", json={"prompt": [PROMPT, "x"]}).content,
        }
        for path in ("/server_info", "/model_info", "/v1/models", "/metrics"):
            answers[path] = client.get(path).raise_for_status().content
    return Witness(engine, nonce, parameters, (), answers)
