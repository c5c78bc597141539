"""One trial, straight through: the order of its calls, and what each failing step leaves undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune import readiness
from autotune.coding.lossless import Losslessness
from autotune.errors import (
    AutotuneError,
    CommandTimeout,
    ConnectError,
    DropInConflict,
    ErrorRateTooHigh,
    HostBusy,
    LeaseLost,
    ServerStartError,
)
from autotune.launch import Recipe
from autotune.measurement import BucketMeasurement, Ending, StartRecord
from autotune.parameter import ParameterKind
from autotune.proof import ParameterIntent
from autotune.pruning import PruneRule
from autotune.sglang.server import Generation
from autotune.space import Parameter
from autotune.supervisors.base import Launch, Word
from autotune.testing.fake_supervisor import FakeHost, FakeRun, FakeSupervisor
from autotune.trial import Notes, Phase, TrialSpec, ending_kept, execute, run_trial
from autotune.workload import Bucket
from tests.scripted import (
    BUCKETS,
    COMMAND,
    GOOD_TEXT,
    Script,
    a_host,
    a_plan,
    a_recipe,
    a_spec,
    log_lines,
    settings_of,
    some_answers,
)

PROOF = (
    *("invocation", "process", "argv", "listener", "bound", "nonce"),
    *("budget: log", "budget: server_args", "budget: server_info"),
    *("topk: log", "topk: server_args", "topk: server_info"),
    *("window: log", "window: server_args", "window: server_info"),
    "generation",
)
AFTER_BUCKET = ("identity", "generate")
WALK = (
    *("claim", "identity", "apply", "stop", "start", "follow", "open_engine"),
    *("identity", "process", "expected_argv", "listener", "server_info", "generate"),
    "server_info",  # for the fingerprint
    *("open_bench", "warm_up", "answer"),
    *("measure", *AFTER_BUCKET, "measure", *AFTER_BUCKET),
    "measure",  # the first bucket again: has the server drifted?
    *("code", "identity", "close_bench", "close_engine", "release"),
)
CLEANUP = {"close_bench", "close_engine", "release", "identity"}
"""What may follow a failure: leaving, and asking whether the server is dead."""


@pytest.fixture(autouse=True, scope="module")
def short_last_words() -> Iterator[None]:
    """These logs answer at once, so there is nothing to wait for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readiness, "LAST_WORDS_S", 0.02)
        yield


def run(host: FakeHost, script: Script | None = None, spec: TrialSpec | None = None) -> StartRecord:
    return execute(spec or a_spec(host), (script or Script(host)).tools(), Notes())


def links(record: StartRecord) -> tuple[str, ...]:
    return tuple(link.link for link in record.proof)


def broken(record: StartRecord) -> tuple[str, ...]:
    return tuple(link.link for link in record.proof if not link.ok)


def measured(record: StartRecord) -> list[str]:
    return [bucket.key for bucket in record.buckets]


# -- the walk -------------------------------------------------------------------------------------


def test_the_walk_in_order() -> None:
    host = a_host()
    spec = a_spec(host)
    record = run(host, spec=spec)
    assert tuple(host.methods()) == WALK
    assert record.ending is Ending.COMPLETE
    assert record.failure is None
    assert measured(record) == ["1024x8", "60x1"]
    assert record.coding is not None
    assert record.texts == {"greedy/0": GOOD_TEXT}
    assert record.invocation_id == host.identity.invocation_id
    assert links(record) == (*PROOF, "generation", "generation")
    assert broken(record) == ()
    assert record.ended_at_s >= record.started_at_s > 0


def test_the_claim_and_the_launch_are_those_of_the_spec() -> None:
    host = a_host()
    spec = a_spec(host)
    run(host, spec=spec)
    calls = {call.method: call.arguments for call in host.calls}
    assert calls["claim"] == (spec.lease, spec.claim_id)
    assert calls["apply"] == (spec.launch,)
    assert calls["stop"] == (spec.plan.stop_timeout_s,)
    assert calls["listener"] == (spec.plan.port,)


