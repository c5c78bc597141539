"""One trial, straight through: apply, start, prove, measure.

`run_trial` is the walk.  `execute` runs it and turns whatever ended it into a `StartRecord`; the
decision whose fault an error is lies in the error's class alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from autotune import proof
from autotune.answers import Answers, compare
from autotune.coding.lossless import Losslessness
from autotune.drift import drift_between, drifted
from autotune.engines import engine_of, new_log
from autotune.errors import (
    AutotuneError,
    CommandTimeout,
    ConnectError,
    InvalidBucket,
    InvocationChanged,
    LeaseLost,
    NotAnswering,
    NotSteady,
    OutputCorrupted,
    SettingsNotApplied,
    TrialError,
)
from autotune.fingerprint import fingerprint, require_comparable
from autotune.heartbeat import losing
from autotune.hosts import HostPlan
from autotune.measure_settings import MeasureSettings
from autotune.measurement import (
    BucketMeasurement,
    CodingResult,
    Ending,
    Evidence,
    FailureRecord,
    StartRecord,
)
from autotune.proof import Nonce, ParameterIntent
from autotune.pruning import PruneRule
from autotune.raw import RawRequests
from autotune.readiness import Watch
from autotune.sglang.server import Generation, ServerInfo
from autotune.supervisors.base import Launch, Lease, Start, Supervisor
from autotune.workload import Bucket

__all__ = [
    "Bench",
    "Engine",
    "Notes",
    "Phase",
    "Pruned",
    "Tools",
    "TrialSpec",
    "answering",
    "ask",
    "check_drift",
    "ending_kept",
    "ending_of",
    "engine_links",
    "execute",
    "explained",
    "greedy_texts",
    "process_links",
    "run_trial",
]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """One start to be made and measured; plain values, resolved by the driver.

    Attributes:
        claim_id: Unique to this start; the host refuses changes under an older one.
        buckets: In the order in which they are measured.
        answers: Prompts whose text is judged, and the reference's answers to them.
        role: Whose settings run: "reference" for the deployed ones, in a final round too; else why
            the start is made, "search" or "final".
        fingerprint: The host's reference's; empty for the reference itself.
    """

    study: str
    number: int
    claim_id: str
    plan: HostPlan
    lease: Lease
    launch: Launch
    intents: tuple[ParameterIntent, ...]
    nonce: Nonce
    buckets: tuple[Bucket, ...]
    measure: MeasureSettings
    answers: Answers
    prompts_seed: int
    prune: PruneRule | None = None
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    role: str = "search"

    @property
    def tuned_flags(self) -> tuple[str, ...]:
        return tuple(f for i in self.intents for f in (i.flag, *i.aliases) if f)


@dataclass(frozen=True, slots=True)
class Phase:
    """What a start is doing, for the live view.

    Attributes:
        progress: 0..1 where it is known.
    """

    name: str
    progress: float | None = None
    detail: str = ""


class Engine(Protocol):
    """The part of `autotune.engines.EngineServer` that a trial asks."""

    def server_info(self) -> ServerInfo: ...
    def generate(self, text: str, *, max_new_tokens: int) -> Generation: ...


class Bench(Protocol):
    """Load, fixed prompts and coding tasks; `autotune.workbench` has the real one."""

    def give_up(self, reason: AutotuneError) -> None: ...
    def warm_up(self) -> None: ...
    def measure(self, bucket: Bucket) -> BucketMeasurement: ...
    def answer(self, answers: Answers) -> Mapping[str, str]: ...
    def code(self, answers: Answers) -> CodingResult: ...


@dataclass(frozen=True, slots=True)
class Tools:
    """The effects of a trial; tests swap them one by one."""

    supervisor: Supervisor
    open_engine: Callable[[TrialSpec], AbstractContextManager[Engine]]
    open_bench: Callable[[TrialSpec], AbstractContextManager[Bench]]


class Pruned(Exception):
    """The rest of the matrix cannot change the outcome."""


@dataclass
class Notes:
    """What a start has given so far; whatever ends it, this much is kept.

    Attributes:
        on_phase, on_bucket: Called at once in the process that runs the trial.
        on_requests: Called with the requests of each bucket; nothing is computed from them.
    """

    on_phase: Callable[[Phase], None] = lambda phase: None
    on_bucket: Callable[[BucketMeasurement], None] = lambda bucket: None
    on_requests: Callable[[RawRequests], None] = lambda requests: None
    record: StartRecord = field(
        default_factory=lambda: StartRecord(Ending.COMPLETE, started_at_s=time.time())
    )
    log_tail: tuple[str, ...] = ()

    def keep(self, **changes: object) -> None:
        self.record = replace(self.record, **changes)  # type: ignore[arg-type]

    def proved(self, links: tuple[Evidence, ...]) -> None:
        """Keep links, then stop at the first broken one."""
        self.keep(proof=(*self.record.proof, *links))
        proof.require(links)

    def compared(
        self, answers: Answers, texts: Mapping[str, str], again: Mapping[str, str]
    ) -> None:
        """Keep greedy texts and the judgement on them, then stop at garbage.

        What the first reference of a host writes is what the service writes: it is not stopped.
        """
        judged = compare(answers, texts, again)
        self.keep(texts=texts, lossless=judged)
        if judged.verdict is Losslessness.CORRUPTED and answers.reference:
            raise OutputCorrupted(judged.reason)

    def measured(self, bucket: BucketMeasurement) -> None:
        self.keep(buckets=(*self.record.buckets, bucket))
        self.on_bucket(bucket)

    @contextmanager
    def timed(self, column: str, phase: str) -> Iterator[None]:
        """Announce a phase and add its duration to a column of the record."""
        self.on_phase(Phase(phase))
        begun = time.monotonic()
        try:
            yield
        finally:
            self.keep(**{column: getattr(self.record, column) + time.monotonic() - begun})


def run_trial(spec: TrialSpec, tools: Tools, notes: Notes) -> None:
    """Make one start of `spec`, prove it, measure it; everything learned goes to `notes`."""
    supervisor = tools.supervisor
    with supervisor.claim(spec.lease, spec.claim_id), ExitStack() as open_:
        previous = supervisor.identity().invocation_id
        supervisor.apply(spec.launch)
        with notes.timed("stop_s", "stop"):
            supervisor.stop(timeout_s=spec.plan.stop_timeout_s)
        with notes.timed("load_s", "load"):
            start = supervisor.start()
            notes.keep(invocation_id=start.invocation_id)
            follower = open_.enter_context(supervisor.follow(start))
            watch = Watch(
                supervisor,
                start,
                follower,
                tuned_flags=spec.tuned_flags,
                log=new_log(spec.plan, spec.plan.secrets),
            )
            watch.wait_ready(
                timeout_s=spec.plan.load_timeout_s,
                progress=lambda phase, share: notes.on_phase(Phase("load", share, phase)),
            )
        with notes.timed("measure_s", "proof"), explained(watch):
            engine = open_.enter_context(tools.open_engine(spec))
            notes.proved(process_links(spec, supervisor, previous, start))
            notes.proved(engine_links(spec, engine, watch))
            with answering():
                notes.keep(fingerprint=fingerprint(engine.server_info(), watch.log))
            require_comparable(spec.fingerprint, notes.record.fingerprint)
            bench = open_.enter_context(tools.open_bench(spec))
            open_.enter_context(losing(spec.lease, supervisor.check_claim, tell=bench.give_up))
            bench.warm_up()
            notes.on_phase(Phase("lossless"))
            notes.compared(spec.answers, *greedy_texts(spec.answers, bench))
            for bucket in spec.buckets:
                notes.on_phase(Phase("bucket", detail=bucket.key))
                measured = bench.measure(bucket)
                notes.measured(measured)
                watch.require_same()
                notes.proved((proof.generation_link(spec.nonce, ask(engine)),))
                if not measured.valid:  # no score is possible: the rest would be paid in vain
                    raise InvalidBucket(f"bucket {bucket.key} is not valid: {measured.reason}")
                if spec.prune is not None and spec.prune.hopeless(notes.record.buckets):
                    raise Pruned
            check_drift(spec, bench, notes)
            notes.on_phase(Phase("coding"))
            notes.keep(coding=bench.code(spec.answers))
            watch.require_same()


def greedy_texts(answers: Answers, bench: Bench) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The texts of the fixed prompts, and once more where there are none to compare them with."""
    return bench.answer(answers), {} if answers.reference else bench.answer(answers)


