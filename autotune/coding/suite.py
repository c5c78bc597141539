"""Programming tasks as data: a folder of TOML files, or a file in the HumanEval format.

A task asks for a function or a class by its exact name and carries checks that neither the model
nor its program gets to see. ``solution`` passes all of them and ``near_miss`` does not; both exist
so that the suite itself can be tested.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autotune.errors import ObjectiveError
from autotune.places import worded

__all__ = [
    "MOST_WORDINGS",
    "Difficulty",
    "Task",
    "TaskSample",
    "load_suite",
    "suite_sha256",
    "task_samples",
    "variants",
]

_OPENINGS = (
    "Solve this programming task in Python 3.",
    "Write Python 3 code for the task below.",
    "Here is a small Python assignment.",
    "You are asked to implement the following in Python 3.",
    "Please implement what is described next, in Python 3 and with the standard library only.",
    "Read the description carefully, then write the Python code.",
    "A colleague needs this piece of Python code today.",
    "The following specification is complete; turn it into Python 3 code.",
)
_CLOSINGS = (
    "Answer with one fenced Python code block that holds the complete code.",
    "Put the whole program into a single ```python block and keep the explanation short.",
    "Reply with the complete code in one Markdown code block. Do not include tests.",
    "Give only the final code, in one fenced block, with every import that it needs.",
    "Use exactly the name that is asked for. Return the code in one fenced block.",
)
MOST_WORDINGS = len(_OPENINGS) * len(_CLOSINGS)
"""Prompts that `variants` can make of one task."""


class Difficulty(StrEnum):
    """How hard a task is meant to be; shown in tables, weighs nothing."""

    EASY = "easy"
    MEDIUM = "medium"
    HARD = "hard"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Task:
    """One programming task.

    Attributes:
        name: Unique in its suite.
        kind: What it is about: strings, numbers, structures, parsing, recursion, classes, repair.
        difficulty: See `Difficulty`.
        prompt: The task's text; it names the entry point.
        entry_point: The function or class that the answer has to define.
        checks: Python expressions that must be true, or statements with assertions. They may use
            ``raises(Exception, function, *arguments)`` and ``approx(value, wanted)``.
        solution: An answer that passes; empty where a foreign suite has none.
        near_miss: An answer that fails by little; empty where a foreign suite has none.
        preamble: Code that stands before every answer, such as the imports of a HumanEval prompt.
    """

    name: str
    kind: str
    difficulty: Difficulty
    prompt: str
    entry_point: str
    checks: tuple[str, ...]
    solution: str
    near_miss: str
    preamble: str = ""


@dataclass(frozen=True, slots=True)
class TaskSample:
    """One prompt to be sent: a task in one of its wordings.

    Attributes:
        variant: 0-based index into `variants`.
    """

    task: Task
    variant: int
    prompt: str


class _TaskEntry(BaseModel):
    """One ``[[task]]`` table."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    kind: str = Field(min_length=1)
    difficulty: str = Field(pattern="^(easy|medium|hard)$")
    prompt: str = Field(min_length=20)
    entry_point: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    checks: list[str] = Field(min_length=1)
    solution: str = Field(min_length=1)
    near_miss: str = Field(min_length=1)


class _HumanEvalEntry(BaseModel):
    """One line of a HumanEval file; keys that it does not need are ignored."""

    task_id: str
    prompt: str
    entry_point: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    test: str
    canonical_solution: str = ""


def load_suite(path: Path) -> tuple[Task, ...]:
    """The tasks of a folder of ``*.toml``, of one such file, or of a HumanEval ``*.jsonl``.

    Folders are read in the order of their file names, files in their own order.

    Raises: ObjectiveError naming file, place and key.
    """
    tasks: list[Task] = []
    seen: dict[str, Path] = {}
    for file in _files(path):
        for task in _read(file):
            if task.name in seen:
                raise ObjectiveError(
                    f"{file}: name {task.name!r} is taken already by {seen[task.name]}",
                    hint="give each task a name of its own",
                )
            seen[task.name] = file
            tasks.append(task)
    return tuple(tasks)


def suite_sha256(path: Path) -> str:
    """SHA-256 over the files of a suite, names and contents: other tasks are another study.

    Raises: ObjectiveError for a file that cannot be read.
    """
    digest = hashlib.sha256()
    for file in _files(path):
        digest.update(f"{file.name}\0{_text(file)}\0".encode())
    return digest.hexdigest()


def variants(task: Task, n: int) -> tuple[str, ...]:
    """`n` different prompts for one task; each contains ``task.prompt`` verbatim.

    Raises: ValueError if there are not that many wordings.
    """
    if not 1 <= n <= MOST_WORDINGS:
        raise ValueError(f"between 1 and {MOST_WORDINGS} wordings per task, not {n}")
    # The two lists have coprime lengths, so walking both at once visits every pair once.
    return tuple(
        f"{_OPENINGS[i % len(_OPENINGS)]}\n\n{task.prompt}\n\n{_CLOSINGS[i % len(_CLOSINGS)]}"
        for i in range(n)
    )