def test_nothing_is_asked_of_the_bench_before_the_proof_is_complete() -> None:
    seen: list[int] = []
    host = a_host()
    notes = Notes()
    script = Script(host)

    tools = script.tools()
    opened = tools.open_bench

    def open_bench(spec: TrialSpec) -> Any:
        seen.append(len(notes.record.proof))
        return opened(spec)

    execute(a_spec(host), replace(tools, open_bench=open_bench), notes)
    assert seen == [len(PROOF)]


def test_phases_and_buckets_are_told_as_they_happen() -> None:
    host = a_host()
    phases: list[Phase] = []
    buckets: list[str] = []
    notes = Notes(on_phase=phases.append, on_bucket=lambda bucket: buckets.append(bucket.key))
    execute(a_spec(host), Script(host).tools(), notes)
    names = [phase.name for phase in phases if phase.name != "load" or phase.detail == ""]
    assert names == ["stop", "load", "proof", "lossless", "bucket", "bucket", "drift", "coding"]
    assert [phase.detail for phase in phases if phase.name == "bucket"] == buckets
    assert buckets == ["1024x8", "60x1"]


def test_run_trial_itself_raises_what_execute_records() -> None:
    host = a_host()
    host.fail("apply", DropInConflict("the unit was changed by somebody else"))
    with pytest.raises(DropInConflict):
        run_trial(a_spec(host), Script(host).tools(), Notes())


def test_an_environment_is_proven_where_the_launch_has_one() -> None:
    host = a_host()
    spec = a_spec(host)
    spec = replace(spec, launch=replace(spec.launch, environment={"WINDOW": "2048"}))
    assert "environ" in links(run(host, spec=spec))


# -- each failing step ----------------------------------------------------------------------------

STEPS: list[tuple[str, AutotuneError, Ending]] = [
    ("claim", LeaseLost("the lease is not ours any more"), Ending.FAILED),
    ("apply", DropInConflict("somebody else changed the unit"), Ending.FAILED),
    ("stop", HostBusy("the port is still held"), Ending.FAILED),
    ("start", ServerStartError("refused", log_tail=("error: x",)), Ending.INFEASIBLE),
    ("start", HostBusy("the port is held"), Ending.FAILED),
    ("follow", ConnectError("the host is gone"), Ending.FAILED),
    ("process", CommandTimeout("no answer"), Ending.FAILED),
    ("listener", ConnectError("the host is gone"), Ending.FAILED),
    ("server_info", ConnectError("refused"), Ending.FAILED),
    ("generate", CommandTimeout("no answer"), Ending.FAILED),
    ("warm_up", ErrorRateTooHigh("too many"), Ending.FAILED),
    ("answer", ErrorRateTooHigh("too many"), Ending.FAILED),
    ("measure", ErrorRateTooHigh("too many"), Ending.FAILED),
    ("code", ErrorRateTooHigh("too many"), Ending.FAILED),
]


@pytest.mark.parametrize(
    ("step", "error", "ending"), STEPS, ids=[f"{s}-{type(e).__name__}" for s, e, _ in STEPS]
)
def test_nothing_runs_after_a_step_that_failed(
    step: str, error: AutotuneError, ending: Ending
) -> None:
    host = a_host()
    host.fail(step, error)
    record = run(host)
    calls = host.methods()
    at = calls.index(step)
    assert tuple(calls[: at + 1]) == WALK[: WALK.index(step) + 1]
    assert set(calls[at + 1 :]) <= CLEANUP
    assert record.ending is ending
    assert record.failure is not None
    # A server that does not answer is not a host that cannot be reached.
    kind = "NotAnswering" if step in ("server_info", "generate") else type(error).__name__
    assert (record.failure.kind, record.failure.link) == (kind, "")
    assert error.message in record.failure.message
    if step != "claim":
        assert calls[-1] == "release"
    if isinstance(error, ServerStartError):
        assert record.failure.log_tail == error.log_tail


