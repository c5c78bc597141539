"""One run of one method on one surface, kept in a file: a benchmark can be taken up again."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import autotune.search
from autotune.parameter import Values
from autotune.verdict import Remeasured, VerdictKind, verdict
from benchmarks.search.methods import METHODS, OURS
from benchmarks.search.problem import Problem, problem

__all__ = [
    "CHECKPOINTS",
    "CRASH_MIN",
    "NOISE_STREAM",
    "START_MIN",
    "FinalMeasurement",
    "Job",
    "Run",
    "code",
    "done",
    "perform",
    "save",
]

CHECKPOINTS = (6, 8, 10, 12, 14, 16, 18, 20, 23, 26, 30)
START_MIN, CRASH_MIN = 20.0, 6.0
"""Minutes of a start: six of load, ten of buckets, four of coding; a crash has the load alone."""
NOISE_STREAM = 7_001  # keeps the noise apart from every sampler's own random numbers
_FINAL_STREAM = 7_002
FINALISTS, ROUNDS = 2, 3
_DECIDING = (
    *(
        "acquisition",
        "breakage",
        "candidates",
        "feasible",
        "memory",
        "model",
        "physics",
        "round_forms",
        "sampler",
        "start",
    ),
    "surrogate",
)


@dataclass(frozen=True, slots=True)
class Job:
    surface: str
    method: str
    seed: int
    trials: int
    hosts: int = 1

    @property
    def key(self) -> str:
        return f"{self.surface}/{self.method}/{self.seed}/{self.trials}/{self.hosts}"


@dataclass(frozen=True, slots=True)
class FinalMeasurement:
    """One start of the final rounds.

    Attributes:
        key: Empty for the deployed point.
        ratio: Measured, to an early measurement of the deployed point.
        true: Its true ratio to the deployed point.
        changes: Parameters that differ from the deployed point.
    """

    key: str
    turn: int
    ratio: float
    true: float
    changes: int


@dataclass(frozen=True, slots=True)
class Run:
    """What a job gave.

    Attributes:
        code: Hash of the sources that decide it; runs of other sources are not used.
        observed: Regret of the best observed point after each trial.
        believed: Regret of the point that the model names at each of `CHECKPOINTS`; may be empty.
        ended_min: When each trial ended, minutes of wall-clock.
        crashes: Starts that did not run.
        overstated: Best observed score over its true one, minus 1, after all trials.
        finals: What the final rounds gave; judged when it is asked for, so that runs outlive a
            change of the verdict.
        ask_s: Mean seconds for one suggestion.
    """

    job: Job
    code: str
    observed: tuple[float, ...]
    believed: tuple[float, ...]
    ended_min: tuple[float, ...]
    crashes: int
    overstated: float
    finals: tuple[FinalMeasurement, ...]
    ask_s: float

    def judged(self) -> tuple[float | None, float | None]:
        """Ratio of the verdict's winner to the deployed point, as reported and in truth.

        None where nothing was proven better.
        """
        return _judged(self.finals)


def perform(job: Job) -> Run:
    """Search, then judge by final rounds."""
    surface = problem(job.surface)
    space, optimum = surface.space, surface.best()[1]
    rng = np.random.default_rng([job.seed, NOISE_STREAM])
    method = METHODS[job.method](surface, job.seed)
    seen: list[tuple[float, float, Values]] = []
    observed, believed, ended, crashes, ask_s = [], [], [], 0, 0.0
    now_min = 0.0
    deployed = space.effective(space.deployed())
    for number in range(job.trials):
        began = time.perf_counter()
        point = method.propose() if number else deployed
        ask_s += time.perf_counter() - began
        gave = surface.measure(point, rng)
        method.observe(point, gave)
        crashes += gave.infeasible
        now_min += CRASH_MIN if gave.infeasible else START_MIN
        if gave.score_ratio is not None:
            seen.append((gave.score_ratio, surface.truth(point), point))
        observed.append(1.0 - max(seen, key=lambda one: one[0])[1] / optimum)
        ended.append(now_min)
        if number + 1 in CHECKPOINTS:
            named = method.named()
            if named is not None:
                believed.append(1.0 - surface.truth(named) / optimum)
    score, truth, best = max(seen, key=lambda one: one[0])
    named = method.named()
    finals = _finals(surface, [named, best] if named is not None else [best], seen, job.seed)
    return Run(
        job, code(job.method), tuple(observed), tuple(believed), tuple(ended), crashes,
        score / truth - 1.0, finals, ask_s / job.trials,
    )  # fmt: skip


def _finals(
    surface: Problem,
    first: Sequence[Values],
    seen: Sequence[tuple[float, float, Values]],
    seed: int,
) -> tuple[FinalMeasurement, ...]:
    """Finalists and the deployed point measured again in rounds."""
    space = surface.space
    rng = np.random.default_rng([seed, _FINAL_STREAM])
    ranked = [*first, *(point for _, _, point in sorted(seen, key=lambda one: -one[0]))]
    reference = space.key(space.deployed())
    points = {space.key(point): point for point in ranked}
    points.pop(reference, None)
    finalists = list(points.items())[:FINALISTS]
    measured = []
    for turn in range(ROUNDS):
        for key, point in [("", space.deployed()), *finalists]:
            gave = surface.measure(point, rng)
            if gave.score_ratio is not None and gave.score_ratio > 0:
                changes = space.changes(point)
                true = surface.truth(point)
                measured.append(FinalMeasurement(key, turn, gave.score_ratio, true, changes))
    return tuple(measured)


@lru_cache(maxsize=4096)
def _judged(finals: tuple[FinalMeasurement, ...]) -> tuple[float | None, float | None]:
    said = verdict(
        [Remeasured(one.key, "host", one.turn, one.ratio) for one in finals],
        reference="",
        changes={one.key: one.changes for one in finals if one.key},
    )
    if said.kind is not VerdictKind.BETTER or said.winner is None:
        return None, None
    return said.ratio, next(one.true for one in finals if one.key == said.winner)


@lru_cache(maxsize=16)
def code(method: str) -> str:
    """Hash of the sources that a run of `method` depends on."""
    folder = Path(__file__).parent
    sources = [folder / "truths.py", folder / "six.py", folder / "running.py"]
    if method == OURS:
        sources += [Path(autotune.search.__file__).parent / f"{name}.py" for name in _DECIDING]
    elif method == "prototype":
        sources.append(folder / "prototype.py")
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


def save(run: Run, path: Path) -> None:
    with path.open("a") as file:
        file.write(json.dumps(asdict(run)) + "\n")


def done(path: Path) -> Iterator[Run]:
    """Runs of the present sources in the file; a line that was cut off is left out."""
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        try:
            stored = json.loads(line)
        except json.JSONDecodeError:
            continue
        if "finals" not in stored:  # of an older form
            continue
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()
        }
        finals = tuple(FinalMeasurement(**one) for one in stored["finals"])
        run = Run(**{**values, "job": Job(**stored["job"]), "finals": finals})
        job = run.job
        if run.code == code(job.method):
            yield run
