"""The program that runs inside a sandbox: one answer after another against its checks.

It is carried into the sandbox together with `channel` and `wire` (`launch.harness_bundle`) and
knows nothing of the rest of the package. Three processes share the work::

    keeper (PID 1)          examiner (a fork for each answer)      candidate (its fork)
    knows no answer,        reads nonce, checks, answer            made before the task was read
    no check, no nonce      evaluates the checks             ──▶   runs the answer; calls arrive as
    forks, kills, tidies    sees values only                 ◀──   requests; plain values, handles
                            writes the report                      and exceptions go back

The candidate's code can therefore not patch the checker, leave early or print its way to a pass:
all it can do is answer calls with values, and those are compared in memory that it cannot reach.
Keeper and examiner are not dumpable (``prctl(2)``, PR_SET_DUMPABLE; a fork inherits it), so
`ptrace` and /proc/PID/mem are refused even to the same uid. Under bubblewrap the keeper is PID 1,
which no signal from inside its PID namespace can kill (``pid_namespaces(7)``), and its end is the
end of all the others. After each answer everything but the keeper is killed; it goes on only if
nothing else is left either (`_tidy`), so that no answer meets the traces of another.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import gc
import os
import select
import signal
import sys
import time

from autotune.coding.channel import CandidateGone, Channel
from autotune.coding.wire import RECURSION_LIMIT, Peer, Proxy

TYPE_CHECKING = False  # the constant of `typing`, without the cost of its import
if TYPE_CHECKING:
    from typing import Any, NoReturn

__all__ = ["check_holds", "examine", "main"]

_DETAIL_CHARACTERS = 300
_PR_SET_DUMPABLE = 4  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_TASK_BYTES = 1 << 26
# What answers import most. Loaded once by the keeper, so that not every fork pays for it.
_COMMON = (
    *("collections", "copy", "dataclasses", "enum", "functools", "heapq", "bisect", "itertools"),
    *("math", "operator", "re", "string", "typing"),
)
_SCRATCH = "/tmp"
# Commands that count what is in use: shmctl(2) SHM_INFO, semctl(2) SEM_INFO, msgctl(2) MSG_INFO.
_SHM_INFO, _SEM_INFO, _MSG_INFO = 14, 19, 12


def _load(code: str) -> dict[str, object]:
    """Runs the answer as a module named `answer` and names the callables that it defines."""
    module = type(sys)("answer")
    sys.modules["answer"] = module
    exec(compile(code, "<answer>", "exec"), module.__dict__)
    return {
        name: value
        for name, value in module.__dict__.items()
        if callable(value) and not name.startswith("__")
    }


def _candidate(receive: int, send: int, *, message_bytes: int) -> NoReturn:
    """The fork's life: no descriptor but its two, then requests until the end."""
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    low, high = sorted((receive, send))
    os.closerange(3, low)
    os.closerange(low + 1, high)
    os.closerange(high + 1, 256)
    peer = Peer(
        receive,
        send,
        examiner=False,
        deadline_s=float("inf"),
        message_bytes=message_bytes,
        load=_load,
    )
    try:
        while True:
            _, operation, payload = peer.read()
            peer.serve(operation, payload)
    finally:
        os._exit(0)


def _raises(expected: type[BaseException], function: Any, *args: object, **kwargs: object) -> bool:
    """True if the call raises the exception; for checks."""
    try:
        function(*args, **kwargs)
    except expected:
        return True
    except Exception:  # noqa: BLE001 - another exception is a wrong answer, not our failure
        return False
    return False


def _approx(value: object, wanted: float, tolerance: float = 1e-9) -> bool:
    """True if a number is within the tolerance, relative above 1; for checks."""
    if not isinstance(value, int | float):
        return False
    return abs(value - wanted) <= tolerance * max(1.0, abs(wanted))


def check_holds(source: str, names: dict[str, object]) -> bool:
    """Whether one check is true of the names that an answer defines, or raises what it raises."""
    namespace = {**names, "__builtins__": builtins, "raises": _raises, "approx": _approx}
    try:
        expression = compile(source, "<check>", "eval")
    except SyntaxError:
        exec(compile(source, "<check>", "exec"), namespace)
        return True
    value = eval(expression, namespace)
    return not isinstance(value, Proxy) and bool(value)


def examine(peer: Peer, *, code: str, entry_point: str, checks: list[str]) -> tuple[str, str]:
    """(status, detail) of an answer behind `peer`.

    Status is ``passed``, ``wrong``, ``error`` or ``timeout``.
    """
    where = "while the answer was loaded"
    try:
        found = peer.request("load", code)
        if not isinstance(found, dict) or entry_point not in found:
            return "error", f"the answer does not define {entry_point!r}"
        defined = {
            name: value
            for name, value in found.items()
            if isinstance(name, str) and isinstance(value, Proxy) and not hasattr(builtins, name)
        }
        for number, source in enumerate(checks, 1):
            where = f"check {number} of {len(checks)}: {source}"
            asked = {"candidate": found[entry_point], entry_point: found[entry_point]}
            if not check_holds(source, {**defined, **asked}):
                return "wrong", where[:_DETAIL_CHARACTERS]
    except CandidateGone as gone:
        return gone.status, f"{gone.detail}, {where}"[:_DETAIL_CHARACTERS]
    except AssertionError as error:
        status = "error" if error is peer.raised else "wrong"
        return status, where[:_DETAIL_CHARACTERS]
    except Exception as error:  # noqa: BLE001 - every exception of a check is the answer's
        detail = f"{type(error).__name__}: {error}, {where}"
        return "error", detail[:_DETAIL_CHARACTERS]
    return "passed", ""


