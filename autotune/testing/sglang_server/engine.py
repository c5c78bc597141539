"""The engine: prefill batches and verify rounds over the running requests.

Times come from the surface at the length of the prompts: the growth of a context by its own output
is left out, so that a bucket has one true throughput.  A round that is late is computed at once and
its tokens are sent together with those of the next, so lateness never adds up.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable

from autotune.testing.sglang_server.args import ServerArgs
from autotune.testing.sglang_server.clock import VirtualClock
from autotune.testing.sglang_server.counters import Counters
from autotune.testing.sglang_server.faults import Fault
from autotune.testing.sglang_server.log import ServerLog
from autotune.testing.sglang_server.noise import Noise, noise_seed
from autotune.testing.sglang_server.prefix_cache import PrefixCache
from autotune.testing.sglang_server.requests import GenerationRequest
from autotune.testing.sglang_server.switches import Switches

__all__ = ["Engine", "Fatal"]

DECODE_LOG_ROUNDS = 40
CHUNKED_PREFILL_TOKENS = 8192
_BUSY_S = 0.004
"""Longest span of late rounds before the connections may write, real seconds."""


class Fatal(Exception):
    """The scheduler dies.

    Args:
        out_of_memory: Whether it is an OutOfMemoryError; otherwise the process just vanishes.
    """

    def __init__(self, *, out_of_memory: bool) -> None:
        super().__init__("out of memory" if out_of_memory else "killed")
        self.out_of_memory = out_of_memory


class Engine:
    """Runs requests until it is cancelled or dies.

    Args:
        args: The resolved arguments.
        switches: How the simulation behaves.
        log: Where the prefill and decode lines go.
        on_fatal: Called once when the scheduler dies.
    """

    def __init__(
        self,
        args: ServerArgs,
        switches: Switches,
        log: ServerLog,
        *,
        on_fatal: Callable[[Fatal], None],
    ) -> None:
        self.args = args
        self.counters = Counters()
        self.surface = switches.surface
        self.kv_tokens = int(
            args.fields["max_total_tokens"] or self.surface.kv_tokens(args.setting)
        )
        self.cache = PrefixCache(
            page_size=int(args.fields["page_size"]), capacity_tokens=self.kv_tokens
        )
        self.caches_prefixes = not args.fields["disable_radix_cache"]
        self._faults = switches.faults
        self._log = log
        self._on_fatal = on_fatal
        self._clock = VirtualClock(time_scale=switches.time_scale)
        seed = noise_seed(args, switches.seed)
        self._noise = Noise(shared_sd=switches.shared_sd, bucket_sd=switches.bucket_sd, seed=seed)
        self._rng = random.Random(seed)
        self._waiting: deque[GenerationRequest] = deque()
        self._running: list[GenerationRequest] = []
        self._arrived = asyncio.Event()
        self._tree: dict[int, tuple[float, ...]] = {}
        self._round_s = 0.0
        self._yielded_at = 0.0
        self._line_at = time.monotonic()
        self._line_tokens = 0
        self._line_steps = 0
        self._line_accepted = 0
        self.stalled = False

    @property
    def running(self) -> int:
        """Requests that decode."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def in_graph(self) -> bool:
        """Whether a captured graph holds the running batch."""
        return self.running <= self.args.setting.cuda_graph_max_bs

    @property
    def busy_s(self) -> float:
        """Virtual seconds spent in prefills and rounds."""
        return self._clock.busy_s

    @property
    def busy(self) -> bool:
        return bool(self._running or self._waiting)

    @property
    def used_tokens(self) -> int:
        """Tokens of the running requests."""
        return sum(r.prompt_tokens + r.completion_tokens for r in self._running)

    @property
    def request_ids(self) -> list[str]:
        return [r.rid for r in (*self._running, *self._waiting)]

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request."""
        self._waiting.append(request)
        self._arrived.set()

    def abort(self, request: GenerationRequest) -> None:
        """Drop a request whose client has gone."""
        if request.finish is not None:
            return
        request.abort()
        self.counters.aborted_requests += 1
        if request in self._running:
            self._running.remove(request)
            self._reprice()
        elif request in self._waiting:
            self._waiting.remove(request)

    def flush(self) -> bool:
        """Forget all prefixes; refused while anything runs or waits."""
        if self.busy:
            return False
        self.cache.clear()
        return True

    def reset_accept_length(self) -> float | None:
        """Start the average accept length anew and return the old one."""
        before = self.counters.accept_length
        self._line_steps = self._line_accepted = 0
        self.counters.verify_steps = self.counters.accepted_tokens = 0
        self.counters.accept_length = None
        return before

    async def run(self) -> None:
        """The scheduler's loop."""
        try:
            while True:
                if not self.busy:
                    self._arrived.clear()
                    await self._arrived.wait()
                    self._clock.resume(self._waiting[0].arrived_at)
                if self.stalled:
                    self._arrived.clear()
                    await self._arrived.wait()
                    continue
                batch = self._next_prefill()
                if batch:
                    await self._prefill(batch)
                else:
                    await self._decode()
        except Fatal as fatal:
            self._on_fatal(fatal)

    def _next_prefill(self) -> list[GenerationRequest]:
        """Waiting requests that are prefilled together; moves nothing."""
        setting = self.args.setting
        batch: list[GenerationRequest] = []
        fresh, held = 0, self.used_tokens if self._waiting else 0
        for request in self._waiting:
            room = request.prompt_tokens + min(request.limit_tokens, 512)
            if len(self._running) + len(batch) >= setting.max_running_requests:
                break
            if (self._running or batch) and held + room > self.kv_tokens:
                break
            request.cached_tokens = (
                self.cache.match(request.prompt_ids) if self.caches_prefixes else 0
            )
            fresh += request.prompt_tokens - request.cached_tokens
            held += room
            if batch and fresh > CHUNKED_PREFILL_TOKENS:
                break
            batch.append(request)
        return batch

    async def _prefill(self, batch: list[GenerationRequest]) -> None:
        fresh = sum(r.prompt_tokens - r.cached_tokens for r in batch)
        cached = sum(r.cached_tokens for r in batch)
        now = time.monotonic()
        for request in batch:
            self._waiting.remove(request)
            request.started_at = now
        usage = self.used_tokens / self.kv_tokens
        self._log.scheduler(
            f"Prefill batch, #new-seq: {len(batch)}, #new-token: {fresh}, #cached-token: {cached}, "
            f"token usage: {usage:.2f}, #running-req: {len(self._running)}, "
            f"#queue-req: {len(self._waiting)}, "
        )
        await self._elapse(self.surface.prefill_s(uncached_tokens=fresh))
        now = time.monotonic()
        self.counters.prefill_tokens += fresh
        self.counters.cached_tokens += cached
        ended = False
        for request in batch:
            if request.finish is not None:  # aborted meanwhile
                continue
            if self.caches_prefixes:
                self.cache.insert(request.prompt_ids)
            request.survivals = self._survivals(request.prompt_tokens)
            request.first_token_at = now
            request.advance(1)
            self._line_tokens += 1
            request.notify()
            if not request.ended:
                self._running.append(request)
            else:
                self._end(request)
                ended = True
        self._reprice()
        await self._let_write(now=ended)

    async def _decode(self) -> None:
        if self._running_out_of_memory():
            raise Fatal(out_of_memory=True)
        await self._elapse(self._round_s * self._noise.factor())
        counters, draw = self.counters, self._rng.random
        accepted_all = 0
        ended = []
        for request in self._running:
            luck, accepted = draw(), 1
            for survival in request.survivals:
                if luck >= survival:
                    break
                accepted += 1
            request.verify_count += 1
            written = request.advance(accepted)
            self._line_tokens += written
            counters.decode_tokens += written
            accepted_all += accepted
            request.notify()
            if request.ended:
                ended.append(request)
        counters.rounds += 1
        counters.verify_steps += len(self._running)
        counters.accepted_tokens += accepted_all
        self._line_steps += len(self._running)
        self._line_accepted += accepted_all
        if counters.rounds % DECODE_LOG_ROUNDS == 0:
            self._decode_line()
        for request in ended:
            self._running.remove(request)
            self._end(request)
        if ended:
            self._reprice()
        await self._let_write(now=bool(ended))

    def _end(self, request: GenerationRequest) -> None:
        now = request.finished_at = time.monotonic()
        counters, kind = self.counters, request.streaming
        counters.requests[kind] += 1
        counters.prompt_tokens[kind] += request.prompt_tokens
        counters.generation_tokens[kind] += request.completion_tokens
        counters.verify_calls += request.verify_count
        counters.queue_s.observe(request.started_at - request.arrived_at)
        counters.time_to_first_token_s.observe(request.first_token_at - request.arrived_at)
        counters.e2e_s.observe(now - request.arrived_at)
        if request.completion_tokens > 1:
            span = now - request.first_token_at
            gaps = request.completion_tokens - 1
            counters.inter_token_s.observe(span / gaps, gaps)
        if request.probe:
            return
        counters.generated_requests += 1
        crash_after = self._faults.argument(Fault.CRASH_BUCKET)
        if crash_after is not None and counters.generated_requests >= crash_after:
            raise Fatal(out_of_memory=False)
        stall_after = self._faults.argument(Fault.STALL_BUCKET)
        if stall_after is not None and counters.generated_requests >= stall_after:
            self.stalled = True

    def _survivals(self, context_tokens: int) -> tuple[float, ...]:
        if context_tokens not in self._tree:
            self._tree[context_tokens] = self.surface.survivals(
                self.args.setting, context_tokens=context_tokens
            )
        return self._tree[context_tokens]

    def _reprice(self) -> None:
        """The duration of a round changes only with the batch."""
        if not self._running:
            return
        window = self.args.setting.window
        prompts = [r.prompt_tokens for r in self._running]
        seen = prompts if window is None else [min(window, p) for p in prompts]
        self._round_s = self.surface.round_s(
            self.args.setting,
            running=len(prompts),
            context_tokens=sum(prompts) / len(prompts),
            seen_tokens=sum(seen) / len(seen),
        )

    async def _elapse(self, virtual_s: float) -> None:
        wait_s = self._clock.advance(virtual_s)
        if wait_s > 0:
            await asyncio.sleep(wait_s)
            self._yielded_at = time.monotonic()

    async def _let_write(self, *, now: bool) -> None:
        """Late rounds follow each other without a pause; the connections must get their turn."""
        if now or time.monotonic() - self._yielded_at > _BUSY_S:
            await asyncio.sleep(0)
            self._yielded_at = time.monotonic()

    def _running_out_of_memory(self) -> bool:
        batch = self._faults.argument(Fault.OOM_FIRST_BATCH)
        return batch is not None and len(self._running) >= batch

    def _decode_line(self) -> None:
        now = time.monotonic()
        counters = self.counters
        counters.gen_throughput = self._line_tokens / max(1e-9, now - self._line_at)
        self._line_at, self._line_tokens = now, 0
        accept = ""
        quiet = Fault.NO_ACCEPT_LOG in self._faults
        if self.args.speculates and counters.verify_steps and not quiet:
            counters.accept_length = counters.accepted_tokens / counters.verify_steps
            length = self._line_accepted / max(1, self._line_steps)
            rate = (length - 1) / max(1, self.args.block_size - 1)
            accept = f"accept len: {length:.2f}, accept rate: {rate:.2f}, "
        self._line_steps = self._line_accepted = 0
        used = self.used_tokens
        self._log.scheduler(
            f"Decode batch, #running-req: {len(self._running)}, #token: {used}, "
            f"token usage: {used / self.kv_tokens:.2f}, {accept}cuda graph: {self.in_graph}, "
            f"gen throughput (token/s): {counters.gen_throughput:.2f}, "
            f"#queue-req: {len(self._waiting)}, "
        )
