"""How an answer is classified, with a sandbox that only remembers."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import pytest

from autotune.coding.evaluate import Answer, Judgement, Outcome, judge_all
from autotune.coding.extract import ExtractionRule
from autotune.coding.launch import Program, SandboxReport
from autotune.coding.suite import Difficulty, Task
from autotune.errors import TargetError

TASK = Task(
    name="one",
    kind="numbers",
    difficulty=Difficulty.EASY,
    prompt="Write `one()`.",
    entry_point="one",
    checks=("one() == 1",),
    solution="def one():\n    return 1\n",
    near_miss="def one():\n    return 2\n",
)
CODE = "```python\ndef one():\n    return 1\n```"


@dataclass
class RecordingSandbox:
    """Ends every program the same way and keeps what it was given."""

    status: str = "passed"
    detail: str = ""
    broken: bool = False
    programs: list[Program] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def name(self) -> str:
        return "recording"

    @property
    def weaknesses(self) -> tuple[str, ...]:
        return ("runs nothing",)

    def worker(self, slot: int = 0) -> AbstractContextManager[RecordingSandbox]:
        return nullcontext(self)

    def run(self, program: Program) -> SandboxReport:
        if self.broken:
            raise TargetError("no sandbox today")
        with self.lock:
            self.programs.append(program)
        return SandboxReport(self.status, self.detail, 0.0)


def judge(task: Task, text: str, finish_reason: str | None, sandbox: RecordingSandbox) -> Judgement:
    (judgement,) = judge_all([Answer(task, text, finish_reason)], sandbox=sandbox)
    return judgement


@pytest.mark.parametrize("status", ["passed", "wrong", "error", "timeout"])
def test_the_report_decides(status: str) -> None:
    sandbox = RecordingSandbox(status, "why" if status != "passed" else "")
    verdict = judge(TASK, CODE, "stop", sandbox)
    detail = "" if status == "passed" else "why"
    assert verdict == Judgement("one", Outcome(status), ExtractionRule.NAMED_BLOCK, detail)
    assert sandbox.programs == [
        Program("def one():\n    return 1\n", "one", ("one() == 1",)),
    ]


def test_no_code_is_no_answer_and_runs_nothing() -> None:
    sandbox = RecordingSandbox()
    verdict = judge(TASK, "<think>Let me see", "length", sandbox)
    assert verdict.outcome is Outcome.NO_ANSWER
    assert verdict.rule is ExtractionRule.NO_CODE
    assert "cut by its token limit" in verdict.detail
    assert sandbox.programs == []


def test_a_cut_answer_says_so() -> None:
    verdict = judge(TASK, "```python\ndef one(", "length", RecordingSandbox("error", "syntax"))
    assert verdict.outcome is Outcome.ERROR
    assert verdict.rule is ExtractionRule.UNCLOSED_BLOCK
    assert verdict.detail.endswith("(the answer was cut by its token limit)")


def test_garbage_is_garbled_unless_its_code_passes() -> None:
    loop = CODE + "\nand so on and so on" * 100
    assert judge(TASK, loop, "length", RecordingSandbox("wrong")).outcome is Outcome.GARBLED
    assert judge(TASK, loop, "length", RecordingSandbox("passed")).outcome is Outcome.PASSED
    assert judge(TASK, "!" * 900, "length", RecordingSandbox()).outcome is Outcome.GARBLED


def test_a_broken_sandbox_says_nothing_of_the_answer() -> None:
    sandbox = RecordingSandbox(broken=True)
    with pytest.raises(TargetError, match="no sandbox today"):
        judge(TASK, CODE, "stop", sandbox)
    with pytest.raises(TargetError, match="no sandbox today"):
        judge_all([Answer(TASK, CODE, "stop")] * 5, sandbox=sandbox)


def test_many_keep_their_order_and_equal_code_runs_once() -> None:
    sandbox = RecordingSandbox()
    texts = [CODE, "nothing", f"Well:\n{CODE}", CODE.replace("1", "3")]
    verdicts = judge_all([Answer(TASK, text, "stop") for text in texts], sandbox=sandbox, workers=3)
    assert [verdict.outcome for verdict in verdicts] == [
        Outcome.PASSED,
        Outcome.NO_ANSWER,
        Outcome.PASSED,
        Outcome.PASSED,
    ]
    assert len(sandbox.programs) == 2
    assert judge_all([], sandbox=sandbox) == ()
    with pytest.raises(ValueError, match="worker"):
        judge_all([], sandbox=sandbox, workers=0)


def test_the_preamble_stands_before_the_code() -> None:
    sandbox = RecordingSandbox()
    task = Task(
        name="HumanEval/0",
        kind="humaneval",
        difficulty=Difficulty.UNKNOWN,
        prompt="Complete this.",
        entry_point="one",
        checks=("one() == 1",),
        solution="",
        near_miss="",
        preamble="from typing import List\n",
    )
    judge(task, CODE, "stop", sandbox)
    assert sandbox.programs[0].code.startswith("from typing import List\n\ndef one()")
