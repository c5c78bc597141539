"""The program that runs inside the sandbox: one answer against its checks.

It is carried into the sandbox together with `wire` (`launch.harness_bundle`), imports next to
nothing and knows nothing of the rest of the package. Two processes share the work::

    examiner (this process)             candidate (its fork)
    reads nonce, checks, answer         made before anything secret was read
    evaluates the checks          ──▶   runs the answer; the calls arrive as requests
    sees values only              ◀──   sends back plain values, handles and exceptions
    writes the report to FD             has neither FD nor the nonce nor the checks

The candidate's code can therefore not patch the checker, leave early or print its way to a pass:
all it can do is answer calls with values, and those are compared in memory that it cannot reach.
The examiner is not dumpable (``prctl(2)``, PR_SET_DUMPABLE), so `ptrace` and /proc/PID/mem are
refused even to the same uid; under bubblewrap it is also PID 1, which no signal from inside its
PID namespace can kill (``pid_namespaces(7)``), and its end is the end of all the others.
"""

from __future__ import annotations

import builtins
import os
import sys
import time

from autotune.coding.wire import RECURSION_LIMIT, CandidateGone, Peer, Proxy

TYPE_CHECKING = False  # the constant of `typing`, without the cost of its import
if TYPE_CHECKING:
    from typing import Any, NoReturn

__all__ = ["examine", "main"]

_DETAIL_CHARACTERS = 300
_PR_SET_DUMPABLE = 4  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_SIGKILL, _SIGXCPU = 9, 24


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
    for descriptor in range(3, 256):
        if descriptor not in (receive, send):
            try:
                os.close(descriptor)
            except OSError:
                continue
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


def _check(source: str, namespace: dict[str, object]) -> bool:
    try:
        expression = compile(source, "<check>", "eval")
    except SyntaxError:
        exec(compile(source, "<check>", "exec"), namespace)
        return True
    value = eval(expression, namespace)
    return not isinstance(value, Proxy) and bool(value)


def examine(peer: Peer, *, code: str, entry_point: str, checks: list[str]) -> tuple[str, str, int]:
    """(status, detail, number of checks passed) of an answer behind `peer`.

    Status is ``passed``, ``wrong``, ``error`` or ``timeout``.
    """
    passed = 0
    where = "while the answer was loaded"
    try:
        found = peer.request("load", code)
        if not isinstance(found, dict) or entry_point not in found:
            return "error", f"the answer does not define {entry_point!r}", 0
        defined = {
            name: value
            for name, value in found.items()
            if isinstance(name, str) and isinstance(value, Proxy) and not hasattr(builtins, name)
        }
        for source in checks:
            where = f"check {passed + 1} of {len(checks)}: {source}"
            fixed = {"__builtins__": builtins, "raises": _raises, "approx": _approx}
            asked = {"candidate": found[entry_point], entry_point: found[entry_point]}
            if not _check(source, {**defined, **fixed, **asked}):
                return "wrong", where[:_DETAIL_CHARACTERS], passed
            passed += 1
    except CandidateGone as gone:
        return gone.status, f"{gone.detail}, {where}"[:_DETAIL_CHARACTERS], passed
    except AssertionError as error:
        status = "error" if error is peer.raised else "wrong"
        return status, where[:_DETAIL_CHARACTERS], passed
    except Exception as error:  # noqa: BLE001 - every exception of a check is the answer's
        detail = f"{type(error).__name__}: {error}, {where}"
        return "error", detail[:_DETAIL_CHARACTERS], passed
    return "passed", "", passed


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


def _end(pid: int) -> int | None:
    """Ends the candidate and all its children; its wait status, None if it had to be killed."""
    status = None
    for _ in range(25):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        time.sleep(0.002)
    else:
        status = None
    if os.getpid() == 1:
        return status  # the end of PID 1 kills the whole namespace
    for _ in range(100):
        alive = _descendants(os.getpid())
        if not alive:
            break
        for child in alive:
            try:
                os.kill(child, _SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            break
    return status


def _protect() -> None:
    """Not dumpable, and the adoptive parent of whatever the candidate leaves behind."""
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for option, value in ((_PR_SET_DUMPABLE, 0), (_PR_SET_CHILD_SUBREAPER, 1)):
        if prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl {option}")


def main(report: int) -> NoReturn:
    """Reads the task from descriptor 0, writes ``S`` and then the report to `report`."""
    _protect()
    started_s = time.monotonic()
    to_candidate, to_examiner = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        _candidate(to_candidate[0], to_examiner[1], message_bytes=1 << 26)
    os.write(report, b"S")
    sys.setrecursionlimit(RECURSION_LIMIT)
    os.close(to_candidate[0])
    os.close(to_examiner[1])
    os.set_blocking(to_candidate[1], False)
    peer = Peer(to_examiner[0], to_candidate[1], examiner=True, deadline_s=0, message_bytes=0)
    with open(0, "rb", closefd=False) as file:
        task = peer.decode(file.read())
    peer.deadline_s = started_s + task["wall_s"]
    peer.message_bytes = task["output_bytes"]
    status, detail, passed = examine(
        peer, code=task["code"], entry_point=task["entry_point"], checks=task["checks"]
    )
    if status != "passed":
        os.close(to_candidate[1])
        ended = _end(pid)
        if ended is not None and os.WIFSIGNALED(ended):
            signal = os.WTERMSIG(ended)
            status = "timeout" if signal == _SIGXCPU else status
            detail = f"killed by signal {signal}, {detail}"
    elif os.getpid() != 1:
        os.kill(pid, _SIGKILL)
        _end(pid)
    text = detail.encode("utf-8", "replace").decode()
    os.write(report, peer.encode([task["nonce"], status, text, passed]))
    os._exit(0)
