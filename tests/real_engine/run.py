"""Run both studies of the real engine on a test host, and say what they found.

`python -m tests.real_engine.run FOLDER [--trials N] [STUDY ...]`; transcripts, databases and
reports are written to FOLDER.  `failures` in place of a study provokes the start-up failures of the
engine.  Ends with 1 when a study fails, a scored start lacks a link of its proof, a failure is
classed wrong, or the host is not as it was found.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from autotune.reading import load_stored
from tests.real_engine import place, service
from tests.real_engine.faults import provoke
from tests.real_engine.studies import RealStudy, StartCost, costs, missing_links, summary
from tests.real_engine.training import trained
from tests.testhost import SystemdHost, boot, unavailable

STUDIES = {"sglang-cpu-ngram": "ngram", "sglang-cpu-dflash": "dflash"}
FAILURES = "failures"
MOST_REST_S = 3.0
MOST_TOLD_S = 2.0

STUBBED = (
    f"SGLang {place.VERSION} on CPU, stubs: sgl_kernel (import only), torch_native attention for "
    "verification, DFLASH let through on cpu, two torchvision operators. No speed here says "
    "anything about a GPU."
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="real-engine", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("studies", nargs="*", default=list(STUDIES), metavar="STUDY")
    parser.add_argument("--trials", type=int, help="trials of each study")
    arguments = parser.parse_args()
    if unknown := set(arguments.studies) - {*STUDIES, FAILURES}:
        parser.error(f"no study {unknown.pop()}: there are {', '.join(STUDIES)} and {FAILURES}")
    engine = place.find()
    if reason := engine if isinstance(engine, str) else unavailable():
        print(reason, file=sys.stderr)
        return 1
    assert isinstance(engine, place.RealEngine)
    print(STUBBED)
    failed = False
    with boot("gpu-a", binds=[engine.folder, engine.models]) as host:
        for name in arguments.studies:
            folder = arguments.folder.resolve() / name
            folder.mkdir(parents=True, exist_ok=True)
            words = ("--trials", str(arguments.trials)) if arguments.trials else ()
            if name == FAILURES:
                failed |= _failures(host, engine, folder)
            else:
                failed |= bool(_study(host, engine, folder, name, words))
            host.reset()
    return int(failed)


def _study(
    host: SystemdHost, engine: place.RealEngine, folder: Path, name: str, words: tuple[str, ...]
) -> list[str]:
    """Run one study; returns what is wrong with it."""
    print(f"\n## {name}")
    if STUDIES[name] == "dflash":
        engine = trained(engine)
    begun = time.monotonic()
    service.install(host, engine, speculation=STUDIES[name])
    print(f"deployed server ready after {time.monotonic() - begun:.0f} s")
    before = service.state(host)
    study = RealStudy(host, folder, name)
    study.define_real()
    begun = time.monotonic()
    ended = study.run("run", *words)
    print(ended.stdout + ended.stderr, end="")
    problems = [] if ended.returncode == 0 else [f"autotune run ended with {ended.returncode}"]
    if study.database.exists():
        stored = load_stored(str(study.file), f"sqlite:///{study.database}")
        names = tuple(stored.definition["parameters"])
        problems += missing_links(study, names)
        print(f"study took {time.monotonic() - begun:.0f} s")
        print("trial  state        score  accept length by bucket   parameters")
        trials = study.trials()
        (folder / "trials.json").write_text(json.dumps(trials, indent=1))
        print("\n".join(summary(trials)))
        spent = costs(stored)
        problems += _costs(spent)
        study.run("report", "--output", str(folder / "report.html"))
        print(study.run("export", "--format", "flags").stdout, end="")
    if (after := service.state(host)) != before:
        problems.append(f"the unit is not as it was found: {after}, before {before}")
    for problem in problems:
        print(f"PROBLEM: {problem}")
    if not problems:
        print("every scored start carries every link of the proof; the host is as it was found")
    return problems


def _costs(spent: list[StartCost]) -> list[str]:
    """Print where the time of a start went; returns a miss of the goal."""
    if not spent:
        return []

    def shown(values: list[float]) -> str:
        return f"{statistics.median(values):.1f} s (most {max(values):.1f})"

    rest = [one.rest_s for one in spent]
    print(
        f"median of {len(spent)} scored starts: stop {shown([one.stop_s for one in spent])}, "
        f"load {shown([one.load_s for one in spent])}, "
        f"warm-up and windows {shown([one.buckets_s for one in spent])}, "
        f"throw-away and fixed prompts {shown([one.answers_s for one in spent])}, "
        f"first bucket again {shown([one.again_s for one in spent])}, "
        f"everything else {shown(rest)}"
    )
    met = max(rest) < MOST_REST_S
    print(f"goal: everything else under {MOST_REST_S:.0f} s: {'met' if met else 'MISSED'}")
    return [] if met else [f"overhead of {max(rest):.1f} s"]


def _failures(host: SystemdHost, engine: place.RealEngine, folder: Path) -> bool:
    """Provoke every start-up failure and print the verdicts; says whether one is wrong."""
    print(f"\n## {FAILURES}")
    found = provoke(host, engine, folder)
    late = False
    for one in found:
        told = "-" if one.told_s is None else f"{one.told_s:.1f} s after its line"
        if one.visible_s != one.told_s:
            told += f", {one.visible_s:.1f} s after it gave up"
        again = f", second try {one.again}" if one.again else ""
        print(f"{one.fault.name:18} {one.state:10} {one.kind:17} told {told}{again}")
        print(f"{'':18} {one.message[:160]}")
        if one.problem:
            print(f"PROBLEM: {one.problem}")
        late |= one.visible_s is not None and one.visible_s > MOST_TOLD_S
    print(f"goal: told within {MOST_TOLD_S:.0f} s of being visible: {'MISSED' if late else 'met'}")
    return late or any(one.problem for one in found)


if __name__ == "__main__":
    sys.exit(main())
