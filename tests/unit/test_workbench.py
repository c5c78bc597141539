"""Before a bucket the cache is emptied; a server that stays busy serves somebody else."""

from __future__ import annotations

import pytest

from autotune.sglang.server import CacheFlush
from autotune.workbench import empty_cache
from tests.scripted import Clock


@pytest.mark.parametrize("answer", [CacheFlush.EMPTIED, CacheFlush.UNAVAILABLE])
def test_one_order_is_enough(answer: CacheFlush) -> None:
    clock = Clock()
    answers = [answer]
    assert empty_cache(answers.pop, clock=clock, sleep=clock.wait)
    assert clock.now_s == 1000.0


def test_our_own_requests_may_still_be_leaving() -> None:
    clock = Clock()
    answers = [CacheFlush.EMPTIED, CacheFlush.BUSY, CacheFlush.BUSY]
    assert empty_cache(answers.pop, clock=clock, sleep=clock.wait)
    assert answers == []


def test_a_server_that_stays_busy_is_given_up() -> None:
    clock = Clock()
    busy = CacheFlush.BUSY
    assert not empty_cache(lambda: busy, clock=clock, sleep=clock.wait)
    assert 5.0 < clock.now_s - 1000.0 < 6.0
