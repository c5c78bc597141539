"""One trial, straight through: the order of its calls, and what each failing step leaves undone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autotune import readiness


@pytest.fixture(autouse=True, scope="module")
def short_last_words() -> Iterator[None]:
    """These logs answer at once, so there is nothing to wait for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readiness, "LAST_WORDS_S", 0.02)
        yield
