"""The guard by itself: what it needs, what it writes, what it ends."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.supervisors import guard
from autotune.supervisors.guard import LINE_LIMIT_BYTES, descendants, main_exited_text, start_ticks
from autotune.supervisors.process_log import GuardLog
from autotune.supervisors.process_service import end_service, start_guarded
from autotune.supervisors.process_state import ServiceState, Specification, read_state

DEADLINE_S = 60.0


class Guarded:
    """One command under a guard."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.hold_fd = -1

    def start(
        self, *argv: str, log_limit_bytes: int = 10_000_000, stop_timeout_s: float = 60
    ) -> int:
        """Process id of the command."""
        pid, self.hold_fd = start_guarded(
            Specification(
                invocation_id="0" * 31 + "1",
                argv=list(argv),
                environment=dict(os.environ),
                tuner_pids=[os.getpid()],
                stop_timeout_s=stop_timeout_s,
                state_path=str(self.directory / "state.json"),
                log_path=str(self.directory / "log"),
                log_limit_bytes=log_limit_bytes,
                error_path=str(self.directory / "guard.err"),
            )
        )
        return pid

    def python(self, code: str, *words: str, log_limit_bytes: int = 10_000_000) -> int:
        command = (sys.executable, "-I", "-S", "-c", code, *words)
        return self.start(*command, log_limit_bytes=log_limit_bytes)

    @property
    def state(self) -> ServiceState:
        state = read_state(self.directory / "state.json")
        assert state is not None
        return state

    def wait(self) -> list[str]:
        """Wait for the end of everything; the lines of the log without their times."""
        assert self.state.wait_unguarded(DEADLINE_S)
        assert (self.directory / "guard.err").read_text() == ""
        lines = (self.directory / "log").read_bytes().decode(errors="replace").split("\n")
        assert lines.pop() == ""
        assert all(re.fullmatch(r"\d+\.\d{6} [SM] .*", line, re.DOTALL) for line in lines)
        return [line.split(" ", 1)[1] for line in lines]

    def let_go(self) -> None:
        if self.hold_fd >= 0:
            os.close(self.hold_fd)
        self.hold_fd = -1


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    service = Guarded(tmp_path)
    yield service
    service.let_go()
    end_service(tmp_path / "state.json", timeout_s=0)


def test_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import runpy, sys; runpy.run_path(sys.argv[1]);"
        "print([m for m in sys.modules if m.partition('.')[0] not in sys.stdlib_module_names])"
    )
    command = [sys.executable, "-I", "-S", "-c", code, guard.__file__]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "['__main__']\n" or done.stdout == "[]\n"


def test_output_and_errors_become_one_log(guarded: Guarded) -> None:
    guarded.python(
        "import os\n"
        "os.write(1, b'one\\n\\n\\rtwo\\r\\n')\n"
        "os.write(2, b'three\\xff\\n')\n"
        "os.write(1, b'no line end')\n"
    )
    assert guarded.wait() == [
        "S one",
        "S two",
        "S three�",
        "S no line end",
        "M Main process exited, code=exited, status=0",
    ]
    assert (guarded.state.state["active_state"], guarded.state.ended()) == ("inactive", True)


def test_long_lines_are_split(guarded: Guarded) -> None:
    guarded.python(f"print('x' * {2 * LINE_LIMIT_BYTES + 10})")
    lengths = [len(line) - 2 for line in guarded.wait() if line.startswith("S")]
    assert lengths == [LINE_LIMIT_BYTES, LINE_LIMIT_BYTES, 10]


def test_log_is_bounded_and_the_service_is_not_held_up(guarded: Guarded) -> None:
    guarded.python("for n in range(100_000): print('line', n)", log_limit_bytes=1000)
    lines = guarded.wait()
    assert lines[0] == "S line 0"
    assert lines[-2:] == [
        "M log limit of 1000 bytes reached, later lines of the service are lost",
        "M Main process exited, code=exited, status=0",
    ]
    assert (guarded.directory / "log").stat().st_size < 1300


def test_service_has_a_session_and_no_input(guarded: Guarded) -> None:
    pid = guarded.python(
        "import os, sys\nprint(os.getsid(0) == os.getpid(), sys.stdin.read() == '')\n"
    )
    assert guarded.wait()[0] == "S True True"
    assert guarded.state.state["session_id"] == pid


def test_service_starts_with_no_signal_ignored_or_blocked(guarded: Guarded) -> None:
    guarded.start("grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status")
    zeros = "0000000000000000"
    assert guarded.wait()[:2] == [f"S SigBlk:\t{zeros}", f"S SigIgn:\t{zeros}"]


