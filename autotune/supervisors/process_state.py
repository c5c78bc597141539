"""What is known of the service of a `process` supervisor, from any process of this machine.

The guard writes `state.json`; this module reads it, checks that the processes named there are
still the same ones (process id and start time), and finds whatever belongs to the service.
"""

from __future__ import annotations

import json
import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from autotune.errors import TargetError
from autotune.supervisors.base import Identity, ProcessFacts
from autotune.supervisors.guard import boot_id, descendants, start_ticks

__all__ = [
    "ServiceState",
    "Specification",
    "State",
    "keep_port",
    "kept_port",
    "process_facts",
    "read_state",
    "ticks_to_s",
    "write_json",
]


class Specification(TypedDict):
    """What the guard reads from its standard input.

    Attributes:
        environment: The whole environment of the service.
        tuner_pids: The processes of which none may end before the service.
        stop_timeout_s: How long children may outlive the main process.
        error_path: Where the guard's own standard error goes.
    """

    invocation_id: str
    argv: list[str]
    environment: dict[str, str]
    tuner_pids: list[int]
    stop_timeout_s: float
    state_path: str
    log_path: str
    log_limit_bytes: int
    error_path: str


class State(TypedDict):
    """What the guard writes at each change.

    Attributes:
        guard_ticks: Start of the guard in clock ticks since boot, against reused process ids.
        session_id: Session of the service: the process id that its main process had or has.
    """

    invocation_id: str
    boot_id: str
    guard_pid: int
    guard_ticks: int
    main_pid: int
    session_id: int
    active_state: str
    sub_state: str
    result: str
    exit_code: int | None
    exit_signal: int | None


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The newest start of the service, as its guard left it.

    Attributes:
        state: The guard's words.
    """

    state: State

    @property
    def invocation_id(self) -> str:
        return self.state["invocation_id"]

    def ended(self) -> bool:
        """Whether it is written down that nothing of this start is left."""
        return self.state["active_state"] in ("inactive", "failed")

    def guarded(self) -> bool:
        """Whether the guard lives; it lives exactly as long as anything of the service."""
        if self.state["boot_id"] != boot_id():
            return False
        return start_ticks(self.state["guard_pid"]) == self.state["guard_ticks"]

    def identity(self) -> Identity:
        """The state in systemd's words; that of a guard that was killed says so."""
        state = self.state if self.ended() or self.guarded() else self.as_killed()
        return Identity(
            invocation_id=self.invocation_id,
            main_pid=state["main_pid"],
            active_state=state["active_state"],
            sub_state=state["sub_state"],
            result=state["result"],
            n_restarts=0,
            exit_code=state["exit_code"],
            exit_signal=state["exit_signal"],
        )

    def as_killed(self) -> State:
        """The state of a service whose guard was killed: PR_SET_PDEATHSIG sent it SIGKILL."""
        return {
            **self.state,
            "main_pid": 0,
            "active_state": "failed",
            "sub_state": "failed",
            "result": "signal",
            "exit_code": None,
            "exit_signal": signal.SIGKILL.value,
        }

    def signal_guard(self, number: signal.Signals) -> None:
        """Send a signal to the guard, never to a process that took over its id."""
        try:
            guard_fd = os.pidfd_open(self.state["guard_pid"])
        except ProcessLookupError:
            return
        try:
            if self.guarded():
                signal.pidfd_send_signal(guard_fd, number)
        except ProcessLookupError:
            return
        finally:
            os.close(guard_fd)

    def wait_unguarded(self, timeout_s: float) -> bool:
        """Wait for the end of the guard; False when it outlived `timeout_s`."""
        try:
            guard_fd = os.pidfd_open(self.state["guard_pid"])
        except ProcessLookupError:
            return True
        try:
            if not self.guarded():
                return True
            return bool(select.select([guard_fd], [], [], max(0.0, timeout_s))[0])
        finally:
            os.close(guard_fd)

    def members(self) -> tuple[int, ...]:
        """Living processes of the service, by descent, by session and by `INVOCATION_ID`.

        The last two matter only when the guard was killed and its children went to another parent.
        """
        if self.state["boot_id"] != boot_id():
            return ()
        family = set(descendants(self.state["guard_pid"])) if self.guarded() else set()
        wanted = f"INVOCATION_ID={self.invocation_id}".encode()
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) in family or start_ticks(int(name)) is None:
                continue
            environ = (_read(int(name), "environ") or b"").split(b"\0")
            if _session_id(int(name)) == self.state["session_id"] or wanted in environ:
                family.add(int(name))
        return tuple(sorted(family))


def read_state(path: Path) -> ServiceState | None:
    """The state of the newest start, None when there was none."""
    try:
        return ServiceState(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise TargetError(f"{path} is not the state of a service: {error}") from error


def write_json(path: Path, value: object) -> None:
    """Replace a file that only we may read, in one step."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft_fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(draft_fd, "wb") as file:
        file.write(json.dumps(value).encode())
    os.replace(draft, path)


def kept_port(directory: Path) -> int:
    """The port that the service of this folder was given last, 0 when it never was."""
    try:
        text = (directory / "port").read_text(encoding="ascii")
    except FileNotFoundError:
        return 0
    return int(text) if text.isdecimal() else 0


def keep_port(directory: Path, port: int) -> None:
    """Note the port for later commands."""
    write_json(directory / "port", port)


def process_facts(pid: int) -> ProcessFacts | None:
    """Facts of one process, None when it is gone; the environment is empty when it is secret.

    Read without psutil, which guesses word borders in a command line that holds no NUL.
    """
    ticks = start_ticks(pid)
    argv = _read(pid, "cmdline")
    environ = _read(pid, "environ")
    if ticks is None or argv is None or start_ticks(pid) != ticks:
        return None
    pairs = (entry.partition(b"=") for entry in (environ or b"").split(b"\0") if b"=" in entry)
    return ProcessFacts(
        pid=pid,
        argv=tuple(os.fsdecode(word) for word in argv.removesuffix(b"\0").split(b"\0")),
        environ={os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs},
        started_at_s=ticks_to_s(ticks),
    )


def ticks_to_s(ticks: int) -> float:
    """Clock ticks since boot as seconds since boot."""
    return ticks / os.sysconf("SC_CLK_TCK")


def _session_id(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _read(pid: int, name: str) -> bytes | None:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError:
        return b""
