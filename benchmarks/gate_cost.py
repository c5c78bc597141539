"""Measures what the gate of one trial costs: CPU of this machine, and time of the server.

    python -m benchmarks.gate_cost            both, on the objective and the surface kimi-k26
    python -m benchmarks.gate_cost --local    the CPU alone

Local: the answers are the suite's own solutions, each in a text of its own, so that none is run
once for several.  `answers` is what their code takes with the same checks in one plain
interpreter, `beside` what judging takes beyond that.  Goal: 2 s.

Server: fixed prompts and coding prompts as a start asks for them, the reference's second round of
fixed prompts included, on the simulated engine's clock (real time times its scale).  `at most` is
the same with every answer as long as its token limit, by the surface.  Goal: 90 s.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Sequence
from pathlib import Path

from autotune import definitions
from autotune.answers import greedy_prompts
from autotune.benchmark import Benchmark
from autotune.coding.evaluate import Answer, Outcome, judge_all
from autotune.coding.harness import check_holds
from autotune.coding.sandbox import choose_sandbox
from autotune.coding.suite import Task, TaskSample, load_suite, task_samples
from autotune.config import load_objective
from autotune.measure_settings import MeasureSettings
from autotune.objective_file import ObjectiveFile
from autotune.testing.sglang_server.surface import Setting, Surface
from benchmarks.simulated_server import serving

__all__ = ["main"]

LOCAL_GOAL_S, SERVER_GOAL_S = 2.0, 90.0
_NAME = "kimi-k26"
_CODING_PROMPT_TOKENS = 300


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--local", action="store_true", help="no server")
    parser.add_argument("--time-scale", type=float, default=4.0)
    options = parser.parse_args(arguments)
    path = definitions.find("objectives", _NAME)
    objective = load_objective(path)
    suite = definitions.find_suite(objective.coding.suite, beside=path)
    samples = task_samples(load_suite(suite), count=objective.coding.samples)
    met = _local(samples)
    if not options.local:
        met = _server(objective, samples, suite, options.time_scale) and met
    return 0 if met else 1


def _local(samples: Sequence[TaskSample]) -> bool:
    answers = [
        Answer(s.task, f"```python\n{s.task.solution}\n# wording {s.variant}\n```", "stop")
        for s in samples
    ]
    began_s, cpu_s = time.perf_counter(), _cpu_s()
    sandbox = choose_sandbox(allow_weak=False)
    judged = judge_all(answers, sandbox=sandbox)
    wall_s, cpu_s = time.perf_counter() - began_s, _cpu_s() - cpu_s
    failed = [one for one in judged if one.outcome is not Outcome.PASSED]
    if failed:
        raise AssertionError(f"a solution does not pass: {failed[0]}")
    own_s = sum(_own_cpu_s(sample.task) for sample in samples)
    beside_s = cpu_s - own_s
    print(
        f"local: {len(answers)} answers judged in {wall_s:.1f} s; CPU {cpu_s:.2f} s = "
        f"answers {own_s:.2f} s + beside {beside_s:.2f} s; {_goal(beside_s, LOCAL_GOAL_S)}"
    )
    return beside_s < LOCAL_GOAL_S


def _own_cpu_s(task: Task) -> float:
    began_s = time.process_time()
    names: dict[str, object] = {}
    exec(compile(task.solution, f"<{task.name}>", "exec"), names)
    names["candidate"] = names[task.entry_point]
    for check in task.checks:
        check_holds(check, names)
    return time.process_time() - began_s


def _server(
    objective: ObjectiveFile, samples: Sequence[TaskSample], suite: Path, time_scale: float
) -> bool:
    surface = Surface.named(_NAME)
    environ = {
        "AUTOTUNE_SIM_SURFACE": _NAME,
        "AUTOTUNE_SIM_TIME_SCALE": str(time_scale),
        "AUTOTUNE_SIM_LOAD_S": "0",
        "AUTOTUNE_SIM_SHARED_SD": "0",
        "AUTOTUNE_SIM_ANSWERS": str(suite),
    }
    flags = ["--max-running-requests", 64, "--speculative-ddtree-budget", 8]
    flags += ["--speculative-ddtree-topk-cap", 4]
    concurrency = objective.coding.concurrency
    greedy = list(greedy_prompts(objective.lossless.prompts).values())
    with (
        serving(flags, environ) as (_, base_url),
        Benchmark(base_url, model="m", prompts_seed=1, settings=MeasureSettings()) as bench,
    ):
        bench.warm_up()
        began_s = time.perf_counter()
        for prompts, most in (
            *[(greedy, objective.lossless.max_tokens)] * 2,
            ([sample.prompt for sample in samples], objective.coding.max_tokens),
        ):
            got = bench.generate_text(prompts, max_tokens=most, concurrency=concurrency)
            failed = [one.error for one in got if one.error]
            if failed:
                raise AssertionError(f"{len(failed)} requests failed: {failed[0]}")
        spent_s = (time.perf_counter() - began_s) * time_scale
    rate = surface.output_tok_per_s(
        Setting(budget=8, topk=4, window=None, max_running_requests=64),
        context_tokens=_CODING_PROMPT_TOKENS,
        concurrency=concurrency,
        output_tokens=objective.coding.max_tokens,
    )
    tokens = 2 * len(greedy) * objective.lossless.max_tokens
    most_s = (tokens + len(samples) * objective.coding.max_tokens) / rate
    print(
        f"server: {2 * len(greedy)} greedy and {len(samples)} coding answers at concurrency "
        f"{concurrency} in {spent_s:.1f} s; at most {most_s:.1f} s at {rate:.0f} tok/s; "
        f"{_goal(max(spent_s, most_s), SERVER_GOAL_S)}"
    )
    return max(spent_s, most_s) < SERVER_GOAL_S


def _goal(seen_s: float, goal_s: float) -> str:
    return f"goal {goal_s:g} s {'met' if seen_s < goal_s else 'MISSED'}"


def _cpu_s() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    raise SystemExit(main())