def _examine_one(requests: int, report: int) -> NoReturn:
    """The examiner's life: split off the candidate, then read the task and report."""
    started_s = time.monotonic()
    to_candidate, to_examiner = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        _candidate(to_candidate[0], to_examiner[1], message_bytes=_TASK_BYTES)
    sys.setrecursionlimit(RECURSION_LIMIT)
    os.close(to_candidate[0])
    os.close(to_examiner[1])
    os.set_blocking(to_candidate[1], False)
    outside = Peer(
        requests, report, examiner=True, deadline_s=float("inf"), message_bytes=_TASK_BYTES
    )
    task = outside.decode(outside.get())
    peer = Peer(
        to_examiner[0],
        to_candidate[1],
        examiner=True,
        deadline_s=started_s + task["wall_s"],
        message_bytes=task["output_bytes"],
    )
    status, detail = examine(
        peer, code=task["code"], entry_point=task["entry_point"], checks=task["checks"]
    )
    if status != "passed":
        os.close(to_candidate[1])
        ended = _ended(pid)
        if ended is not None and os.WIFSIGNALED(ended):
            number = os.WTERMSIG(ended)
            status = "timeout" if number == signal.SIGXCPU else status
            detail = f"killed by signal {number}, {detail}"
    text = detail.encode("utf-8", "replace").decode()
    outside.put(outside.encode([task["nonce"], status, text]))
    os._exit(0)


def _ended(pid: int) -> int | None:
    """The candidate's wait status, None if it does not end by itself."""
    for _ in range(25):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.002)
    return None


def _descendants(root: int) -> list[int]:
    found: list[int] = []
    queue = [root]
    while queue:
        pid = queue.pop()
        try:
            with open(f"/proc/{pid}/task/{pid}/children") as file:
                children = [int(word) for word in file.read().split()]
        except OSError:
            continue
        found += children
        queue += children
    return found


def _kill_all() -> None:
    """Ends and reaps everything that an answer has started.

    As PID 1 all at once: ``kill(-1)`` reaches the whole PID namespace but the caller, and no fork
    escapes it. Elsewhere the children are looked for again until none is left.
    """
    alone = os.getpid() == 1
    for _ in range(100):
        if alone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        for child in () if alone else _descendants(os.getpid()):
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while True:
                pid, _ = os.waitpid(-1, 0 if alone else os.WNOHANG)
                if pid == 0:
                    break
        except ChildProcessError:
            return
        time.sleep(0.002)


def _tidy(scratch: tuple[int, ...]) -> bool:
    """Whether an answer has left nothing in its namespaces: no file, no System V object.

    POSIX message queues have a limit of 0, everything else dies with its processes. Outside of
    namespaces (the weaker mode) there is nothing to be told apart.
    """
    if os.getpid() != 1:
        return True
    return not os.listdir(_SCRATCH) and _state(_SCRATCH) == scratch and not _ipc_objects()


def _state(path: str) -> tuple[int, ...]:
    seen = os.stat(path)
    return seen.st_mode, seen.st_uid, seen.st_gid, len(os.listxattr(path))


def _ipc_objects() -> int:
    """System V objects in this namespace: used_ids of shm_info, msgpool of msginfo, semusz of
    seminfo."""
    libc = ctypes.CDLL(None)
    shm, msg, sem = ((ctypes.c_int * 64)() for _ in range(3))
    libc.shmctl(0, _SHM_INFO, shm)
    libc.msgctl(0, _MSG_INFO, msg)
    libc.semctl(0, 0, _SEM_INFO, sem)
    return int(shm[0] + msg[0] + sem[7])


def _protect() -> None:
    """Not dumpable, and the adoptive parent of whatever an answer leaves behind."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for option, value in ((_PR_SET_DUMPABLE, 0), (_PR_SET_CHILD_SUBREAPER, 1)):
        if prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl {option}")
    # Python's own handler would turn an answer's SIGINT into our exception; without a handler
    # PID 1 does not even get it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main(requests: int, report: int) -> NoReturn:
    """Serves tasks from `requests` until it closes; a fork for each of them.

    Writes ``S`` to `report` once, then for each task the examiner's report and an empty message
    if the next one may come. After anything out of order it ends instead.
    """
    _protect()
    for name in _COMMON:
        __import__(name)
    gc.collect()
    gc.freeze()
    channel = Channel(requests, report, deadline_s=float("inf"), message_bytes=0)
    scratch = _state(_SCRATCH)
    os.write(report, b"S")
    while _another(requests):
        pid = os.fork()
        if pid == 0:
            _examine_one(requests, report)
        _, ended = os.waitpid(pid, 0)
        _kill_all()
        if ended != 0 or not _tidy(scratch):
            break
        channel.put(b"")
    os._exit(0)


def _another(requests: int) -> bool:
    """Waits for the next task, which only its examiner reads; False at the end of them."""
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    return any(events & select.POLLIN for _, events in poll.poll())
