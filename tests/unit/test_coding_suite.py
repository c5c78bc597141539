"""Reading tasks, refusing broken ones, and wording the prompts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from autotune.coding.suite import (
    Difficulty,
    Task,
    load_suite,
    suite_sha256,
    task_samples,
    variants,
)
from autotune.errors import ObjectiveError

SUITE = Path(__file__).parents[2] / "objectives/coding"
ENTRY = """
[[task]]
name = "double"
kind = "numbers"
difficulty = "easy"
prompt = "Write a function `double(x)` that doubles a number."
entry_point = "double"
checks = ["double(2) == 4"]
solution = "def double(x):\\n    return 2 * x\\n"
near_miss = "def double(x):\\n    return x ** 2\\n"
"""


def _suite(folder: Path, text: str) -> Path:
    (folder / "tasks.toml").write_text(text, encoding="utf-8")
    return folder


def test_packaged_suite_is_whole() -> None:
    tasks = load_suite(SUITE)
    assert len(tasks) >= 60
    kinds = Counter(task.kind for task in tasks)
    wanted = {"strings", "numbers", "structures", "parsing", "recursion", "classes", "repair"}
    assert set(kinds) == wanted
    assert min(kinds.values()) >= 8
    assert {task.difficulty for task in tasks} == {
        Difficulty.EASY,
        Difficulty.MEDIUM,
        Difficulty.HARD,
    }
    for task in tasks:
        assert len(task.checks) >= 6, task.name
        assert f"`{task.entry_point}" in task.prompt, task.name
        assert task.solution != task.near_miss, task.name


def test_a_task_is_read(tmp_path: Path) -> None:
    (task,) = load_suite(_suite(tmp_path, ENTRY))
    assert task == Task(
        name="double",
        kind="numbers",
        difficulty=Difficulty.EASY,
        prompt="Write a function `double(x)` that doubles a number.",
        entry_point="double",
        checks=("double(2) == 4",),
        solution="def double(x):\n    return 2 * x\n",
        near_miss="def double(x):\n    return x ** 2\n",
    )
    assert load_suite(tmp_path / "tasks.toml") == (task,)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["tasks.toml", "[[task]]"]),
        ("[[task]", ["tasks.toml", "not valid TOML"]),
        ("title = 1\n" + ENTRY, ["tasks.toml", "'title'"]),
        (ENTRY.replace("kind =", "kin ="), ["line 2", "task[0]", "'kin"]),
        (ENTRY.replace("near_miss =", "near_mis ="), ["task[0]", "'near_mis", "near_miss"]),
        (ENTRY.replace('"easy"', '"trivial"'), ["task[0]", "'difficulty'"]),
        (ENTRY.replace('checks = ["double(2) == 4"]', "checks = []"), ["'checks'"]),
        (
            ENTRY.replace("double(2) == 4", "double(2) =="),
            ["task[0].checks[0]", "not valid Python"],
        ),
        (ENTRY.replace("return 2", "retur n 2"), ["task[0].solution", "not valid Python"]),
        (ENTRY.replace('entry_point = "double"', 'entry_point = "dubble"'), ["prompt", "dubble"]),
        (ENTRY.replace('"double"\nkind', '"Double It"\nkind'), ["'name'"]),
        (ENTRY + ENTRY, ["'double'", "taken"]),
        (ENTRY + ENTRY.replace("easy", "no"), ["line 12", "task[1]", "'difficulty'"]),
    ],
)
def test_broken_suites_name_file_and_key(tmp_path: Path, text: str, parts: list[str]) -> None:
    with pytest.raises(ObjectiveError) as refusal:
        load_suite(_suite(tmp_path, text))
    for part in [str(tmp_path), *parts]:
        assert part in str(refusal.value)


def test_missing_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(ObjectiveError, match=r"no \*\.toml"):
        load_suite(tmp_path)
    with pytest.raises(ObjectiveError, match="cannot be read"):
        load_suite(tmp_path / "absent.toml")


def test_human_eval_lines_are_read(tmp_path: Path) -> None:
    line = {
        "task_id": "HumanEval/0",
        "prompt": 'from typing import List\n\n\ndef double(x: int) -> int:\n    """ Doubles. """\n',
        "entry_point": "double",
        "canonical_solution": "    return 2 * x\n",
        "test": "def check(candidate):\n    assert candidate(2) == 4\n",
    }
    file = tmp_path / "human-eval.jsonl"
    file.write_text(json.dumps(line) + "\n\n", encoding="utf-8")
    (task,) = load_suite(file)
    assert task.name == "HumanEval/0"
    assert task.preamble == "from typing import List\n\n\n"
    assert task.solution.endswith("    return 2 * x\n")
    assert task.checks[0].endswith("check(double)\n")
    assert "def double(x: int)" in task.prompt


@pytest.mark.parametrize(
    ("text", "part"),
    [("{", "line 1: not valid JSON"), ('{"task_id": "x"}', "'prompt'"), ("", "no task")],
)
def test_broken_human_eval(tmp_path: Path, text: str, part: str) -> None:
    file = tmp_path / "human-eval.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ObjectiveError) as refusal:
        load_suite(file)
    assert part in str(refusal.value)
    assert str(file) in str(refusal.value)


def test_variants_are_different_and_hold_the_prompt() -> None:
    task = load_suite(SUITE)[0]
    prompts = variants(task, 40)
    assert len(set(prompts)) == 40
    assert all(task.prompt in prompt for prompt in prompts)
    assert variants(task, 3) == prompts[:3]
    for n in (0, 41):
        with pytest.raises(ValueError, match="wordings"):
            variants(task, n)


def test_samples_reach_the_asked_number() -> None:
    tasks = load_suite(SUITE)
    samples = task_samples(tasks)
    assert len(samples) == 200
    assert len({(sample.task.name, sample.variant) for sample in samples}) == len(samples)
    assert len({sample.prompt for sample in samples}) == len(samples)


def test_every_task_is_asked_before_any_is_asked_again() -> None:
    tasks = load_suite(SUITE)
    assert [sample.task for sample in task_samples(tasks, count=len(tasks))] == list(tasks)
    most = Counter(sample.task.name for sample in task_samples(tasks, count=200))
    assert set(most.values()) == {3, 4}
    assert len(task_samples(tasks, count=5)) == 5


def test_the_hash_of_a_suite_knows_names_and_contents(tmp_path: Path) -> None:
    before = suite_sha256(_suite(tmp_path, ENTRY))
    assert before == suite_sha256(tmp_path)
    assert before != suite_sha256(_suite(tmp_path, ENTRY.replace("== 4", "== 5")))
    (tmp_path / "tasks.toml").rename(tmp_path / "other.toml")
    (tmp_path / "other.toml").write_text(ENTRY, encoding="utf-8")
    assert before != suite_sha256(tmp_path)
    with pytest.raises(ObjectiveError, match="cannot be read"):
        suite_sha256(tmp_path / "absent.toml")


def test_a_suite_without_tasks_gives_no_samples() -> None:
    with pytest.raises(ValueError, match="without tasks"):
        task_samples(())
