"""The client against recorded answers and against every way in which HTTP can fail."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import httpx
import pytest

from autotune.errors import (
    AutotuneError,
    CommandTimeout,
    ConfigError,
    ConnectError,
    MeasurementError,
)
from autotune.sglang.limits import Limits
from autotune.sglang.limits import limits_of as server_limits
from autotune.sglang.log import StartupLog
from autotune.sglang.server import (
    MISSING,
    CacheFlush,
    Generation,
    SglangServer,
    mapped,
    setting,
    spelling,
)
from autotune.supervisors.log_lines import LogLine

CASES = Path(__file__).parent.parent / "cases" / "sglang"
INFO = json.loads((CASES / "server-info-dflash-0.5.17.json").read_text())
Answer = Callable[[httpx.Request], httpx.Response]


def server(
    answer: Answer, *, api_key: str | None = None, admin_api_key: str | None = None
) -> SglangServer:
    return SglangServer(
        "http://gpu-a:30000",
        api_key=api_key,
        admin_api_key=admin_api_key,
        transport=httpx.MockTransport(answer),
    )


def answering(routes: dict[str, object]) -> Answer:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path not in routes:
            return httpx.Response(404, json={"detail": "Not Found"})
        found = routes[request.url.path]
        return found if isinstance(found, httpx.Response) else httpx.Response(200, json=found)

    return answer


def httpx_exceptions() -> Iterator[type[Exception]]:
    for name in sorted(httpx.__all__):
        found = getattr(httpx, name)
        if isinstance(found, type) and issubclass(found, Exception):
            yield found


def raised(kind: type[Exception]) -> Exception:
    if issubclass(kind, httpx.HTTPStatusError):
        request = httpx.Request("GET", "http://gpu-a")
        return kind("bad", request=request, response=httpx.Response(500, request=request))
    make: Callable[..., Exception] = kind
    own_message = issubclass(kind, httpx.StreamError) and kind is not httpx.StreamError
    return make() if own_message else make("bad")


@pytest.mark.parametrize("kind", list(httpx_exceptions()), ids=lambda kind: kind.__name__)
def test_every_exception_of_httpx_becomes_one_of_ours(kind: type[Exception]) -> None:
    error = raised(kind)

    def answer(request: httpx.Request) -> httpx.Response:
        raise error

    with server(answer) as client, pytest.raises(AutotuneError) as caught:
        client.models()
    assert caught.value.__cause__ is error
    assert kind.__name__ in caught.value.message


@pytest.mark.parametrize(
    ("kind", "ours"),
    [
        (httpx.ConnectError, ConnectError),
        (httpx.ReadError, ConnectError),
        (httpx.RemoteProtocolError, ConnectError),
        (httpx.ConnectTimeout, CommandTimeout),
        (httpx.ReadTimeout, CommandTimeout),
        (httpx.PoolTimeout, CommandTimeout),
        (httpx.DecodingError, MeasurementError),
        (httpx.TooManyRedirects, MeasurementError),
        (httpx.UnsupportedProtocol, ConfigError),
        (httpx.InvalidURL, ConfigError),
    ],
)
def test_what_they_become(kind: type[Exception], ours: type[AutotuneError]) -> None:
    assert type(mapped(raised(kind), "gpu-a")) is ours


def test_a_port_where_nobody_listens_is_a_connect_error() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        port = unheard.getsockname()[1]
        with SglangServer(f"http://127.0.0.1:{port}") as client, pytest.raises(ConnectError):
            client.server_info()


class Listening(BaseHTTPRequestHandler):
    """A server that would keep its connections open, and notes from where it was asked."""

    protocol_version = "HTTP/1.1"
    peers: ClassVar[list[int]] = []

    def do_GET(self) -> None:
        self.peers.append(self.client_address[1])
        body = b'{"data": [{"id": "kimi"}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        """Say nothing."""


@pytest.fixture
def listening() -> Iterator[str]:
    Listening.peers.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Listening) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}"
        http.shutdown()
        thread.join()


def test_each_answer_comes_over_a_connection_of_its_own(listening: str) -> None:
    # A kept one would go on talking to a process that drains, past the one that took its port.
    with SglangServer(listening) as client:
        assert client.models() == client.models() == ("kimi",)
    assert len(set(Listening.peers)) == 2


def test_proxies_of_the_environment_are_not_used(
    listening: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "nonsense://nowhere")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with SglangServer(listening) as client:
        assert client.models() == ("kimi",)


def test_server_info_is_read_under_its_old_name_too() -> None:
    for path in ("/server_info", "/get_server_info"):
        with server(answering({path: INFO})) as client:
            info = client.server_info()
        assert info.version == "0.5.17"
        assert info.random_seed == 501119508
        assert info.weight_version == "default"
        assert setting(info, "--speculative-draft-window-size") == 64
        # The scheduler's view of a setting lies over the HTTP process's.
        assert info.flat["disable_chunked_prefix_cache"] is False
        assert setting(info, "disable_chunked_prefix_cache") is True
        assert setting(info, "avg_spec_accept_length") == 1.0


def test_no_secret_leaves_the_client() -> None:
    state = {"api_key": "sk-hidden-1", "admin_api_key": "sk-hidden-2"}
    answer = {**INFO, **state, "internal_states": [state], "note": "key sk-hidden-1 used"}
    with server(
        answering({"/server_info": answer}), api_key="sk-hidden-1", admin_api_key="sk-hidden-2"
    ) as client:
        info = client.server_info()
    assert "hidden" not in str(info)
    body = httpx.Response(500, text="bad key sk-hidden-1")
    with (
        server(answering({"/v1/models": body}), api_key="sk-hidden-1") as client,
        pytest.raises(MeasurementError) as caught,
    ):
        client.models()
    assert "hidden" not in str(caught.value)


def test_keys_go_where_the_engine_wants_them() -> None:
    seen: dict[str, str | None] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        seen[request.url.path] = request.headers.get("authorization")
        return httpx.Response(200, json={"data": []})

    with server(answer, api_key="user", admin_api_key="admin") as client:
        client.models()
        client.flush_cache()
    assert seen == {"/v1/models": "Bearer user", "/flush_cache": "Bearer admin"}
    with server(answer, api_key="user") as client:
        client.flush_cache()
    assert seen["/flush_cache"] == "Bearer user"


@pytest.mark.parametrize("key", ["two\nlines", "ключ", " space"])
def test_a_key_that_no_header_can_hold_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="api_key"):
        SglangServer("http://gpu-a", api_key=key)


def test_a_generation_is_read() -> None:
    recorded = json.loads((CASES / "generate-0.5.21.json").read_text())
    asked: list[object] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        return httpx.Response(200, json=recorded)

    with server(answer) as client:
        assert client.generate("Hi", max_new_tokens=16) == Generation(
            "W" * 16, 16, "default", "length"
        )
    assert asked == [
        {
            "text": "Hi",
            "sampling_params": {"max_new_tokens": 16, "temperature": 0.0},
            "stream": False,
        }
    ]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (httpx.Response(200, text="<html>"), "is not JSON"),
        (httpx.Response(200, content=b"\xff\xfe{"), "is not JSON"),
        (httpx.Response(200, json=["x"]), "not a JSON object"),
        (httpx.Response(200, json={"text": "x"}), "no text with meta_info"),
        (httpx.Response(200, json={"text": "x", "meta_info": {}}), "does not count its tokens"),
        (httpx.Response(503, text="Service Unavailable"), "status 503"),
        (httpx.Response(401, text="Unauthorized"), "another API key"),
        (httpx.Response(302, headers={"location": "/login"}), "status 302"),
    ],
)
def test_unusable_answers_are_measurement_errors(answer: httpx.Response, words: str) -> None:
    with (
        server(answering({"/generate": answer})) as client,
        pytest.raises(MeasurementError, match=words),
    ):
        client.generate("Hi", max_new_tokens=1)


def test_a_flush_says_whether_it_happened() -> None:
    meanings = {
        200: CacheFlush.EMPTIED,
        400: CacheFlush.BUSY,
        401: CacheFlush.UNAVAILABLE,
        404: CacheFlush.UNAVAILABLE,
    }
    for status, meaning in meanings.items():
        with server(answering({"/flush_cache": httpx.Response(status)})) as client:
            assert client.flush_cache() is meaning
    broken = answering({"/flush_cache": httpx.Response(500)})
    with server(broken) as client, pytest.raises(MeasurementError, match="500"):
        client.flush_cache()


def limits_of(info: dict[str, object], *lines: str) -> Limits:
    log = StartupLog()
    for line in lines:
        log.feed(LogLine(line, 0.0))
    with server(answering({"/server_info": info})) as client:
        return server_limits(client.server_info(), log)


def test_limits_are_what_the_engine_really_admits() -> None:
    graphs = "Capture target verify CUDA graph begin. backend=full, bs=[1, 2, 24], avail mem=1 GB"
    line = "max_total_num_tokens=9, max_running_requests=16, context_len=9"
    assert limits_of(INFO) == Limits(32, 32)
    assert limits_of(INFO, graphs) == Limits(32, 24)
    assert limits_of({"max_running_requests": 48, "cuda_graph_bs": [1, 160]}) == Limits(48, 160)
    assert limits_of({"max_running_requests": None, "dp_size": 2}, line) == Limits(32, None)
    per_rank = {"effective_max_running_requests_per_dp": 24, "decode_cuda_graph_bs": []}
    assert limits_of({"dp_size": 2, "internal_states": [per_rank]}) == Limits(48, 0)
    assert limits_of({"disable_cuda_graph": True}, graphs) == Limits(None, 0)
    disabled = {"cuda_graph_config": {"decode": {"backend": "disabled", "bs": [1, 2]}}}
    assert limits_of({**disabled}) == Limits(None, 0)


def test_settings_are_found_under_whichever_name_the_engine_has() -> None:
    new = "--speculative-draft-window-size"
    old = "--speculative-dflash-draft-window-size"
    for key, flag in (
        ("speculative_draft_window_size", new),
        ("speculative_dflash_draft_window_size", old),
    ):
        assert setting({key: 2048}, new, (old,)) == 2048
        assert setting({key: None}, new, (old,)) is None
        assert spelling({key: None}, (new, old)) == flag
    assert setting({}, new, (old,)) is MISSING
    assert spelling({}, (new, old)) is None
    both = {"speculative_draft_window_size": None, "speculative_dflash_draft_window_size": 64}
    assert setting(both, new, (old,)) == 64
