"""The simulated server as a process: endpoints, streams, faults, endings."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

TREE = (
    "--speculative-algorithm",
    "DDTREE",
    "--speculative-draft-model-path",
    "d",
    "--speculative-ddtree-budget",
    "8",
    "--speculative-ddtree-topk-cap",
    "4",
)
DEADLINE_S = 30.0
READY = "The server is fired up and ready to roll!"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    """One process; its log is collected by a thread, so a test can wait for a line."""

    process: subprocess.Popen[str]
    port: int
    lines: list[str] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)
    _readers: list[threading.Thread] = field(default_factory=list)

    def follow(self) -> None:
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            reader = threading.Thread(target=self._read, args=(stream,))
            reader.start()
            self._readers.append(reader)

    def _read(self, stream: Any) -> None:
        for line in stream:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        stream.close()

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, text: str) -> None:
        with self._news:
            seen = self._news.wait_for(lambda: text in self.log, timeout=DEADLINE_S)
        assert seen, f"{text!r} is not in the log:\n{self.log[-3000:]}"

    def wait(self) -> int:
        status = self.process.wait(timeout=DEADLINE_S)
        self.join()
        return status

    def join(self) -> None:
        for reader in self._readers:
            reader.join(timeout=DEADLINE_S)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=DEADLINE_S, trust_env=False, **options)


Start = Callable[..., Server]


@pytest.fixture(scope="module")
def start_module() -> Iterator[Start]:
    yield from _starter()


@pytest.fixture
def start() -> Iterator[Start]:
    yield from _starter()


def _starter() -> Iterator[Start]:
    servers: list[Server] = []

    def start(*flags: str, port: int | None = None, ready: bool = True, **environ: str) -> Server:
        port = port or free_port()
        settings = {"TIME_SCALE": "20", "SHARED_SD": "0", "BUCKET_SD": "0", "WATCH_S": "0.1"}
        settings |= environ
        argv = [sys.executable, "-m", "autotune.testing.sglang_server", "--model-path", "m"]
        process = subprocess.Popen(
            [*argv, "--port", str(port), *flags],
            env={**os.environ, **{f"AUTOTUNE_SIM_{k}": v for k, v in settings.items()}},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        server = Server(process, port)
        servers.append(server)
        server.follow()
        if ready:
            server.wait_for(READY)
        return server

    yield start
    for server in servers:
        server.process.kill()
        server.process.wait()
        server.join()


@pytest.fixture(scope="module")
def server(start_module: Start) -> Server:
    return start_module(
        *TREE, "--weight-version", "study-3", "--enable-metrics", "--enable-cache-report"
    )


def events(body: bytes) -> list[Any]:
    """The JSON of every event; [DONE] stays text."""
    parts = [part for part in body.split(b"\n\n") if part]
    assert all(part.startswith(b"data: ") for part in parts)
    return [p[6:].decode() if p[6:] == b"[DONE]" else json.loads(p[6:]) for p in parts]


def generate(client: httpx.Client, text: str, tokens: int, **extra: Any) -> httpx.Response:
    params = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return client.post("/generate", json={"text": text, "sampling_params": params, **extra})


# endpoints


def test_the_native_answer_carries_the_nonce_and_the_counts(server: Server) -> None:
    with server.client() as client:
        answer = generate(client, "unique native prompt", 40).json()
    meta = answer["meta_info"]
    assert meta["weight_version"] == "study-3"
    assert meta["completion_tokens"] == len(answer["output_ids"]) == 40
    assert meta["finish_reason"] == {"type": "length", "length": 40}
    assert meta["spec_accept_length"] == pytest.approx(40 / meta["spec_verify_ct"])
    assert 1.5 < meta["spec_accept_length"] < 8


def test_tokenize_counts_as_the_server_counts(server: Server) -> None:
    prompt = "def f(x):\n    return x ** 2\n"
    with server.client() as client:
        tokens = client.post("/tokenize", json={"prompt": prompt}).json()
        meta = generate(client, prompt, 1).json()["meta_info"]
        again = client.post("/detokenize", json={"tokens": tokens["tokens"]}).json()
        by_ids = client.post(
            "/generate",
            json={"input_ids": tokens["tokens"], "sampling_params": {"max_new_tokens": 1}},
        ).json()["meta_info"]
    assert tokens["count"] == len(tokens["tokens"]) == meta["prompt_tokens"]
    assert by_ids["prompt_tokens"] == tokens["count"]
    assert tokens["max_model_len"] == 262_144
    assert again["text"] == prompt


def test_native_streams_are_cumulative_and_chunks_hold_several_tokens(server: Server) -> None:
    with server.client() as client:
        frames = events(generate(client, "native stream", 120, stream=True).content)
    assert frames.pop() == "[DONE]"
    counts = [frame["meta_info"]["completion_tokens"] for frame in frames]
    assert counts == sorted(set(counts))
    assert counts[-1] == 120
    assert len(counts) < 100
    assert all(b["text"].startswith(a["text"]) for a, b in itertools.pairwise(frames))
    assert frames[-1]["meta_info"]["finish_reason"]["type"] == "length"


@pytest.mark.parametrize("chat", [True, False])
def test_openai_streams_carry_usage_when_asked(server: Server, chat: bool) -> None:
    body: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "stream": True}
    body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    if chat:
        path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": "hello"}]
    else:
        path, body["prompt"] = "/v1/completions", "hello there"
    with server.client() as client:
        frames = events(client.post(path, json=body).content)
        whole = client.post(path, json=body | {"stream": False}).json()
    assert frames.pop() == "[DONE]"
    usage = frames.pop()
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 60
    counts = [frame["usage"]["completion_tokens"] for frame in frames]
    assert counts == sorted(counts)
    choices = [frame["choices"][0] for frame in frames]
    parts = (
        [c["delta"].get("content") or "" for c in choices] if chat else [c["text"] for c in choices]
    )
    expected = whole["choices"][0]["message"]["content"] if chat else whole["choices"][0]["text"]
    assert "".join(parts) == expected
    assert choices[-1]["finish_reason"] == "length"
    assert whole["metadata"] == {"weight_version": "study-3"}
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_streams_without_stream_options_have_no_usage(server: Server) -> None:
    with server.client() as client:
        body = {"prompt": "x", "max_tokens": 5, "stream": True}
        frames = events(client.post("/v1/completions", json=body).content)
    assert not any("usage" in frame for frame in frames[:-1])


def test_a_repeated_prompt_is_cached_and_a_flush_forgets_it(server: Server) -> None:
    prompt = "a prompt that comes back " * 40
    with server.client() as client:
        first, second = (generate(client, prompt, 2).json()["meta_info"] for _ in range(2))
        assert client.post("/flush_cache").status_code == 200
        third = generate(client, prompt, 2).json()["meta_info"]
    assert (first["cached_tokens"], third["cached_tokens"]) == (0, 0)
    assert second["cached_tokens"] == second["prompt_tokens"] - 1


def test_stop_ends_the_text_before_the_stop_text(server: Server) -> None:
    with server.client() as client:
        text = generate(client, "stop prompt", 60).json()["text"]
        stop = text[25:29]
        body = {"prompt": "stop prompt", "max_tokens": 60, "stop": [stop]}
        whole = client.post("/v1/completions", json=body).json()["choices"][0]
        frames = events(client.post("/v1/completions", json=body | {"stream": True}).content)
    assert whole["text"] == text[: text.index(stop)]
    assert (whole["finish_reason"], whole["matched_stop"]) == ("stop", stop)
    assert "".join(f["choices"][0]["text"] for f in frames[:-1]) == whole["text"]


def test_the_answer_ends_by_itself_unless_eos_is_ignored(server: Server) -> None:
    with server.client() as client:
        params = {"max_new_tokens": 4000}
        body = {"text": "how long", "sampling_params": params}
        natural = client.post("/generate", json=body).json()["meta_info"]
        longer = generate(client, "how long", natural["completion_tokens"] + 50).json()["meta_info"]
    assert natural["finish_reason"]["type"] == "stop"
    assert longer["completion_tokens"] == natural["completion_tokens"] + 50


def test_server_info_shows_what_runs_and_ties_to_the_log(server: Server) -> None:
    with server.client() as client:
        generate(client, "warm the counters", 400)
        info = client.get("/server_info").json()
        old = client.get("/get_server_info").json()
    assert info["speculative_ddtree_budget"] == 8
    assert info["speculative_dflash_draft_window_size"] is None
    assert info["weight_version"] == "study-3"
    assert f"random_seed={info['random_seed']}" in server.log
    state = info["internal_states"][0]
    assert state["effective_max_running_requests_per_dp"] == 48
    assert 2.5 < state["avg_spec_accept_length"] < 4.5
    assert old["random_seed"] == info["random_seed"]


def test_the_accept_length_is_reset_by_its_threshold(server: Server) -> None:
    change = {"server_args": {"speculative_accept_threshold_single": 1.0}}
    with server.client() as client:
        generate(client, "before the reset", 300)
        answer = client.post("/set_internal_state", json=change).json()
        state = client.get("/server_info").json()["internal_states"][0]
        refused = client.post("/set_internal_state", json={"server_args": {"tp_size": 2}}).json()
    assert answer[0]["updated"] is True
    assert "avg_spec_accept_length" not in state
    assert refused[0]["updated"] is False


def test_metrics_count_the_tokens(server: Server) -> None:
    def total(text: str) -> float:
        name = "sglang:generation_tokens_total"
        return sum(float(x.split()[-1]) for x in text.splitlines() if x.startswith(name))

    with server.client() as client:
        before = total(client.get("/metrics").text)
        generate(client, "count me", 33)
        after = total(client.get("/metrics").text)
    assert after - before == 33


def test_the_decode_line_names_the_accept_length(server: Server) -> None:
    with server.client() as client:
        generate(client, "a long answer", 500)
    server.wait_for("accept len: ")
    line = next(x for x in server.lines if "Decode batch" in x and "accept len" in x)
    assert ", cuda graph: True, gen throughput (token/s): " in line
    assert line.rstrip(", ").endswith("#queue-req: 0")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {}),
        ("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 0}}),
        ("/v1/chat/completions", {"messages": []}),
        ("/v1/completions", {"prompt": 3}),
        ("/v1/completions", {"prompt": "x", "n": 2}),
        ("/tokenize", {"prompt": 3}),
        ("/detokenize", {"tokens": [17]}),
    ],
)
def test_wrong_bodies_are_refused(server: Server, path: str, body: dict[str, Any]) -> None:
    with server.client() as client:
        response = client.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["message"]


def test_a_client_that_goes_away_frees_its_place(server: Server) -> None:
    params = {"max_new_tokens": 200_000, "ignore_eos": True}
    body = {"text": "endless", "stream": True, "sampling_params": params}
    with server.client() as client:
        with client.stream("POST", "/generate", json=body) as response:
            chunks = response.iter_bytes()
            next(chunks)
            assert client.post("/flush_cache").status_code == 400
        assert _soon(lambda: client.post("/flush_cache").status_code == 200)


def test_the_same_prompt_gives_the_same_text_in_every_configuration(
    server: Server, start: Start
) -> None:
    other = start("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "6")
    plain = start()
    texts = set()
    for one in (server, other, plain):
        with one.client() as client:
            texts.add(generate(client, "the same everywhere", 150).json()["text"])
    assert len(texts) == 1
    with plain.client() as client:
        assert "spec_verify_ct" not in generate(client, "x", 20).json()["meta_info"]
        assert client.get("/metrics").status_code == 404


def test_requests_above_the_limit_queue(start: Start) -> None:
    server = start(*TREE, "--max-running-requests", "2", "--enable-metrics", TIME_SCALE="2")
    with server.client() as client, ThreadPoolExecutor(6) as pool:
        waiting = [pool.submit(generate, client, f"{n} queue", 150) for n in range(6)]
        assert _soon(lambda: "num_queue_reqs{" in client.get("/metrics").text)
        running = [
            float(x.split()[-1])
            for x in client.get("/metrics").text.splitlines()
            if x.startswith("sglang:num_running_reqs{")
        ]
        for answer in waiting:
            assert answer.result().json()["meta_info"]["completion_tokens"] == 150
    assert running[0] <= 2
    assert any("#running-req: 2" in x and "Decode" in x for x in server.lines)


def test_keys_guard_what_the_real_server_guards(start: Start) -> None:
    server = start("--api-key", "user", "--admin-api-key", "admin")
    user, admin = ({"Authorization": f"Bearer {key}"} for key in ("user", "admin"))
    with server.client() as client:
        assert client.get("/health").status_code == 200
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers=admin).status_code == 401
        assert client.get("/v1/models", headers=user).status_code == 200
        assert client.post("/flush_cache", headers=user).status_code == 401
        assert client.post("/flush_cache", headers=admin).status_code == 200


def test_coding_tasks_are_answered(start: Start, tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(
        '[[task]]\nname = "inc"\nprompt = "Write inc(x)."\nentry_point = "inc"\n'
        'solution = "def inc(x):\\n    return x + 1"\nnear_miss = "def inc(x):\\n    return x"\n'
    )
    server = start(*TREE, ANSWERS=str(tmp_path))
    messages = [{"role": "user", "content": "Write inc(x). Only code."}]
    with server.client() as client:
        answer = client.post("/v1/chat/completions", json={"messages": messages}).json()
    choice = answer["choices"][0]
    assert choice["message"]["content"].startswith("```python\ndef inc(x):\n    return x")
    assert choice["finish_reason"] == "stop"


# start


def test_nothing_listens_while_the_weights_load(start: Start) -> None:
    server = start(*TREE, ready=False, LOAD_S="1.5")
    server.wait_for("Load weight begin")
    with pytest.raises(httpx.ConnectError), server.client() as client:
        client.get("/v1/models")
    server.wait_for(READY)
    log = server.log
    order = [
        "server_args=",
        "Capture cuda graph end",
        "Uvicorn running on",
        "POST /generate",
        READY,
    ]
    assert all(part in log for part in order)
    assert log.index("Capture cuda graph end") < log.index("Uvicorn running on") < log.index(READY)


def test_health_is_503_until_warm_while_the_model_list_answers(start: Start) -> None:
    server = start(ready=False, WARM_POLL_S="1.5")
    server.wait_for("Uvicorn running on")
    with server.client() as client:
        assert client.get("/v1/models").status_code == 200
        assert client.get("/health").status_code == 503
        server.wait_for(READY)
        assert _soon(lambda: client.get("/health").status_code == 200)


def test_sigterm_while_loading_kills_at_once(start: Start) -> None:
    server = start(*TREE, ready=False, FAULT="hang-load")
    server.wait_for("Completed | 23/64")
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == -signal.SIGTERM


@pytest.mark.parametrize(
    ("flags", "status", "text"),
    [
        (("--no-such-flag",), 2, "sglang serve: error: unrecognized arguments: --no-such-flag"),
        (("--speculative-algorithm", "DDTREE"), 1, "ValueError: DDTREE speculative decoding"),
        ((*TREE, "--speculative-draft-window-size", "4"), 1, "ValueError: "),
    ],
)
def test_wrong_arguments_end_the_process(
    start: Start, flags: tuple[str, ...], status: int, text: str
) -> None:
    server = start(*flags, ready=False)
    assert server.wait() == status
    assert text in server.log


@pytest.mark.parametrize(
    ("flags", "environ", "text"),
    [
        (TREE, {"FAULT": "oom-load"}, "torch.OutOfMemoryError: CUDA out of memory. Tried to allo"),
        ((*TREE[:5], "64", "--speculative-ddtree-topk-cap", "16"), {}, "Capture cuda graph failed"),
        ((*TREE, "--mem-fraction-static", "0.3"), {}, "RuntimeError: Not enough memory."),
    ],
)
def test_a_start_without_memory_ends_by_signal_9(
    start: Start, flags: tuple[str, ...], environ: dict[str, str], text: str
) -> None:
    server = start(*flags, "--max-running-requests", "64", ready=False, **environ)
    assert server.wait() == -signal.SIGKILL
    assert "Scheduler hit an exception: Traceback" in server.log
    assert text in server.log
    assert "Received sigquit from a child process." in server.log
    assert "Uvicorn running" not in server.log


def test_a_taken_port_is_found_after_the_load(start: Start) -> None:
    """A silent holder: the process hangs in its shutdown, as the real one does."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        server = start(port=holder.getsockname()[1], ready=False)
        server.wait_for("Waiting for application shutdown.")
        assert "[Errno 98] error while attempting to bind on address" in server.log
        assert server.process.poll() is None


