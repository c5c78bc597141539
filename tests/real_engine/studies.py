"""A study of the real engine on a test host, run by the real command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.measurement import Ending
from autotune.repository import StoredStudy
from tests.host.services import ROOT
from tests.host.studies import StudyOnHost
from tests.testhost import SystemdHost

__all__ = ["SMALL_OBJECTIVE", "RealStudy", "StartCost", "costs", "missing_links", "summary"]

RUN_MOST_S = 3000.0

SMALL_OBJECTIVE = """\
[[buckets]]
context_tokens = 256
concurrency = 1
output_tokens = 64
weight = 1.0

[coding]
samples = 0

[lossless]
prompts = 1
max_tokens = 16

[measure]
target_half_width = 0.3
least_windows = 4
most_windows = 8
window_s = 0.5
warm_up_most_s = 12
client_cpu_most = 1.0
# What is measured here is a test on a busy machine: only the walk matters.
loop_lag_most_ms = 5000
drift_most = 1
request_timeout_s = 120
"""

_ALWAYS = frozenset({"invocation", "process", "argv", "listener", "bound", "nonce", "generation"})


class RealStudy(StudyOnHost):
    """One of the shipped studies of the real engine, on a test host."""

    run_most_s = RUN_MOST_S

    def __init__(self, host: SystemdHost, folder: Path, name: str) -> None:
        self.name = name
        super().__init__(host, folder)

    def define_real(
        self, *, objective: str = "", lines: Mapping[str, str | None] | None = None
    ) -> None:
        """Write the shipped definition, for this host.

        Args:
            objective: Text of an objective of its own; empty for the shipped one.
            lines: Key of a line and the line it becomes, None to leave it out.
        """
        if objective:
            (self.folder / "own.toml").write_text(objective)
        shipped = (ROOT / "search_spaces" / f"{self.name}.toml").read_text()
        changes: dict[str, str | None] = {
            "hosts": f'hosts = ["{self.host.name}"]\nssh_config = "{self.ssh_config()}"',
            **({"objective": 'objective = "own"'} if objective else {}),
            **(lines or {}),
        }
        for key, line in changes.items():
            becomes = f"{line}\n".replace("\\", r"\\") if line else ""
            shipped, changed = re.subn(rf"(?m)^{re.escape(key)}\b.*\n", becomes, shipped, count=1)
            assert changed, f"the definition has no line {key}"
        self.file.write_text(shipped)


@dataclass(frozen=True)
class StartCost:
    """Where the time of one scored start went, seconds.

    Attributes:
        answers_s: Throw-away requests and fixed prompts: from the last proof to the first bucket.
        buckets_s: Warm-up and windows of all buckets.
        again_s: The first bucket, measured again at the end, to the end of the start.
        rest_s: All that is left: changing the unit, proofs with their generations, reading
            counters, handing the result over.
    """

    trial: int
    stop_s: float
    load_s: float
    answers_s: float
    buckets_s: float
    again_s: float
    rest_s: float


def costs(stored: StoredStudy) -> list[StartCost]:
    """Of every start that was measured to its end, repeats too."""
    found = []
    for trial in stored.trials:
        for start in trial.starts:
            record = start.record
            if record is None or record.ending is not Ending.COMPLETE:
                continue
            first_bucket_s = min(bucket.started_at_s for bucket in record.buckets)
            proven_s = max(link.at_s for link in record.proof if link.at_s <= first_bucket_s)
            answers_s = first_bucket_s - proven_s
            buckets_s = sum(bucket.warm_up_s + bucket.windows_s for bucket in record.buckets)
            again_s = record.ended_at_s - record.proof[-1].at_s if record.drift else 0.0
            wall_s = record.ended_at_s - record.started_at_s
            known = (record.stop_s, record.load_s, answers_s, buckets_s, again_s)
            found.append(StartCost(trial.number, *known, wall_s - sum(known)))
    return found


def missing_links(study: StudyOnHost, parameters: Sequence[str]) -> list[str]:
    """What the proof of a scored start lacks; every line names the start and the link.

    Args:
        parameters: Each must be shown by the engine's log and by its answer.
    """
    wanted = _ALWAYS | {
        f"{name}: {by}" for name in parameters for by in ("server_args", "server_info")
    }
    starts: dict[int, list[tuple[str, bool]]] = {}
    for start, ending, link, ok in study.evidence():
        if ending == "complete":
            starts.setdefault(start, []).append((link, ok))
    problems = [] if starts else ["no start was scored"]
    for start, links in starts.items():
        names = {link for link, _ in links}
        problems += [f"start {start}: no link {link}" for link in sorted(wanted - names)]
        problems += [f"start {start}: {link} is broken" for link, ok in links if not ok]
    return problems


def summary(trials: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table for people: one line a trial."""
    lines = []
    for trial in trials:
        values = ", ".join(f"{name} {value}" for name, value in trial["parameters"].items())
        accept = " ".join(f"{bucket['accept_length']:.2f}" for bucket in trial["buckets"])
        score = f"{trial['score']:8.1f}" if trial["score"] is not None else "       -"
        lines.append(f"{trial['number']:3}  {trial['state']:10}  {score}  {accept:18}  {values}")
    return lines
