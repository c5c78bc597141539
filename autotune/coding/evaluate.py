"""From an answer to a verdict, for one and for hundreds.

Nothing here talks to a server. `judge_all` uses every core, so it is called after a bucket's
windows and never beside them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

from autotune.coding.extract import Extraction, ExtractionRule, extract
from autotune.coding.launch import Program, SandboxReport
from autotune.coding.lossless import garble_verdict
from autotune.coding.sandbox import Sandbox
from autotune.coding.suite import Task

__all__ = ["Answer", "Judgement", "Outcome", "judge", "judge_all"]


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


def judge(task: Task, answer_text: str, finish_reason: str | None, sandbox: Sandbox) -> Judgement:
    """Extracts, runs and classifies one answer.

    Raises: TargetError if the sandbox could not be started: that says nothing of the answer.
    """
    extraction = extract(answer_text, entry_point=task.entry_point)
    report = None if extraction.code is None else sandbox.run(_program(task, extraction.code))
    return _classify(Answer(task, answer_text, finish_reason), extraction, report)


def judge_all(
    answers: Sequence[Answer], *, sandbox: Sandbox, workers: int | None = None
) -> tuple[Judgement, ...]:
    """`judge` for each answer, in their order, as many at once as there are cores.

    The same code for the same task runs once: greedy answers to several wordings of a prompt are
    often equal.

    Raises: TargetError as `judge`; ValueError for less than one worker.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"at least one worker, not {workers}")
    extractions = [extract(a.text, entry_point=a.task.entry_point) for a in answers]
    runs: dict[Program, Future[SandboxReport]] = {}
    with ThreadPoolExecutor(workers or len(os.sched_getaffinity(0))) as pool:
        try:
            for answer, extraction in zip(answers, extractions, strict=True):
                if extraction.code is not None:
                    program = _program(answer.task, extraction.code)
                    if program not in runs:
                        runs[program] = pool.submit(sandbox.run, program)
            reports = {program: run.result() for program, run in runs.items()}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return tuple(
        _classify(
            answer,
            extraction,
            None if extraction.code is None else reports[_program(answer.task, extraction.code)],
        )
        for answer, extraction in zip(answers, extractions, strict=True)
    )


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
