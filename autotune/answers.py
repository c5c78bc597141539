"""Prompts whose text is judged: greedy texts compared with the reference's, and coding tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.coding.lossless import corruption as garbage
from autotune.coding.lossless import garble_verdict
from autotune.coding.sandbox import choose_sandbox
from autotune.coding.suite import TaskSample, load_suite, task_samples
from autotune.config import StudyConfig
from autotune.errors import ObjectiveError

__all__ = [
    "Answers",
    "corruption",
    "greedy_prompts",
    "require_sandbox",
    "sample_key",
    "study_answers",
]

# Prompts of the losslessness check: every task in every language, 64 in all.
_LANGUAGES = ("Python", "Go", "TypeScript", "Rust", "Java", "SQL", "C", "Kotlin")
_TASKS = (
    "reads a log of requests and reports the slowest ten",
    "merges two sorted lists of intervals without overlaps",
    "keeps the most recently used entries of a cache",
    "parses a table of comma separated values with quotes",
    "finds the shortest path through a grid with walls",
    "counts how often each word of a text follows another",
    "retries an operation with growing pauses and a limit",
    "turns a nested structure into flat rows and back",
)


@dataclass(frozen=True, slots=True)
class Answers:
    """What is asked beside the buckets; plain values.

    Attributes:
        greedy: Fixed prompts of the losslessness check, by key.
        greedy_tokens: Most tokens of each greedy text.
        reference: The reference's texts by key; empty while the reference itself is measured.
        samples: Coding task-samples.
        coding_tokens: Most tokens of each coding answer.
        concurrency: Requests in flight while answers are asked for: fixed, since batching alone
            changes greedy text.
        timeout_s: Wall limit of one answer in the sandbox, seconds.
        allow_weak: Whether the weaker sandbox may stand in.
    """

    greedy: Mapping[str, str]
    greedy_tokens: int
    reference: Mapping[str, str]
    samples: tuple[TaskSample, ...]
    coding_tokens: int
    concurrency: int
    timeout_s: float
    allow_weak: bool


def sample_key(sample: TaskSample) -> str:
    """`task/variant`; the same in every trial of a study."""
    return f"{sample.task.name}/{sample.variant}"


def corruption(answers: Answers, texts: Mapping[str, str]) -> str:
    """Why the texts are garbage that the reference's are not; empty when they are not.

    The reference has nothing to be compared with: what it writes is what the service writes.
    """
    keys = sorted(set(texts) & set(answers.reference))
    if not keys:
        return ""
    found = garbage(
        [garble_verdict(answers.reference[key]) for key in keys],
        [garble_verdict(texts[key]) for key in keys],
    )
    return found.reason if found.corrupted else ""


def greedy_prompts(count: int) -> dict[str, str]:
    """The first `count` (0..64) fixed prompts of the losslessness check, by key."""
    pairs = [(language, task) for task in _TASKS for language in _LANGUAGES]
    return {
        f"greedy/{index}": f"Write {language} code that {task}. Explain each step in a comment."
        for index, (language, task) in enumerate(pairs[:count])
    }


def study_answers(config: StudyConfig) -> Answers:
    """Prompts whose answers are judged; the same for every start of the study.

    Raises:
        ObjectiveError: The suite holds fewer samples than are asked for.
    """
    samples: tuple[TaskSample, ...] = ()
    if config.suite is not None:
        samples = _samples(config.suite, config.coding.samples)
    return Answers(
        greedy=greedy_prompts(config.lossless.prompts),
        greedy_tokens=config.lossless.max_tokens,
        reference={},
        samples=samples,
        coding_tokens=config.coding.max_tokens,
        concurrency=config.coding.concurrency,
        timeout_s=config.coding.timeout_s,
        allow_weak=config.coding.sandbox == "weak",
    )


def require_sandbox(answers: Answers) -> None:
    """Now, and not when the first start has been measured.

    Raises:
        TargetError: The coding answers cannot be run on this machine.
    """
    if answers.samples:
        choose_sandbox(allow_weak=answers.allow_weak)


def _samples(suite: Path, count: int) -> tuple[TaskSample, ...]:
    try:
        return task_samples(load_suite(suite), count=count)
    except ValueError as error:
        raise ObjectiveError(
            f"coding.samples = {count} is too much for {suite}: {error}",
            hint="ask for fewer samples, or add tasks",
        ) from error
