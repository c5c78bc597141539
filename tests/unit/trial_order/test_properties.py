"""Whatever fails wherever: nothing is measured that was not proven."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import AutotuneError
from autotune.measurement import BucketMeasurement, Ending
from autotune.proof import ParameterIntent
from autotune.testing.fake_supervisor import FakeHost
from tests.scripted import (
    BUCKETS,
    Script,
    a_host,
    a_recipe,
    a_spec,
)
from tests.unit.trial_order.scene import FAULTS, PROOF, STEPS, WALK, broken, links, measured, run

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
