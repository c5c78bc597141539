"""The HTTP endpoints."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from autotune.testing.sglang_server.answers import Model
from autotune.testing.sglang_server.args import ServerArgs
from autotune.testing.sglang_server.bodies import BadBody, Generation
from autotune.testing.sglang_server.engine import Engine
from autotune.testing.sglang_server.faults import Fault
from autotune.testing.sglang_server.frames import (
    DONE,
    Frames,
    GenerateFrames,
    OpenAIFrames,
    OpenAIOptions,
    error_body,
    error_event,
)
from autotune.testing.sglang_server.lifecycle import Lifecycle, WarmUp
from autotune.testing.sglang_server.log import ServerLog
from autotune.testing.sglang_server.metrics import metrics_text
from autotune.testing.sglang_server.reports import Reports
from autotune.testing.sglang_server.requests import FinishKind, GenerationRequest, Sampling
from autotune.testing.sglang_server.streaming import Spoiled, StreamResponse, until_finished
from autotune.testing.sglang_server.switches import Switches
from autotune.testing.sglang_server.tokens import decode, encode

__all__ = ["ApiKeys", "Service", "build_app"]

_ADMIN_PATHS = frozenset({"/flush_cache", "/set_internal_state"})
_OPEN_PATHS = ("/health", "/metrics", "/ready")


class ApiKeys:
    """Refuses requests without the right bearer token.

    Health and metrics are open.  The admin endpoints take the admin key where one is set, and the
    ordinary key otherwise.
    """

    def __init__(self, app: ASGIApp, *, api_key: str | None, admin_key: str | None) -> None:
        self._app = app
        self._api_key = api_key
        self._admin_key = admin_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["path"].startswith(_OPEN_PATHS):
            wanted = self._api_key
            if scope["path"] in _ADMIN_PATHS and self._admin_key:
                wanted = self._admin_key
            given = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
            if wanted and given != f"Bearer {wanted}":
                refusal = JSONResponse({"error": "Unauthorized"}, status_code=401)
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


class Service:
    """The endpoints of one server.

    Args:
        args: Resolved arguments.
        switches: How the simulation behaves.
        engine: Runs the requests.
        model: Writes the answers.
        lifecycle: Ready, draining or neither.
        log: Main-process log lines.
    """

    def __init__(
        self,
        args: ServerArgs,
        switches: Switches,
        engine: Engine,
        model: Model,
        lifecycle: Lifecycle,
        log: ServerLog,
    ) -> None:
        self._args = args
        self._switches = switches
        self._engine = engine
        self._model = model
        self._lifecycle = lifecycle
        self._log = log
        self._reports = Reports(args, switches, engine, lifecycle)
        self._streams = 0

    def routes(self) -> list[BaseRoute]:
        """All routes; /metrics only with --enable-metrics."""
        get: dict[str, Callable[[Request], Coroutine[Any, Any, Response]]] = {
            "/v1/models": self.models,
            "/health": self.health,
            "/health_generate": self.health,
            "/model_info": self.model_info,
            "/get_model_info": self.model_info,
            "/server_info": self.server_info,
            "/get_server_info": self.server_info,
        }
        post: dict[str, Callable[[Request], Coroutine[Any, Any, Any]]] = {
            "/tokenize": self.tokenize,
            "/v1/tokenize": self.tokenize,
            "/detokenize": self.detokenize,
            "/v1/detokenize": self.detokenize,
            "/set_internal_state": self.set_internal_state,
            "/generate": self.generate,
            "/v1/completions": self.completions,
            "/v1/chat/completions": self.chat_completions,
        }
        routes: list[BaseRoute] = [Route(path, endpoint) for path, endpoint in get.items()]
        routes += [Route(path, endpoint, methods=["POST"]) for path, endpoint in post.items()]
        routes.append(Route("/flush_cache", self.flush_cache, methods=["GET", "POST"]))
        if self._args.fields["enable_metrics"]:
            routes.append(Route("/metrics", self.metrics))
        return routes

    async def models(self, _: Request) -> Response:
        return JSONResponse(self._reports.models())

    async def model_info(self, _: Request) -> Response:
        return JSONResponse(self._reports.model_info())

    async def server_info(self, _: Request) -> Response:
        return JSONResponse(self._reports.server_info())

    async def metrics(self, _: Request) -> Response:
        text = metrics_text(self._engine, self._switches.log_style)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def health(self, _: Request) -> Response:
        """503 until warm and while draining; otherwise a generation of one token if idle."""
        if self._lifecycle.draining:
            self._log.main("Health check request received during shutdown. Returning 503.")
            return Response(status_code=503)
        if not self._lifecycle.ready:
            return Response(status_code=503)
        if self._engine.busy and not self._engine.stalled:
            return Response(status_code=200)
        probe = GenerationRequest(
            encode("h"), self._model.answer("h"), Sampling(max_new_tokens=1), probe=True
        )
        self._engine.submit(probe)
        try:
            await asyncio.wait_for(probe.finished(), timeout=self._switches.health_s)
        except TimeoutError:
            self._engine.abort(probe)
            self._log.main(
                "Health check failed. Server couldn't get a response from detokenizer for last "
                f"{self._switches.health_s:g} seconds."
            )
            return Response(status_code=503)
        return Response(status_code=200)

    async def flush_cache(self, _: Request) -> Response:
        if self._engine.flush():
            self._log.scheduler("Cache flushed successfully!")
            return PlainTextResponse(
                "Cache flushed.\nPlease check backend logs for more details. "
                "(When there are running or waiting requests, the operation will not be "
                "performed.)\n"
            )
        self._log.scheduler(
            "Cache not flushed because there are pending requests. "
            f"#queue-req: {self._engine.waiting}, #running-req: {self._engine.running}"
        )
        return PlainTextResponse("Flush cache failed.\n", status_code=400)

    async def set_internal_state(self, request: Request) -> Response:
        try:
            wanted = (await _json_object(request)).get("server_args", {})
        except BadBody as error:
            return _refused(str(error))
        updated, before = self._reports.set_internal_state(wanted)
        if updated:
            self._log.scheduler(f"avg_spec_accept_length={before or 0.0}")
            self._log.scheduler(f"Global server args updated! {wanted}")
        return JSONResponse([{"updated": updated, "server_args": wanted}])

    async def tokenize(self, request: Request) -> Response:
        try:
            prompt = (await _json_object(request)).get("prompt")
        except BadBody as error:
            return _refused(str(error))
        if isinstance(prompt, str):
            tokens = encode(prompt)
            body = {"tokens": tokens, "count": len(tokens)}
        elif isinstance(prompt, list) and all(isinstance(text, str) for text in prompt):
            many = [encode(text) for text in prompt]
            body = {"tokens": many, "count": [len(tokens) for tokens in many]}
        else:
            return _refused("prompt must be a string or a list of strings")
        return JSONResponse(body | {"max_model_len": self._args.context_tokens})

    async def detokenize(self, request: Request) -> Response:
        try:
            tokens = (await _json_object(request)).get("tokens")
        except BadBody as error:
            return _refused(str(error))
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            return _refused("tokens must be a list of integers")
        try:
            return JSONResponse({"text": decode(tokens)})
        except ValueError as error:
            return _refused(str(error))

    async def generate(self, request: Request) -> Any:
        return await self._answer(request, Generation.native)

    async def completions(self, request: Request) -> Any:
        return await self._answer(request, Generation.completion)

    async def chat_completions(self, request: Request) -> Any:
        return await self._answer(request, Generation.chat_completion)

    async def _answer(
        self, http: Request, read: Callable[[dict[str, Any], int], Generation]
    ) -> Any:
        try:
            wanted = read(await _json_object(http), self._args.context_tokens)
        except BadBody as error:
            return _refused(str(error))
        if len(wanted.prompt_ids) >= self._args.context_tokens:
            return self._too_long(wanted)
        self._lifecycle.arm()
        request = GenerationRequest(
            wanted.prompt_ids,
            self._model.answer(wanted.prompt),
            wanted.sampling,
            streaming=wanted.stream,
            probe=not self._lifecycle.ready,
            rid=wanted.rid,
        )
        frames = self._frames(request, wanted)
        self._engine.submit(request)
        if wanted.stream:
            return StreamResponse(self._engine, request, frames, spoiled=self._spoiled())
        await until_finished(self._engine, request, http.receive)
        if request.finish is FinishKind.ABORT:
            return _refused("Aborted")
        return JSONResponse(frames.whole())

    def _frames(self, request: GenerationRequest, wanted: Generation) -> Frames:
        fields, faults = self._args.fields, self._switches.faults
        if wanted.chat is None:
            incremental = bool(fields["incremental_streaming_output"])
            style = self._switches.log_style
            return GenerateFrames(request, self._args, style, incremental=incremental)
        usage = Fault.NO_USAGE not in faults
        default = bool(fields["stream_response_default_include_usage"])
        options = OpenAIOptions(
            chat=wanted.chat,
            include_usage=usage and (wanted.include_usage or default),
            continuous_usage=usage and wanted.stream and wanted.continuous_usage,
            cache_report=bool(fields["enable_cache_report"]),
            reasoning_only=wanted.chat and Fault.REASONING_ONLY in faults,
        )
        return OpenAIFrames(request, self._args, options)

    def _spoiled(self) -> Spoiled:
        self._streams += 1
        kinds = (
            (Fault.TRUNCATE_STREAM, Spoiled.TRUNCATED),
            (Fault.CUT_STREAM, Spoiled.CUT),
            (Fault.ERROR_200, Spoiled.ERROR),
        )
        faults = self._switches.faults
        return next((k for fault, k in kinds if faults.hits(fault, self._streams)), Spoiled.NOT)

    def _too_long(self, wanted: Generation) -> Response:
        message = (
            f"The input ({len(wanted.prompt_ids)} tokens) is longer than the model's context "
            f"length ({self._args.context_tokens} tokens)."
        )
        if wanted.stream:
            event = error_event(message, code=400) + DONE
            return Response(event, media_type="text/event-stream")
        return _refused(message)


def _refused(message: str) -> Response:
    return JSONResponse(error_body(message, code=400), status_code=400)


async def _json_object(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.body() or b"{}")
    except ValueError as error:
        raise BadBody(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadBody("the body must be a JSON object")
    return body


def build_app(
    args: ServerArgs,
    switches: Switches,
    log: ServerLog,
    lifecycle: Lifecycle,
    model: Model,
    *,
    on_engine_error: Callable[[BaseException], None],
) -> ASGIApp:
    """The application; its lifespan runs the engine and the self warm-up.

    Args:
        on_engine_error: Called when the engine ends by an error of the program.
    """
    engine = Engine(args, switches, log, on_fatal=lifecycle.on_fatal)
    lifecycle.attach(engine)
    service = Service(args, switches, engine, model, lifecycle, log)

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            on_engine_error(error)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        scheduler = asyncio.create_task(engine.run())
        scheduler.add_done_callback(ended)
        warm_up = WarmUp(args, switches, log, lifecycle.mark_ready)
        if switches.inherited is None:
            warm_up.start()
        else:
            lifecycle.mark_ready()
        yield
        while warm_up.is_alive():  # after a port conflict it still polls whoever holds the port
            await asyncio.sleep(0.05)
        scheduler.cancel()

    keys = Middleware(
        ApiKeys,
        api_key=args.fields["api_key"],
        admin_key=args.fields["admin_api_key"],
    )
    return Starlette(routes=service.routes(), middleware=[keys], lifespan=lifespan)
