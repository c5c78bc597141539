"""From hundreds of answers to their verdicts.

Nothing here talks to a server. `judge_all` uses every core, so it is called after a bucket's
windows and never beside them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from enum import StrEnum

from autotune.coding.extract import Extraction, ExtractionRule, extract
from autotune.coding.launch import Program, SandboxReport
from autotune.coding.lossless import garble_verdict
from autotune.coding.sandbox import MOST_WORKERS, Sandbox
from autotune.coding.suite import Task

__all__ = ["Answer", "Judgement", "Outcome", "judge_all"]

# Starting a sandbox costs as much CPU as two dozen answers in a warm one.
_WORTH_A_SANDBOX = 24


class Outcome(StrEnum):
    """What became of an answer; everything but `PASSED` is a failure of the sample."""

    PASSED = "passed"
    WRONG = "wrong"  # a check did not hold
    ERROR = "error"  # the program raised, died or does not define what was asked for
    TIMEOUT = "timeout"  # wall or CPU limit
    NO_ANSWER = "no_answer"  # no code, such as all tokens spent on reasoning
    GARBLED = "garbled"  # failed, and the text is not language


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server wrote for a task.

    Attributes:
        finish_reason: As the server gave it: ``stop``, ``length`` or None if unknown.
    """

    task: Task
    text: str
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one answer.

    Attributes:
        task: Name of the task.
        rule: How the code was found.
        detail: What decided, for people; empty when passed.
    """

    task: str
    outcome: Outcome
    rule: ExtractionRule
    detail: str


def judge_all(
    answers: Sequence[Answer], *, sandbox: Sandbox, workers: int | None = None
) -> tuple[Judgement, ...]:
    """Extracts, runs and classifies answers; the judgements in their order.

    The same code for the same task runs once: greedy answers to several wordings of a prompt are
    often equal.

    Args:
        workers: Programs at once; None is one a core, where they are worth a sandbox of their own.

    Raises: TargetError if the sandbox could not be started: that says nothing of the answers;
        ValueError for less than one worker.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"at least one worker, not {workers}")
    extractions = [extract(a.text, entry_point=a.task.entry_point) for a in answers]
    programs = dict.fromkeys(
        _program(answer.task, extraction.code)
        for answer, extraction in zip(answers, extractions, strict=True)
        if extraction.code is not None
    )
    worth = -(-len(programs) // _WORTH_A_SANDBOX)
    wanted = workers or min(len(os.sched_getaffinity(0)), worth)
    reports = _run(tuple(programs), sandbox, workers=min(wanted, MOST_WORKERS))
    return tuple(
        _classify(
            answer,
            extraction,
            None if extraction.code is None else reports[_program(answer.task, extraction.code)],
        )
        for answer, extraction in zip(answers, extractions, strict=True)
    )


def _run(
    programs: Sequence[Program], sandbox: Sandbox, *, workers: int
) -> dict[Program, SandboxReport]:
    """Every program once, by workers that each take the next one."""
    waiting = deque(programs)
    reports: dict[Program, SandboxReport] = {}

    def work(slot: int) -> None:
        with sandbox.worker(slot) as worker:
            while True:
                try:
                    program = waiting.popleft()
                except IndexError:
                    return
                reports[program] = worker.run(program)

    if not programs:
        return reports
    with ThreadPoolExecutor(workers) as pool:
        try:
            for one in as_completed([pool.submit(work, slot) for slot in range(workers)]):
                one.result()
        except BaseException:
            waiting.clear()
            raise
    return reports


def _program(task: Task, code: str) -> Program:
    return Program(
        f"{task.preamble}\n{code}" if task.preamble else code, task.entry_point, task.checks
    )


def _classify(answer: Answer, extraction: Extraction, report: SandboxReport | None) -> Judgement:
    cut = " (the answer was cut by its token limit)" if answer.finish_reason == "length" else ""
    if report is not None and report.status == "passed":
        return Judgement(answer.task.name, Outcome.PASSED, extraction.rule, "")
    garble = garble_verdict(answer.text)
    if garble.garbled:
        return Judgement(answer.task.name, Outcome.GARBLED, extraction.rule, garble.reason)
    if report is None:
        detail = f"no code in the answer{cut}"
        return Judgement(answer.task.name, Outcome.NO_ANSWER, extraction.rule, detail)
    return Judgement(
        answer.task.name, Outcome(report.status), extraction.rule, f"{report.detail}{cut}"
    )
