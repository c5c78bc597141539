"""The order of one trial's steps, and what a step that fails leaves undone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.errors import (
    AutotuneError,
    DropInConflict,
    ServerStartError,
)
from autotune.measurement import Ending
from autotune.testing.fake_supervisor import FakeRun
from autotune.trial import Notes, Phase, TrialSpec, execute, run_trial
from tests.scripted import (
    GOOD_TEXT,
    Script,
    a_host,
    a_plan,
    a_spec,
    log_lines,
    settings_of,
)
from tests.unit.trial_order.scene import PROOF, STEPS, WALK, broken, links, measured, run

CLEANUP = {"close_bench", "close_engine", "release", "identity"}
"""What may follow a failure: leaving, and asking whether the server is dead."""


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
