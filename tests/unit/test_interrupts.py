"""Signals: each way to end a command restores what it changed, and no second one stops that."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from autotune.interrupts import deferred, terminable, undisturbed
from autotune.stopping import Stop


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_ends_as_by_ctrl_c(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), terminable():
        os.kill(os.getpid(), number)


def test_what_nohup_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with terminable(), undisturbed(("gpu-a",)):
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_restore_goes_on_under_every_signal(caplog: pytest.LogCaptureFixture) -> None:
    with terminable(), undisturbed(("gpu-a",)):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
    assert caplog.text.count("still restoring gpu-a") == 3


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with terminable(), undisturbed(()):
        pass
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_interrupt_within_a_short_block_is_taken_at_its_end() -> None:
    done: list[int] = []

    def block() -> None:
        with terminable(), deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append(1)
        done.append(2)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == [1]


class Finalized:
    """Meets the signal where Python drops what a handler raises."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):  # the handler runs between two of these
            pass


@pytest.mark.parametrize("block", [terminable, Stop(finish=False).heeded])
def test_an_interrupt_that_python_drops_comes_again(
    block: Callable[[], AbstractContextManager[None]],
) -> None:
    def interrupted() -> None:
        with block():
            Finalized()
            threading.Event().wait(60)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
