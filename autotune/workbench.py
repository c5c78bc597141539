"""The load generator and the judge of one start, as the trial sees them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType

from autotune.answers import Answers, sample_key
from autotune.benchmark import Benchmark
from autotune.benchmark.audit import only_clients_fault
from autotune.coding.evaluate import Answer, Outcome, judge_all
from autotune.coding.launch import Limits
from autotune.coding.sandbox import choose_sandbox
from autotune.engines import engine_of, open_server
from autotune.errors import AutotuneError, ErrorRateTooHigh, MeasurementError
from autotune.measurement import BucketMeasurement, CodingResult
from autotune.raw import RawRequests, raw_requests
from autotune.sglang.server import CacheFlush
from autotune.trial import TrialSpec
from autotune.workload import Bucket

__all__ = [
    "ServerBench",
    "empty_cache",
]

# Our own requests are aborted within a few steps after they are closed.
_IDLE_WITHIN_S = 5.0
_LOOK_AGAIN_S = 0.05


def empty_cache(
    flush: Callable[[], CacheFlush],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Empties a server's cache, or leaves it where that is not for us; False when it stays busy."""
    until_s = clock() + _IDLE_WITHIN_S
    while flush() is CacheFlush.BUSY:
        if clock() > until_s:
            return False
        sleep(_LOOK_AGAIN_S)
    return True


class ServerBench:
    """Measures one server start over HTTP.  Use as a context manager."""

    def __init__(
        self, spec: TrialSpec, on_requests: Callable[[RawRequests], None] = lambda requests: None
    ) -> None:
        self._spec = spec
        self._on_requests = on_requests
        self._bench: Benchmark | None = None

    def __enter__(self) -> ServerBench:
        plan = self._spec.plan
        with open_server(plan) as server:
            models = server.models()
        if not models:
            raise MeasurementError(f"{plan.base_url} names no model")
        self._bench = Benchmark(
            plan.base_url,
            model=models[0],
            api_key=plan.api_key,
            prompts_seed=self._spec.prompts_seed,
            settings=self._spec.measure,
            counter_names=engine_of(plan.engine).counters,
        )
        self._bench.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bench is not None:
            self._bench.__exit__(kind, error, traceback)

    @property
    def bench(self) -> Benchmark:
        assert self._bench is not None, "used outside its context"
        return self._bench

    def give_up(self, reason: AutotuneError) -> None:
        """End what is measured now with this reason; from any thread."""
        self.bench.give_up(reason)

    def warm_up(self) -> None:
        """Throw-away requests: the first ones after a start pay for compilation."""
        self.bench.warm_up()

    def measure(self, bucket: Bucket) -> BucketMeasurement:
        """One bucket; once more, with fresh prompts, when only this machine spoilt it."""
        self._empty_cache()
        measured = self.bench.measure(bucket)
        if only_clients_fault(measured):
            self._empty_cache()
            measured = self.bench.measure(bucket)
        self._on_requests(raw_requests(bucket.key, self.bench.requests))
        return measured

    def _empty_cache(self) -> None:
        """Every bucket begins with an empty prefix cache, where the server lets us.

        A server that stays busy serves somebody else: its numbers would not be those of a bucket.

        Raises:
            MeasurementError: Requests that are not ours are running.
        """
        plan = self._spec.plan
        with open_server(plan) as server:
            idle = empty_cache(server.flush_cache)
        if not idle:
            raise MeasurementError(
                f"{plan.base_url} runs requests that are not ours",
                hint="keep users away while a study measures",
            )

    def answer(self, answers: Answers) -> Mapping[str, str]:
        """Greedy texts of the fixed prompts, by key; asked twice, both begin alike."""
        keys = list(answers.greedy)
        if not keys:
            return {}
        self._empty_cache()
        got = self.bench.generate_text(
            [answers.greedy[key] for key in keys],
            max_tokens=answers.greedy_tokens,
            concurrency=answers.concurrency,
        )
        for key, one in zip(keys, got, strict=True):
            if one.error:
                raise ErrorRateTooHigh(f"losslessness prompt {key} failed: {one.error}")
        return {key: one.reasoning + one.text for key, one in zip(keys, got, strict=True)}

    def code(self, answers: Answers) -> CodingResult:
        """Ask for every coding sample, then judge the answers in the sandbox.

        A study without samples needs no sandbox.
        """
        if not answers.samples:
            return CodingResult(samples={}, passed=0, failed=0, outcomes={}, wall_s=0.0)
        begun = time.monotonic()
        got = self.bench.generate_text(
            [sample.prompt for sample in answers.samples],
            max_tokens=answers.coding_tokens,
            concurrency=answers.concurrency,
        )
        wall_s = time.monotonic() - begun
        failed = [one.error for one in got if one.error]
        if failed:
            raise ErrorRateTooHigh(
                f"{len(failed)} of {len(got)} coding requests failed: {failed[0]}"
            )
        sandbox = choose_sandbox(
            allow_weak=answers.allow_weak, limits=Limits(wall_s=answers.timeout_s)
        )
        judged = judge_all(
            [
                Answer(sample.task, one.text, one.finish_reason)
                for sample, one in zip(answers.samples, got, strict=True)
            ],
            sandbox=sandbox,
        )
        rules = {
            sample_key(sample): str(one.rule)
            for sample, one in zip(answers.samples, judged, strict=True)
        }
        outcomes = Counter(str(one.outcome) for one in judged)
        passed = outcomes[Outcome.PASSED]
        return CodingResult(
            samples={
                sample_key(sample): str(one.outcome)
                for sample, one in zip(answers.samples, judged, strict=True)
            },
            passed=passed,
            failed=len(judged) - passed,
            outcomes=dict(outcomes),
            wall_s=wall_s,
            rules=rules,
            sandbox=sandbox.name,
        )
