"""Hostile answers: none passes, none survives, none changes or sees anything outside."""

# ruff: noqa: E501 - hostile programs read better on long lines than in pieces

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.coding.evaluate import Answer, Outcome, judge_all
from autotune.coding.launch import Limits, Program, SandboxReport
from autotune.coding.sandbox import (
    BubblewrapSandbox,
    Sandbox,
    WeakSandbox,
    choose_sandbox,
    process_limit_holds,
)
from autotune.coding.suite import Difficulty, Task, load_suite
from autotune.errors import TargetError

ROOT = os.geteuid() == 0
SUITE = Path(__file__).parents[2] / "objectives/coding"
# As root the sandbox runs under a uid that nothing else uses, so that what survives is found.
UID = 61_234
LIMITS = Limits(wall_s=20.0, cpu_s=10)
SHORT = Limits(wall_s=1.0, cpu_s=10)
MARKER = "MARKER-5417"
PASSES = "f() == 1"

# Passes only where nothing of another answer is about: no process, no file, no System V object.
NEXT = Program(
    "import ctypes, os\n"
    "def f():\n"
    "    for n in range(4):\n        if os.fork() == 0: os._exit(0)\n        os.wait()\n"
    "    c = ctypes.CDLL(None)\n"
    "    found = [n for n, i in (('shm', c.shmget(5417, 0, 0)), ('sem', c.semget(5417, 0, 0)),\n"
    "        ('msg', c.msgget(5417, 0))) if i >= 0]\n"
    "    open('/tmp/mine', 'x').write('x')\n"
    "    return os.listdir('/tmp') + found",
    "f",
    ("f() == ['mine']",),
)

