"""Prompts whose text is judged: greedy texts compared with the reference's, and coding tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.coding.lossless import (
    Comparison,
    GarbleVerdict,
    Losslessness,
    corruption,
    drift_p_value,
    first_divergence,
    garble_verdict,
    losslessness,
)
from autotune.coding.sandbox import choose_sandbox
from autotune.coding.suite import MOST_WORDINGS, TaskSample, load_suite, task_samples
from autotune.config import StudyConfig
from autotune.errors import ObjectiveError

__all__ = [
    "Answers",
    "compare",
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
        reference: The texts of the host's first reference by key; empty while that is measured.
        samples: Coding task-samples.
        coding_tokens: Most tokens of each coding answer.
        concurrency: Requests in flight while answers are asked for: fixed, since batching alone
            changes greedy text.
        timeout_s: Wall limit of one answer in the sandbox, seconds.
        allow_weak: Whether the weaker sandbox may stand in.
        own: Where the host's references have parted from the first one, and that from itself.
        own_texts: Whether a reference is measured.
        more: Sets of other samples, one for each final round; empty in a start's own, and where the
            suite has no more.
    """

    greedy: Mapping[str, str]
    greedy_tokens: int
    reference: Mapping[str, str]
    samples: tuple[TaskSample, ...]
    coding_tokens: int
    concurrency: int
    timeout_s: float
    allow_weak: bool
    own: tuple[int | None, ...] = ()
    own_texts: bool = False
    more: tuple[tuple[TaskSample, ...], ...] = ()

    def of_start(self, final_round: int | None) -> Answers:
        """What one start is asked.

        Args:
            final_round: Number of its final round, whose samples are the same for the reference
                and every finalist and, as long as there are, others than those of the search and
                of the other rounds; None outside of these.
        """
        if final_round is None or not self.more:
            return replace(self, more=())
        return replace(self, samples=self.more[final_round % len(self.more)], more=())


def sample_key(sample: TaskSample) -> str:
    """`task/variant`; the same in every trial of a study."""
    return f"{sample.task.name}/{sample.variant}"


def compare(
    answers: Answers, texts: Mapping[str, str], again: Mapping[str, str] | None = None
) -> Comparison:
    """Judge the greedy texts of one start.

    Args:
        again: Second answers of a host's first reference, which has nothing else to be compared
            with: what it writes is what the service writes, even if that is garbage.
    """
    base = answers.reference or texts
    other = texts if answers.reference else (again or {})
    keys = sorted(set(base) & set(other))
    positions = {key: first_divergence(base[key], other[key]) for key in keys}
    verdicts = [garble_verdict(texts[key]) for key in keys]
    clean = GarbleVerdict(None, "")
    before = [garble_verdict(base[key]) if answers.reference else clean for key in keys]
    found = corruption(before, verdicts)
    if found.corrupted:
        return Comparison(Losslessness.CORRUPTED, answers.own_texts, positions, reason=found.reason)
    if answers.own_texts or not keys or not answers.own:
        return Comparison(Losslessness.LOSSLESS, answers.own_texts, positions)
    p_value = drift_p_value(answers.own, tuple(positions.values()))
    verdict = losslessness(answers.own, tuple(positions.values()))
    parted = sum(at is not None for at in positions.values())
    reason = (
        f"{parted} of {len(keys)} texts part from the reference's, and earlier than the "
        f"reference's from themselves (p = {p_value:.2g})"
    )
    drifting = verdict is Losslessness.DRIFTING
    return Comparison(verdict, False, positions, p_value, reason if drifting else "")


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
    more: tuple[tuple[TaskSample, ...], ...] = ()
    if config.suite is not None:
        samples, more = _sample_sets(
            config.suite, config.coding.samples, in_final=config.samples_of_final()
        )
    return Answers(
        greedy=greedy_prompts(config.lossless.prompts),
        greedy_tokens=config.lossless.max_tokens,
        reference={},
        samples=samples,
        coding_tokens=config.coding.max_tokens,
        concurrency=config.coding.concurrency,
        timeout_s=config.coding.timeout_s,
        allow_weak=config.coding.sandbox == "weak",
        more=more,
    )


def require_sandbox(answers: Answers) -> None:
    """Now, and not when the first start has been measured.

    Raises:
        TargetError: The coding answers cannot be run on this machine.
    """
    if answers.samples:
        choose_sandbox(allow_weak=answers.allow_weak)


def _sample_sets(
    suite: Path, count: int, *, in_final: int
) -> tuple[tuple[TaskSample, ...], tuple[tuple[TaskSample, ...], ...]]:
    """The samples of every start, and as many sets for final rounds as there are wordings for.

    None shares a sample with another.  What a suite is too small for is asked in smaller sets, but
    not in smaller ones than the first.
    """
    try:
        tasks = load_suite(suite)
        samples = task_samples(tasks, count=max(count, len(tasks) * MOST_WORDINGS))
    except ValueError as error:
        raise ObjectiveError(
            f"coding.samples = {count} is too much for {suite}: {error}",
            hint="ask for fewer samples, or add tasks",
        ) from error
    rest = samples[count:]
    size = min(in_final, len(rest))
    if size < count:
        return samples[:count], ()
    firsts = range(0, len(rest) - size + 1, size)
    return samples[:count], tuple(rest[first : first + size] for first in firsts)
