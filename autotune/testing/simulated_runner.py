"""A runner without servers: each start is computed from the surface of the simulated server.

A whole study, its driver, sampler, storage and verdict are the real ones; only the walk of a start
is replaced, so hundreds of starts take seconds.  Time is virtual: a start takes what it would take
on its host, and starts end in that order.

    T_b  = speed of the host * true throughput of the bucket * shared * mean of the windows' noise
    ln shared  ~ N(0, shared_sd)                      one draw for a start
    ln window  ~ N(0, bucket_sd * sqrt(least windows))  so that the mean of a bucket's windows has
                                                      a relative standard error near bucket_sd
"""

from __future__ import annotations

import heapq
import math
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from autotune import stats
from autotune.answers import Answers, compare, sample_key
from autotune.audience import Watcher
from autotune.coding.evaluate import Outcome
from autotune.coding.lossless import Comparison, Losslessness
from autotune.config import StudyConfig
from autotune.driver import Driver, Nothing
from autotune.errors import AutotuneError, StudyError
from autotune.hosts import HostPlan
from autotune.launch import Recipe, make_recipe
from autotune.measurement import (
    BucketMeasurement,
    BucketQuality,
    CodingResult,
    Ending,
    Evidence,
    FailureRecord,
    StartRecord,
)
from autotune.opening import plan_host
from autotune.supervisors.base import Lease, Original, Owner
from autotune.testing.sglang_server.answers import Model
from autotune.testing.sglang_server.args import parse
from autotune.testing.sglang_server.faults import Faults
from autotune.testing.sglang_server.surface import Setting, Surface
from autotune.testing.sglang_server.switches import Switches
from autotune.trial import TrialSpec
from autotune.workload import Bucket

__all__ = ["SimulatedFault", "SimulatedRunner", "SimulatedSession"]

LOAD_S, PROOF_S = 360.0, 5.0
"""Virtual duration of a load, and of proof and warm-up, seconds on a host of speed 1."""
_STRONG_RATE = 0.25  # as in `sglang_server.answers`: from here on half of the spoilt are garbage
_LINKS = ("invocation", "process", "argv", "listener", "bound", "nonce")


class SimulatedFault(StrEnum):
    """What can end a start beside its parameters."""

    WORKER_LOST = "the worker dies after the first bucket; the driver is told that it is lost"
    HOST_LOST = "the host cannot be reached any more"
    NOT_READY = "the server does not get ready, nobody knows why"


@dataclass
class SimulatedSession:
    """What the driver needs of a host; nothing is taken and nothing has to be restored."""

    plan: HostPlan
    lease: Lease
    recipe: Recipe
    lost: AutotuneError | None = None

    @property
    def usable(self) -> bool:
        return self.lost is None

    def lose(self, reason: AutotuneError) -> None:
        """Use this host no more."""
        self.lost = self.lost or reason

    @classmethod
    def open(cls, config: StudyConfig, host: str, *, owner: Owner) -> SimulatedSession:
        """One host of a study of the process supervisor, as if its service had been read.

        Raises:
            StudyError: `deployed` in the definition is not what the command says.
        """
        plan = plan_host(config, host)
        original = Original.of_command(plan.command, taken_at_s=time.time())
        recipe = make_recipe(
            config.space, config.service.fixed_flags, original, host=plan.host, info=None
        )
        lease = Lease(f"simulated-{plan.host}", plan.host, owner, config.service.restore_after_s)
        return cls(plan, lease, recipe)


@dataclass(frozen=True, slots=True, order=True)
class _Flight:
    """A start on its way: everything that it will have given, and when it ends."""

    ends_s: float
    order: int
    spec: TrialSpec = field(compare=False)
    record: StartRecord = field(compare=False)
    fault: SimulatedFault | None = field(compare=False)