# name: (code, what may become of it). The check is `f() == 1`: an escape that works returns 1.
# {secret}, {folder} and {port} are things of the host that must stay out of reach.
HOSTILE: dict[str, tuple[str, str]] = {
    "wrong marker in the output": (
        "def f():\n    print('passed', 'S', 'N')\n    return 2",
        "wrong",
    ),
    "exit in the call": ("import os\ndef f():\n    os._exit(0)", "error"),
    "exit while loading": ("import os\nos._exit(0)\ndef f(): return 1", "error"),
    "sys.exit in the call": ("import sys\ndef f(): sys.exit(0)", "error"),
    "sys.exit while loading": ("import sys\nsys.exit(0)\ndef f(): return 1", "error"),
    "keyboard interrupt": ("def f(): raise KeyboardInterrupt", "error"),
    "abort": ("import os\ndef f(): os.abort()", "error"),
    "stop iteration": ("def f(): raise StopIteration(1)", "error"),
    "equal to everything": (
        "class A(int):\n    def __eq__(s, o): return True\n    def __bool__(s): return True\n"
        "    __hash__ = int.__hash__\ndef f(): return A(2)",
        "wrong",
    ),
    "patches builtins": (
        "import builtins\n"
        "for n in ('eval', 'exec', 'all', 'bool', 'isinstance', 'compile', 'len', 'type'):\n"
        "    setattr(builtins, n, lambda *a, **k: True)\ndef f(): return 2",
        "error wrong",
    ),
    "patches the harness": (
        "import sys\n"
        "for n, m in list(sys.modules.items()):\n"
        "    if n.startswith('autotune'):\n"
        "        m.examine = m.check_holds = lambda *a, **k: ('passed', '')\n"
        "def f(): return 2",
        "wrong",
    ),
    "patches the wire": (
        "import sys\nw = sys.modules['autotune.coding.wire']\n"
        "def f():\n    w.Peer._encode = lambda self, v: b'T'\n    return 2",
        "error",
    ),
    "writes to every descriptor": (
        "import os\ndef f():\n    for d in range(256):\n        try: os.write(d, b'passed' * 9)\n"
        "        except OSError: pass\n    return 2",
        "error timeout",
    ),
    "closes every descriptor": (
        "import os\ndef f():\n    os.closerange(0, 256)\n    return 1",
        "error",
    ),
    "closes the output": (
        "import os, sys\ndef f():\n    sys.stdout.close()\n    os.close(1)\n    return 2",
        "wrong",
    ),
    "looks for the checks": (
        "import gc, sys\n"
        "def f():\n    word = ''.join(('MARK', 'ER-5417'))\n    frame = sys._getframe().f_back\n    seen = []\n"
        "    while frame:\n        seen += list(frame.f_locals.values())\n        frame = frame.f_back\n"
        "    for o in gc.get_objects():\n"
        "        seen += list(o.values()) if type(o) is dict else list(o) if type(o) in (list, tuple) else []\n"
        "    return int(any(isinstance(s, (str, bytes)) and word in str(s) for s in seen))",
        "wrong",
    ),
    "reads the task again": (
        "import os\ndef f():\n    for d in range(64):\n        try:\n"
        "            if b''.join((b'MARK', b'ER-5417')) in os.pread(d, 99999, 0): return 1\n"
        "        except OSError: pass\n    return 2",
        "wrong",
    ),
    "kills its examiner": (
        "import os\ndef f():\n    os.kill(os.getppid(), 9)\n    return 2",
        "error",
    ),
    "stops its examiner": (
        "import os\ndef f():\n    os.kill(os.getppid(), 19)\n    return 2",
        "timeout",
    ),
    "signals its keeper": (
        "import os\ndef f():\n    for s in (2, 9, 15, 19):\n        os.kill(1, s)\n    return 2",
        "wrong",
    ),
    "leaves a file": ("def f():\n    open('/tmp/mine', 'w').write('x')\n    return 2", "wrong"),
    "leaves a hidden folder": (
        "import os\ndef f():\n    os.makedirs('/tmp/.a/b')\n    os.chmod('/tmp/.a', 0)\n    return 2",
        "wrong",
    ),
    "closes the scratch folder": (
        "import os\ndef f():\n    os.chmod('/tmp', 0)\n    return 2",
        "wrong",
    ),
    "leaves shared memory": (
        "import ctypes\ndef f(): return 2 if ctypes.CDLL(None).shmget(5417, 4096, 0o1600) >= 0 else 3",
        "wrong",
    ),
    "leaves a semaphore": (
        "import ctypes\ndef f(): return 2 if ctypes.CDLL(None).semget(5417, 1, 0o1600) >= 0 else 3",
        "wrong",
    ),
    "leaves a System V queue": (
        "import ctypes\ndef f(): return 2 if ctypes.CDLL(None).msgget(5417, 0o1600) >= 0 else 3",
        "wrong",
    ),
    "makes a POSIX queue": (
        "import ctypes\ndef f():\n    c = ctypes.CDLL('librt.so.1')\n"
        "    return 1 if c.mq_open(b'/mine', 0o102, 0o600, None) >= 0 else 2",
        "wrong",
    ),
    "kills everybody": (
        "import os\ndef f():\n    try: os.kill(-1, 9)\n    except OSError: pass\n    return 2",
        "wrong error",
    ),
    "traces its parent": (
        "import ctypes, os\ndef f():\n    c = ctypes.CDLL(None)\n"
        "    return 1 if c.ptrace(16, os.getppid(), 0, 0) == 0 else 2",
        "wrong",
    ),
    "reads its parent's memory": (
        "import os\ndef f():\n    try: open(f'/proc/{{os.getppid()}}/mem', 'rb')\n"
        "    except OSError: return 2\n    return 1",
        "wrong",
    ),
    "process_vm_readv": (
        "import ctypes, os\nclass V(ctypes.Structure):\n"
        "    _fields_ = [('b', ctypes.c_void_p), ('n', ctypes.c_size_t)]\n"
        "def f():\n    here = ctypes.create_string_buffer(8)\n"
        "    v = V(ctypes.addressof(here), 8)\n    p = ctypes.byref(v)\n"
        "    n = ctypes.CDLL(None).process_vm_readv(os.getppid(), p, 1, p, 1, 0)\n"
        "    return 1 if n > 0 else 2",
        "wrong",
    ),
    "fork bomb": (
        "import os\ndef f():\n    while True:\n        try: os.fork()\n        except OSError: pass",
        "timeout error",
    ),
    "fork bomb with sessions": (
        "import os\ndef f():\n    while True:\n        try:\n            os.fork()\n"
        "            os.setsid()\n        except OSError: pass",
        "timeout error",
    ),
    "thread bomb": (
        "import threading, time\ndef f():\n    while True:\n"
        "        threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
        "error",
    ),
    "daemon that outlives": (
        "import os, time\ndef f():\n    if os.fork() == 0:\n        os.setsid()\n"
        "        if os.fork() == 0:\n            while True: time.sleep(9)\n        os._exit(0)\n"
        "    return 2",
        "wrong",
    ),
    "becomes another program": (
        "import os\ndef f(): os.execv('/usr/bin/sleep', ['sleep', '61.7'])",
        "error timeout",
    ),
    "infinite loop": ("def f():\n    while True: pass", "timeout"),
    "infinite loop while loading": ("while True: pass\ndef f(): return 1", "timeout"),
    "loop that ignores signals": (
        "import signal\ndef f():\n    for s in range(1, 65):\n"
        "        try: signal.signal(s, signal.SIG_IGN)\n        except (OSError, ValueError): pass\n"
        "    while True: pass",
        "timeout error",
    ),
    "endless sleep": ("import time\ndef f(): time.sleep(9999)", "timeout"),
    "endless iteration": (
        "import itertools\ndef f(): return list(itertools.count())",
        "error timeout",
    ),
    "waits for input": ("def f(): return input()", "error"),
    "huge allocation": ("def f(): return len(bytearray(10 << 30)) and 1", "error"),
    "growing list": ("def f():\n    x = [0]\n    while True: x += x", "error"),
    "huge mapping": ("import mmap\ndef f():\n    mmap.mmap(-1, 10 << 30)\n    return 1", "error"),
    "prints a gigabyte": (
        "def f():\n    for _ in range(1 << 10): print('x' * (1 << 20))\n    return 2",
        "wrong timeout",
    ),
    "returns a long text": ("def f(): return 'x' * (100 << 20)", "error"),
    "returns a huge number": ("def f(): return 1 << (1 << 28)", "error timeout"),
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(): return f() + 1",
        "error timeout",
    ),
    "deep nesting": (
        "def f():\n    x = []\n    for _ in range(10 ** 5): x = [x]\n    return x",
        "error",
    ),
    "huge power": ("def f(): return 10 ** 10 ** 10", "timeout error"),
    "regex blow-up": (
        "import re\ndef f(): return re.match('(a+)+$', 'a' * 60 + 'b') or 1",
        "timeout",
    ),
    "one huge file": (
        "def f():\n    with open('/tmp/x', 'wb') as o:\n"
        "        for _ in range(1024): o.write(bytes(1 << 20))\n    return 1",
        "error",
    ),
    "many files": (
        "def f():\n    for n in range(1000):\n        with open(f'/tmp/{{n}}', 'wb') as o:\n"
        "            o.write(bytes(1 << 20))\n    return 1",
        "error",
    ),
    "shared memory disk": (
        "def f():\n    for p in ('/dev/shm', '/dev', '/run', '/var/tmp', '/'):\n        try:\n"
        "            open(p + '/x', 'w').write('x')\n            return 1\n"
        "        except OSError: pass\n    return 2",
        "wrong",
    ),
    "writes outside": (
        "def f():\n    for p in ('{folder}/x', '/usr/x', '/etc/x', '/bin/x', '/python/x'):\n        try:\n"
        "            open(p, 'w').write('x')\n            return 1\n"
        "        except OSError: pass\n    return 2",
        "wrong",
    ),
    "reads a secret": ("def f():\n    return 1 if open('{secret}').read() else 2", "error"),
    "reads it through a link": (
        "import os\ndef f():\n    os.symlink('{secret}', '/tmp/l')\n    return 1 if open('/tmp/l').read() else 2",
        "error",
    ),
    "reads ~/.ssh": (
        "import os\ndef f():\n    for p in ('~/.ssh', '/root', '/root/.ssh', '/home', '{folder}'):\n"
        "        try:\n            if os.listdir(os.path.expanduser(p)): return 1\n"
        "        except OSError: pass\n    return 2",
        "wrong",
    ),
    "reads /etc and /proc": (
        "def f():\n    for p in ('/etc/passwd', '/etc/shadow', '/proc/self/environ', '/proc/1/environ'):\n"
        "        try:\n            open(p).read()\n            return 1\n"
        "        except OSError: pass\n    return 2",
        "wrong",
    ),
    "reads the environment": (
        "import os\ndef f(): return 1 if 'AUTOTUNE_CANARY' in os.environ else 2",
        "wrong",
    ),
    "connects": (
        "import socket\ndef f():\n    socket.create_connection(('127.0.0.1', {port}), 5)\n    return 1",
        "error",
    ),
    "becomes root": ("import os\ndef f():\n    os.setuid(0)\n    return 1", "error"),
    "new user namespace": (
        "import ctypes\ndef f(): return 1 if ctypes.CDLL(None).unshare(0x10000000) == 0 else 2",
        "wrong",
    ),
    "mounts": (
        "import ctypes\n"
        "def f(): return 1 if ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0 else 2",
        "wrong",
    ),
    "changes its root": ("import os\ndef f():\n    os.chroot('/tmp')\n    return 1", "error"),
}
# Those that may only be ended by the wall clock get little of it.
ENDLESS = {name for name, (_, ends) in HOSTILE.items() if "timeout" in ends}