def test_a_server_that_dies_in_its_load_is_never_measured() -> None:
    oom = [
        "[2026-11-29 12:50:07 TP0] Scheduler hit an exception: Traceback",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "[2026-11-29 12:50:08] Received sigquit from a child process.",
    ]
    host = a_host(script=lambda launch: FakeRun(oom, exit_code=1))
    record = run(host)
    assert record.ending is Ending.INFEASIBLE
    assert record.failure is not None
    assert record.failure.kind == "ServerStartError"
    assert record.invocation_id == host.identity.invocation_id
    assert "open_engine" not in host.methods()
    assert record.proof == ()


def test_a_load_that_never_ends_is_failed_at_its_deadline() -> None:
    quiet = a_host(
        script=lambda launch: FakeRun(log_lines(settings_of(launch), ready=False), listens=False)
    )
    record = run(quiet, spec=a_spec(quiet, plan=a_plan(load_timeout_s=0.05)))
    assert record.ending is Ending.FAILED
    assert record.failure is not None
    assert record.failure.kind == "NotReady"
    assert "open_engine" not in quiet.methods()


# -- each link of the proof -----------------------------------------------------------------------


def other_argv(host: FakeHost, script: Script) -> None:
    host.script = lambda launch: FakeRun(log_lines(settings_of(launch)), argv=COMMAND)


def foreign_listener(host: FakeHost, script: Script) -> None:
    host.script = lambda launch: FakeRun(log_lines(settings_of(launch)), listens=False)


def old_nonce_in_log(host: FakeHost, script: Script) -> None:
    host.script = lambda launch: FakeRun(
        log_lines({**settings_of(launch), "weight_version": "made-up-2-before"})
    )


def old_nonce_in_answer(host: FakeHost, script: Script) -> None:
    script.info = lambda shown: {**shown, "weight_version": "made-up-2-before"}


def old_process_generates(host: FakeHost, script: Script) -> None:
    script.generation = lambda answer: replace(answer, weight_version="made-up-2-before")


def no_token(host: FakeHost, script: Script) -> None:
    script.generation = lambda answer: replace(answer, completion_tokens=0)


def window_ignored(host: FakeHost, script: Script) -> None:
    """Unit, argv and settings are right; the draft runner says None and False."""
    host.script = lambda launch: FakeRun(log_lines(settings_of(launch), window=None))


def window_null_in_answer(host: FakeHost, script: Script) -> None:
    script.info = lambda shown: {**shown, "speculative_draft_window_size": None}


def budget_differs(host: FakeHost, script: Script) -> None:
    script.info = lambda shown: {**shown, "speculative_ddtree_budget": 8}


def shown_nowhere(host: FakeHost, script: Script) -> None:
    def without(shown: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in shown.items() if "topk" not in key}

    script.info = without
    host.script = lambda launch: FakeRun(
        [
            line.replace("speculative_ddtree_topk_cap", "unknown").replace("topk_cap", "other")
            for line in log_lines(settings_of(launch))
        ]
    )


FAULTS: list[tuple[Callable[[FakeHost, Script], None], str]] = [
    (other_argv, "argv"),
    (foreign_listener, "listener"),
    (old_nonce_in_log, "nonce"),
    (old_nonce_in_answer, "nonce"),
    (old_process_generates, "generation"),
    (no_token, "generation"),
    (window_ignored, "window: log"),
    (window_null_in_answer, "window: server_info"),
    (budget_differs, "budget: server_info"),
    (shown_nowhere, "topk: engine"),
]