def test_an_old_server_on_the_port_makes_the_ready_line_lie(start: Start) -> None:
    old = start()
    new = start(port=old.port, ready=False)
    assert new.wait() == 3
    assert "[Errno 98]" in new.log
    assert READY in new.log
    assert "Uvicorn running" not in new.log


# endings


@pytest.mark.parametrize(("style", "status"), [("0.5.11", -signal.SIGKILL), ("0.5.23", 0)])
def test_sigterm_drains(start: Start, style: str, status: int) -> None:
    server = start(LOG_STYLE=style, WATCH_S="0.4", TIME_SCALE="1")
    params = {"max_new_tokens": 60, "ignore_eos": True}
    body = {"text": "drain", "stream": True, "sampling_params": params}
    with server.client() as client, client.stream("POST", "/generate", json=body) as stream:
        chunks = stream.iter_bytes()
        received = next(chunks)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("SIGTERM received.")
        with server.client() as other:
            assert other.get("/v1/models").status_code == 200
            assert other.get("/health").status_code == 503
        received += b"".join(chunks)
    assert events(received)[-1] == "[DONE]"
    assert server.wait() == status
    assert "Remaining number of requests 1." in server.log
    assert "Remaining number of requests 0." in server.log
    assert "Health check request received during shutdown. Returning 503." in server.log
    assert ("Finished server process" in server.log) is (style == "0.5.23")


