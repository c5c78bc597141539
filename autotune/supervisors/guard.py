"""The parent of a service: logs it, ends all of it with its tuner (one piece: it runs as a file).

Run as a file with nothing but the standard library, so that it is there within some 20 ms::

    python -I -S guard.py HOLD_FD  < specification.json

It forks once, so that it is nobody's child, starts the command in a session of its own and stays::

    tuner ──(hold pipe, pidfd)── guard ──(output pipe)── main process ── its children
                                   └── state.json, STARTS/ID.log

    hold pipe closed, or a tuner's pidfd ready      SIGKILL for everything, at once
    SIGTERM                                         SIGTERM for everything, as systemd does
    SIGUSR1                                         SIGKILL for everything
    main process ended                              SIGTERM for what is left, SIGKILL later
    guard itself killed                             PR_SET_PDEATHSIG ends the main process

The guard is a child subreaper, so processes that left the session come back to it, and "no child
left" (ECHILD) proves that nothing is left.  The words of the state are systemd's.

A line of the log is `SECONDS.MICROSECONDS KIND TEXT`, KIND `S` for the service, `M` for the guard.
`\\n` and `\\r` end a line, empty ones are dropped and long ones split, as in the journal.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autotune.supervisors.process_state import Specification, State

__all__ = ["LINE_LIMIT_BYTES", "boot_id", "descendants", "main", "main_exited_text", "start_ticks"]

LINE_LIMIT_BYTES = 48 * 1024
"""LineMax= of journald (journald.conf(5))."""

_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_EXIT_EXEC = 203  # systemd.exec(5), "Process Exit Codes"
_CLEAN_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)
"""An ending by these is a success: SuccessExitStatus= of systemd.service(5)."""
_CHUNK_BYTES = 64 * 1024
_LAST_CHUNKS = 16  # 1 MiB, the most that a pipe holds; children may go on writing for ever
_KILL_AGAIN_MS = 50


def boot_id() -> str:
    """Id of this boot; process ids and start times mean nothing beyond it."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def start_ticks(pid: int) -> int | None:
    """Start of a process in clock ticks since boot (field 22 of proc(5) stat), None when gone.

    A zombie counts as gone: it runs no code and holds no socket.
    """
    fields = _stat_fields(pid)
    return None if fields is None or fields[0] in (b"Z", b"X") else int(fields[19])


def descendants(root: int) -> list[int]:
    """Process ids of all children, grandchildren and so on of `root`, zombies left out."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _stat_fields(int(name))
            if fields is not None and fields[0] not in (b"Z", b"X"):
                children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    queue = [root]
    while queue:
        own = children.pop(queue.pop(), [])
        found.extend(own)
        queue.extend(own)
    return found


def main_exited_text(code: int | None, signal_number: int | None) -> str:
    """The line that systemd writes when the main process of a service ended."""
    if signal_number is None:
        return f"Main process exited, code=exited, status={code}"
    try:
        name = signal.Signals(signal_number).name.removeprefix("SIG")
    except ValueError:  # real-time signals have no name
        name = f"RTMIN+{signal_number - signal.SIGRTMIN}"
    return f"Main process exited, code=killed, status={signal_number}/{name}"


def _stat_fields(pid: int) -> list[bytes] | None:
    """Fields of /proc/PID/stat from the state (field 3) on; the name before may hold anything."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(b")") + 2 :].split()


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


class _Log:
    """The log file of one start, bounded in bytes; the guard's own lines always fit."""

    def __init__(self, path: str, limit_bytes: int) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        self._limit_bytes = limit_bytes
        self._written_bytes = 0
        self._full = self._broken = False
        self._pending = b""

    def feed(self, chunk: bytes) -> None:
        """Write the lines that are whole; the rest waits for its end."""
        at = time.time()
        *whole, rest = (self._pending + chunk).replace(b"\r", b"\n").split(b"\n")
        split_at = len(rest) - len(rest) % LINE_LIMIT_BYTES
        whole.append(rest[:split_at])
        self._pending = rest[split_at:]
        self._service_lines(whole, at)

    def flush(self) -> None:
        """Write what waits for a line end that will not come any more."""
        self._service_lines([self._pending], time.time())
        self._pending = b""

    def say(self, text: str) -> None:
        self._write(b"%.6f M %s\n" % (time.time(), text.encode()))

    def _service_lines(self, lines: list[bytes], at: float) -> None:
        batch = []
        for line in lines:
            for begin in range(0, len(line), LINE_LIMIT_BYTES):
                record = b"%.6f S %s\n" % (at, line[begin : begin + LINE_LIMIT_BYTES])
                self._written_bytes += len(record)
                if self._written_bytes <= self._limit_bytes:
                    batch.append(record)
                elif not self._full:
                    self._full = True
                    text = "log limit of %d bytes reached, later lines of the service are lost"
                    batch.append(b"%.6f M %s\n" % (at, (text % self._limit_bytes).encode()))
        self._write(b"".join(batch))

    def _write(self, record: bytes) -> None:
        try:
            while record and not self._broken:
                record = record[os.write(self._fd, record) :]
        except OSError:  # a full disk must not end the guard, which holds the service
            self._broken = True


