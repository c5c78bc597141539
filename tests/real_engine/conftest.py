"""The real engine, where it is; its tests are skipped elsewhere, with the reason."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.host.conftest import require_hosts
from tests.real_engine import place
from tests.real_engine.place import RealEngine
from tests.testhost import SystemdHost, boot, unavailable

EVERYTHING = "AUTOTUNE_REAL_ENGINE_TESTS"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the engine; what takes minutes runs only when it is asked for."""
    for item in items:
        if "engine" not in getattr(item, "fixturenames", ()):
            continue
        item.add_marker(pytest.mark.real_engine)
        if item.get_closest_marker("slow") and os.environ.get(EVERYTHING) != "all":
            reason = f"takes minutes: {EVERYTHING}=all runs it, scripts/real-engine the whole"
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def engine() -> RealEngine:
    found = place.find()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="module")
def engine_host(engine: RealEngine) -> Iterator[SystemdHost]:
    """A host that shows the engine's files."""
    require_hosts(unavailable(), ci=os.environ.get("CI") == "true")
    with boot("gpu-a", binds=[engine.folder, engine.models]) as host:
        yield host
