"""How the simulated server ends."""

from __future__ import annotations

import signal

import httpx
import pytest

from tests.integration.sglang_server.server_process import Start, events, generate

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
        assert not answers_now(client)


def answers_now(client: httpx.Client) -> bool:
    try:
        return client.get("/v1/models").status_code == 200
    except httpx.TransportError:
        return False
