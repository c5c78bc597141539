"""Signals: each way to end a command restores what it changed, and no second one stops that."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from autotune.cli.run import OnStop, finishing_signals
from autotune.interrupts import answered, between_callbacks, deferred, terminable, undisturbed
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


def test_an_interrupt_as_handlers_go_back_leaves_none_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    real, came = signal.signal, iter([True])

    def interrupted(number: signal.Signals, handler: Any) -> Any:
        if handler in before and next(came, False):
            raise KeyboardInterrupt
        return real(number, handler)

    with pytest.raises(KeyboardInterrupt), answered(print, *numbers):
        monkeypatch.setattr(signal, "signal", interrupted)
    assert [signal.getsignal(number) for number in numbers] == before


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


@pytest.mark.parametrize("block", [terminable, Stop(finish=()).heeded])
def test_an_interrupt_that_python_drops_comes_again(
    block: Callable[[], AbstractContextManager[None]],
) -> None:
    def interrupted() -> None:
        with block():
            Finalized()
            threading.Event().wait(60)

    with pytest.raises(KeyboardInterrupt):
        interrupted()


class _Interrupted(asyncio.Protocol):
    """What comes in interrupts this process, in the middle of the loop's callback."""

    def data_received(self, data: bytes) -> None:
        signal.raise_signal(signal.Signals(data[0]))


async def _until_cancelled(received: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(_Interrupted, sock=received)
    try:
        await asyncio.wait_for(asyncio.Event().wait(), 60)
    finally:
        transport.abort()  # a loop that holds a connection cannot be closed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_within_a_callback_of_the_loop_is_not_lost(number: signal.Signals) -> None:
    received, sent = socket.socketpair()
    with sent, terminable(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        loop = runner.get_loop()
        sent.send(bytes([number]))
        with (
            pytest.raises(KeyboardInterrupt),
            between_callbacks(loop, lambda: [t.cancel() for t in asyncio.all_tasks(loop)]),
        ):
            runner.run(_until_cancelled(received))


def test_a_first_signal_that_lets_things_end_leaves_the_loop_alone() -> None:
    told: list[int] = []
    stop = Stop(finish=[signal.SIGINT])
    stop.tell(lambda: told.append(1))

    async def work() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        while not told:
            await asyncio.sleep(0)
        return "ended"

    with (
        stop.heeded(),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        between_callbacks(runner.get_loop(), lambda: told.append(2)),
    ):
        assert runner.run(work()) == "ended"
    assert told == [1]


@pytest.mark.parametrize(
    "signals", [(signal.SIGINT, signal.SIGINT), (signal.SIGINT, signal.SIGTERM), (signal.SIGTERM,)]
)
def test_a_second_signal_and_one_that_lets_nothing_end_stop_at_once(
    signals: tuple[signal.Signals, ...],
) -> None:
    told: list[int] = []
    stop = Stop(finish=[signal.SIGINT])
    stop.tell(lambda: told.append(1))
    *first, last = signals
    with stop.heeded():
        for number in first:
            signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(last)
    assert told == [1] * len(first)


@pytest.mark.parametrize(
    ("on_stop", "terminal", "finishing"),
    [
        (OnStop.AUTO, True, {signal.SIGINT}),
        (OnStop.AUTO, False, set()),
        (OnStop.ABANDON, True, set()),
        (OnStop.FINISH, False, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}),
    ],
)
def test_which_signals_let_the_trials_end(
    on_stop: OnStop,
    terminal: bool,
    finishing: set[signal.Signals],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: terminal))
    assert set(finishing_signals(on_stop)) == finishing


def test_a_signal_that_comes_as_the_loop_ends_is_taken_at_the_end_of_the_block() -> None:
    async def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with (
        terminable(),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        pytest.raises(KeyboardInterrupt),
        between_callbacks(runner.get_loop(), lambda: None),
    ):
        runner.run(work())


def test_a_cancellation_of_its_own_stays_one() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with (
        terminable(),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        pytest.raises(asyncio.CancelledError),
        between_callbacks(runner.get_loop(), lambda: None),
    ):
        runner.run(work())