@pytest.mark.parametrize(("fault", "link"), FAULTS, ids=[f.__name__ for f, _ in FAULTS])
def test_a_broken_link_is_failed_and_nothing_is_measured(
    fault: Callable[[FakeHost, Script], None], link: str
) -> None:
    host = a_host()
    script = Script(host)
    fault(host, script)
    record = run(host, script)
    assert record.ending is Ending.FAILED
    assert record.failure is not None
    assert (record.failure.kind, record.failure.link) == ("SettingsNotApplied", link)
    assert link in broken(record)
    assert link in record.failure.message
    assert record.buckets == ()
    assert not {"open_bench", "warm_up", "answer", "measure", "code"} & set(host.methods())


def test_a_server_that_dies_while_it_is_proven_is_no_broken_link() -> None:
    class Dying(FakeSupervisor):
        def listener(self, port: int) -> Any:
            host.kill()
            return super().listener(port)

    host = a_host()
    record = execute(a_spec(host), Script(host).tools(Dying(host)), Notes())
    assert record.ending is Ending.FAILED
    assert record.failure is not None
    assert record.failure.link == ""
    assert "ended" in record.failure.message
    assert broken(record) == ("listener",)


def test_a_server_that_dies_in_a_bucket_is_classed_by_its_own_end() -> None:
    host = a_host()

    def dies(bucket: BucketMeasurement) -> BucketMeasurement:
        if host.methods().count("measure") < 2:
            return bucket
        host.kill()
        raise ErrorRateTooHigh("every stream failed, most often with connection: reset")

    record = run(host, Script(host, bucket=dies))
    assert record.failure is not None
    assert (record.ending, record.failure.kind) == (Ending.FAILED, "ServerEnded")
    assert "ended" in record.failure.message
    assert measured(record) == ["1024x8"]
    assert "code" not in host.methods()


def test_a_lease_that_is_lost_in_a_bucket_ends_the_start_as_nobodys_fault() -> None:
    """The bench is told so by another thread; the server may still answer."""
    host = a_host()
    lost = LeaseLost("fake: no lease holds there any more")
    host.fail("measure", lost, at=2)
    record = run(host)
    assert record.failure is not None
    assert (record.ending, record.failure.kind) == (Ending.FAILED, "LeaseLost")
    assert record.failure.message == lost.message
    assert measured(record) == ["1024x8"]
    assert "code" not in host.methods()


def test_the_bench_gives_up_when_the_host_says_that_the_lease_is_lost() -> None:
    host = a_host()
    spec = a_spec(host)
    spec = replace(spec, lease=replace(spec.lease, restore_after_s=0.05))
    told: SimpleQueue[AutotuneError] = SimpleQueue()

    class Waiting(Script):
        def give_up(self, reason: AutotuneError) -> None:
            told.put(reason)

        def measure(self, bucket: Bucket) -> BucketMeasurement:
            host.lease = None  # the host went back
            raise told.get(timeout=60.0)

    record = run(host, Waiting(host), spec)
    assert record.failure is not None
    assert record.failure.kind == "LeaseLost"


def raised(error: AutotuneError) -> None:
    raise error


def test_an_error_on_the_way_out_changes_nothing_of_what_was_measured() -> None:
    host = a_host()
    notes = Notes()
    with ending_kept(notes):
        ended = execute(a_spec(host), Script(host).tools(), notes)
        raised(ConnectError("the connection broke when it was closed"))
    assert ended.ending is Ending.COMPLETE
    assert notes.record == ended


def test_a_host_that_cannot_be_opened_is_an_ending_with_a_time() -> None:
    notes = Notes()
    with ending_kept(notes):
        raised(ConnectError("gpu-a does not answer"))
    record = notes.record
    assert record.failure is not None
    assert (record.ending, record.failure.kind) == (Ending.FAILED, "ConnectError")
    assert record.ended_at_s >= record.started_at_s > 0


