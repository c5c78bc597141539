"""The wait through a load, and whose fault its end was; scripted logs, a clock that we move."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from autotune.errors import (
    AutotuneError,
    ConnectError,
    ErrorRateTooHigh,
    HostBusy,
    InvocationChanged,
    LeaseLost,
    MeasurementError,
    NotReady,
    ServerCrashed,
    ServerEnded,
    ServerStartError,
    TargetError,
    TrialError,
    UnitError,
)
from autotune.readiness import Watch
from autotune.sglang.log import StartupLog, StartupPhase
from autotune.supervisors.base import Identity, Start
from autotune.supervisors.log_lines import LogLine, LogSource
from autotune.testing.fake_supervisor import FakeHost, FakeSupervisor
from tests.scripted import COMMAND, OWNER, Clock, Item, ScriptedLog, log_lines, settings_of

BUDGET = "--speculative-ddtree-budget"
OOM = (
    "[2026-11-29 12:50:07 TP0] Scheduler hit an exception: Traceback (most recent call last):",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "[2026-11-29 12:50:08] Received sigquit from a child process. Its child failed.",
)
MAIN_EXITED = "Main process exited, code=exited, status={}"


class Load:
    """One start, its scripted log and what the wait told."""

    def __init__(self, *items: Item) -> None:
        self.clock = Clock()
        self.host = FakeHost(command=COMMAND)
        self.host.begin(self.host.found())
        identity = self.host.identity
        self.start = Start(identity.invocation_id, identity.main_pid, 0.0, 0)
        self.seen: list[tuple[StartupPhase, float | None]] = []
        self.supervisor = FakeSupervisor(self.host)
        original = self.supervisor.original()
        self.lease = self.supervisor.take_lease(OWNER, original, restore_after_s=300.0)
        self.held = ExitStack()
        self.held.enter_context(self.supervisor.claim(self.lease, "c" * 32))
        self.watch = self.watching(*items)

    def watching(self, *items: Item, **options: Any) -> Watch:
        """The same start with another log."""
        return Watch(
            self.supervisor,
            self.start,
            ScriptedLog(self.clock, *items),
            clock=self.clock,
            **{"tuned_flags": (BUDGET,), **options},
        )

    def wait(self, timeout_s: float = 600.0) -> None:
        self.watch.wait_ready(
            timeout_s=timeout_s, progress=lambda phase, share: self.seen.append((phase, share))
        )

    def failure(self, timeout_s: float = 600.0) -> AutotuneError:
        with pytest.raises(AutotuneError) as caught:
            self.wait(timeout_s)
        return caught.value

    def die(self, status: int = 1) -> None:
        """The main process ends; its manager says so in the log later."""
        self.host.kill()
        self.host.identity = replace(
            self.host.identity, exit_code=status, exit_signal=None, result="exit-code"
        )


def good_lines() -> list[str]:
    return log_lines(settings_of(FakeHost(command=COMMAND).found()))


def died(status: int) -> LogLine:
    return LogLine(MAIN_EXITED.format(status), 0.0, LogSource.MANAGER)


# -- ready ----------------------------------------------------------------------------------------


def test_ready_is_the_line_of_this_start_and_each_step_is_told() -> None:
    load = Load(
        "[2026-11-29 12:50:06] Load weight begin. avail mem=139.00 GB",
        "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01]",
        200.0,
        *good_lines(),
    )
    load.wait()
    assert (StartupPhase.LOADING, 0.5) in load.seen
    assert load.seen[-1][0] is StartupPhase.READY
    assert load.watch.log.ready


def test_nothing_after_the_ready_line_is_read() -> None:
    load = Load(*good_lines(), "[2026-11-29 12:51:00] a later line")
    load.wait()
    assert not any("a later line" in line for line in load.watch.log.tail)


def test_the_fired_up_line_without_a_bind_is_not_readiness() -> None:
    """An older server on the port answers the warm-up request of the one that could not bind."""
    lines = [line for line in good_lines() if "Uvicorn" not in line]
    assert isinstance(Load(*lines).failure(timeout_s=5.0), NotReady)


# -- the parameters' fault ------------------------------------------------------------------------


def test_an_argument_error_about_a_tuned_flag_is_the_parameters_fault() -> None:
    line = f"launch_server.py: error: argument {BUDGET}: invalid int value: 'x'"
    load = Load(line, died(2))
    load.die(2)
    error = load.failure()
    assert isinstance(error, ServerStartError)
    assert BUDGET in error.message
    assert line in error.log_tail


def test_an_argument_error_about_another_flag_is_not() -> None:
    load = Load("launch_server.py: error: unrecognized arguments: --foo 1", died(2))
    load.die(2)
    error = load.failure()
    assert isinstance(error, UnitError)
    assert "--foo" in error.message


def test_out_of_memory_ends_the_wait_and_keeps_the_deciding_lines() -> None:
    load = Load(*OOM, died(1))
    load.die(1)
    error = load.failure()
    assert isinstance(error, ServerStartError)
    assert "ran out of GPU memory" in error.message
    assert any("OutOfMemoryError" in line for line in error.log_tail)


def test_a_failure_is_known_without_waiting_for_the_deadline() -> None:
    load = Load(*OOM)
    begun = load.clock.now_s
    assert isinstance(load.failure(timeout_s=1800.0), TrialError)
    assert load.clock.now_s - begun < 5.0


CLOSING = "[2026-11-29 12:50:08] Received sigquit from a child process."


def test_the_last_words_decide() -> None:
    """The closing line comes first, the cause right behind it."""
    assert isinstance(Load(CLOSING, OOM[1]).failure(), ServerStartError)


def test_last_words_that_come_half_a_second_later_decide_too() -> None:
    assert isinstance(Load(CLOSING, 0.5, OOM[1]).failure(), ServerStartError)


# -- the machine's fault, or nobody's -------------------------------------------------------------


def test_a_taken_port_is_the_machines_fault() -> None:
    refused = "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000)"
    *lines, ready = good_lines()
    load = Load(*[line for line in lines if "Uvicorn" not in line], refused, ready)
    error = load.failure()
    assert isinstance(error, HostBusy)
    assert "Errno 98" in error.message


def test_a_crash_loop_is_seen_by_the_count_of_restarts() -> None:
    load = Load("[2026-11-29 12:50:07] Load weight begin.")
    load.host.identity = replace(load.host.identity, n_restarts=1)
    begun = load.clock.now_s
    error = load.failure(timeout_s=1800.0)
    assert not isinstance(error, TrialError)
    assert load.clock.now_s - begun < 5.0


def test_a_crash_loop_is_seen_while_the_log_goes_on() -> None:
    """A chatty log must not keep the wait from looking at the service."""
    load = Load(*((0.5, f"line {n}") for n in range(50)))
    load.host.identity = replace(load.host.identity, n_restarts=3)
    load.failure(timeout_s=1800.0)
    assert load.clock.now_s < 1000.0 + 10.0


def test_a_crash_loop_with_a_traceback_is_the_parameters_fault() -> None:
    load = Load(*OOM)
    load.host.identity = replace(load.host.identity, n_restarts=1)
    assert isinstance(load.failure(), ServerStartError)


def test_a_death_without_a_word_is_nobodys_fault() -> None:
    load = Load("[2026-11-29 12:50:07] Load weight begin.")
    load.die(1)
    error = load.failure()
    assert isinstance(error, NotReady)
    assert "Load weight begin" in str(error)


def test_the_deadline_names_the_phase_and_the_last_line() -> None:
    load = Load("[2026-11-29 12:50:07] Load weight begin. avail mem=139.00 GB")
    error = load.failure(timeout_s=30.0)
    assert isinstance(error, NotReady)
    assert "30 s" in error.message
    assert "loading" in error.message
    assert "avail mem=139.00 GB" in error.message
    assert 1030.0 <= load.clock.now_s < 1035.0


def test_a_silent_start_says_so() -> None:
    assert "it logged nothing" in str(Load().failure(timeout_s=5.0))


def test_a_service_that_was_stopped_is_not_the_parameters_fault() -> None:
    load = Load(
        LogLine("Stopping sglang.service...", 0.0, LogSource.MANAGER),
        LogLine("Main process exited, code=killed, status=15/TERM", 0.0, LogSource.MANAGER),
    )
    load.host.stop()
    error = load.failure()
    assert isinstance(error, TargetError)
    assert "somebody else" in error.message


def test_a_second_invocation_during_the_load_ends_the_wait() -> None:
    load = Load("[2026-11-29 12:50:07] Load weight begin.")
    load.host.identity = replace(load.host.identity, invocation_id="f" * 32, main_pid=99)
    error = load.failure(timeout_s=1800.0)
    assert isinstance(error, MeasurementError | TargetError)
    assert load.clock.now_s < 1010.0


# -- while it is measured -------------------------------------------------------------------------


def ready_load(*later: Item) -> Load:
    load = Load(*good_lines(), *later)
    load.wait()
    return load


def test_the_same_start_is_the_same() -> None:
    load = ready_load("[2026-11-29 12:51:00] Decode batch. #running-req: 8")
    load.watch.require_same()
    assert any("Decode batch" in line for line in load.watch.log.tail)


def test_somebody_elses_restart_voids_the_measurement() -> None:
    load = ready_load()
    load.host.identity = Identity("f" * 32, 99, "active", "running", "success", 0)
    with pytest.raises(InvocationChanged, match="f" * 32):
        load.watch.require_same()


def test_a_restart_by_the_manager_is_a_crash_and_not_somebody_else() -> None:
    load = ready_load(*OOM)
    load.host.identity = Identity("f" * 32, 99, "active", "running", "success", 1)
    with pytest.raises(ServerCrashed, match="GPU memory"):
        load.watch.require_same()


def test_a_death_after_readiness_is_not_called_unready() -> None:
    load = ready_load()
    load.die(9)
    with pytest.raises(ServerEnded, match="nothing says why"):
        load.watch.require_same()


def test_a_dead_server_is_explained_by_its_last_lines() -> None:
    load = ready_load(*OOM, died(1))
    load.die(1)
    with pytest.raises(ServerCrashed, match="GPU memory"):
        load.watch.require_same()


def test_a_refused_connection_to_a_dead_server_becomes_its_crash() -> None:
    load = ready_load(*OOM, died(1))
    load.die(1)
    reason = load.watch.explain(ConnectError("http://127.0.0.1:30000/generate cannot be reached"))
    assert isinstance(reason, ServerCrashed)
    assert any("OutOfMemoryError" in line for line in reason.log_tail)


def test_a_death_that_is_noticed_a_moment_later_is_found_too() -> None:
    load = ready_load()
    load.watch = load.watching(0.2, 0.2, *OOM, load.die, tuned_flags=())
    assert isinstance(load.watch.explain(ConnectError("gone")), ServerCrashed)


def test_an_error_with_the_server_alive_stays_what_it_was() -> None:
    load = ready_load()
    error = ErrorRateTooHigh("too many requests failed")
    begun = load.clock.now_s
    assert load.watch.explain(error) is error
    assert load.clock.now_s - begun < 5.0


def test_secrets_do_not_reach_the_tail() -> None:
    load = Load()
    watch = load.watching(
        "the key is sk-verysecret1",
        *good_lines(),
        tuned_flags=(),
        log=StartupLog(secrets=("sk-verysecret1",)),
    )
    watch.wait_ready(timeout_s=5.0, progress=lambda phase, share: None)
    assert not any("sk-verysecret1" in line for line in watch.log.tail)


# -- a host that is not ours any more -------------------------------------------------------------


def log_ends() -> object:
    raise ConnectError("gpu-a: `sudo -n /bin/sh /run/autotune/llm.service/agent` has ended")


def test_a_host_that_went_back_in_the_load_is_no_server_that_ended() -> None:
    load = Load("loading", 5.0, lambda: load.supervisor.restore(load.lease))
    assert isinstance(load.failure(), LeaseLost)


def test_a_log_that_ends_with_the_lease_says_that_the_lease_was_lost() -> None:
    load = Load("loading", lambda: load.supervisor.restore(load.lease), log_ends)
    assert isinstance(load.failure(), LeaseLost)


def test_a_log_that_ends_under_a_lease_that_holds_is_the_connections_fault() -> None:
    error = Load("loading", log_ends).failure()
    assert isinstance(error, ConnectError)
    assert "has ended" in error.message


def test_a_start_that_another_tuner_replaced_was_not_restarted_by_somebody() -> None:
    load = ready_load()
    load.supervisor.restore(load.lease)
    load.host.begin(load.host.found())
    with pytest.raises(LeaseLost):
        load.watch.require_same()


def test_a_bucket_that_fails_because_the_host_went_back_says_so() -> None:
    load = ready_load()
    load.supervisor.restore(load.lease)
    with pytest.raises(LeaseLost):
        load.watch.explain(ErrorRateTooHigh("every stream failed"))
