"""Whose fault an ending was: logs and signatures (one piece: one table)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from autotune.errors import (
    AutotuneError,
    HostBusy,
    NotReady,
    ServerCrashed,
    ServerEnded,
    ServerStartError,
    TrialError,
    UnitError,
)
from autotune.sglang.failure import classify
from autotune.sglang.log import StartupLog
from autotune.sglang.signatures import SIGNATURES, Signature
from autotune.supervisors.base import Identity
from autotune.supervisors.log_lines import LogLine, LogSource

CASES = Path(__file__).parent.parent / "cases" / "sglang"
STAMP = "[2026-11-29 12:50:07 TP3]"
SCHEDULER = f"{STAMP} Scheduler hit an exception: Traceback (most recent call last):"
SIGQUIT = (
    "[2026-11-29 12:50:08] Received sigquit from a child process. It usually means the child"
    " failed."
)
SCHEDULER_ENDED = (
    "[2026-11-29 12:50:08] Subprocess scheduler_0 (pid=7) crashed with exit code -15. Triggering"
    " SIGQUIT for cleanup..."
)
RUNNING = Identity("a" * 32, 100, "active", "running", "success", 0)
TUNED = ("--speculative-ddtree-budget", "--speculative-num-draft-tokens")


def exited(code: int, result: str = "exit-code") -> Identity:
    return Identity("a" * 32, 0, "failed", "failed", result, 0, exit_code=code)


def killed(signal: int, result: str = "signal") -> Identity:
    return Identity("a" * 32, 0, "failed", "failed", result, 0, exit_signal=signal)


def logged(*texts: str, source: LogSource = LogSource.SERVICE) -> StartupLog:
    log = StartupLog()
    for text in texts:
        log.feed(LogLine(text, 0.0, source))
    return log


def recorded(name: str) -> StartupLog:
    return logged(*(CASES / name).read_bytes().decode().split("\n"))


def judged(
    log: StartupLog, identity: Identity, phase: Literal["start", "run"] = "start"
) -> AutotuneError | None:
    return classify(log, identity, phase=phase, tuned_flags=TUNED)


@pytest.mark.parametrize(
    ("case", "identity", "error", "words"),
    [
        ("crash-in-warmup-0.5.21.log", killed(9), ServerStartError, "num_draft_tokens=0"),
        ("no-kv-memory-0.5.21.log", killed(9), ServerStartError, "--mem-fraction-static"),
        ("refused-value-0.5.21.log", exited(1), ServerStartError, "they differ"),
        ("bad-value-0.5.21.log", exited(2), ServerStartError, "invalid int value: 'abc'"),
        ("unknown-flag-0.5.21.log", exited(2), UnitError, "--no-such-flag"),
        ("missing-model-0.5.21.log", exited(1), UnitError, "disk cache"),
        ("port-in-use-0.5.21.log", RUNNING, HostBusy, "address already in use"),
    ],
)
def test_recorded_endings(
    case: str, identity: Identity, error: type[AutotuneError], words: str
) -> None:
    found = judged(recorded(case), identity)
    assert found is not None
    assert type(found) is error
    assert words in found.message
    if isinstance(found, ServerStartError):
        assert any(words in line for line in found.log_tail)


@pytest.mark.parametrize("case", ["dflash-0.5.17.log", "tp2-0.5.11.log", "dflash-0.5.21.log"])
def test_a_server_that_serves_has_not_failed(case: str) -> None:
    assert judged(recorded(case), RUNNING, "start") is None
    assert judged(recorded(case), RUNNING, "run") is None


EXAMPLES = {
    "port-taken": "[2026-11-29 11:58:41] ERROR:    [Errno 98] error while attempting to bind",
    "inner-port-taken": "ValueError: rpc_port at 11236 is not available in 30 seconds.",
    "gpu-shared": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0"
    " has 1 GiB free. Process 77 has 30.50 GiB memory in use. Including non-PyTorch memory, this"
    " process has 60.00 GiB memory in use.",
    "gpu-occupied": "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by"
    " other processes.",
    "kernel-oom": "llm.service: Failed with result 'oom-kill'.",
    "start-limit": "llm.service: Failed with result 'start-limit-hit'.",
    "exec": "llm.service: Main process exited, code=exited, status=203/EXEC",
    "unit-resources": "llm.service: Failed with result 'resources'.",
    "draft-oom": "DDTREE draft OOM when allocating 3 GB",
    "gpu-oom": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "kv-memory": "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
    "no-device": "RuntimeError: No CUDA GPUs are available",
    "gpu-broken": "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "model-missing": "OSError: /m does not appear to have a file named config.json.",
    "no-space": "OSError: [Errno 28] No space left on device",
    "file": "PermissionError: [Errno 13] Permission denied: '/m'",
    "installation": "ModuleNotFoundError: No module named 'sgl_kernel'",
    "illegal-access": "RuntimeError: CUDA error: an illegal memory access was encountered",
    "shapes": "RuntimeError: The size of tensor a (9) must match the size of tensor b (8)",
    "refused": "AssertionError",
    "capture": "Exception: Capture cuda graph failed: something",
    "collective": "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp",
    "ended-from-outside": "llm.service: Main process exited, code=killed, status=15/TERM",
}


def test_every_row_has_an_example() -> None:
    assert list(EXAMPLES) == [row.name for row in SIGNATURES]


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda row: row.name)
def test_each_row_decides_its_example(signature: Signature) -> None:
    line = EXAMPLES[signature.name]
    manager = line.startswith("llm.service")
    texts = (line,) if manager else (SCHEDULER, line, SIGQUIT)
    log = logged(*texts, source=LogSource.MANAGER if manager else LogSource.SERVICE)
    found = judged(log, killed(9) if not manager else RUNNING)
    kinds = {"parameters": ServerStartError, "busy": HostBusy, "machine": UnitError}
    assert found is not None
    assert type(found) is kinds[signature.fault]
    assert found.message.startswith(signature.message.split("{")[0].rstrip())
    assert line[-20:] in found.message
    assert found.hint == signature.hint


@pytest.mark.parametrize(
    ("identity", "error", "words"),
    [
        (exited(203), UnitError, "could not run the command"),
        (killed(15), UnitError, "stopped by somebody else"),
        (Identity("", 0, "failed", "failed", "oom-kill", 0, exit_signal=9), UnitError, "memory"),
        (Identity("", 0, "failed", "failed", "start-limit-hit", 5), UnitError, "so soon"),
        (killed(9), NotReady, "nothing says why"),
        (exited(0, "success"), NotReady, "nothing says why"),
        (Identity("a", 0, "activating", "auto-restart", "exit-code", 1), NotReady, "nothing says"),
    ],
)
def test_the_supervisor_alone_may_know(
    identity: Identity, error: type[AutotuneError], words: str
) -> None:
    found = judged(logged(), identity)
    assert found is not None
    assert type(found) is error
    assert words in found.message


def test_a_unit_that_is_still_preparing_has_not_failed() -> None:
    preparing = Identity("a", 0, "activating", "start-pre", "success", 0)
    assert judged(logged(), preparing) is None


def test_a_cause_outranks_its_consequences_in_whatever_order_they_come() -> None:
    collective = f"{STAMP} [E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"
    log = logged(collective)
    assert judged(log, RUNNING) is None
    for text in (SCHEDULER, "torch.OutOfMemoryError: CUDA out of memory. Tried", SIGQUIT):
        log.feed(LogLine(text, 0.0))
    assert isinstance(judged(log, killed(9)), ServerStartError)
    assert type(judged(logged(collective), killed(9))) is UnitError


def test_a_failure_that_has_only_begun_waits_for_its_reason() -> None:
    log = logged(SCHEDULER)
    assert log.failed
    assert judged(log, RUNNING) is None
    log.feed(LogLine("ValueError: no such tree", 0.0))
    log.feed(LogLine(SIGQUIT, 0.0))
    assert isinstance(judged(log, RUNNING), ServerStartError)


def test_under_load_the_parameters_crash_the_server() -> None:
    log = recorded("dflash-0.5.17.log")
    for text in (
        SCHEDULER,
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "[2026-11-29 12:50:08] SIGQUIT received. signum=None, frame=None.",
    ):
        log.feed(LogLine(text, 0.0))
    found = judged(log, RUNNING, "run")
    assert isinstance(found, ServerCrashed)
    assert "under load" in found.message
    assert not log.ready


@pytest.mark.parametrize("case", ["base-stopped-0.5.17.log", "drained-0.5.21.log"])
def test_a_stop_is_no_crash(case: str) -> None:
    log = recorded(case)
    for text in (
        SCHEDULER_ENDED,
        "[2026-11-29 12:50:08] SIGQUIT received. signum=None, frame=None.",
    ):
        log.feed(LogLine(text, 0.0))
    assert classify(log, killed(9), phase="run", stop_requested=True) is None
    found = classify(log, killed(9), phase="run")
    assert type(found) is UnitError
    assert "SIGTERM received" in found.message


def test_an_old_engine_that_logs_no_sigterm_was_stopped_too() -> None:
    log = logged(
        SCHEDULER_ENDED,
        "[2026-11-29 12:50:08] SIGQUIT received. signum=None, frame=None.",
    )
    assert not log.failed
    assert type(classify(log, killed(9), phase="run")) is UnitError
    assert classify(log, killed(9), phase="run", stop_requested=True) is None


def test_a_crash_before_the_stop_stays_a_crash() -> None:
    log = logged(SCHEDULER, "torch.OutOfMemoryError: CUDA out of memory.", SIGQUIT)
    log.feed(LogLine("[2026-11-29 12:50:09] SIGTERM received. signum=None frame=None.", 0.0))
    found = classify(log, killed(9), phase="run", stop_requested=True)
    assert isinstance(found, ServerCrashed)


def test_command_line_errors_are_the_parameters_only_where_a_tuned_flag_is_named() -> None:
    line = "sglang serve: error: unrecognized arguments: --speculative-ddtree-budget 8"
    tuned = classify(logged(line), exited(2), phase="start", tuned_flags=TUNED)
    assert isinstance(tuned, ServerStartError)
    assert type(classify(logged(line), exited(2), phase="start")) is UnitError
    longer = "launch_server.py: error: argument --speculative-ddtree-budget-x: expected one"
    found = classify(logged(longer), exited(2), phase="start", tuned_flags=TUNED)
    assert type(found) is UnitError


@pytest.mark.parametrize(
    ("lines", "identity", "phase", "error", "message", "hint"),
    [
        (
            ("one", "two", "three", "four"),
            killed(9, "signal"),
            "start",
            NotReady,
            "the server ended before it was ready and nothing says why: "
            "the service manager reports result 'signal'",
            "its last lines: two | three | four",
        ),
        (
            ("one",),
            killed(9, "success"),
            "run",
            ServerEnded,
            "the server ended after it was ready and nothing says why: "
            "the main process was ended by signal 9",
            "its last lines: one",
        ),
        (
            (),
            exited(7, ""),
            "start",
            NotReady,
            "the server ended before it was ready and nothing says why: "
            "the main process ended with status=7",
            "it logged nothing",
        ),
        (
            (),
            exited(0, "success"),
            "start",
            NotReady,
            "the server ended before it was ready and nothing says why: it left no word",
            "it logged nothing",
        ),
    ],
)
def test_an_unknown_ending_is_told_with_the_last_that_was_heard(
    lines: tuple[str, ...],
    identity: Identity,
    phase: Literal["start", "run"],
    error: type[AutotuneError],
    message: str,
    hint: str,
) -> None:
    found = judged(logged(*lines), identity, phase)
    assert found is not None
    assert (type(found), found.message, found.hint) == (error, message, hint)


@pytest.mark.parametrize(
    ("identity", "ended"),
    [
        (RUNNING, False),
        (replace(RUNNING, exit_signal=9), True),
        (replace(RUNNING, exit_code=0), True),
        (replace(RUNNING, active_state="deactivating"), True),
        (replace(RUNNING, active_state="inactive"), True),
        (replace(RUNNING, active_state="failed"), True),
        (replace(RUNNING, active_state="activating"), False),
        (replace(RUNNING, main_pid=0), True),
        (replace(RUNNING, main_pid=0, sub_state="start-pre"), False),
        (replace(RUNNING, main_pid=0, sub_state="condition"), False),
        (replace(RUNNING, main_pid=0, sub_state="start"), False),
        (replace(RUNNING, main_pid=0, sub_state="auto-restart"), True),
    ],
)
def test_one_sign_of_an_end_is_enough(identity: Identity, ended: bool) -> None:
    assert (judged(logged("a line"), identity) is not None) is ended


def test_the_managers_line_of_an_end_is_one_too() -> None:
    line = "llm.service: Main process exited, code=exited, status=7/NOTRUNNING"
    found = judged(logged(line, source=LogSource.MANAGER), RUNNING)
    assert isinstance(found, NotReady)


def test_a_plain_cause_needs_no_end_and_a_weak_one_does() -> None:
    for line, strong in (
        ("RuntimeError: CUDA error: an illegal memory access was encountered", True),
        ("torch.OutOfMemoryError: CUDA out of memory.", True),
        ("ValueError: no such tree", False),
        ("ImportError: no module", False),
    ):
        log = logged(SCHEDULER, line)
        assert (judged(log, RUNNING) is not None) is strong
        assert judged(log, killed(9)) is not None


@pytest.mark.parametrize(
    "line",
    [
        "/opt/llm/bin/python: Error while finding module specification for 'sglang.launch_server'"
        " (ModuleNotFoundError: No module named 'sglang')",
        "/usr/bin/python3.11: No module named sglang",
        "python3: can't open file '/opt/llm/serve.py': [Errno 2] No such file or directory",
    ],
)
def test_an_interpreter_that_cannot_begin_says_why(line: str) -> None:
    found = judged(logged(line), exited(1))
    assert isinstance(found, UnitError)
    assert line in found.message


def test_a_command_line_error_counts_over_what_was_said_before_it() -> None:
    line = "sglang serve: error: argument --speculative-ddtree-budget: invalid int value: 'x'"
    found = judged(logged("ValueError: before", line), exited(2))
    assert isinstance(found, ServerStartError)
    assert found.message == f"the engine refused --speculative-ddtree-budget: {line}"
    assert found.hint == "this engine does not know the flag or not this value"
    assert found.log_tail == ("ValueError: before", line)


def test_the_units_own_mistake_is_told_as_such() -> None:
    line = "sglang serve: error: unrecognized arguments: --odd"
    found = judged(logged(line), exited(2))
    assert type(found) is UnitError
    assert found.message == f"the engine refused its command line: {line}"
    assert found.hint == (
        "no tuned flag is named: the unit's own arguments are wrong for this engine"
    )


def test_the_line_that_decides_is_kept_with_the_last_ones() -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory."
    later = [f"line {n}" for n in range(70)]
    for after in (later[:3], later):
        log = logged(SCHEDULER, line, *after)
        found = judged(log, killed(9))
        assert isinstance(found, TrialError)
        kept = tuple(log.tail)
        assert found.log_tail == (kept if line in kept else (line, *kept))
        assert found.log_tail.count(line) == 1
        assert (
            found.message == f"the server ran out of GPU memory while it read its arguments: {line}"
        )


def test_who_stopped_it_is_not_known_but_that_it_was_somebody() -> None:
    log = logged("Stopping SGLang for kimi...", source=LogSource.MANAGER)
    found = judged(log, RUNNING, "run")
    assert found is not None
    assert found.message == "the server was stopped by somebody else: Stopping SGLang for kimi..."
    assert found.hint.startswith("another tuner, an operator or a deployment")


def test_secrets_do_not_reach_messages() -> None:
    line = "sglang serve: error: unrecognized arguments: --api-key sk-secret-1 --odd"
    found = judged(logged(line), exited(2))
    assert found is not None
    assert "sk-secret-1" not in str(found)


def test_the_manager_reports_our_own_stop_as_a_death() -> None:
    log = logged(EXAMPLES["ended-from-outside"], source=LogSource.MANAGER)
    assert classify(log, killed(15), phase="run", stop_requested=True) is None
    assert type(classify(log, killed(15), phase="run")) is UnitError


def test_a_stop_by_the_service_manager_is_seen() -> None:
    log = logged("Stopping SGLang for kimi...", source=LogSource.MANAGER)
    found = classify(log, RUNNING, phase="run")
    assert type(found) is UnitError
    assert "Stopping SGLang" in found.message


def test_a_scheduler_that_died_without_a_word_earns_a_retry() -> None:
    line = "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9)."
    assert isinstance(judged(logged(line), exited(1)), NotReady)
    log = logged(line)
    killer = "llm.service: A process of this unit has been killed by the OOM killer."
    log.feed(LogLine(killer, 0.0, LogSource.MANAGER))
    assert type(judged(log, exited(1))) is UnitError
