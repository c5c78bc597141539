"""Servers for one test, and one for a whole module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.sglang_server.server_process import TREE, Server, Start, starter


@pytest.fixture(scope="module")
def start_module() -> Iterator[Start]:
    yield from starter()


@pytest.fixture
def start() -> Iterator[Start]:
    yield from starter()


@pytest.fixture(scope="module")
def server(start_module: Start) -> Server:
    return start_module(
        *TREE, "--weight-version", "study-3", "--enable-metrics", "--enable-cache-report"
    )