def check_drift(spec: TrialSpec, bench: Bench, notes: Notes) -> None:
    """The first bucket again after the last: a server that changed meanwhile has no one speed."""
    if len(spec.buckets) < 2:
        return
    first = spec.buckets[0]
    notes.on_phase(Phase("drift", detail=first.key))
    again = bench.measure(first)
    if not again.valid:
        raise InvalidBucket(f"bucket {first.key}, measured again, is not valid: {again.reason}")
    drift = drift_between(notes.record.buckets[0], again)
    notes.keep(drift=drift)
    if drifted(drift, most=spec.measure.drift_most):
        raise NotSteady(
            f"bucket {first.key} changed by {drift.change:+.1%} between the begin and the end of"
            f" the start, allowed are {spec.measure.drift_most:.0%}"
        )


def process_links(
    spec: TrialSpec, supervisor: Supervisor, previous: str, start: Start
) -> tuple[Evidence, ...]:
    """From `invocation` to `listener`: what supervisor and kernel say about this start."""
    identity = supervisor.identity()
    process = supervisor.process(identity.main_pid)
    return (
        proof.invocation_link(previous, start, identity),
        proof.process_link(start, identity, process),
        proof.argv_link(supervisor.expected_argv(spec.launch, process), process),
        *proof.environ_links(spec.launch, spec.intents, process),
        proof.listener_link(spec.plan.port, supervisor.listener(spec.plan.port)),
    )


