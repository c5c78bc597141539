"""Once the proof holds: what is measured, in which order, and what ends it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autotune.coding.lossless import Losslessness
from autotune.errors import (
    ConnectError,
    ErrorRateTooHigh,
)
from autotune.measurement import BucketMeasurement, Ending
from autotune.pruning import PruneRule
from autotune.sglang.server import Generation
from autotune.trial import Notes, execute
from tests.scripted import (
    GOOD_TEXT,
    Script,
    a_host,
    a_spec,
    some_answers,
)
from tests.unit.trial_order.scene import broken, links, measured, run


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
