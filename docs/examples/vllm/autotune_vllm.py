"""vLLM as an engine of autotune: what its log proves, and how it is asked.

Read from vLLM's public log lines (0.11 and 0.19): `non-default args:` of the API server,
`Initializing a V1 LLM engine ... with config:` of the engine core, `Starting vLLM API server`, and
uvicorn's `Application startup complete.`

vLLM answers no question about its settings, so the log is the only witness beside the kernel: the
arguments as the API server parsed them, and the number of draft tokens as the engine core resolved
it.  The nonce is the served model's name: the log shows it, the server knows no other, and every
answer carries it.

`autotune init` reads its units (`UNITS`): n-gram speculation with one dotted flag for each setting.
"""

from __future__ import annotations

import ast
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

import httpx

from autotune.engine_units import Algorithm, Knob, LiveUnit, UnitFacts, UnitReader
from autotune.engine_words import CounterNames, LimitFlags
from autotune.engines import Engine
from autotune.errors import MeasurementError, UnitRefused
from autotune.sglang.log import StartupLog
from autotune.sglang.server import CacheFlush, Generation, ServerInfo, mapped
from autotune.supervisors.base import Word

__all__ = ["UNITS", "VLLM", "VllmLog", "VllmServer"]

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
        """Version, model names and longest context: vLLM tells no more of its settings."""
        models = self._ask("GET", "/v1/models")["data"]
        return ServerInfo(
            {
                "version": self._ask("GET", "/version").get("version"),
                "model_path": models[0].get("root"),
                "served_model_name": models[0]["id"],
                "max_model_len": models[0].get("max_model_len"),
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


# -- what `autotune init` asks --------------------------------------------------------------------
_SPECULATIVE = ("--speculative-config", "--speculative_config")


def _named(key: str) -> tuple[str, ...]:
    """One setting as a dotted flag, in both spellings."""
    return tuple(f"{flag}.{key}" for flag in _SPECULATIVE)


def _arguments(argv: Sequence[Word]) -> list[str] | None:
    """What stands behind `vllm serve` or vLLM's own module; None where neither does."""
    texts = [word.text for word in argv]
    for at, (one, two) in enumerate(itertools.pairwise(texts)):
        if os.path.basename(one) == "vllm" and two == "serve":
            return texts[at + 2 :]
        if one == "-m" and two.startswith("vllm."):
            return texts[at + 2 :]
    return None


def recognises(argv: Sequence[Word]) -> bool:
    """Whether a command line starts vLLM's server."""
    return _arguments(argv) is not None


def read(live: LiveUnit) -> UnitFacts:
    """N-gram speculation, by the flags that the unit gives.

    Raises:
        UnitRefused: It runs without, with another method, or gives its settings as one JSON text.
    """
    where = f"{live.host}: {live.unit}"
    first, *_ = _SPECULATIVE
    if live.flag(*_SPECULATIVE, "-sc") is not None:
        raise UnitRefused(
            f"{where} gives {first} as one JSON text, of which no single value can be tuned",
            hint=f"write each key as a flag of its own: {first}.method ngram ...",
        )
    method = live.flag(*_named("method"))
    if method is None:
        raise UnitRefused(
            f"{where} runs without speculative decoding, so there is nothing to tune",
            hint=f"add {first}.method ngram and {first}.num_speculative_tokens 4 to the unit",
        )
    if method != "ngram":
        raise UnitRefused(
            f"{where} runs {first}.method {method}, whose flags are not known",
            hint="known: ngram; for another, write the definition by hand",
        )
    tensor = live.number("--tensor-parallel-size", "-tp") or 1
    pipeline = live.number("--pipeline-parallel-size", "-pp") or 1
    replicas = live.number("--data-parallel-size", "-dp") or 1
    return UnitFacts(
        _ngram(shortest=live.number(*_named("prompt_lookup_min")) or 1),
        model=live.told("model_path") or live.flag("--model") or _model(live) or "a model",
        gpus=tensor * pipeline * replicas,
        requests=live.number("--max-num-seqs"),
        context_tokens=live.number("--max-model-len"),
    )


def _model(live: LiveUnit) -> str | None:
    """The model that stands right behind `vllm serve`."""
    first, *_ = [*(_arguments(live.argv) or ()), "-"]
    return None if first.startswith("-") else first


def _ngram(*, shortest: int) -> Algorithm:
    draft_tokens, *other_draft_tokens = _named("num_speculative_tokens")
    lookup_max, *other_lookup_max = _named("prompt_lookup_max")
    return Algorithm(
        "ngram",
        "n-grams of the text so far, without a draft model",
        (
            Knob(
                name="draft_tokens",
                flag=draft_tokens,
                aliases=tuple(other_draft_tokens),
                low=1,
                high=16,
                why="tokens that are looked up and verified in one step; looking up is nearly "
                "free, verification is not, and least so where many requests run at once",
                source="vLLM, docs: speculative decoding, n-gram",
            ),
            Knob(
                name="lookup_max",
                flag=lookup_max,
                aliases=tuple(other_lookup_max),
                low=max(2, shortest),
                high=max(8, shortest),
                why="longest n-gram that is looked for in the text before: a long one is found "
                "seldom and continues right more often",
                source="vLLM, config/speculative.py: refused below prompt_lookup_min",
            ),
        ),
        leaves_alone="prompt_lookup_min bounds lookup_max from below, and vLLM sets it to "
        "prompt_lookup_max when it is left out",
    )


UNITS = UnitReader(recognises, read, default_port=8000)

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
    units=UNITS,
    title="vLLM",
)