def test_an_old_process_on_the_unit_breaks_the_first_two_links() -> None:
    """The manager still shows the start from before."""

    class Stale(FakeSupervisor):
        def identity(self) -> Any:
            return replace(super().identity(), invocation_id="0" * 32)

    host = a_host()
    record = execute(a_spec(host), Script(host).tools(Stale(host)), Notes())
    assert record.ending is Ending.FAILED
    assert record.failure is not None
    assert record.failure.link == "invocation"
    assert "measure" not in host.methods()


def test_a_process_older_than_the_request_breaks_its_link() -> None:
    class Old(FakeSupervisor):
        def process(self, pid: int) -> Any:
            facts = super().process(pid)
            return facts and replace(facts, started_at_s=1.0)

    host = a_host()
    record = execute(a_spec(host), Script(host).tools(Old(host)), Notes())
    assert record.failure is not None
    assert record.failure.link == "process"
    assert "measure" not in host.methods()


def test_a_variable_that_should_be_gone_but_is_inherited_is_never_scored() -> None:
    space = (
        Parameter(
            "window",
            ParameterKind.CATEGORICAL,
            choices=(2048, None),
            deployed=2048,
            env="DRAFT_WINDOW",
            proof=("environ",),
        ),
    )
    words = tuple(Word(text) for text in COMMAND)
    recipe = Recipe(Launch(words), space, "--weight-version")
    host = a_host()
    host.script = lambda launch: FakeRun(
        log_lines(settings_of(launch)), environ={"DRAFT_WINDOW": "2048", **launch.environment}
    )
    record = run(host, spec=a_spec(host, {"window": None}, recipe=recipe))
    assert record.ending is Ending.FAILED


# -- another server -------------------------------------------------------------------------------


def test_the_fingerprint_of_a_start_is_kept() -> None:
    host = a_host()
    record = run(host, Script(host, info=lambda shown: {**shown, "version": "0.5.17"}))
    assert record.fingerprint == {"version": "0.5.17"}


def test_another_engine_than_the_references_is_not_measured() -> None:
    host = a_host()
    spec = replace(a_spec(host), fingerprint={"version": "0.5.17"})
    record = run(host, Script(host, info=lambda shown: {**shown, "version": "0.5.21"}), spec)
    assert record.ending is Ending.FAILED
    assert record.failure is not None
    assert record.failure.kind == "FingerprintMismatch"
    assert "0.5.17" in record.failure.message
    assert "0.5.21" in record.failure.message
    assert record.fingerprint == {"version": "0.5.21"}
    assert "open_bench" not in host.methods()


def test_the_same_engine_is_measured() -> None:
    host = a_host()
    spec = replace(a_spec(host), fingerprint={"version": "0.5.17", "dtype": "bfloat16"})
    record = run(host, Script(host, info=lambda shown: {**shown, "version": "0.5.17"}), spec)
    assert record.ending is Ending.COMPLETE


# -- after the proof ------------------------------------------------------------------------------


def test_garbage_that_the_reference_does_not_write_is_infeasible_before_any_bucket() -> None:
    host = a_host()
    keys = [f"greedy/{n}" for n in range(4)]
    script = Script(host, texts=dict.fromkeys(keys, "\ufffd\ufffd the the the " * 200))
    answers = some_answers(reference=dict.fromkeys(keys, GOOD_TEXT))
    record = run(host, script, a_spec(host, answers=answers))
    assert record.ending is Ending.INFEASIBLE
    assert record.failure is not None
    assert record.failure.kind == "OutputCorrupted"
    assert record.texts == script.texts
    assert record.lossless is not None
    assert record.lossless.verdict is Losslessness.CORRUPTED
    assert record.buckets == ()
    assert not {"measure", "code"} & set(host.methods())
    assert broken(record) == ()


def test_a_first_reference_answers_twice_and_is_not_stopped_by_its_own_garbage() -> None:
    host = a_host()
    script = Script(host, texts={"greedy/0": "the the the the " * 200})
    answers = some_answers(reference={}, own=(), own_texts=True)
    record = run(host, script, a_spec(host, answers=answers))
    assert host.methods().count("answer") == 2
    assert record.ending is Ending.COMPLETE
    assert record.lossless is not None
    assert record.lossless.own
    assert record.lossless.verdict is Losslessness.CORRUPTED
    assert record.lossless.positions == {"greedy/0": None}


