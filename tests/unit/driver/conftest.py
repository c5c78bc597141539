"""A world without machines: sessions and results made by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.databases import template
from tests.unit.driver.world import Worlds


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def make(empty: Path, tmp_path: Path) -> Iterator[Worlds]:
    worlds = Worlds(empty, tmp_path)
    yield worlds
    for world in worlds.made:
        world.close()
