"""How the simulated server starts, or fails to."""

from __future__ import annotations

import signal
import socket

import httpx
import pytest

from tests.integration.sglang_server.server_process import READY, TREE, Start, soon

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
        assert soon(lambda: client.get("/health").status_code == 200)


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
