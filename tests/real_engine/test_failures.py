"""Start-up failures of the real engine, each classed right, and the study goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_engine import service
from tests.real_engine.faults import provoke
from tests.real_engine.place import RealEngine
from tests.testhost import SystemdHost


@pytest.mark.slow
def test_start_failures(engine: RealEngine, engine_host: SystemdHost, tmp_path: Path) -> None:
    found = provoke(engine_host, engine, tmp_path)
    assert [one.problem for one in found if one.problem] == []
    assert service.serves(engine_host)
