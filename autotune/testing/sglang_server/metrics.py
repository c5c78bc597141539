"""`/metrics` in the text format of Prometheus, with the names of the real server."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.testing.sglang_server.counters import Histogram
from autotune.testing.sglang_server.engine import Engine
from autotune.testing.sglang_server.switches import LogStyle

__all__ = ["metrics_text"]


def metrics_text(engine: Engine, style: LogStyle) -> str:
    """All metrics of one server."""
    return "\n".join(_lines(engine, style)) + "\n"


def _lines(engine: Engine, style: LogStyle) -> Iterator[str]:
    counters, args = engine.counters, engine.args
    base = f'engine_type="unified",model_name="{args.model}"'
    rank = f'{base},moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    by_streaming = {
        "prompt_tokens_total": ("prefill tokens processed", counters.prompt_tokens),
        "generation_tokens_total": ("generation tokens processed", counters.generation_tokens),
        "num_requests_total": ("requests processed", counters.requests),
    }
    for name, (text, values) in by_streaming.items():
        yield from _head(name, "counter", f"Number of {text}.")
        for streaming, value in values.items():
            label = f'{base},is_streaming="{str(streaming).lower()}"'
            yield _sample(name, label, value)
    yield from _one("num_aborted_requests_total", "counter", base, counters.aborted_requests)
    if style is LogStyle.NEW:
        yield from _one("spec_verify_calls_total", "counter", base, counters.verify_calls)
    yield from _head("cached_tokens_total", "counter", "Number of cached prompt tokens.")
    yield _sample("cached_tokens_total", f'cache_source="device",{base}', counters.cached_tokens)
    yield from _head("realtime_tokens_total", "counter", "Tokens processed, by mode.")
    for mode, value in (
        ("prefill_compute", counters.prefill_tokens),
        ("decode", counters.decode_tokens),
        ("prefill_cache", counters.cached_tokens),
    ):
        yield _sample("realtime_tokens_total", f'mode="{mode}",{rank}', value)
    used = engine.used_tokens
    length = counters.accept_length or 0.0
    gauges = {
        "num_running_reqs": engine.running,
        "num_queue_reqs": engine.waiting,
        "num_used_tokens": used,
        "token_usage": used / engine.kv_tokens,
        "max_total_num_tokens": engine.kv_tokens,
        "gen_throughput": counters.gen_throughput,
        "spec_accept_length": length,
        "spec_accept_rate": max(0.0, length - 1) / max(1, args.block_size - 1),
        "cache_hit_rate": 0.0,
        "is_cuda_graph": float(engine.in_graph),
        "num_retracted_reqs": 0.0,
        "page_size": float(args.fields["page_size"]),
        "context_len": float(args.context_tokens),
    }
    for name, gauge in gauges.items():
        yield from _one(name, "gauge", rank, gauge)
    yield from _histogram("time_to_first_token_seconds", base, counters.time_to_first_token_s)
    yield from _histogram("inter_token_latency_seconds", base, counters.inter_token_s)
    yield from _histogram("e2e_request_latency_seconds", base, counters.e2e_s)
    yield from _histogram("queue_time_seconds", rank, counters.queue_s)


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP sglang:{name} {text}"
    yield f"# TYPE sglang:{name} {kind}"


def _sample(name: str, labels: str, value: float) -> str:
    return f"sglang:{name}{{{labels}}} {float(value)}"


def _one(name: str, kind: str, labels: str, value: float) -> Iterator[str]:
    yield from _head(name, kind, name.replace("_", " ") + ".")
    yield _sample(name, labels, value)


def _histogram(name: str, labels: str, histogram: Histogram) -> Iterator[str]:
    yield from _head(name, "histogram", name.replace("_", " ") + ".")
    for bound, count in histogram.cumulative():
        yield _sample(f"{name}_bucket", f'{labels},le="{bound}"', count)
    yield _sample(f"{name}_sum", labels, histogram.total)
    yield _sample(f"{name}_count", labels, histogram.count)