@dataclass(frozen=True)
class Outside:
    """Things of the host that an answer tries to reach."""

    folder: Path
    secret: Path
    listener: socket.socket

    def fill(self, code: str) -> str:
        port = self.listener.getsockname()[1]
        return (
            code.replace("{folder}", str(self.folder))
            .replace("{secret}", str(self.secret))
            .replace("{port}", str(port))
            .replace("{{", "{")
            .replace("}}", "}")
        )

    def untouched(self) -> bool:
        ready, _, _ = select.select([self.listener], [], [], 0)
        return (
            not ready
            and sorted(self.folder.iterdir()) == [self.secret]
            and self.secret.read_text() == "secret"
        )


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outside]:
    monkeypatch.setenv("AUTOTUNE_CANARY", "1")
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    secret = folder / "secret"
    secret.write_text("secret")
    secret.chmod(0o666)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Outside(folder, secret, listener)


@pytest.fixture(scope="session")
def bubblewrap() -> None:
    """Skips where bubblewrap does not work; fails where continuous integration promises it."""
    try:
        choose_sandbox(allow_weak=False, limits=LIMITS)
    except TargetError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


def _sandbox(limits: Limits) -> Sandbox:
    return BubblewrapSandbox(limits=limits, uid=UID)


def _survivors() -> list[int]:
    """Processes of the sandbox's user (as root) or in a foreign PID namespace (otherwise)."""
    own = os.readlink("/proc/self/ns/pid")
    alive = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            owner = entry.stat().st_uid
            status = (entry / "status").read_text()
            foreign = ROOT or os.readlink(entry / "ns/pid") != own
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        uid = int(status.split("Uid:")[1].split()[0])
        mine = uid == UID if ROOT else owner == os.geteuid() and foreign
        if mine and "State:\tZ" not in status:
            alive.append(int(entry.name))
    return alive