class SimulatedRunner:
    """Runs a study on a surface, as many starts at once as there are hosts.

    Args:
        surface_name: `demo` or `kimi-k26`.
        seed: Of the noise; the same seed gives the same study.
        shared_sd, bucket_sd: Relative noise of a start and of a bucket; None is the surface's own.
        speeds: Factor on the throughput of a host, 1 for hosts that are not named.
        faults: What ends the n-th start of this run, counted from 0.

    Raises:
        KeyError: No surface has this name.
    """

    def __init__(
        self,
        surface_name: str,
        *,
        seed: int,
        shared_sd: float | None = None,
        bucket_sd: float | None = None,
        speeds: Mapping[str, float] | None = None,
        faults: Mapping[int, SimulatedFault] | None = None,
    ) -> None:
        self._surface = Surface.named(surface_name)
        self._seed = seed
        self._shared_sd = self._surface.shared_sd if shared_sd is None else shared_sd
        self._bucket_sd = self._surface.bucket_sd if bucket_sd is None else bucket_sd
        self._speeds = dict(speeds or {})
        self._faults = dict(faults or {})
        self._began_s = time.time()
        self.starts = 0
        """Starts made so far."""
        self.now_s = 0.0
        """Virtual seconds spent so far."""

    def run(self, driver: Driver, watcher: Watcher) -> None:
        """Return when the driver has nothing left.

        Raises:
            StudyError: The study cannot go on; what was in flight was measured to its end.
        """
        flying: list[_Flight] = []
        try:
            while True:
                while not isinstance(spec := driver.take(), Nothing):
                    watcher.started(spec)
                    heapq.heappush(flying, self._flight(spec))
                if not flying:
                    return
                self._land(driver, watcher, heapq.heappop(flying), stopping=False)
        except StudyError:
            while flying:
                self._land(driver, watcher, heapq.heappop(flying), stopping=True)
            raise

    def measure(self, spec: TrialSpec) -> StartRecord:
        """What a start gives, worked out at once; the next draw of noise."""
        rng = random.Random(f"{self._seed}/{self.starts}")
        self.starts += 1
        return self._walk(spec, rng)

    # -- inside -----------------------------------------------------------------------------------
    def _flight(self, spec: TrialSpec) -> _Flight:
        order = self.starts
        fault = self._faults.get(order)
        record = self.measure(spec)
        if fault is not None:
            record = _faulty(record, fault, spec.plan.host)
        ends_s = self.now_s + record.load_s + record.measure_s
        return _Flight(ends_s, order, spec, record, fault)

    def _land(self, driver: Driver, watcher: Watcher, flight: _Flight, *, stopping: bool) -> None:
        self.now_s = flight.ends_s
        spec, record = flight.spec, flight.record
        for bucket in record.buckets:
            driver.bucket(spec.claim_id, bucket)
            watcher.bucket(spec, bucket)
        if flight.fault is SimulatedFault.WORKER_LOST:
            driver.lost(spec.claim_id, "the worker process died", stopping=stopping)
            return
        record, score = driver.finish(spec.claim_id, record, stopping=stopping)
        watcher.ended(spec, record, score)

    def _walk(self, spec: TrialSpec, rng: random.Random) -> StartRecord:
        """The order of the real walk: load, proof, greedy texts, buckets, coding answers."""
        begun_s = self._began_s + self.now_s
        speed = self._speeds.get(spec.plan.host, 1.0)
        gave = _Gave(spec, load_s=LOAD_S / speed, begun_s=begun_s)
        words = spec.launch.texts()
        flags = words[next(i for i, word in enumerate(words) if word.startswith("--")) :]
        try:
            setting = parse(flags, Switches(self._surface)).setting
        except ValueError as error:
            return gave.failed("ServerStartError", f"the server refused its arguments: {error}")
        if not self._surface.fits(setting):
            needed = self._surface.memory_gib(setting)
            return gave.failed(
                "ServerStartError",
                "the server ran out of GPU memory while it captured CUDA graphs "
                f"({needed:.1f} of {self._surface.total_gib:g} GiB)",
            )
        gave.prove(*_LINKS, *(f"{i.name}: server_info" for i in spec.intents), "generation")
        gave.measure_s = PROOF_S / speed
        gave.texts = _texts(Model(self._surface, setting, Faults()), spec.answers)
        gave.lossless = compare(spec.answers, gave.texts, gave.texts)
        if gave.lossless.verdict is Losslessness.CORRUPTED and spec.answers.reference:
            return gave.failed("OutputCorrupted", gave.lossless.reason)
        factor = speed * math.exp(rng.gauss(0, self._shared_sd))
        for bucket in spec.buckets:
            measured = self._measured(bucket, setting, spec, factor, rng)
            gave.buckets = (*gave.buckets, measured)
            gave.measure_s += measured.warm_up_s + measured.windows_s
            gave.prove("generation")
            if spec.prune is not None and spec.prune.hopeless(gave.buckets):
                return gave.record(Ending.PRUNED)
        gave.coding = _coding(self._surface, setting, spec.answers)
        return gave.record(Ending.COMPLETE)

    def _measured(
        self, bucket: Bucket, setting: Setting, spec: TrialSpec, factor: float, rng: random.Random
    ) -> BucketMeasurement:
        surface, rules = self._surface, spec.measure
        context = bucket.context_tokens
        running = min(bucket.concurrency, setting.max_running_requests)
        true = surface.output_tok_per_s(
            setting,
            context_tokens=context,
            concurrency=bucket.concurrency,
            output_tokens=bucket.output_tokens,
        )
        spread = self._bucket_sd * math.sqrt(rules.least_windows)
        rates: list[float] = []
        while not stats.enough(
            rates,
            target_relative_half_width=rules.target_half_width,
            least=rules.least_windows,
            most=rules.most_windows,
        ):
            rates.append(true * factor * math.exp(rng.gauss(0, spread)))
        rate = math.fsum(rates) / len(rates)
        accepted = surface.accept_length(
            budget=setting.budget,
            topk=setting.topk,
            window=setting.window,
            context_tokens=context,
            algorithm=setting.algorithm,
        )
        round_ms = 1000 / factor * surface.round_s(setting, running=running, context_tokens=context)
        ttft_ms = round_ms + 1000 / factor * surface.prefill_s(uncached_tokens=context)
        tpot_ms = 1000 * bucket.concurrency / rate
        windows_s = len(rates) * rules.window_s
        marks = []
        if stats.relative_half_width(rates) > rules.target_half_width:
            marks.append(BucketQuality.WIDE_INTERVAL)
        if running < bucket.concurrency:
            marks.append(BucketQuality.QUEUED)
        return BucketMeasurement(
            context_tokens=context,
            concurrency=bucket.concurrency,
            output_tokens=bucket.output_tokens,
            weight=bucket.weight,
            output_tok_per_s=rate,
            interval=stats.mean_interval(rates),
            accept_length=accepted,
            ttft_ms=ttft_ms,
            ttft_p99_ms=ttft_ms + round_ms,
            tpot_ms=tpot_ms,
            tpot_p99_ms=tpot_ms * 1.2,
            chunk_gap_ms=round_ms,
            chunk_tokens=accepted,
            prompt_tokens=float(context),
            cached_tokens=0,
            server_tokens=round(rate * windows_s),
            client_cpu=0.0,
            loop_lag_ms=0.0,
            warm_up_s=rules.least_windows * rules.window_s,
            windows_s=windows_s,
            windows=len(rates),
            requests=max(bucket.concurrency, round(rate * windows_s / bucket.output_tokens)),
            errors=0,
            valid=True,
            marks=tuple(marks),
            started_at_s=self._began_s + self.now_s,
        )


