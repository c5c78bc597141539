"""What is always run of the fault drill: fixed cells, and cells drawn by a printed seed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.fault_drill.cell import Timing
from benchmarks.fault_drill.cells import CELLS, FIXED, SENSELESS, drawn
from benchmarks.fault_drill.drill import drill
from benchmarks.fault_drill.faults import Fault
from benchmarks.fault_drill.gated import Gate
from tests.conftest import DRILL_SEED
from tests.host.conftest import require_hosts
from tests.testhost import unavailable

DRAWN = int(os.environ.get("AUTOTUNE_DRILL_DRAWN", "6"))


@pytest.mark.host
@pytest.mark.slow
def test_no_fault_leaves_a_host_behind_or_loses_a_score(tmp_path: Path) -> None:
    require_hosts(unavailable(), ci=os.environ.get("CI") == "true")
    seed = int(os.environ[DRILL_SEED])
    timing = Timing(load_s=2.0, timer_s=8.0)
    cells = (*FIXED, *drawn(seed, DRAWN))
    outcomes = drill(cells, hosts=4, folder=tmp_path, timing=timing, say=print)
    lost = {key: outcome.lost for key, outcome in outcomes.items() if not outcome.held}
    assert lost == {}, f"again with {DRILL_SEED}={seed}"
    assert len(outcomes) == len(FIXED) + DRAWN


def test_a_gate_stands_open_until_a_trial_begins_and_stops_it_once() -> None:
    (reached, says), (waits, go) = os.pipe(), os.pipe()
    os.close(go)  # whoever stands there may go on at once
    gate = Gate(says, waits)
    gate.stand()
    os.set_blocking(reached, False)
    with pytest.raises(BlockingIOError):
        os.read(reached, 10)
    gate.arm()
    gate.stand()
    gate.stand()
    assert os.read(reached, 10) == b"!"
    for end in (reached, says, waits):
        os.close(end)


def test_the_cells() -> None:
    assert len(CELLS) + len(SENSELESS) == 110
    assert {cell.fault for cell in FIXED} == set(Fault)
    assert len(set(FIXED)) == len(FIXED) == 12
    assert drawn(7, 6) == drawn(7, 6)
    assert len(set(drawn(7, 6))) == 6
    assert not set(drawn(7, 6)) & set(FIXED)
