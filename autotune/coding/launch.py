"""Starts one program behind a command line and reads how it ended.

What to run goes in through inherited descriptors (the harness as compiled code, the task as
standard input) and the report comes out through a third, so no file of ours has to be readable
in there. The report counts only with the nonce of this run, which the harness reads after it has
split off the process that runs the answer.
"""

from __future__ import annotations

import marshal
import os
import secrets
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from autotune.coding.wire import Peer, WireError
from autotune.errors import TargetError

__all__ = ["Limits", "Program", "SandboxReport", "harness_bundle", "launch"]

_START_GRACE_S = 10.0  # a loaded machine may take its time to start a sandbox
_REPORT_BYTES = 65536
_STDERR_BYTES = 4096
_BOOT = (
    "import marshal, sys\n"
    "with open(int(sys.argv[1]), 'rb') as bundle:\n"
    "    parts = marshal.load(bundle)\n"
    "for name, code in parts:\n"
    "    module = sys.modules[name] = type(sys)(name)\n"
    "    exec(code, module.__dict__)\n"
    "module.main(int(sys.argv[2]))\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one answer may use; every limit ends the answer, none ends the tuner.

    Attributes:
        wall_s: From the start of the harness to its report, all checks together.
        cpu_s: CPU seconds of each process (RLIMIT_CPU).
        memory_bytes: Address space of each process (RLIMIT_AS).
        processes: Processes and threads together, the harness included (RLIMIT_NPROC).
        file_bytes: Size of one file (RLIMIT_FSIZE).
        scratch_bytes: All files together; the only writable place is a memory disk of this size.
        open_files: Descriptors of each process (RLIMIT_NOFILE).
        output_bytes: Longest value that a check may receive; what the answer prints is dropped.
    """

    wall_s: float = 10.0
    cpu_s: int = 8
    memory_bytes: int = 512 << 20
    processes: int = 8
    file_bytes: int = 4 << 20
    scratch_bytes: int = 16 << 20
    open_files: int = 64
    output_bytes: int = 4 << 20

    def __post_init__(self) -> None:
        if self.wall_s <= 0 or self.cpu_s < 1 or self.processes < 2:
            raise ValueError("limits: wall_s > 0, cpu_s >= 1 and processes >= 2 are needed")

    def prlimit_argv(self, *, processes: int | None) -> tuple[str, ...]:
        """``prlimit`` and its options; without a process limit where it would count others."""
        count = () if processes is None else (f"--nproc={processes}",)
        return (
            "prlimit",
            *count,
            f"--cpu={self.cpu_s}:{self.cpu_s + 1}",
            f"--as={self.memory_bytes}",
            f"--fsize={self.file_bytes}",
            f"--nofile={self.open_files}",
            "--core=0",
            "--",
        )


@dataclass(frozen=True, slots=True)
class Program:
    """An answer's code, the name it was asked for, and the checks that it does not get to see."""

    code: str
    entry_point: str
    checks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SandboxReport:
    """How a program ended.

    Attributes:
        status: ``passed``, ``wrong``, ``error`` or ``timeout``.
        detail: The check or the exception that decided; empty when passed.
        checks_passed: Checks that held before the deciding one.
        wall_s: From the start of the sandbox to its end.
    """

    status: str
    detail: str
    checks_passed: int
    wall_s: float


def harness_bundle() -> bytes:
    """`wire` and `harness` as compiled code, in the order in which they are loaded."""
    parts = []
    for name in ("autotune.coding.wire", "autotune.coding.harness"):
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise TargetError(f"the module {name} is not installed as a file")
        source = Path(spec.origin).read_bytes()
        parts.append((name, compile(source, f"<{name}>", "exec", dont_inherit=True)))
    return marshal.dumps(parts)


def launch(
    argv: tuple[str, ...], program: Program, *, limits: Limits, bundle: bytes
) -> SandboxReport:
    """Runs `program` under the interpreter that `argv` ends with.

    Raises: TargetError if the harness did not come to life.
    """
    nonce = secrets.token_hex(16)
    codec = Peer(-1, -1, examiner=True, deadline_s=0, message_bytes=0)
    task = {
        "nonce": nonce,
        "code": program.code,
        "entry_point": program.entry_point,
        "checks": list(program.checks),
        "wall_s": float(limits.wall_s),
        "output_bytes": limits.output_bytes,
    }
    started_s = time.monotonic()
    stdin = _memory_file(codec.encode(task))
    code = _memory_file(bundle)
    stderr = _memory_file(b"")
    report_end, harness_end = os.pipe()
    try:
        process = subprocess.Popen(
            [*argv, "-I", "-S", "-B", "-c", _BOOT, str(code), str(harness_end)],
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=(code, harness_end),
            cwd="/",
            env={"PATH": os.defpath, "LANG": "C.UTF-8"},
            start_new_session=True,
        )
        os.close(harness_end)
        harness_end = -1
        try:
            raw = _read_report(report_end, until_s=started_s + limits.wall_s + _START_GRACE_S)
        finally:
            _end(process)
        tail = os.pread(stderr, _STDERR_BYTES, 0).decode("utf-8", "replace").strip()
    except (FileNotFoundError, PermissionError) as error:
        raise TargetError(f"cannot start the sandbox: {error}") from error
    finally:
        for descriptor in (stdin, code, stderr, report_end, harness_end):
            if descriptor >= 0:
                os.close(descriptor)
    wall_s = time.monotonic() - started_s
    if not raw.startswith(b"S"):
        raise TargetError(f"the sandbox did not start: {tail[-500:] or 'no message'}")
    return _verdict(codec, raw[1:], nonce=nonce, wall_s=wall_s, limits=limits, tail=tail)


def _verdict(
    codec: Peer, raw: bytes, *, nonce: str, wall_s: float, limits: Limits, tail: str
) -> SandboxReport:
    try:
        seen, status, detail, passed = codec.decode(raw)
    except (WireError, TypeError, ValueError):
        if wall_s > limits.wall_s:
            return SandboxReport("timeout", "the sandbox was ended from outside", 0, wall_s)
        detail = f"the harness ended without a report: {tail[-200:]}"
        return SandboxReport("error", detail, 0, wall_s)
    if seen != nonce or status not in ("passed", "wrong", "error", "timeout"):
        return SandboxReport("error", "the report does not carry its nonce", 0, wall_s)
    return SandboxReport(status, detail, passed, wall_s)


def _read_report(descriptor: int, *, until_s: float) -> bytes:
    """What the harness wrote until it ended, at most `_REPORT_BYTES` and not after `until_s`."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    raw = b""
    while len(raw) < _REPORT_BYTES:
        left_s = until_s - time.monotonic()
        if left_s <= 0 or not poll.poll(1 + left_s * 1000):
            break
        part = os.read(descriptor, _REPORT_BYTES)
        if not part:
            break
        raw += part
    return raw


def _end(process: subprocess.Popen[bytes]) -> None:
    """Waits a moment for an orderly end (so that bwrap reaps its child), then kills the session.

    The namespace's PID 1 dies with bwrap (PR_SET_PDEATHSIG) and takes everything else along.
    """
    try:
        process.wait(0.5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _memory_file(content: bytes) -> int:
    descriptor = os.memfd_create("autotune", os.MFD_CLOEXEC)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
