"""What the simulated server answers, streams and counts."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.integration.sglang_server.server_process import (
    TREE,
    Server,
    Start,
    events,
    generate,
    soon,
)

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
        assert soon(lambda: client.post("/flush_cache").status_code == 200)


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
        assert soon(lambda: "num_queue_reqs{" in client.get("/metrics").text)
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
