"""vLLM as an engine of autotune: what its log proves, and how it is asked.

Read from vLLM's public log lines (0.11 and 0.19): `non-default args:` of the API server,
`Initializing a V1 LLM engine ... with config:` of the engine core, `Starting vLLM API server`, and
uvicorn's `Application startup complete.`

vLLM answers no question about its settings, so the log is the only witness beside the kernel: the
arguments as the API server parsed them, and the number of draft tokens as the engine core resolved
it.  The nonce is the served model's name: the log shows it, the server knows no other, and every
answer carries it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, Self

import httpx

from autotune.engine_words import CounterNames, LimitFlags
from autotune.engines import Engine
from autotune.errors import MeasurementError
from autotune.sglang.log import StartupLog
from autotune.sglang.server import CacheFlush, Generation, ServerInfo, mapped

__all__ = ["VLLM", "VllmLog", "VllmServer"]

_ARGUMENTS = re.compile(r"non-default args: (?P<args>\{.*\})\s*$")
_ENGINE = re.compile(r"Initializing a V1 LLM engine .*? with config: (?P<config>.*)")
_DRAFTED = re.compile(r"SpeculativeConfig\([^)]*num_spec_tokens=(?P<tokens>\d+)")
_SHARDS = re.compile(r"checkpoint shards:\s+(?P<percent>\d+)% Completed")
_BOUND = re.compile(r"Starting vLLM API server(?: \d+)? on (?P<address>\S+)")
_READY = "Application startup complete."
_DRAFT_TOKENS = "speculative_config.num_speculative_tokens"


class VllmLog(StartupLog):
    """The log of one start."""

    _arguments_seen: dict[str, object] | None = None

    def prove(self, message: str, rank: str) -> None:
        if found := _ARGUMENTS.search(message):
            self._arguments_seen = _flat(_literal(found["args"]))
        elif found := _ENGINE.search(message):
            # What the engine core resolved counts, not what the API server was told.
            drafted = _DRAFTED.search(found["config"])
            settings = dict(self._arguments_seen or {})
            settings[_DRAFT_TOKENS] = int(drafted["tokens"]) if drafted else None
            self.says_settings(settings)
        elif found := _SHARDS.search(message):
            self.says_loading(int(found["percent"]) / 100)
        elif found := _BOUND.search(message):
            self.says_bound(found["address"])
        elif message.endswith(_READY):
            self.says_ready()


class VllmServer:
    """A client for one server."""

    def __init__(
        self, base_url: str, *, api_key: str | None = None, admin_api_key: str | None = None
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # A kept connection would go on talking to a server that drains, past its successor.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.Client(
            base_url=base_url, headers=headers, timeout=30.0, trust_env=False, limits=limits
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._http.close()

    def server_info(self) -> ServerInfo:
        """Version and model names: vLLM tells no more of its settings."""
        models = self._ask("GET", "/v1/models")["data"]
        return ServerInfo(
            {
                "version": self._ask("GET", "/version").get("version"),
                "model_path": models[0].get("root"),
                "served_model_name": models[0]["id"],
                "speculative_config": None,  # the flag itself is known, and no abbreviation
            }
        )

    def models(self) -> tuple[str, ...]:
        return tuple(row["id"] for row in self._ask("GET", "/v1/models")["data"])

    def generate(self, text: str, *, max_new_tokens: int) -> Generation:
        body = {
            "model": self.models()[0],
            "prompt": text,
            "max_tokens": max_new_tokens,
            "temperature": 0.0,
        }
        answer = self._ask("POST", "/v1/completions", body)
        (choice,) = answer["choices"]
        return Generation(
            text=choice["text"],
            completion_tokens=answer["usage"]["completion_tokens"],
            weight_version=answer["model"],
            finish_reason=choice["finish_reason"],
        )

    def flush_cache(self) -> CacheFlush:
        """`/reset_prefix_cache` is there in development mode only; prompts are unique anyway."""
        return CacheFlush.UNAVAILABLE

    def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        try:
            response = self._http.request(method, path, json=body)
            response.raise_for_status()
            answer = response.json()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise mapped(error, path) from error
        except ValueError as error:
            raise MeasurementError(f"the answer of {path} is not JSON") from error
        if not isinstance(answer, dict):
            raise MeasurementError(f"the answer of {path} is no JSON object")
        return answer


def _literal(text: str) -> Mapping[str, object]:
    """The arguments as Python wrote them; {} where a value is no literal."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {}
    return value if isinstance(value, dict) else {}


def _flat(arguments: Mapping[str, object]) -> dict[str, object]:
    """Parts of a JSON argument under the names of their dotted flags; a list of one as its item."""
    flat: dict[str, object] = {}
    for name, value in arguments.items():
        if isinstance(value, dict):
            flat.update({f"{name}.{key}": inner for key, inner in value.items()})
        else:
            flat[name] = value[0] if isinstance(value, list) and len(value) == 1 else value
    return flat


VLLM = Engine(
    "vllm",
    VllmServer,
    VllmLog,
    nonce_flag="--served-model-name",
    nonce_replaces=True,
    tells_seed=False,
    limits=LimitFlags("--max-num-seqs", "--max-model-len"),
    # Tokens are counted as they are made, also what a closed stream never sent: no `generated`.
    counters=CounterNames(
        steps="vllm:spec_decode_num_drafts_total",
        accepted="vllm:spec_decode_num_accepted_tokens_total",
    ),
)