@dataclass
class _Gave:
    """What a simulated start has given so far."""

    spec: TrialSpec
    load_s: float
    begun_s: float
    measure_s: float = 0.0
    proof: tuple[Evidence, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    lossless: Comparison | None = None
    buckets: tuple[BucketMeasurement, ...] = ()
    coding: CodingResult | None = None

    def prove(self, *links: str) -> None:
        """Links that hold by construction, and say so."""
        at_s = self.begun_s + self.load_s + self.measure_s
        self.proof += tuple(
            Evidence(link, "simulated", "simulated", ok=True, at_s=at_s, raw="simulated")
            for link in links
        )

    def failed(self, kind: str, message: str) -> StartRecord:
        return self.record(Ending.INFEASIBLE, FailureRecord(kind, message))

    def record(self, ending: Ending, failure: FailureRecord | None = None) -> StartRecord:
        return StartRecord(
            ending=ending,
            proof=self.proof,
            buckets=self.buckets,
            coding=self.coding,
            texts=self.texts,
            lossless=self.lossless,
            failure=failure,
            invocation_id=self.spec.claim_id,
            load_s=self.load_s,
            measure_s=self.measure_s,
            started_at_s=self.begun_s,
            ended_at_s=self.begun_s + self.load_s + self.measure_s,
        )


def _faulty(record: StartRecord, fault: SimulatedFault, host: str) -> StartRecord:
    """The same start, ended by a fault."""
    if fault is SimulatedFault.WORKER_LOST:
        kept, failure = record.buckets[:1], None
    elif fault is SimulatedFault.HOST_LOST:
        kept, failure = (), FailureRecord("ConnectError", f"{host} cannot be reached")
    else:
        kept, failure = (), FailureRecord("NotReady", f"the server on {host} did not get ready")
    return StartRecord(
        Ending.FAILED,
        buckets=kept,
        failure=failure,
        load_s=record.load_s,
        started_at_s=record.started_at_s,
        ended_at_s=record.started_at_s + record.load_s,
    )


def _texts(model: Model, answers: Answers) -> dict[str, str]:
    """What the simulated server writes to the greedy prompts."""
    return {
        key: "".join(model.answer(prompt).take(answers.greedy_tokens))
        for key, prompt in answers.greedy.items()
    }


def _coding(surface: Surface, setting: Setting, answers: Answers) -> CodingResult:
    """Outcomes at the surface's rates of corruption and flakes; no answer is run."""
    rate = surface.corruption_rate(budget=setting.budget, topk=setting.topk)
    samples: dict[str, str] = {}
    for sample in answers.samples:
        key = sample_key(sample)
        draws = random.Random(f"{key}/{setting.budget}/{setting.topk}/{setting.window}")
        draw, severity = draws.random(), draws.random()
        if draw < rate and rate >= _STRONG_RATE and severity < 0.5:
            outcome = Outcome.GARBLED
        elif draw < rate + surface.flake_rate:
            outcome = Outcome.WRONG
        else:
            outcome = Outcome.PASSED
        samples[key] = str(outcome)
    outcomes = Counter(samples.values())
    passed = outcomes[str(Outcome.PASSED)]
    return CodingResult(samples, passed, len(samples) - passed, dict(outcomes))
