"""Starting the service of a `process` supervisor under a guard, and ending it from any process."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from autotune.errors import (
    CommandError,
    CommandTimeout,
    HostBusy,
    ServerStartError,
    UnitError,
)
from autotune.supervisors import guard
from autotune.supervisors.process_state import (
    ServiceState,
    Specification,
    process_facts,
    read_state,
    write_json,
)
from autotune.supervisors.sockets import command_text

__all__ = ["KILL_TIMEOUT_S", "LAUNCH_TIMEOUT_S", "end_service", "start_guarded"]

KILL_TIMEOUT_S = 10.0
"""How long SIGKILL may take; a process in an uninterruptible call outlives it."""
LAUNCH_TIMEOUT_S = 30.0
_GUARD_KILLS_S = 2.0
"""How long a guard may take to send SIGKILL before it is done without it."""
_POLL_S = 0.02


def start_guarded(spec: Specification) -> tuple[int, int]:
    """Start a guard, and the service under it.

    Returns:
        Process id of the service, and the descriptor of the hold pipe: the service ends when it
        is closed, at the latest by the end of this process.

    Raises:
        ServerStartError: The kernel refuses the arguments.
        UnitError: The program cannot be executed.
        CommandError: The guard itself failed.
    """
    hold_fd, hold_write_fd = os.pipe()
    try:
        main_pid = _run_guard(spec, hold_fd)
    except BaseException:
        os.close(hold_write_fd)
        raise
    finally:
        os.close(hold_fd)
    return main_pid, hold_write_fd


def end_service(state_path: Path, *, timeout_s: float) -> None:
    """End all processes of the newest start, whoever started it, and see that none is left.

    SIGTERM first, after `timeout_s` SIGKILL.

    Raises:
        HostBusy: Something outlived SIGKILL.
    """
    state = read_state(state_path)
    if state is None or state.ended():
        return
    _tell_guard(state, signal.SIGTERM)
    if not state.wait_unguarded(timeout_s):
        _tell_guard(state, signal.SIGUSR1)
        state.wait_unguarded(_GUARD_KILLS_S)
    # A guard that ended by itself left nothing; one that was killed, or that does not do its work
    # (a debugger holds it), may have.  It goes last: without it nobody would know its children.
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while members := state.members():
        if time.monotonic() >= deadline:
            facts = process_facts(members[0])
            text = command_text(facts.argv) if facts else "no command"
            raise HostBusy(f"pid {members[0]} ({text}) of the service outlived SIGKILL")
        for pid in members:
            _kill(pid)
        time.sleep(_POLL_S)
    state.signal_guard(signal.SIGKILL)
    state.wait_unguarded(KILL_TIMEOUT_S)
    final = read_state(state_path)
    if final is not None and not final.ended():
        # Its guard was killed: without this, process ids that others get later would count as ours.
        write_json(state_path, final.as_killed())


def _run_guard(spec: Specification, hold_fd: int) -> int:
    command = (sys.executable, "-I", "-S", guard.__file__, str(hold_fd))
    try:
        done = subprocess.run(
            command,
            input=json.dumps(spec).encode(),
            capture_output=True,
            pass_fds=(hold_fd,),
            timeout=LAUNCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandTimeout(f"no guard within {LAUNCH_TIMEOUT_S:g} s") from error
    if not done.stdout:
        raise CommandError(command, done.returncode, done.stderr.decode(errors="replace"))
    answer = json.loads(done.stdout)
    if "errno" in answer:
        raise _refusal(spec["argv"], answer["errno"])
    return int(answer["main_pid"])


def _refusal(argv: Sequence[str], number: int) -> UnitError | ServerStartError:
    """Why the kernel did not execute a command, as an error of ours."""
    reason = os.strerror(number)
    if number == errno.E2BIG:  # the words that were given, not the program
        return ServerStartError(f"the arguments cannot be passed to {argv[0]!r}: {reason}")
    return UnitError(f"{argv[0]!r} cannot be executed: {reason}")


def _tell_guard(state: ServiceState, number: signal.Signals) -> None:
    """Signal the guard, and let it go on: a stopped one (SIGSTOP) takes a signal only then."""
    state.signal_guard(number)
    state.signal_guard(signal.SIGCONT)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
