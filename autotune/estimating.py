"""How long a study will take: from starts that it has had, else from its definition.  Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from autotune.config import StudyConfig
from autotune.stored import StoredStudy, StoredTrial

__all__ = ["Estimate", "estimate", "remaining_trials"]

ASSUMED_LOAD_S = 360.0
"""Load of a systemd service that was never started by a study: six minutes, as a large model."""
ASSUMED_PROCESS_LOAD_S = 10.0
WARM_UP_WINDOWS = 3
"""Windows of warm-up that a steady server takes about."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a study still costs.

    Attributes:
        starts: Server starts still to come: trials, repeated references, final rounds.
        least_h, most_h: Hours of wall time on all hosts together working side by side.
        least_gpu_h, most_gpu_h: GPU-hours of all hosts.
        basis: Where the length of one start comes from, for people.
    """

    starts: int
    least_h: float
    most_h: float
    least_gpu_h: float
    most_gpu_h: float
    basis: str

    @property
    def sentence(self) -> str:
        """`about 29 starts: 4.1 to 9.0 h, 33 to 72 GPU-hours (...)`; minutes below an hour."""
        wall = (
            f"{_range(self.least_h, self.most_h)} h"
            if self.most_h >= 1
            else f"{_range(60 * self.least_h, 60 * self.most_h)} min"
        )
        return (
            f"about {self.starts} starts: {wall}, "
            f"{_range(self.least_gpu_h, self.most_gpu_h)} GPU-hours ({self.basis})"
        )


def remaining_trials(config: StudyConfig, stored: StoredStudy | None) -> int | None:
    """Trials that the budget leaves; None when trials do not bound the study."""
    if config.study.trials is None:
        return None
    done = sum(t.state in ("complete", "infeasible", "pruned") for t in _trials(stored))
    return max(0, config.study.trials - done)


def estimate(config: StudyConfig, stored: StoredStudy | None) -> Estimate:
    """Time of what is left of a study."""
    study, hosts = config.study, len(config.service.hosts)
    least_s, most_s, basis = _start_s(config, stored)
    trials = remaining_trials(config, stored)
    rounds = (study.finalists + 1) * study.final_rounds if study.finalists else 0
    if trials is None:
        hours = study.hours or (study.gpu_hours or 0.0) / (hosts * config.service.gpus_per_host)
        starts = max(1, math.floor(hours * 3600 / most_s) * hosts)
        return _made(config, starts, hours, hours, f"bounded by time; {basis}")
    starts = trials + trials // study.reference_every + (rounds if trials else 0)
    least_h, most_h = (starts * one / 3600 / hosts for one in (least_s, most_s))
    if study.hours is not None:
        least_h, most_h = min(least_h, study.hours), min(most_h, study.hours)
    return _made(config, starts, least_h, most_h, basis)


def _made(config: StudyConfig, starts: int, least_h: float, most_h: float, basis: str) -> Estimate:
    gpus = len(config.service.hosts) * config.service.gpus_per_host
    return Estimate(starts, least_h, most_h, least_h * gpus, most_h * gpus, basis)


def _start_s(config: StudyConfig, stored: StoredStudy | None) -> tuple[float, float, str]:
    """Shortest and longest time of one start, seconds, and where they come from."""
    records = [s.record for t in _trials(stored) for s in t.starts if s.record is not None]
    whole = [r.stop_s + r.load_s + r.measure_s for r in records if r.ending == "complete"]
    if whole:
        middle = median(whole)
        return middle, middle, f"{middle / 60:.1f} min each, the median of {len(whole)} starts"
    measure, service = config.measure, config.service
    loads = [r.load_s for r in records if r.load_s > 0]
    assumed = ASSUMED_PROCESS_LOAD_S if service.supervisor == "process" else ASSUMED_LOAD_S
    load_s = median(loads) if loads else min(assumed, service.load_timeout_s)
    buckets = len(config.workload.buckets)
    warm_s = min(WARM_UP_WINDOWS * measure.window_s, measure.warm_up_most_s)
    least_s = load_s + buckets * (warm_s + measure.least_windows * measure.window_s)
    most_s = load_s + buckets * (measure.warm_up_most_s + measure.most_windows * measure.window_s)
    told = "the load of earlier starts" if loads else f"a load of {load_s:.0f} s assumed"
    return least_s, most_s, f"{told}; coding answers not counted"


def _trials(stored: StoredStudy | None) -> tuple[StoredTrial, ...]:
    return stored.trials if stored is not None else ()


def _range(least: float, most: float) -> str:
    def shown(value: float) -> str:
        return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"

    return shown(most) if shown(least) == shown(most) else f"{shown(least)} to {shown(most)}"