def engine_links(spec: TrialSpec, engine: Engine, watch: Watch) -> tuple[Evidence, ...]:
    """From `bound` to `generation`: what the engine says of itself, in its log and its answers."""
    with answering():
        info = engine.server_info()
    return (
        proof.bound_link(watch.log),
        *_nonce_links(spec, watch, info),
        *proof.parameter_links(spec.intents, watch.log, info),
        proof.generation_link(spec.nonce, ask(engine)),
    )


def _nonce_links(spec: TrialSpec, watch: Watch, info: ServerInfo) -> tuple[Evidence, ...]:
    """None from an engine that shows no seed where the nonce is left out, for an export."""
    if not spec.nonce.flag and not engine_of(spec.plan.engine).tells_seed:
        return ()
    return (proof.nonce_link(spec.nonce, watch.log, info),)


def ask(engine: Engine) -> Generation:
    """One real, non-streaming generation: streams do not carry the nonce."""
    with answering():
        return engine.generate("def add(a, b):", max_new_tokens=8)


@contextmanager
def answering() -> Iterator[None]:
    """A server that does not answer is not a host that cannot be reached."""
    try:
        yield
    except (ConnectError, CommandTimeout) as error:
        raise NotAnswering(f"the server does not answer: {error.message}") from error


@contextmanager
def explained(watch: Watch) -> Iterator[None]:
    """While the server is measured, its death is the reason of any error that is not a verdict."""
    try:
        yield
    except (TrialError, InvocationChanged, InvalidBucket, LeaseLost):
        raise
    except AutotuneError as error:
        if isinstance(error, SettingsNotApplied) and not watch.died():
            raise
        reason = watch.explain(error)
        if reason is error:
            raise
        raise reason from error


def ending_of(error: AutotuneError) -> Ending:
    """Whose fault: the parameters' is infeasible, the machine's and nobody's is failed."""
    return Ending.INFEASIBLE if isinstance(error, TrialError) else Ending.FAILED


@contextmanager
def ending_kept(notes: Notes) -> Iterator[None]:
    """Turn whatever ends a start into its record; the first ending counts.

    An error on the way out, after the start has ended, changes nothing of what was measured.
    """
    try:
        yield
    except Pruned:
        notes.keep(ending=Ending.PRUNED)
    except AutotuneError as error:
        if notes.record.ended_at_s:
            log.warning("after the end of the start: %s", error)
            return
        notes.keep(
            ending=ending_of(error),
            failure=FailureRecord(
                kind=type(error).__name__,
                message=str(error),
                link=error.link if isinstance(error, SettingsNotApplied) else "",
                log_tail=error.log_tail if isinstance(error, TrialError) else (),
            ),
        )
    if not notes.record.ended_at_s:
        notes.keep(ended_at_s=time.time())


def execute(spec: TrialSpec, tools: Tools, notes: Notes) -> StartRecord:
    """Run one trial to its end, whatever that is, and return everything it gave."""
    with ending_kept(notes):
        run_trial(spec, tools, notes)
    return notes.record
