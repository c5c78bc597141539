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
from tests.integration.hostile_answers import ENDLESS, HOSTILE, NEXT

ROOT = os.geteuid() == 0
SUITE = Path(__file__).parents[2] / "objectives/coding"
# As root the sandbox runs under a uid that nothing else uses, so that what survives is found.
UID = 61_234
LIMITS = Limits(wall_s=20.0, cpu_s=10)
SHORT = Limits(wall_s=1.0, cpu_s=10)
MARKER = "MARKER-5417"
PASSES = "f() == 1"


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
