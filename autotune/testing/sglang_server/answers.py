"""What the simulated model writes.

An ordinary prompt is answered with pseudo-code that depends on the prompt alone, so a greedy answer
is the same in every configuration.  A prompt that holds the text of a known coding task is answered
with its solution.  A corrupting tree spoils a share of the answers: slightly (the task's near miss,
a cut word) or badly (repetition and broken text).
"""

from __future__ import annotations

import hashlib
import random
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.testing.sglang_server.faults import Fault, Faults
from autotune.testing.sglang_server.surface import Algorithm, Setting, Surface
from autotune.testing.sglang_server.tokens import pieces

__all__ = ["Answer", "CodingTask", "Model", "load_tasks"]

_NAMES = (
    "acc", "batch", "bound", "buf", "cell", "chunk", "count", "delta", "edge", "field",
    "frame", "graph", "head", "index", "item", "key", "left", "limit", "line", "mask",
    "node", "offset", "order", "page", "part", "pivot", "queue", "range", "right", "root",
    "row", "score", "seen", "shard", "size", "slot", "span", "stack", "state", "step",
    "sum", "table", "tail", "token", "total", "tree", "value", "width",
)  # fmt: skip
_LINES = (
    "    {a} = {b}.get({c}, {n})",
    "    for {a} in range({n}, {b}):",
    "        {a} += {b} * {n}",
    "    if {a} > {b} and {c} != {n}:",
    "        return {a}[{b}] - {c}",
    "    {a}, {b} = {b}, {a} % {n}",
    "    while {a} < len({b}):",
    "        {a}.append(({b}, {c} + {n}))",
    "        {a} = max({a}, {b} - {n})",
    "    # keep {a} below {b} while {c} grows",
    "    {a} = sorted({b}, key=lambda {c}: {c}[{n}])",
    "    assert {a} is not None, {b}",
    "    return {a} if {b} else {c}",
)
_BROKEN = ("\ufffd", " the the", ")))", " \ufffd\ufffd", "}}", " }{", ";;;")
_SHORTEST_TOKENS, _LONGEST_TOKENS = 700, 1600
_STRONG_RATE = 0.25
"""From this corruption rate on, half of the spoiled answers are badly broken."""


@dataclass(frozen=True, slots=True)
class CodingTask:
    """A task whose answer is known.

    Attributes:
        name: Name of the task.
        prompt: Text that marks a prompt as this task.
        solution: Correct source code.
        near_miss: Source code with a fault that a test finds.
    """

    name: str
    prompt: str
    solution: str
    near_miss: str


def load_tasks(path: Path) -> tuple[CodingTask, ...]:
    """Read every `[[task]]` of a TOML file, or of all TOML files of a folder by name.

    Raises:
        ValueError: A task lacks a key, or the path holds no task.
    """
    files = sorted(path.glob("*.toml")) if path.is_dir() else [path]
    tasks = []
    for file in files:
        for entry in tomllib.loads(file.read_text("utf-8")).get("task", []):
            missing = [
                key for key in ("name", "prompt", "solution", "near_miss") if key not in entry
            ]
            if missing:
                raise ValueError(f"{file}: a task has no {', '.join(missing)}")
            tasks.append(
                CodingTask(
                    name=entry["name"],
                    prompt=entry["prompt"].strip(),
                    solution=entry["solution"].strip("\n"),
                    near_miss=entry["near_miss"].strip("\n"),
                )
            )
    if not tasks:
        raise ValueError(f"{path} holds no coding task")
    return tuple(tasks)


