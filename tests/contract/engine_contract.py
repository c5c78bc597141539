"""What the product reads from an SGLang server, executable.

The same tests run against the simulated server, the real engine, and recordings of engines that are
not at hand.  They see an engine only through the product's own readers.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import httpx
import pytest

from autotune import proof
from autotune.benchmark.client import OpenAiClient
from autotune.benchmark.counters import HttpCounters
from autotune.benchmark.requests import Outcome, RequestTimings
from autotune.proof import Nonce, ParameterIntent
from autotune.sglang.limits import limits_of
from autotune.sglang.log import StartupLog, StartupPhase
from autotune.sglang.server import ServerInfo, SglangServer
from autotune.space import ParameterValue
from tests.contract.engine_witness import PROMPT, STREAM_TOKENS, Witness

__all__ = ["EngineContract"]

WINDOW = "--speculative-draft-window-size"
OLD_WINDOW = "--speculative-dflash-draft-window-size"
LIMIT = 16
"""What every witness was started with as --max-running-requests."""


def intent(flag: str, value: ParameterValue) -> ParameterIntent:
    aliases = {WINDOW: (OLD_WINDOW,), OLD_WINDOW: (WINDOW,)}
    return ParameterIntent(flag.lstrip("-"), value, flag, aliases.get(flag, ()), "", ())


def other(value: ParameterValue) -> ParameterValue:
    """A value that the engine does not run."""
    return 7777 if value is None else None


class EngineContract:
    """Inherit it and give a `witness` fixture."""

    @pytest.fixture
    def log(self, witness: Witness) -> StartupLog:
        log = StartupLog()
        for line in witness.log_lines():
            log.feed(line)
        return log

    @pytest.fixture
    def server(self, witness: Witness) -> SglangServer:
        return SglangServer("http://engine", transport=httpx.MockTransport(witness.respond))

    @pytest.fixture
    def info(self, server: SglangServer) -> ServerInfo:
        return server.server_info()

    # -- the log ----------------------------------------------------------------------------------

    def test_the_log_leads_to_ready(self, log: StartupLog) -> None:
        assert log.phase is StartupPhase.READY
        assert not log.failed
        assert log.bound is not None
        assert log.bound_pid is not None
        assert proof.bound_link(log).ok

    def test_it_is_not_ready_before_its_last_line_about_it(self, witness: Witness) -> None:
        log = StartupLog()
        for line in witness.log_lines():
            if "fired up" in line.text:
                break
            log.feed(line)
        assert not log.ready

    def test_log_and_answer_name_the_same_start(
        self, witness: Witness, log: StartupLog, info: ServerInfo
    ) -> None:
        nonce = Nonce("--weight-version", witness.nonce)
        assert proof.nonce_link(nonce, log, info).ok
        assert not proof.nonce_link(replace(nonce, value="another"), log, info).ok

    def test_every_tuned_setting_is_shown_twice(
        self, witness: Witness, log: StartupLog, info: ServerInfo
    ) -> None:
        for flag, value in witness.parameters.items():
            links = proof.parameter_links([intent(flag, value)], log, info)
            named = {link.link.partition(": ")[2] for link in links}
            assert {"server_args", "server_info"} <= named, flag
            assert [link for link in links if not link.ok] == []

    def test_a_setting_that_was_not_taken_is_seen(
        self, witness: Witness, log: StartupLog, info: ServerInfo
    ) -> None:
        for flag, value in witness.parameters.items():
            links = proof.parameter_links([intent(flag, other(value))], log, info)
            assert [link for link in links if not link.ok], flag

    def test_the_draft_runner_shows_its_window(self, witness: Witness, log: StartupLog) -> None:
        windows = [v for flag, v in witness.parameters.items() if flag in (WINDOW, OLD_WINDOW)]
        for value in windows:
            assert log.draft_runner is not None
            assert log.draft_runner["draft_window_size"] == str(value)
            assert log.draft_runner["compact_cache"] == str(value is not None)
        if not windows:
            assert log.draft_runner is None

    # -- the answers ------------------------------------------------------------------------------

    def test_its_limit_is_found(self, info: ServerInfo, log: StartupLog) -> None:
        limits = limits_of(info, log)
        assert limits.max_running_requests == LIMIT
        assert limits.largest_graph_batch is not None

    def test_the_model_has_a_name(self, server: SglangServer) -> None:
        assert len(server.models()) == 1
        assert server.model_info()["model_path"]

    def test_a_native_answer_counts_and_carries_the_nonce(
        self, witness: Witness, server: SglangServer
    ) -> None:
        generation = server.generate(PROMPT, max_new_tokens=8)
        assert generation.completion_tokens == 8
        assert generation.finish_reason == "length"
        assert proof.generation_link(Nonce("--weight-version", witness.nonce), generation).ok

    def test_a_stream_counts_its_tokens_as_they_come(self, witness: Witness) -> None:
        timings = asyncio.run(stream(witness))
        assert timings.outcome is Outcome.SUCCESSFUL, timings.message
        assert timings.completion_tokens == STREAM_TOKENS
        assert timings.live
        assert sum(timings.chunk_tokens) == STREAM_TOKENS
        assert timings.prompt_tokens is not None

    def test_it_counts_the_tokens_of_texts(self, witness: Witness) -> None:
        async def counted() -> list[int] | None:
            client = client_of(witness)
            try:
                return await client.count_tokens([PROMPT, "x"])
            finally:
                await client.aclose()

        counts = asyncio.run(counted())
        assert counts is not None
        assert counts[0] > counts[1] >= 1

    def test_its_counters_are_read(self, witness: Witness, info: ServerInfo) -> None:
        async def read() -> None:
            transport = httpx.MockTransport(witness.respond)
            async with httpx.AsyncClient(base_url="http://engine", transport=transport) as client:
                values = await HttpCounters(client).read()
            assert values.generation_tokens is not None
            assert values.generation_tokens >= STREAM_TOKENS
            assert values.max_running_requests == LIMIT
            if info.merged.get("speculative_algorithm"):
                assert values.accept_length is not None
                assert values.accept_length >= 1
                # Engines before 0.5.15 or so do not count their verify calls.
                if values.verify_calls is not None:
                    assert 1 <= values.verify_calls <= values.generation_tokens

        asyncio.run(read())

    def test_the_answer_is_one_json_object(self, witness: Witness) -> None:
        path = "/server_info" if "/server_info" in witness.answers else "/get_server_info"
        states = json.loads(witness.answers[path])["internal_states"]
        assert len(states) == 1
        assert isinstance(states[0], dict)


def client_of(witness: Witness) -> OpenAiClient:
    transport = httpx.MockTransport(witness.respond)
    return OpenAiClient("http://engine", model="m", transport=transport)


async def stream(witness: Witness) -> RequestTimings:
    client = client_of(witness)
    try:
        body = client.body(b'"x"', max_tokens=STREAM_TOKENS, stream=True, ignore_eos=True)
        return await client.stream(body, on_tokens=lambda at_s, tokens: None)
    finally:
        await client.aclose()