def test_service_inherits_no_descriptor(guarded: Guarded) -> None:
    guarded.start(
        "sh", "-c", "for fd in $(seq 0 63); do [ ! -e /proc/$$/fd/$fd ] || echo $fd; done"
    )
    assert guarded.wait()[:-1] == ["S 0", "S 1", "S 2"]


def test_hold_pipe_ends_children_of_every_session(guarded: Guarded) -> None:
    guarded.python(
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork():\n"
        "            os._exit(0)\n"
        "        break\n"
        "os.write(1, b'here %d\\n' % os.getpid())\n"
        "while True: signal.pause()\n"
    )
    wait_for_lines(guarded, 4)
    fds = [os.pidfd_open(pid) for pid in guarded.state.members()]
    guarded.let_go()
    for fd in fds:
        assert select.select([fd], [], [], DEADLINE_S)[0]
        os.close(fd)
    assert "M The tuner is gone, killing the service" in guarded.wait()
    assert len(fds) == 4
    assert guarded.state.members() == ()
    assert guarded.state.state["exit_signal"] == signal.SIGKILL
    assert guarded.state.state["active_state"] == "failed"


def test_children_that_outlive_the_main_process_are_killed(guarded: Guarded) -> None:
    code = (
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n"
        "    while True: signal.pause()\n"
        "os._exit(5)\n"
    )
    guarded.start(sys.executable, "-I", "-S", "-c", code, stop_timeout_s=0)
    assert guarded.wait() == ["M Main process exited, code=exited, status=5"]
    assert guarded.state.state["result"] == "exit-code"


def test_a_stopped_process_is_ended(guarded: Guarded) -> None:
    pid = guarded.python(
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(0))\n"
        "print('here', flush=True)\n"
        "while True: signal.pause()\n"
    )
    wait_for_lines(guarded, 1)
    os.kill(pid, signal.SIGSTOP)
    end_service(guarded.directory / "state.json", timeout_s=DEADLINE_S)
    assert guarded.state.state["exit_code"] == 0
    assert guarded.state.state["result"] == "success"


def test_a_killed_guard_is_written_down_when_its_service_is_ended(guarded: Guarded) -> None:
    guarded.python("import signal\nprint('here', flush=True)\nsignal.pause()\n")
    wait_for_lines(guarded, 1)
    os.kill(guarded.state.state["guard_pid"], signal.SIGKILL)
    end_service(guarded.directory / "state.json", timeout_s=DEADLINE_S)
    assert guarded.state.ended()
    assert guarded.state.identity().exit_signal == signal.SIGKILL


def test_state_of_another_boot_names_no_process(guarded: Guarded) -> None:
    guarded.python("import signal\nsignal.pause()\n")
    state = guarded.state
    assert state.guarded()
    assert state.members()
    earlier = ServiceState({**state.state, "boot_id": "another boot"})
    assert not earlier.guarded()
    assert earlier.members() == ()
    assert earlier.identity().active_state == "failed"


def test_reused_guard_id_gets_no_signal(guarded: Guarded) -> None:
    with subprocess.Popen(["sleep", "infinity"]) as stranger:
        guarded.python("import signal\nsignal.pause()\n")
        reused = ServiceState({**guarded.state.state, "guard_pid": stranger.pid})
        reused.signal_guard(signal.SIGKILL)
        assert reused.wait_unguarded(0)
        assert stranger.poll() is None
        stranger.kill()


@pytest.mark.parametrize(
    ("code", "number", "text"),
    [
        (0, None, "Main process exited, code=exited, status=0"),
        (2, None, "Main process exited, code=exited, status=2"),
        (None, 9, "Main process exited, code=killed, status=9/KILL"),
        (None, 15, "Main process exited, code=killed, status=15/TERM"),
        (None, 37, "Main process exited, code=killed, status=37/RTMIN+3"),
    ],
)
def test_ending_in_the_words_of_systemd(code: int | None, number: int | None, text: str) -> None:
    assert main_exited_text(code, number) == text


def test_processes_as_the_kernel_counts_them() -> None:
    with subprocess.Popen(["sleep", "infinity"]) as child:
        own, childs = start_ticks(os.getpid()), start_ticks(child.pid)
        assert own is not None
        assert childs is not None
        assert own <= childs
        assert child.pid in descendants(os.getpid())
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert start_ticks(child.pid) is None, "a zombie holds nothing"
        assert child.pid not in descendants(os.getpid())


def wait_for_lines(guarded: Guarded, count: int) -> None:
    """Wait until the service has written so many lines."""
    with GuardLog(guarded.directory / "log", ended=lambda: False) as log:
        for _ in range(count):
            assert log.read(DEADLINE_S) is not None
