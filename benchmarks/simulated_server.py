"""Measure the simulated server against its own surface and print a table.

    python benchmarks/simulated_server.py --time-scale 5 --seconds 4

A closed loop of streams at each concurrency; tokens by the server's cumulative usage, output
throughput = tokens that arrived in the window / window.  `true` is the surface's closed-loop value
times the time scale; the difference is what client, sockets and event loop cost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import httpx

from autotune.testing.sglang_server.surface import Setting, Surface

WARM_UP_S = 1.0


@dataclass(slots=True)
class Tally:
    """Tokens and chunks that have arrived so far, over all streams."""

    tokens: int = 0
    chunks: int = 0


async def stream(client: httpx.AsyncClient, prompt: str, output_tokens: int, tally: Tally) -> None:
    """One request; adds to the tally as its chunks arrive."""
    body = {
        "prompt": prompt,
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    seen, rest = 0, b""
    async with client.stream("POST", "/v1/completions", json=body) as response:
        async for data in response.aiter_bytes():
            *events, rest = (rest + data).split(b"\n\n")
            for event in events:
                if event in (b"data: [DONE]", b""):
                    continue
                tokens = json.loads(event[6:])["usage"]["completion_tokens"]
                tally.tokens += tokens - seen
                tally.chunks += tokens > seen
                seen = tokens


async def measure(
    base_url: str, *, context_tokens: int, concurrency: int, output_tokens: int, seconds: float
) -> tuple[float, float, float]:
    """Output throughput in tok/s, tokens a chunk and the client's share of a core."""
    tally, numbers = Tally(), count()
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    async with httpx.AsyncClient(base_url=base_url, limits=limits, timeout=60) as client:

        async def loop() -> None:
            while True:
                number = f"{os.getpid()} {context_tokens} {concurrency} {next(numbers)}:"
                await stream(client, number + " word" * (context_tokens - 10), output_tokens, tally)

        tasks = [asyncio.create_task(loop()) for _ in range(concurrency)]
        await asyncio.sleep(WARM_UP_S)
        begun, tokens, chunks = time.perf_counter(), tally.tokens, tally.chunks
        cpu = _cpu_s()
        await asyncio.sleep(seconds)
        span = time.perf_counter() - begun
        tokens, chunks, cpu = tally.tokens - tokens, tally.chunks - chunks, _cpu_s() - cpu
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return tokens / span, tokens / max(1, chunks), cpu / span


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _server_cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--surface", default="demo")
    parser.add_argument("--time-scale", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--contexts", default="60,1024")
    parser.add_argument("--concurrencies", default="1,8,64")
    parser.add_argument("--output-tokens", type=int, default=256)
    parser.add_argument("--budget", type=int, default=8)
    parser.add_argument("--topk", type=int, default=4)
    parser.add_argument("--window", type=int, default=None)
    options = parser.parse_args()
    window = [] if options.window is None else ["--speculative-draft-window-size", options.window]
    flags = ["--max-running-requests", 64, *window, "--speculative-ddtree-budget", options.budget]
    flags += ["--speculative-ddtree-topk-cap", options.topk]
    environ = {
        "AUTOTUNE_SIM_SURFACE": options.surface,
        "AUTOTUNE_SIM_TIME_SCALE": str(options.time_scale),
        "AUTOTUNE_SIM_SHARED_SD": "0",
        "AUTOTUNE_SIM_BUCKET_SD": "0",
    }
    with serving(flags, environ) as (pid, base_url):
        return _table(options, pid, base_url)


@contextmanager
def serving(flags: Sequence[object], environ: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """A simulated server: its process id and base URL.

    Raises:
        TimeoutError: It did not become ready.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = ["--model-path", "m", "--port", port, "--speculative-algorithm", "DDTREE"]
    argv += ["--speculative-draft-model-path", "d", *flags]
    server = subprocess.Popen(
        [sys.executable, "-m", "autotune.testing.sglang_server", *map(str, argv)],
        env={**os.environ, **environ},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        base_url = f"http://127.0.0.1:{port}"
        _require_ready(base_url)
        yield server.pid, base_url
    finally:
        server.kill()
        server.wait()


def _require_ready(base_url: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{base_url}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise TimeoutError("the server did not become ready")


def _table(options: argparse.Namespace, pid: int, base_url: str) -> int:
    surface = Surface.named(options.surface)
    setting = Setting(
        budget=options.budget, topk=options.topk, window=options.window, max_running_requests=64
    )
    print("| context | C | true tok/s | measured | difference | tokens/chunk | tau | CPU s, c |")
    print("|---|---|---|---|---|---|---|---|")
    for context_tokens in map(int, options.contexts.split(",")):
        tau = surface.accept_length(
            budget=setting.budget,
            topk=setting.topk,
            window=setting.window,
            context_tokens=context_tokens,
        )
        for concurrency in map(int, options.concurrencies.split(",")):
            true = options.time_scale * surface.output_tok_per_s(
                setting,
                context_tokens=context_tokens,
                concurrency=concurrency,
                output_tokens=options.output_tokens,
            )
            begun, cpu = time.monotonic(), _server_cpu_s(pid)
            measured, per_chunk, client_cpu = asyncio.run(
                measure(
                    base_url,
                    context_tokens=context_tokens,
                    concurrency=concurrency,
                    output_tokens=options.output_tokens,
                    seconds=options.seconds,
                )
            )
            server_cpu = (_server_cpu_s(pid) - cpu) / (time.monotonic() - begun)
            print(
                f"| {context_tokens} | {concurrency} | {true:.0f} | {measured:.0f} "
                f"| {measured / true - 1:+.1%} | {per_chunk:.2f} | {tau:.2f} "
                f"| {server_cpu:.2f}, {client_cpu:.2f} |"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