class _Guard:
    """One service from its start to the end of its last process."""

    def __init__(self, spec: Specification, hold_fd: int) -> None:
        self._spec = spec
        self._hold_fd = hold_fd
        self._log = _Log(spec["log_path"], spec["log_limit_bytes"])
        self._tuner_fds = [fd for pid in spec["tuner_pids"] if (fd := _pidfd(pid)) is not None]
        self._main_pid = self._session_id = 0
        self._active_state, self._sub_state, self._result = "active", "running", "success"
        self._exit_code: int | None = None
        self._exit_signal: int | None = None
        self._stop_asked = self._killing = False
        self._kill_at: float | None = None

    def run(self) -> int:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        wake_fd, wake_write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_write_fd)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)  # the wake-up pipe tells the loop
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        output_fd, output_write_fd = os.pipe()
        os.set_blocking(output_fd, False)
        refusal = self._launch(output_write_fd)
        if refusal is not None:
            _report({"errno": refusal}, self._spec["error_path"])
            return 1
        os.close(output_write_fd)
        self._save()
        _report({"main_pid": self._main_pid}, self._spec["error_path"])
        try:
            self._watch(wake_fd, output_fd)
        finally:
            self._signal_all(signal.SIGKILL)  # nothing is left, unless the guard itself failed
        return 0

    def _launch(self, output_fd: int) -> int | None:
        """Start the command; the errno when it cannot be executed."""
        refusal_fd, refusal_write_fd = os.pipe()
        guard_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != guard_pid:  # it died before the line above
                    os._exit(_EXIT_EXEC)
                nothing_fd = os.open(os.devnull, os.O_RDONLY)
                for target, source in ((0, nothing_fd), (1, output_fd), (2, output_fd)):
                    os.dup2(source, target)
                # Ignored signals stay ignored through exec, caught ones do not.  Python ignores
                # some, and a shell that starts us in the background others.
                for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                    signal.signal(number, signal.SIG_DFL)
                os.execvpe(self._spec["argv"][0], self._spec["argv"], self._spec["environment"])
            except OSError as error:
                os.write(refusal_write_fd, b"%d" % (error.errno or 0))
            finally:
                os._exit(_EXIT_EXEC)
        os.close(refusal_write_fd)
        refusal = os.read(refusal_fd, 32)  # closed by a successful exec
        os.close(refusal_fd)
        if refusal:
            os.waitpid(pid, 0)
            return int(refusal)
        self._main_pid = self._session_id = pid
        return None

    def _watch(self, wake_fd: int, output_fd: int) -> None:
        poll = select.poll()
        poll.register(self._hold_fd, 0)  # POLLHUP is always reported
        for fd in (*self._tuner_fds, wake_fd, output_fd):
            poll.register(fd, select.POLLIN)
        children_left = True
        while children_left:
            for fd, _ in poll.poll(self._patience_ms()):
                if fd in (self._hold_fd, *self._tuner_fds):
                    poll.unregister(fd)
                    if not self._killing:
                        self._log.say("The tuner is gone, killing the service")
                        self._kill()
                elif fd == output_fd:
                    if self._read_output(output_fd) == b"":
                        poll.unregister(output_fd)
                else:
                    for number in os.read(wake_fd, 4096):
                        if number == signal.SIGTERM:
                            self._terminate()
                        elif number == signal.SIGUSR1:
                            self._kill()
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill()
            elif self._killing:
                self._signal_all(signal.SIGKILL)  # some may have forked meanwhile
            children_left = self._reap(output_fd)
        while self._read_output(output_fd):
            pass
        self._log.flush()

    def _patience_ms(self) -> float | None:
        if self._killing:
            return _KILL_AGAIN_MS
        if self._kill_at is not None:
            return max(0.0, self._kill_at - time.monotonic()) * 1000
        return None

    def _read_output(self, output_fd: int) -> bytes | None:
        """Log one chunk of output; None when there is none now, b"" when no writer is left."""
        try:
            chunk = os.read(output_fd, _CHUNK_BYTES)
        except BlockingIOError:
            return None
        self._log.feed(chunk)
        return chunk

    def _terminate(self) -> None:
        self._stop_asked = True
        if self._active_state == "active":
            self._active_state, self._sub_state = "deactivating", "stop-sigterm"
            self._save()
        self._signal_all(signal.SIGTERM)
        self._signal_all(signal.SIGCONT)  # a stopped process takes SIGTERM only when it goes on

    def _kill(self) -> None:
        if self._stop_asked and self._main_pid:
            self._result = "timeout"
        self._killing, self._kill_at = True, None
        self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        for pid in descendants(os.getpid()):
            try:
                os.kill(pid, number)
            except OSError:  # it ended meanwhile, or has become another user's
                continue

    def _reap(self, output_fd: int) -> bool:
        """Collect what has ended; False when no child is left, hence no descendant either."""
        main_ended = False
        children_left = True
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                children_left = False
                break
            if pid == 0:
                break
            if pid == self._main_pid:
                main_ended, self._main_pid = True, 0
                self._record_ending(status)
        if not children_left:
            good = self._result == "success"
            self._active_state, self._sub_state = ("inactive", "dead") if good else ("failed",) * 2
        elif main_ended:
            self._active_state, self._sub_state = "deactivating", "stop-sigterm"
            if not self._killing:
                self._signal_all(signal.SIGTERM)
                self._kill_at = time.monotonic() + self._spec["stop_timeout_s"]
        if main_ended or not children_left:
            self._save()
        if main_ended:
            for _ in range(_LAST_CHUNKS):  # its last words come before the word about it
                self._read_output(output_fd)
            self._log.flush()
            self._log.say(main_exited_text(self._exit_code, self._exit_signal))
        return children_left

    def _record_ending(self, status: int) -> None:
        if os.WIFSIGNALED(status):
            self._exit_signal = os.WTERMSIG(status)
            bad = "core-dump" if os.WCOREDUMP(status) else "signal"
            clean = self._exit_signal in _CLEAN_SIGNALS
        else:
            self._exit_code = os.WEXITSTATUS(status)
            bad = "exit-code"
            clean = self._exit_code == 0
        if self._result == "success" and not clean:
            self._result = bad

    def _save(self) -> None:
        """Write the state in one step, so that a reader sees the old one or the new one."""
        state: State = {
            "invocation_id": self._spec["invocation_id"],
            "boot_id": boot_id(),
            "guard_pid": os.getpid(),
            "guard_ticks": start_ticks(os.getpid()) or 0,
            "main_pid": self._main_pid,
            "session_id": self._session_id,
            "active_state": self._active_state,
            "sub_state": self._sub_state,
            "result": self._result,
            "exit_code": self._exit_code,
            "exit_signal": self._exit_signal,
        }
        path = f"{self._spec['state_path']}.{os.getpid()}"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(state, file)
        os.replace(path, self._spec["state_path"])


def _pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None without that system call.

    Raises:
        ProcessLookupError: It is gone already.
    """
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if isinstance(error, ProcessLookupError):
            raise
        return None  # before Linux 5.3, or forbidden: the hold pipe alone has to do


def _report(answer: dict[str, int], error_path: str) -> None:
    """Answer the tuner and let go of its pipes."""
    os.write(1, json.dumps(answer).encode())
    nothing_fd = os.open(os.devnull, os.O_RDWR)
    error_fd = os.open(error_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target_fd, fd in ((0, nothing_fd), (1, nothing_fd), (2, error_fd)):
        os.dup2(fd, target_fd)


def main(arguments: list[str]) -> int:
    """Read the specification, become a process of its own and guard until nothing is left."""
    spec: Specification = json.load(sys.stdin)
    hold_fd = int(arguments[0])
    os.set_inheritable(hold_fd, False)
    if os.fork():
        os._exit(0)
    os.setsid()
    return _Guard(spec, hold_fd).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
