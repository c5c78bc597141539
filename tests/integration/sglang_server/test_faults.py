"""The faults that the simulated server can be given."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.integration.sglang_server.server_process import TREE, Server, Start, events, generate

# faults while serving


@pytest.mark.parametrize("fault", ["truncate-stream", "cut-stream", "error-200", "no-usage"])
def test_spoiled_streams(start: Start, fault: str) -> None:
    server = start(FAULT=fault)
    body = {"prompt": "spoiled", "max_tokens": 60, "ignore_eos": True, "stream": True}
    body["stream_options"] = {"include_usage": True}
    with server.client() as client:
        if fault == "cut-stream":
            with pytest.raises(httpx.RemoteProtocolError):
                client.post("/v1/completions", json=body)
            return
        response = client.post("/v1/completions", json=body)
        frames = events(response.content)
        assert response.status_code == 200
        assert generate(client, "not streamed", 5).status_code == 200
    assert not any("usage" in frame for frame in frames if frame != "[DONE]")
    if fault == "truncate-stream":
        assert frames[-1] != "[DONE]"
        assert all(f["choices"][0]["finish_reason"] is None for f in frames)
    elif fault == "error-200":
        assert frames[-2]["error"]["code"] == 500
    else:
        assert frames[-2]["choices"][0]["finish_reason"] == "length"


def test_reasoning_only(start: Start) -> None:
    server = start(FAULT="reasoning-only")
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "think"}], "max_tokens": 30}
    with server.client() as client:
        message = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
        frames = events(client.post("/v1/chat/completions", json=body | {"stream": True}).content)
    assert message["content"] is None
    assert message["reasoning_content"]
    deltas = [f["choices"][0]["delta"] for f in frames[:-1]]
    assert not any(delta.get("content") for delta in deltas)
    assert "".join(d.get("reasoning_content", "") for d in deltas) == message["reasoning_content"]


def test_out_of_memory_at_the_first_large_batch(start: Start) -> None:
    server = start(*TREE, FAULT="oom-first-batch", TIME_SCALE="2")
    with server.client() as client, ThreadPoolExecutor(8) as pool:
        assert generate(client, "small", 5).status_code == 200
        batch = [pool.submit(generate, client, f"{n} large", 200) for n in range(8)]
        assert all(isinstance(b.exception(), httpx.TransportError) for b in batch)
    assert server.wait() == -signal.SIGKILL
    assert "torch.OutOfMemoryError: CUDA out of memory." in server.log
    assert "SIGQUIT received. signum=None, frame=None." in server.log


def test_a_crash_after_n_requests(start: Start) -> None:
    server = start(FAULT="crash-bucket:3")
    with server.client() as client:
        for n in range(2):
            assert generate(client, f"{n}", 5).status_code == 200
        with pytest.raises(httpx.TransportError):
            generate(client, "last", 5)
    assert server.wait() == -signal.SIGKILL


def test_a_stall_keeps_the_listener_and_loses_the_health(start: Start) -> None:
    server = start(FAULT="stall-bucket:2", HEALTH_S="0.3")
    with server.client() as client:
        for n in range(2):
            assert generate(client, f"{n}", 5).status_code == 200
        assert client.get("/v1/models").status_code == 200
        assert client.get("/health").status_code == 503
        client.timeout = httpx.Timeout(0.5)
        with pytest.raises(httpx.ReadTimeout):
            generate(client, "stuck", 5)


def test_no_accept_log(start: Start) -> None:
    server = start(*TREE, FAULT="no-accept-log")
    with server.client() as client:
        generate(client, "silent", 500)
        state = client.get("/server_info").json()["internal_states"][0]
    assert "avg_spec_accept_length" not in state
    server.wait_for("Decode batch")
    assert "accept len" not in server.log


def test_ignored_flags_show_in_server_info(start: Start) -> None:
    flags = (*TREE, "--speculative-draft-window-size", "2048")
    server = start(*flags, FAULT="ignore-window,ignore-budget")
    with server.client() as client:
        info = client.get("/server_info").json()
    assert info["speculative_dflash_draft_window_size"] is None
    assert info["speculative_ddtree_budget"] is None
    assert "draft_window_size=None, compact_cache=False" in server.log


def test_garble_wide_breaks_the_text(server: Server, start: Start) -> None:
    garbling = start(*TREE, FAULT="garble-wide:32")
    texts = []
    for one in (server, garbling):
        with one.client() as client:
            texts.append(generate(client, "compare", 80).json()["text"])
    assert "\ufffd" in texts[1]
    assert "\ufffd" not in texts[0]