def _nothing_survives() -> bool:
    """Waits for the kernel to end what was killed; False if something lives on."""
    for pid in _survivors():
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        ended = poll.poll(5000)
        os.close(descriptor)
        if not ended:
            return False
    return not _survivors()


def _once(sandbox: Sandbox, program: Program) -> SandboxReport:
    with sandbox.worker() as worker:
        return worker.run(program)


def _run(code: str, *checks: str, limits: Limits = LIMITS) -> SandboxReport:
    return _once(_sandbox(limits), Program(code, "f", checks or (PASSES,)))


@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answer(name: str, outside: Outside) -> None:
    code, ends = HOSTILE[name]
    check = f"f() == 1  # {MARKER}"
    limits = SHORT if name in ENDLESS else LIMITS
    with _sandbox(limits).worker() as worker:
        report = worker.run(Program(outside.fill(code), "f", (check,)))
        assert report.status in ends.split(), report
        # Whoever comes next in the same sandbox meets nothing of it.
        assert worker.run(NEXT).status == "passed"
    assert _nothing_survives()
    assert outside.untouched()


@pytest.mark.usefixtures("bubblewrap")
def test_the_search_for_the_checks_would_find_them() -> None:
    code = HOSTILE["looks for the checks"][0] + f"\nKEPT = ['# {MARKER}']\n"
    assert _run(code).status == "passed"