def test_sigint_shuts_down_in_order(start: Start) -> None:
    server = start()
    server.process.send_signal(signal.SIGINT)
    assert server.wait() == 0
    assert "Finished server process" in server.log


def test_slow_drain_answers_on(start: Start) -> None:
    server = start(FAULT="slow-drain", DRAIN_S="1.2")
    server.process.send_signal(signal.SIGTERM)
    server.wait_for("Remaining number of requests 0.")
    with server.client() as client:
        assert client.get("/v1/models").status_code == 200
        assert generate(client, "still here", 5).status_code == 200
    assert server.wait() == -signal.SIGKILL
    assert server.log.count("Gracefully exiting...") > 3


def test_an_orphan_keeps_the_port(start: Start) -> None:
    server = start("--weight-version", "old-1", FAULT="orphan:3")
    with server.client() as client:
        seed = client.get("/server_info").json()["random_seed"]
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == -signal.SIGKILL
    with server.client() as client:
        info = client.get("/server_info").json()
        assert (info["weight_version"], info["random_seed"]) == ("old-1", seed)
        assert generate(client, "who answers", 5).json()["meta_info"]["weight_version"] == "old-1"
        endless = {"text": "x", "sampling_params": {"max_new_tokens": 200_000, "ignore_eos": True}}
        with pytest.raises(httpx.TransportError):  # its end is the end of its connections
            client.post("/generate", json=endless)
    with server.client() as client:
        assert not _answers(client)


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


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/v1/models").status_code == 200
    except httpx.TransportError:
        return False


def _soon(holds: Callable[[], bool]) -> bool:
    """Ask again until it holds; the requests themselves set the pace."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if holds():
            return True
    return False