def task_samples(tasks: tuple[Task, ...], *, count: int = 200) -> tuple[TaskSample, ...]:
    """`count` prompts: every task in its first wording, then every task in its second, ...

    200 samples find a corruption of one task in ten with a probability above 0.95 at 3 % chance
    failures, which 60 do not (see `gate`).

    Raises: ValueError if there are no tasks or not enough wordings.
    """
    if not tasks:
        raise ValueError("a suite without tasks")
    each = -(-count // len(tasks))
    worded = [(task, variants(task, each)) for task in tasks]
    samples = [
        TaskSample(task, index, prompts[index]) for index in range(each) for task, prompts in worded
    ]
    return tuple(samples[:count])


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.toml")) + sorted(path.glob("*.jsonl"))
    if not files:
        raise ObjectiveError(
            f"{path}: no *.toml and no *.jsonl in this folder",
            hint="docs/coding-eval.md shows what a suite looks like",
        )
    return files


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ObjectiveError(
            f"{file}: cannot be read: {error}", hint="a suite is UTF-8 text that you may read"
        ) from error


def _read(file: Path) -> list[Task]:
    text = _text(file)
    return _human_eval(file, text) if file.suffix == ".jsonl" else _toml(file, text)


def _toml(file: Path, text: str) -> list[Task]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ObjectiveError(
            f"{file}: not valid TOML: {error}", hint="tasks are [[task]] tables, https://toml.io"
        ) from error
    entries = document.pop("task", [])
    if document:
        key = next(iter(document))
        raise ObjectiveError(f"{file}: unknown key {key!r}", hint="tasks are [[task]] tables")
    if not isinstance(entries, list) or not entries:
        raise ObjectiveError(
            f"{file}: key 'task': at least one [[task]] table is needed",
            hint="docs/coding-eval.md shows one",
        )
    lines = [n for n, line in enumerate(text.splitlines(), 1) if line.strip() == "[[task]]"]
    tasks = []
    for index, entry in enumerate(entries):
        line = f", line {lines[index]}" if len(lines) == len(entries) else ""
        place = f"{file}{line}: task[{index}]"
        try:
            checked = _TaskEntry.model_validate(entry)
        except ValidationError as error:
            raise _refused(place, error) from error
        for number, check in enumerate(checked.checks):
            _require_python(check, f"{place}.checks[{number}]")
        for key in ("solution", "near_miss"):
            _require_python(getattr(checked, key), f"{place}.{key}")
        if checked.entry_point not in checked.prompt:
            raise ObjectiveError(
                f"{place}.prompt: does not mention the entry point {checked.entry_point!r}",
                hint="the model must be told what to call it",
            )
        tasks.append(
            Task(
                name=checked.name,
                kind=checked.kind,
                difficulty=Difficulty(checked.difficulty),
                prompt=checked.prompt.strip(),
                entry_point=checked.entry_point,
                checks=tuple(check.strip() for check in checked.checks),
                solution=checked.solution,
                near_miss=checked.near_miss,
            )
        )
    return tasks


def _human_eval(file: Path, text: str) -> list[Task]:
    tasks = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        place = f"{file}, line {number}"
        try:
            entry = _HumanEvalEntry.model_validate(json.loads(line))
        except json.JSONDecodeError as error:
            raise ObjectiveError(
                f"{place}: not valid JSON: {error}", hint="one object a line, as HumanEval has it"
            ) from error
        except ValidationError as error:
            raise _refused(place, error) from error
        check = f"{entry.test}\n\ncheck({entry.entry_point})\n"
        _require_python(check, f"{place}.test")
        head = re.search(rf"^(async\s+)?def\s+{entry.entry_point}\b", entry.prompt, re.MULTILINE)
        solution = entry.prompt + entry.canonical_solution if entry.canonical_solution else ""
        tasks.append(
            Task(
                name=entry.task_id,
                kind="humaneval",
                difficulty=Difficulty.UNKNOWN,
                prompt=f"Complete this Python function:\n\n{entry.prompt.strip()}",
                entry_point=entry.entry_point,
                checks=(check,),
                solution=solution,
                near_miss="",
                preamble=entry.prompt[: head.start()] if head else "",
            )
        )
    if not tasks:
        raise ObjectiveError(
            f"{file}: no task in this file", hint="one object a line, as HumanEval has it"
        )
    return tasks


def _require_python(source: str, place: str) -> None:
    try:
        compile(source, "<task>", "exec")
    except (SyntaxError, ValueError) as error:
        raise ObjectiveError(
            f"{place}: not valid Python: {error}", hint="it is run as it stands, by this Python"
        ) from error


def _refused(place: str, error: ValidationError) -> ObjectiveError:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    hint = ""
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, _TaskEntry.model_fields, n=1)
        hint = f"did you mean {near[0]!r}?" if near else ""
    return ObjectiveError(f"{place}: key {key!r}: {worded(first['msg'])}", hint=hint)
