"""What a reader should know before trusting the numbers of a study.  Pure."""

from __future__ import annotations

from collections import Counter, defaultdict

from autotune.doubts import doubts
from autotune.gate_caveats import gate_caveats
from autotune.measurement import BucketQuality
from autotune.report.story import shown_trial
from autotune.report.words import count, listed, percent, plain, sentence, share
from autotune.repository import StoredStudy
from autotune.standing import references_of

__all__ = ["caveats"]

DRIFT = 0.02
"""Movement of a reference that a reader should know, as a share of its first score."""

_MARKS = {
    BucketQuality.CLIENT_BOTTLENECK: "the load generator was the bottleneck, not the server",
    BucketQuality.NOT_STEADY: "throughput had not settled when the windows began",
    BucketQuality.WIDE_INTERVAL: "the interval stayed wider than asked",
    BucketQuality.QUEUED: "the server admitted fewer requests than the bucket sends",
    BucketQuality.BEYOND_GRAPHS: "batches were larger than the largest captured CUDA graph",
    BucketQuality.CACHE_HITS: "the prefix cache served part of the prompts",
    BucketQuality.TOKEN_MISMATCH: "client and server counted different numbers of tokens",
    BucketQuality.ERRORS: "some requests failed",
    BucketQuality.TOO_FEW_REQUESTS: "too few requests ended",
    BucketQuality.THERMAL: "the GPUs were throttled",
    BucketQuality.CLIENT_LATE: "the load generator read first tokens late: the time to first token "
    "may be too long, the throughput is not",
    BucketQuality.TTFT_AT_LEAST: "the slowest first tokens had not come when the bucket ended: its "
    "time to first token is at least what is shown",
    BucketQuality.TPOT_AT_LEAST: "the slowest streams had not ended when the bucket did: its time "
    "per output token is at least what is shown",
}


def caveats(study: StoredStudy) -> tuple[str, ...]:
    """What a reader should know before trusting a number."""
    service = study.definition.get("service", {})
    coding = study.definition.get("objective", {}).get("coding", {})
    command = service.get("command") or ""
    words = command if isinstance(command, str) else " ".join(command)
    found: list[str] = []
    if "autotune.testing" in words:
        found.append(
            "The server was simulated: these numbers show how the tool works, not how an engine "
            "performs."
        )
    if coding.get("sandbox") == "weak":
        found.append(
            "Coding answers ran in the weaker sandbox: fewer limits than the strict one, meant for "
            "answers of a simulated server."
        )
    shown = shown_trial(study)
    for clause in gate_caveats(study, trial=shown.number if shown is not None else None):
        text = plain(clause, most=400)
        found.append(f"{text[0].upper()}{text[1:]}.")
    if study.verdict is None:
        found.append("There is no verdict: the final rounds have not been held or did not end.")
    running = [str(t.number) for t in study.trials if t.state == "running"]
    if running:
        found.append(f"Still running, or left by a driver that died: trial {listed(running)}.")
    away = [
        plain(host.host) for host in study.hosts if host.restored_at_s is None and host.taken_at_s
    ]
    if away:
        found.append(f"Not recorded as restored when this was written: {listed(away)}.")
    found.extend(_doubtful(study))
    found.extend(_marked(study, simulated="autotune.testing" in words))
    found.extend(_drifted(study))
    found.append(
        "A score interval of the search comes from the windows of one start; what differs from "
        "start to start is only in the interval of the final rounds."
    )
    return tuple(found)


def _doubtful(study: StoredStudy) -> list[str]:
    """Doubtful values that were measured, with the trials that have them."""
    trials: defaultdict[str, list[str]] = defaultdict(list)
    for trial in study.trials:
        for doubt in doubts(study.definition, trial.parameters):
            trials[doubt].append(str(trial.number))
    return [f"{sentence(doubt)} In trial {listed(found)}." for doubt, found in trials.items()]


def _drifted(study: StoredStudy) -> list[str]:
    """Hosts whose reference moved by more than `DRIFT` from its first."""
    found = []
    for host in study.hosts:
        scores = [s.score.value for _, s in references_of(study, host.host) if s.score is not None]
        moved = max((one / scores[0] for one in scores), key=lambda r: abs(r - 1), default=1.0)
        if abs(moved - 1) > DRIFT:
            found.append(
                f"The deployed configuration itself moved by {percent(moved)} on "
                f"{plain(host.host)} during the study. Ratios use the host's last reference; "
                "differences that are not much larger need the final rounds to be believed."
            )
    return found


def _marked(study: StoredStudy, *, simulated: bool) -> list[str]:
    buckets = [b for trial in study.trials for start in trial.starts for b in start.buckets]
    marks = Counter(mark for bucket in buckets for mark in bucket.marks)
    measure = study.definition.get("objective", {}).get("measure", {})
    words = dict(_MARKS)
    if {"target_half_width", "most_windows"} <= measure.keys():
        words[BucketQuality.WIDE_INTERVAL] = (
            f"the 95 % interval was still wider than ±{share(measure['target_half_width'])} when "
            f"all {measure['most_windows']} windows were spent; a larger most_windows narrows it"
        )
    if simulated:  # its windows are short on purpose
        marks.pop(BucketQuality.WIDE_INTERVAL, None)
    return [
        f"In {n} of {count(len(buckets), 'measured bucket')} {words[mark]} ({mark})."
        for mark, n in marks.most_common()
    ]
