"""Keeps one sandbox behind a command line, hands it programs and reads how they ended.

Everything travels through inherited descriptors (the harness as compiled code, tasks through one
pipe, reports through another), so no file of ours has to be readable in there. A report counts
only with the nonce of its run, which the harness reads after it has split off the process that
runs the answer.
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

from autotune.coding.channel import CandidateGone
from autotune.coding.wire import Peer, WireError
from autotune.errors import TargetError

__all__ = ["Limits", "Program", "SandboxReport", "Worker", "harness_bundle"]

_START_MOST_S = 20.0  # a loaded machine may take its time to start a sandbox
_GRACE_S = 3.0  # beyond the wall limit, which the harness itself keeps
_REPORT_BYTES = 65536
_STDERR_BYTES = 4096
_BOOT = (
    "import marshal, sys\n"
    "with open(int(sys.argv[1]), 'rb') as bundle:\n"
    "    parts = marshal.load(bundle)\n"
    "for name, code in parts:\n"
    "    module = sys.modules[name] = type(sys)(name)\n"
    "    exec(code, module.__dict__)\n"
    "module.main(int(sys.argv[2]), int(sys.argv[3]))\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one answer may use; every limit ends the answer, none ends the tuner.

    Attributes:
        wall_s: From the start of the examiner to its report, all checks together.
        cpu_s: CPU seconds of each process (RLIMIT_CPU).
        memory_bytes: Address space of each process (RLIMIT_AS).
        processes: Processes and threads together, the harness's two included (RLIMIT_NPROC).
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
        if self.wall_s <= 0 or self.cpu_s < 1 or self.processes < 3:
            raise ValueError("limits: wall_s > 0, cpu_s >= 1 and processes >= 3 are needed")

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
            "--msgqueue=0",
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
        wall_s: From handing it over to its report.
    """

    status: str
    detail: str
    wall_s: float


def harness_bundle() -> bytes:
    """`channel`, `wire` and `harness` as compiled code, in the order in which they are loaded."""
    parts = []
    for name in ("autotune.coding.channel", "autotune.coding.wire", "autotune.coding.harness"):
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise TargetError(f"the module {name} is not installed as a file")
        source = Path(spec.origin).read_bytes()
        parts.append((name, compile(source, f"<{name}>", "exec", dont_inherit=True)))
    return marshal.dumps(parts)


@dataclass(slots=True)
class _Running:
    """A sandbox that is up.

    Attributes:
        peer: Our end of the two pipes.
        stderr: What the harness says when it fails, in a memory file.
        used: Whether it has run a program before.
    """

    process: subprocess.Popen[bytes]
    peer: Peer
    stderr: int
    used: bool = False

    @property
    def last_words(self) -> str:
        return os.pread(self.stderr, _STDERR_BYTES, 0).decode("utf-8", "replace").strip()

    def close(self) -> None:
        """An orderly end where it is due (so that its CPU time is accounted), else the killing of
        the session; the namespace's PID 1 dies with bwrap and takes everything else along."""
        os.close(self.peer.send)
        try:
            self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.peer.receive)
        os.close(self.stderr)


class Worker:
    """Runs one program after another in a sandbox that stays warm.

    The sandbox is started when it is needed and thrown away after every program that did not
    leave it as it was. For one thread at a time; use as a context manager.

    Args:
        argv: The command line up to the interpreter.
        bundle: See `harness_bundle`.
    """

    def __init__(self, argv: tuple[str, ...], *, limits: Limits, bundle: bytes) -> None:
        self._argv = argv
        self._limits = limits
        self._bundle = bundle
        self._running: _Running | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self._discard()

    def run(self, program: Program) -> SandboxReport:
        """Raises: TargetError if the sandbox could not be started."""
        running = self._running or self._start()
        was_used = running.used
        report = self._ask(running, program)
        if report is None and was_used:  # perhaps an earlier program's fault: once more, afresh
            report = self._ask(self._start(), program)
        return report or SandboxReport("error", "the program ended its harness", 0.0)

    # -- inside -----------------------------------------------------------------------------------
    def _ask(self, running: _Running, program: Program) -> SandboxReport | None:
        """The report on one program; None if the harness ended without any."""
        nonce = secrets.token_hex(16)
        peer, limits = running.peer, self._limits
        task = {
            "nonce": nonce,
            "code": program.code,
            "entry_point": program.entry_point,
            "checks": list(program.checks),
            "wall_s": float(limits.wall_s),
            "output_bytes": limits.output_bytes,
        }
        running.used = True
        started_s = time.monotonic()
        peer.deadline_s = started_s + limits.wall_s + _GRACE_S
        try:
            peer.put(peer.encode(task))
            raw = peer.get()
        except CandidateGone as gone:
            self._discard()
            if gone.status != "timeout":
                return None
            return SandboxReport(
                "timeout", "the sandbox was ended from outside", time.monotonic() - started_s
            )
        wall_s = time.monotonic() - started_s
        try:
            peer.get()  # the keeper's word that the next program may come
        except CandidateGone:
            self._discard()
        return _verdict(peer, raw, nonce=nonce, wall_s=wall_s)

    def _start(self) -> _Running:
        code, stderr = _memory_file(self._bundle), _memory_file(b"")
        requests_end, requests = os.pipe()
        report, report_end = os.pipe()
        os.set_blocking(requests, False)
        try:
            process = subprocess.Popen(
                [*self._argv, "-I", "-S", "-B", "-c", _BOOT]
                + [str(descriptor) for descriptor in (code, requests_end, report_end)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=(code, requests_end, report_end),
                cwd="/",
                env={"PATH": os.defpath, "LANG": "C.UTF-8"},
                start_new_session=True,
            )
        except OSError as error:
            for descriptor in (requests, report, stderr):
                os.close(descriptor)
            raise TargetError(f"cannot start the sandbox: {error}") from error
        finally:
            for descriptor in (code, requests_end, report_end):
                os.close(descriptor)
        peer = Peer(report, requests, examiner=True, deadline_s=0, message_bytes=_REPORT_BYTES)
        self._running = _Running(process, peer, stderr)
        poll = select.poll()
        poll.register(report, select.POLLIN)
        if not poll.poll(_START_MOST_S * 1000) or os.read(report, 1) != b"S":
            words = self._running.last_words[-500:] or "no message"
            self._discard()
            raise TargetError(f"the sandbox did not start: {words}")
        return self._running

    def _discard(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.close()


def _verdict(peer: Peer, raw: bytes, *, nonce: str, wall_s: float) -> SandboxReport:
    try:
        seen, status, detail = peer.decode(raw)
    except (WireError, TypeError, ValueError):
        return SandboxReport("error", "the report cannot be read", wall_s)
    if seen != nonce or status not in ("passed", "wrong", "error", "timeout"):
        return SandboxReport("error", "the report does not carry its nonce", wall_s)
    return SandboxReport(status, detail, wall_s)


def _memory_file(content: bytes) -> int:
    descriptor = os.memfd_create("autotune", os.MFD_CLOEXEC)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
