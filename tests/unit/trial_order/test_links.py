"""A broken link of the proof ends the trial before anything is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pytest

from autotune.errors import (
    AutotuneError,
    ConnectError,
    ErrorRateTooHigh,
    LeaseLost,
)
from autotune.launch import Recipe
from autotune.measurement import BucketMeasurement, Ending
from autotune.parameter import ParameterKind
from autotune.space import Parameter
from autotune.supervisors.base import Launch, Word
from autotune.testing.fake_supervisor import FakeHost, FakeRun, FakeSupervisor
from autotune.trial import Notes, ending_kept, execute
from autotune.workload import Bucket
from tests.scripted import (
    COMMAND,
    Script,
    a_host,
    a_spec,
    log_lines,
    settings_of,
)
from tests.unit.trial_order.scene import FAULTS, broken, measured, run


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
