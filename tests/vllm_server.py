"""A stand-in for vLLM: its flags, its log lines, its OpenAI answers; drafts make it faster.

`python -m tests.vllm_server serve MODEL --port N --speculative-config.NAME VALUE ...`.  With
`STANDIN_IGNORES=1` the engine core drafts four tokens whatever it is told.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

_WORD = re.compile(r"\w{1,4}|[^\w\s]")


def parsed(words: list[str]) -> dict[str, Any]:
    """Arguments as vLLM names them; dotted flags are parts of a JSON argument."""
    arguments: dict[str, Any] = {"model_tag": words[0], "model": words[0]}
    for flag, value in zip(words[1::2], words[2::2], strict=True):
        name, _, key = flag.removeprefix("--").replace("-", "_").partition(".")
        plain: Any = int(value) if value.isdigit() else value
        if key:
            arguments.setdefault(name, {})[key] = plain
        else:
            arguments[name] = [plain] if name == "served_model_name" else plain
    return arguments


def application(name: str, *, drafted: int) -> Starlette:
    """The API of one model; a step of 4 ms writes one token and the half of what is drafted."""
    a_step = 1 + drafted // 2

    def usage(body: dict[str, Any], done: int) -> dict[str, int]:
        text = body.get("prompt") or "".join(m["content"] for m in body.get("messages", ()))
        return {"prompt_tokens": len(_WORD.findall(text)), "completion_tokens": done}

    counted = {"drafts": 0, "accepted_tokens": 0}

    async def stream(body: dict[str, Any]) -> AsyncIterator[str]:
        wanted, done = body["max_tokens"], 0
        while done < wanted:
            await asyncio.sleep(0.004)
            new = min(a_step, wanted - done)
            done += new
            counted["drafts"] += 1
            counted["accepted_tokens"] += drafted // 2
            choice = {"index": 0, "delta": {"content": "word " * new}, "finish_reason": None}
            chunk = {"model": name, "choices": [choice], "usage": usage(body, done)}
            yield f"data: {json.dumps(chunk)}\n\n"
        choice = {"index": 0, "delta": {}, "finish_reason": "length"}
        yield f"data: {json.dumps({'model': name, 'choices': [choice]})}\n\n"
        yield f"data: {json.dumps({'model': name, 'choices': [], 'usage': usage(body, done)})}\n\n"
        yield "data: [DONE]\n\n"

    async def complete(request: Request) -> Response:
        body = await request.json()
        if body["model"] != name:
            return JSONResponse({"error": f"no model {body['model']}"}, 404)
        if body.get("stream"):
            return StreamingResponse(stream(body), media_type="text/event-stream")
        done = body["max_tokens"]
        await asyncio.sleep(0.004 * done / a_step)
        text = "word " * done
        choice = {"index": 0, "text": text, "finish_reason": "length"}
        choice["message"] = {"role": "assistant", "content": text}
        return JSONResponse({"model": name, "choices": [choice], "usage": usage(body, done)})

    async def models(request: Request) -> Response:
        return JSONResponse({"data": [{"id": name, "root": "model"}]})

    async def version(request: Request) -> Response:
        return JSONResponse({"version": "0.11.0"})

    async def metrics(request: Request) -> Response:
        lines = [
            f'vllm:spec_decode_num_{name}_total{{engine="0",model_name="m"}} {float(value)}'
            for name, value in counted.items()
        ]
        return PlainTextResponse("\n".join(lines) + "\n")

    async def tokenize(request: Request) -> Response:
        return JSONResponse({"count": len(_WORD.findall((await request.json())["prompt"]))})

    return Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/version", version),
            Route("/metrics", metrics),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/v1/completions", complete, methods=["POST"]),
            Route("/v1/chat/completions", complete, methods=["POST"]),
        ]
    )


def main(words: list[str]) -> None:
    """Load, log and serve as vLLM does."""
    arguments = parsed(words[1:])
    name = arguments.get("served_model_name", [arguments["model"]])[0]
    port = arguments["port"]
    drafted = arguments.get("speculative_config", {}).get("num_speculative_tokens", 0)
    if os.environ.get("STANDIN_IGNORES"):
        drafted = 4
    api = f"(APIServer pid={os.getpid()}) INFO 11-03 05:51:44"
    core = f"(EngineCore_DP0 pid={os.getpid()}) INFO 11-03 05:51:50"
    print(f"{api} [api_server.py:1839] vLLM API server version 0.11.0")
    print(f"{api} [utils.py:233] non-default args: {arguments}")
    print(
        f"{core} [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='model', "
        f"speculative_config=SpeculativeConfig(method='ngram', model=None, num_spec_tokens="
        f"{drafted}), tokenizer='model', dtype=torch.bfloat16"
    )
    print("Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00,  9.7it/s]")
    print(f"{api} [api_server.py:1945] Starting vLLM API server 0 on http://127.0.0.1:{port}")
    sys.stdout.flush()
    app = application(name, drafted=drafted)
    uvicorn.run(app, host="127.0.0.1", port=port, access_log=False)


if __name__ == "__main__":
    main(sys.argv[1:])