@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize(
    ("code", "check"),
    [
        ("def f(): return 1", PASSES),
        ("import os\ndef f(): return os.getuid()", "f() != 0"),
        (
            "def f():\n    open('/tmp/x', 'w').write('1')\n    return int(open('/tmp/x').read())",
            PASSES,
        ),
        (
            "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int' = 1\ndef f(): return A().x",
            PASSES,
        ),
        (
            "import threading\ndef f():\n    r = []\n    t = threading.Thread(target=r.append, args=(1,))\n"
            "    t.start()\n    t.join()\n    return r[0]",
            PASSES,
        ),
        (
            "import collections, decimal, functools, heapq, itertools, json, math, random, re, string, typing\n"
            "import bisect, datetime, enum, fractions, hashlib, operator, statistics, textwrap\n"
            "def f(): return 1",
            PASSES,
        ),
        ("def f(): return list(range(100000))", "f() == list(range(100000))"),
        ("if __name__ == '__main__':\n    raise SystemExit\ndef f(): return 1", PASSES),
    ],
)
def test_honest_answer_passes(code: str, check: str) -> None:
    assert _run(code, check).status == "passed"


@pytest.mark.usefixtures("bubblewrap")
def test_every_solution_passes_and_every_near_miss_fails() -> None:
    tasks = load_suite(SUITE)
    sandbox = _sandbox(LIMITS)
    solutions = [Answer(task, f"```python\n{task.solution}```", "stop") for task in tasks]
    misses = [Answer(task, f"```python\n{task.near_miss}```", "stop") for task in tasks]
    judged = judge_all([*solutions, *misses], sandbox=sandbox)
    passed, failed = judged[: len(tasks)], judged[len(tasks) :]
    assert [verdict for verdict in passed if verdict.outcome is not Outcome.PASSED] == []
    accepted = {Outcome.WRONG, Outcome.ERROR}
    assert [verdict for verdict in failed if verdict.outcome not in accepted] == []


@pytest.mark.usefixtures("bubblewrap")
def test_human_eval_checks_may_use_what_the_prompt_defines(tmp_path: Path) -> None:
    prompt = (
        "from typing import List\n\n\ndef twice(x: int) -> int:\n    return 2 * x\n\n\n"
        'def halve(xs: List[int]) -> List[int]:\n    """ Undoes twice for every number. """\n'
    )
    line = {
        "task_id": "HumanEval/900",
        "prompt": prompt,
        "entry_point": "halve",
        "canonical_solution": "    return [x // 2 for x in xs]\n",
        "test": "def check(candidate):\n    for n in range(9):\n"
        "        assert candidate([twice(n)]) == [n]\n",
    }
    file = tmp_path / "human-eval.jsonl"
    file.write_text(json.dumps(line))
    (task,) = load_suite(file)
    answers = [
        task.solution,
        "def halve(xs: List[int]):\n    return [x // 2 for x in xs]\n",
        "def halve(xs):\n    return [x / 2 + 1 for x in xs]\n",
    ]
    judged = judge_all(
        [Answer(task, f"```python\n{text}```", "stop") for text in answers],
        sandbox=_sandbox(LIMITS),
    )
    assert [verdict.outcome for verdict in judged] == [
        Outcome.PASSED,
        Outcome.PASSED,
        Outcome.WRONG,
    ]


@pytest.mark.usefixtures("bubblewrap")
def test_hostile_neighbours_do_not_disturb_honest_answers() -> None:
    task = Task("t", "k", Difficulty.EASY, "Write `f()`.", "f", (PASSES,), "", "")
    bombs = [
        Answer(task, f"```python\n{HOSTILE['fork bomb'][0]}\n# {n}\n```", "stop") for n in range(4)
    ]
    honest = [
        Answer(task, f"```python\ndef f():\n    return 1 + {n} * 0\n```", "stop") for n in range(8)
    ]
    verdicts = judge_all([*bombs, *honest], sandbox=_sandbox(Limits(wall_s=2.0)), workers=6)
    assert all(verdict.outcome is not Outcome.PASSED for verdict in verdicts[:4])
    assert all(verdict.outcome is Outcome.PASSED for verdict in verdicts[4:])
    assert _nothing_survives()