class Answer:
    """One answer, written token by token.

    Args:
        opening: Text that comes first.
        seed: Seed of the text after it.
        length_tokens: Where the model would stop; None = right after the opening.
        garbled: Whether the text after the first tokens is broken.
    """

    def __init__(
        self, *, opening: str, seed: int, length_tokens: int | None, garbled: bool = False
    ) -> None:
        self._rng = random.Random(seed)
        self._pieces = pieces(opening)
        self._garbled = garbled
        self._written = 0
        self.length_tokens = len(self._pieces) if length_tokens is None else length_tokens

    @property
    def written(self) -> int:
        """Tokens written so far."""
        return self._written

    def take(self, tokens: int) -> list[str]:
        """The next tokens; there is no end to them, `length_tokens` says where to stop."""
        end = self._written + tokens
        while len(self._pieces) < end:
            self._pieces.extend(self._more())
        taken = self._pieces[self._written : end]
        self._written = end
        return taken

    def _more(self) -> list[str]:
        rng = self._rng
        if self._garbled and self._pieces:
            # The same few tokens over and over, with broken characters between them.
            loop = self._pieces[: min(4, len(self._pieces))]
            return loop * rng.randint(3, 9) + [rng.choice(_BROKEN)]
        a, b, c = rng.choice(_NAMES), rng.choice(_NAMES), rng.choice(_NAMES)
        line = rng.choice(_LINES).format(a=a, b=b, c=c, n=rng.randint(0, 999))
        if rng.random() < 0.06:
            line = f"\ndef {a}_{b}({c}, {rng.choice(_NAMES)}):"
        return pieces(line + "\n")


@dataclass(frozen=True, slots=True)
class Model:
    """Answers prompts.

    Attributes:
        surface: Gives the corruption rate of the setting.
        setting: What the server runs.
        faults: `garble-wide` is heeded.
        tasks: Coding tasks with known answers.
    """

    surface: Surface
    setting: Setting
    faults: Faults
    tasks: tuple[CodingTask, ...] = ()

    def with_tasks(self, path: Path | None) -> Model:
        """The same model that also knows the tasks of a folder."""
        return self if path is None else replace(self, tasks=load_tasks(path))

    @property
    def corruption_rate(self) -> float:
        """Share of the answers that this setting spoils."""
        setting = self.setting
        width = setting.budget * min(setting.topk, setting.budget)
        garble_at = self.faults.argument(Fault.GARBLE_WIDE)
        if garble_at is not None and width >= garble_at:
            return 1.0
        if setting.algorithm != Algorithm.DDTREE:
            return 0.0
        return self.surface.corruption_rate(budget=setting.budget, topk=setting.topk)

    def answer(self, prompt: str) -> Answer:
        """The answer to a prompt; the draws depend on prompt and parameters only."""
        seed = _seed(prompt)
        setting = self.setting
        rng = random.Random(_seed(f"{prompt}\x00{setting.budget}/{setting.topk}/{setting.window}"))
        draw, severity = rng.random(), rng.random()
        rate = self.corruption_rate
        spoiled = draw < rate
        badly = spoiled and (rate >= 1.0 or (rate >= _STRONG_RATE and severity < 0.5))
        task = self._task(prompt)
        if task is not None:
            flaked = spoiled or draw < rate + self.surface.flake_rate
            code = task.near_miss if flaked else task.solution
            if badly:
                return Answer(opening="```python\n", seed=seed, length_tokens=600, garbled=True)
            return Answer(opening=_fenced(code), seed=seed, length_tokens=None)
        length = random.Random(seed).randint(_SHORTEST_TOKENS, _LONGEST_TOKENS)
        if badly:
            return Answer(opening="def \ufffd(", seed=seed, length_tokens=length, garbled=True)
        if spoiled:
            # Same length, another path: the text parts from the uncorrupted one early on.
            return Answer(
                opening="def main():\n", seed=seed ^ (1 + int(draw * 1e9)), length_tokens=length
            )
        return Answer(opening="def main():\n", seed=seed, length_tokens=length)

    def _task(self, prompt: str) -> CodingTask | None:
        return next((task for task in self.tasks if task.prompt in prompt), None)


def _fenced(code: str) -> str:
    return f"```python\n{code}\n```\n"


def _seed(text: str) -> int:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8])
