"""Which changes of the pure core its unit tests notice.

    python -m benchmarks.mutation [--minutes M] [--again] [--table] [NAME ...]

mutmut makes one small change after another (a *mutant*: `<` for `<=`, `+` for `-`, an argument left
out, a text changed) and runs the tests that reach the changed function.  A mutant is *killed* when
one of them fails or does not end, and has *survived* when none does: then either a test is missing
or the change makes no difference.  Which modules and which tests stands in `pyproject.toml`,
`[tool.mutmut]`; docs/mutation.md says what was found.

What is known is kept in `mutants/`, so a run that was stopped goes on.  A function that has changed
is asked again, a survivor only with `--again` or by its name (`mutmut results` lists them,
`mutmut show NAME` shows the change).  Ends with 1 where a module is below the goal.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["killed_share", "main", "tallied"]

GOAL = 0.85
"""Share of the mutants of each module that must be killed."""
NOTICED = frozenset({"killed", "timeout", "segfault"})
MISSED = frozenset({"survived", "no tests", "suspicious"})
UNKNOWN = frozenset({"not checked", "check was interrupted by user"})
_MUTMUT = str(Path(sys.executable).with_name("mutmut"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", help="mutants or patterns, as `autotune.proof.*`")
    parser.add_argument("--minutes", type=float, help="stop after so long; the next run goes on")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="ask all survivors once more")
    parser.add_argument("--table", action="store_true", help="run nothing, print what is known")
    options = parser.parse_args(arguments)
    names: list[str] = options.names
    if options.again:
        names = [*names, *(name for name, state in _results().items() if state in MISSED)]
        if not names:
            print("no survivor is known")
            return 0
    status = 0 if options.table else _run(names, options.processes, options.minutes)
    if status:
        return status
    tally = tallied(_results())
    print(_table(tally))
    return int(any(killed_share(counts) < GOAL for counts in tally.values()))


def tallied(results: Mapping[str, str]) -> dict[str, Counter[str]]:
    """How many mutants of each module ended how."""
    tally: dict[str, Counter[str]] = defaultdict(Counter)
    for name, state in results.items():
        tally[name.rpartition(".")[0]][state] += 1
    return dict(sorted(tally.items()))


def killed_share(counts: Mapping[str, int]) -> float:
    """Killed mutants over those that were asked; 1 without any."""
    killed = sum(counts.get(state, 0) for state in NOTICED)
    missed = sum(counts.get(state, 0) for state in MISSED)
    return killed / (killed + missed) if killed + missed else 1.0


def _run(names: Sequence[str], processes: int, minutes: float | None) -> int:
    # Hypothesis draws the same examples every time where CI is set: a mutant is killed or is not.
    process = subprocess.Popen(
        [_MUTMUT, "run", "--max-children", str(processes), *names],
        env={**os.environ, "CI": "true"},
        start_new_session=True,  # Ctrl-C reaches it once, from here
    )
    try:
        return process.wait(None if minutes is None else 60 * minutes)
    except subprocess.TimeoutExpired:
        print("\nstopped: the time is over")
    except KeyboardInterrupt:
        print("\nstopped")
    process.send_signal(signal.SIGINT)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:  # what pytest does not pass on, or a shell had it ignore
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
    return 0


def _results() -> dict[str, str]:
    """State of each mutant by its name."""
    lines = subprocess.run(
        [_MUTMUT, "results", "--all", "true"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    pairs = (line.strip().partition(": ") for line in lines)
    return {name: state for name, colon, state in pairs if colon}


def _table(tally: Mapping[str, Counter[str]]) -> str:
    rows = [f"{'module':32}  mutants  killed  survived  not asked"]
    for module, counts in (*tally.items(), ("all", sum(tally.values(), Counter[str]()))):
        killed = sum(counts[state] for state in NOTICED)
        missed = sum(counts[state] for state in MISSED)
        unknown = sum(counts[state] for state in UNKNOWN)
        rows.append(
            f"{module:32}  {counts.total():7}  {killed:6}  {missed:8}  {unknown:9}  "
            f"{100 * killed_share(counts):5.1f} %"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