@pytest.mark.usefixtures("bubblewrap")
def test_process_limit_is_seen_to_hold() -> None:
    assert process_limit_holds(_sandbox(Limits(processes=5)), limit=5)
    assert not process_limit_holds(_sandbox(Limits(processes=60)), limit=5, attempts=12)
    assert _nothing_survives()


@pytest.mark.usefixtures("bubblewrap")
def test_a_killed_tuner_leaves_nothing_running() -> None:
    script = (
        "from autotune.coding.sandbox import *\n"
        "from autotune.coding.launch import Program\n"
        f"sandbox = BubblewrapSandbox(limits=Limits(wall_s=600), uid={UID})\n"
        "sandbox.worker().run(Program('import time\\ndef f(): time.sleep(600)', 'f', ('f()',)))\n"
    )
    tuner = subprocess.Popen([sys.executable, "-c", script])
    try:
        deadline_s = time.monotonic() + 30
        # Harness and answer, and as root the wrapper too, whose namespace is still the host's.
        running = 3 if ROOT else 2
        while len(_survivors()) < running and time.monotonic() < deadline_s:
            with pytest.raises(subprocess.TimeoutExpired):
                tuner.wait(0.02)
        assert len(_survivors()) >= running
    finally:
        tuner.send_signal(signal.SIGKILL)
        tuner.wait()
    assert _nothing_survives()


def test_missing_bubblewrap_is_the_machines_fault(tmp_path: Path) -> None:
    with pytest.raises(TargetError):
        _once(BubblewrapSandbox(bwrap=str(tmp_path / "absent")), Program("", "f", (PASSES,)))


def test_choice_without_bubblewrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tool in ("setpriv", "prlimit", "unshare"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TargetError) as refusal:
        choose_sandbox(allow_weak=False)
    assert "bwrap" in refusal.value.message
    assert "install bubblewrap" in refusal.value.hint
    assert "weaker sandbox" in refusal.value.hint
    weak = choose_sandbox(allow_weak=True)
    assert weak.name == "weak"
    assert weak.weaknesses


@pytest.mark.skipif(not ROOT, reason="only root is refused")
def test_weak_sandbox_is_refused_for_root() -> None:
    with pytest.raises(TargetError, match="refused for root"):
        WeakSandbox()


@pytest.mark.parametrize(
    "name",
    [
        "wrong marker in the output",
        "exit in the call",
        "exit while loading",
        "sys.exit in the call",
        "patches builtins",
        "patches the harness",
        "writes to every descriptor",
        "closes every descriptor",
        "looks for the checks",
        "reads the task again",
        "traces its parent",
        "reads its parent's memory",
        "process_vm_readv",
        "daemon that outlives",
        "infinite loop",
        "huge allocation",
        "deep recursion",
        "reads the environment",
        "becomes root",
    ],
)
def test_weak_sandbox_is_not_passed_either(name: str, outside: Outside) -> None:
    code, ends = HOSTILE[name]
    limits = SHORT if name in ENDLESS else LIMITS
    sandbox = WeakSandbox(limits=limits, allow_root=True, uid=UID)
    report = _once(sandbox, Program(outside.fill(code), "f", (f"f() == 1  # {MARKER}",)))
    assert report.status in ends.split(), report
    assert _nothing_survives()


def test_weak_sandbox_loses_to_no_killer() -> None:
    code = "import os\ndef f():\n    os.kill(os.getppid(), 9)\n    return 1"
    sandbox = WeakSandbox(limits=LIMITS, allow_root=True, uid=UID)
    report = _once(sandbox, Program(code, "f", (PASSES,)))
    assert report.status == "error"


@pytest.mark.skipif(not ROOT, reason="drops privileges")
def test_weak_sandbox_as_root_runs_as_another_user_with_a_process_limit() -> None:
    sandbox = WeakSandbox(limits=LIMITS, allow_root=True, uid=UID)
    report = _once(
        sandbox,
        Program(
            "import os\ndef f(): return os.getuid(), os.getgroups()", "f", (f"f() == ({UID}, [])",)
        ),
    )
    assert report.status == "passed"
    assert process_limit_holds(sandbox, limit=LIMITS.processes)
    assert _nothing_survives()


def test_limits_are_checked() -> None:
    with pytest.raises(ValueError, match="limits"):
        Limits(wall_s=0)
    with pytest.raises(ValueError, match="limits"):
        Limits(processes=1)