def test_drift_is_kept_and_does_not_stop_a_trial() -> None:
    host = a_host()
    texts = {f"greedy/{n}": GOOD_TEXT for n in range(12)}
    script = Script(host, texts=dict.fromkeys(texts, "def other(): ..."))
    answers = some_answers(reference=texts, own=(None,) * 24)
    record = run(host, script, a_spec(host, answers=answers))
    assert record.ending is Ending.COMPLETE
    assert record.lossless is not None
    assert record.lossless.verdict is Losslessness.DRIFTING
    assert set(record.lossless.positions.values()) == {4}
    assert "12 of 12 texts part" in record.lossless.reason


def test_death_in_a_bucket_keeps_the_buckets_before_it() -> None:
    host = a_host()

    def second_dies(bucket: BucketMeasurement) -> BucketMeasurement:
        if bucket.key == "60x1":
            host.say("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
            host.kill(9)
            raise ConnectError("http://127.0.0.1:30000 cannot be reached")
        return bucket

    record = run(host, Script(host, bucket=second_dies))
    assert record.ending is Ending.INFEASIBLE
    assert record.failure is not None
    assert record.failure.kind == "ServerCrashed"
    assert any("OutOfMemoryError" in line for line in record.failure.log_tail)
    assert measured(record) == ["1024x8"]
    assert "code" not in host.methods()
    assert host.methods()[-1] == "release"


def test_a_failing_second_bucket_keeps_the_first() -> None:
    host = a_host()
    host.fail("measure", ErrorRateTooHigh("12 of 40 requests failed"), at=2)
    record = run(host)
    assert record.ending is Ending.FAILED
    assert measured(record) == ["1024x8"]
    assert "code" not in host.methods()


def test_a_server_restarted_by_itself_after_a_bucket_ends_the_walk() -> None:
    host = a_host()

    def restarted(bucket: BucketMeasurement) -> BucketMeasurement:
        host.restart()
        return bucket

    record = run(host, Script(host, bucket=restarted))
    assert record.ending in (Ending.FAILED, Ending.INFEASIBLE)
    assert host.methods().count("measure") == 1
    assert "code" not in host.methods()


def test_a_restart_by_somebody_else_is_named_as_such() -> None:
    host = a_host()

    def restarted(bucket: BucketMeasurement) -> BucketMeasurement:
        host.stop()
        host.begin(host.launch or host.found())
        return bucket

    record = run(host, Script(host, bucket=restarted))
    assert record.ending is Ending.FAILED
    assert host.methods().count("measure") == 1
    assert record.failure is not None
    assert record.failure.kind == "InvocationChanged"


def test_a_broken_nonce_after_a_bucket_ends_the_walk() -> None:
    host = a_host()
    script = Script(host)
    asked: list[Generation] = []

    def later_another(answer: Generation) -> Generation:
        asked.append(answer)
        return answer if len(asked) == 1 else replace(answer, weight_version="somebody")

    script.generation = later_another
    record = run(host, script)
    assert record.ending is Ending.FAILED
    assert record.failure is not None
    assert record.failure.link == "generation"
    assert measured(record) == ["1024x8"]
    assert host.methods().count("measure") == 1


def test_an_invalid_bucket_is_in_the_record() -> None:
    host = a_host()

    def short(bucket: BucketMeasurement) -> BucketMeasurement:
        return replace(bucket, valid=False, reason="3 requests")

    script = Script(host, bucket=lambda b: short(b) if b.concurrency == 1 else b)
    record = run(host, script)
    assert [bucket.valid for bucket in record.buckets] == [True, False]
    assert record.buckets[1].reason == "3 requests"


def test_a_failing_coding_eval_keeps_all_buckets() -> None:
    host = a_host()
    host.fail("code", ErrorRateTooHigh("the server answered nothing"))
    record = run(host)
    assert record.ending is Ending.FAILED
    assert measured(record) == ["1024x8", "60x1"]
    assert record.coding is None
    assert broken(record) == ()


def test_death_during_the_coding_eval_is_found_after_it() -> None:
    host = a_host()
    script = Script(host)
    tools = script.tools()
    code = script.code

    def dying(answers: Any) -> Any:
        result = code(answers)
        host.say("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
        host.kill(9)
        return result

    script.code = dying  # type: ignore[method-assign]
    record = execute(a_spec(host), tools, Notes())
    assert record.ending is Ending.INFEASIBLE


def test_a_hopeless_start_is_pruned_after_the_bucket_that_shows_it() -> None:
    host = a_host()
    rule = PruneRule({"1024x8": 0.6, "60x1": 0.4}, {"1024x8": 200.0, "60x1": 200.0}, 500.0)
    record = run(host, spec=a_spec(host, prune=rule))
    assert record.ending is Ending.PRUNED
    assert record.failure is None
    assert measured(record) == ["1024x8"]
    assert links(record)[-1] == "generation"
    assert "code" not in host.methods()
    assert host.methods()[-1] == "release"


def test_a_promising_start_is_measured_whole() -> None:
    host = a_host()
    rule = PruneRule({"1024x8": 0.6, "60x1": 0.4}, {"1024x8": 100.0, "60x1": 100.0}, 100.0)
    assert run(host, spec=a_spec(host, prune=rule)).ending is Ending.COMPLETE


# -- properties -----------------------------------------------------------------------------------

CALLS = sorted(set(WALK) - {"release", "close_bench", "close_engine", "identity"})


@settings(max_examples=60, deadline=None)
@given(
    faults=st.lists(st.sampled_from([fault for fault, _ in FAULTS]), max_size=2, unique=True),
    failing=st.one_of(
        st.none(),
        st.tuples(
            st.sampled_from(CALLS),
            st.integers(1, 3),
            st.sampled_from([error for _, error, _ in STEPS]),
        ),
    ),
    kills_at=st.one_of(st.none(), st.integers(0, 1)),
)
def test_no_complete_record_without_a_complete_proof(
    faults: list[Callable[[FakeHost, Script], None]],
    failing: tuple[str, int, AutotuneError] | None,
    kills_at: int | None,
) -> None:
    host = a_host()
    script = Script(host)
    for fault in faults:
        fault(host, script)
    if kills_at is not None:

        def kill(bucket: BucketMeasurement) -> BucketMeasurement:
            if bucket.key == BUCKETS[kills_at].key:
                host.kill(9)
            return bucket

        script.bucket = kill
    spec = a_spec(host)
    if failing is not None:
        host.fail(failing[0], failing[2], at=failing[1])
    record = run(host, script, spec)
    complete = record.ending is Ending.COMPLETE
    if complete:
        assert broken(record) == ()
        assert links(record) == (*PROOF, "generation", "generation")
        assert measured(record) == ["1024x8", "60x1"]
        assert record.coding is not None
    assert complete is (record.failure is None)
    if record.buckets:
        assert links(record)[: len(PROOF)] == PROOF
        assert all(link.ok for link in record.proof[: len(PROOF)])


def test_the_intents_carry_every_tuned_spelling() -> None:
    host = a_host()
    spec = a_spec(host, recipe=a_recipe())
    assert set(spec.tuned_flags) == {
        *("--speculative-ddtree-budget", "--speculative-ddtree-topk-cap"),
        *("--speculative-draft-window-size", "--speculative-dflash-draft-window-size"),
    }
    bare = replace(spec, intents=(ParameterIntent("x", 1, "", (), "VARIABLE", ()),))
    assert bare.tuned_flags == ()
