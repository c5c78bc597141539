"""What a stored study says, in words: verdict, configuration, numbers, failures.  Pure."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from autotune.matters import matters
from autotune.report.finals import coding_details, refused
from autotune.report.frames import start_gpu_hours, state_of
from autotune.report.words import (
    count,
    duration,
    gpu_unit,
    listed,
    number,
    percent,
    plain,
    point,
    sentence,
)
from autotune.repository import Role, StoredStart, StoredStudy, StoredTrial
from autotune.stored import VerdictKind
from autotune.views import best_trial

__all__ = [
    "KINDS",
    "Configuration",
    "FailureClass",
    "Headline",
    "brief",
    "coding_words",
    "configuration",
    "failure_classes",
    "headline",
    "shown_trial",
]

LOG_LINES = 60
"""Log lines shown for one start, the last ones: the deciding line is near the end."""
LINE_CHARS = 600
EXAMPLES = 5
"""Starts of one class of failure whose log lines are shown; all are counted and named."""

_FAULTS = {
    "infeasible": "The parameters' fault: the server refused them or died under them.",
    "failed": "Not the parameters' fault: the machine's or nobody's, so no value was told.",
}
KINDS = {
    "ServerStartError": "The server refused the settings or died while it started",
    "ServerCrashed": "The server died under load",
    "OutputCorrupted": "The output was corrupted",
    "SettingsNotApplied": "A setting that was asked for did not run",
    "LimitViolated": "A limit of the objective was broken",
    "NotReady": "The server was not ready in time, and nothing says why",
    "ServerEnded": "The server ended, and nothing says why",
    "NotAnswering": "The server ran and did not answer",
    "InvocationChanged": "The server was restarted by somebody else",
    "FingerprintMismatch": "The server was not the one that the reference was measured on",
    "InvalidBucket": "A bucket was measured and cannot be believed",
    "TooFewRequests": "Too few requests ended in a bucket",
    "ErrorRateTooHigh": "Too many requests of a bucket failed",
    "NotSteady": "Throughput did not settle",
    "HostBusy": "Port, GPU or lease were held by somebody else",
    "ConnectError": "The host could not be reached",
    "CommandError": "A command on the host failed",
    "CommandTimeout": "A command on the host did not end in time",
    "UnitError": "The unit was not in the state that was needed",
    "LeaseLost": "The lease of the host was lost",
    "DropInConflict": "Somebody else changed the unit",
    "HostKeyError": "The host's key was not the known one",
    "AuthenticationError": "The host did not let us in",
    "UnitNotFound": "The unit was not there",
    "UnitRefused": "The unit is of a kind that is not tuned",
    "RestoreFailed": "The host could not be proven to be as it was found",
    "WorkerLost": "The worker of the start was lost",
}
"""A class of failure in words, by the name of its error."""


@dataclass(frozen=True, slots=True)
class Headline:
    """The verdict.

    Attributes:
        tone: "better", "same", "open" or "failed"; chooses a colour, the words say it too.
        sentence: One sentence with the interval.
        details: What stands under it.
    """

    tone: str
    sentence: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings to copy.

    Attributes:
        title: Whose settings they are.
        flags, variables: Text to paste; "" without any.
        rows: (parameter, carrier, deployed, chosen, whether it changed).
        left_out: Flags that must not stand in the command.
    """

    title: str
    trial: int | None
    flags: str
    variables: str
    rows: tuple[tuple[str, str, str, str, bool], ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FailureClass:
    """Starts that failed in the same way.

    Attributes:
        title: The class in words.
        examples: (title, message, log lines) of the first few.
    """

    kind: str
    title: str
    state: str
    link: str
    fault: str
    starts: tuple[str, ...]
    examples: tuple[tuple[str, str, tuple[str, ...]], ...]


def headline(study: StoredStudy) -> Headline:
    """The verdict first; without one, what is known and why there is none."""
    verdict = study.verdict
    if verdict is not None and verdict["kind"] != VerdictKind.NOT_ENOUGH_DATA:
        judged = _judged(verdict, _unit(study))
        more = (*coding_details(verdict), *matters(verdict))
        return replace(judged, details=(*judged.details, *more))
    why_not = ""
    if verdict is not None:
        why_not = sentence(verdict["sentence"])
    completed = sum(trial.state == "complete" for trial in study.trials)
    if not completed:
        return _nothing(study)
    best = best_trial(study)
    if best is None:
        return Headline(
            "open",
            "No verdict yet: only the deployed configuration has been measured.",
            (why_not,) if why_not else (),
        )
    score = best.starts[0].score
    ratio = score.ratio if score else None
    seen = (
        f"The best observed so far is trial {best.number} ({point(best.parameters)}) at "
        f"{percent(ratio)} against the deployed configuration. It was measured once among "
        f"{count(completed, 'complete trial')}, and the best of many noisy numbers overstates."
    )
    return Headline("open", "No verdict yet.", tuple(t for t in (why_not, seen) if t))


def _judged(verdict: Mapping[str, Any], unit: str) -> Headline:
    ratio, interval = verdict["ratio"], verdict["ratio_interval"]
    digits = 1 if unit else 3
    reference = f"{number(verdict['reference_score'], digits)}{unit}"
    if verdict["kind"] == VerdictKind.BETTER:
        own = verdict["interval"]
        bounds = f"{number(own['low'], digits)} to {number(own['high'], digits)}"
        return Headline(
            "better",
            f"Use {point(verdict['parameters'])}: it scores {percent(ratio, sign=False)} above the "
            f"deployed configuration (95 % interval {percent(interval['low'], sign=False)} to "
            f"{percent(interval['high'], sign=False)}).",
            (
                f"It scores {number(verdict['score'], digits)}{unit} (95 % interval {bounds}), the "
                f"deployed configuration {reference}. Both are means of fresh measurements, taken "
                "in turns after the search." + _luck(verdict, ratio),
            ),
        )
    if ratio is None:  # nothing else lived to be measured again
        return Headline("same", f"Keep the deployed configuration: {verdict['sentence']}.")
    known = [one for one in verdict["finalists"] if not refused(one)]
    best = f" ({point(known[0]['parameters'])})" if known else ""
    difference = "is worse" if interval["high"] < 1 else "shows no significant difference"
    return Headline(
        "same",
        f"Keep the deployed configuration: the best finalist{best} {difference}, "
        f"{percent(ratio)} (95 % interval {percent(interval['low'])} to "
        f"{percent(interval['high'])}).",
        (f"The deployed configuration scores {reference}.",),
    )


def _luck(verdict: Mapping[str, Any], ratio: float) -> str:
    """Why the gain is not the quotient of the two means that stand beside it."""
    quotient = float(verdict["score"]) / float(verdict["reference_score"])
    if percent(quotient) == percent(ratio):
        return ""
    return (
        f" The quotient of these means is {percent(quotient)}; what is named first is less, since "
        "whoever is named the best of several was probably lucky too."
    )


def _unit(study: StoredStudy) -> str:
    """Of a score: weighted tok/s, or none where it is a mean of ratios."""
    rule = study.definition.get("objective", {}).get("score", {})
    return "" if rule.get("aggregate") == "geometric" else " tok/s"


def _nothing(study: StoredStudy) -> Headline:
    if not study.trials:
        return Headline("open", "Nothing has been measured yet: the study holds no trial.")
    classes = failure_classes(study, log_chars=0)
    states = Counter(trial.state for trial in study.trials)
    shown = listed(f"{n} {state}" for state, n in sorted(states.items()))
    if not classes:
        return Headline("open", f"No trial has been completed yet: {shown}.")
    most = max(classes, key=lambda one: len(one.starts))
    total = sum(len(one.starts) for one in classes)
    common = (
        f"all {total} starts failed for the same reason"
        if len(most.starts) == total > 1
        else f"the commonest reason, {len(most.starts)} of {count(total, 'failed start')}"
    )
    return Headline(
        "failed",
        f"Nothing could be measured: {common}: {sentence(most.examples[0][1])}",
        (f"Trials: {shown}. The deployed configuration stays.",),
    )


def shown_trial(study: StoredStudy) -> StoredTrial | None:
    """The trial that the report is about: the verdict's, else the best observed, else a reference.

    A verdict that keeps the deployed configuration is about the reference.
    """
    verdict = study.verdict
    if verdict is not None and verdict.get("trial") is not None:
        wanted = next((t for t in study.trials if t.number == verdict["trial"]), None)
        if wanted is not None and verdict["kind"] != VerdictKind.NOT_ENOUGH_DATA:
            return wanted
    references = (t for t in study.trials if t.reference and t.state == "complete")
    return best_trial(study) or next(references, None)


def configuration(study: StoredStudy) -> Configuration | None:
    """The settings of the verdict's trial; the best observed ones, named so, without a verdict."""
    trial = shown_trial(study)
    if trial is None:
        return None
    won = study.verdict is not None and study.verdict["kind"] == VerdictKind.BETTER
    title = (
        f"The winner, trial {trial.number}"
        if won
        else f"The best observed so far, trial {trial.number}: not proven better"
    )
    if trial.reference:
        title = "The deployed configuration"
    flags, variables, left_out, rows = [], [], [], []
    for name, parameter in study.definition.get("parameters", {}).items():
        value = trial.parameters.get(name)
        deployed = parameter.get("deployed")
        carrier = parameter.get("flag") or parameter.get("env") or ""
        chosen = "none" if value is None else str(value)
        rows.append((name, carrier, str(deployed), chosen, chosen != str(deployed)))
        if value is None:
            left_out.append(carrier)
        elif parameter.get("flag"):
            flags.append(f"{carrier} {shlex.quote(str(value))}")
        else:
            variables.append(f"{carrier}={shlex.quote(str(value))}")
    return Configuration(
        title,
        trial.number,
        " \\\n  ".join(flags),
        "\n".join(variables),
        tuple(rows),
        tuple(left_out),
    )


def brief(study: StoredStudy) -> tuple[tuple[str, str, str], ...]:
    """(name, value, explanation) of each number in brief."""
    starts = [start for trial in study.trials for start in trial.starts]
    states = Counter(trial.state for trial in study.trials)
    order = ("complete", "infeasible", "failed", "pruned", "running")
    shown = ", ".join(f"{states[state]} {state}" for state in order if states[state])
    finals = sum(start.role is Role.FINAL for start in starts)
    references = sum(start.role is Role.REFERENCE for start in starts)
    gpu_hours = sum(start_gpu_hours(study, start) for start in starts)
    gpus = study.definition.get("service", {}).get("gpus_per_host", 1)
    ended = [start.record.ended_at_s for start in starts if start.record is not None]
    first = min((start.started_at_s for start in starts), default=0.0)
    loads = sorted(s.record.load_s for s in starts if s.record is not None and s.record.load_s > 0)
    return (
        ("Trials", str(len(study.trials)), shown or "none yet"),
        (
            "Server starts",
            str(len(starts)),
            f"{references} of the reference, {finals} in the final rounds",
        ),
        (
            gpu_unit(gpu_hours)[1],
            number(gpu_hours / gpu_unit(gpu_hours)[0], 1),
            f"{count(gpus, 'GPU')} a host, from stop to last answer",
        ),
        ("Hosts", str(len(study.hosts)), listed(plain(h.host) for h in study.hosts) or "none yet"),
        ("Wall time", duration(max(ended) - first if ended else 0.0), "first start to last end"),
        (
            "Median load",
            duration(loads[len(loads) // 2] if loads else None),
            "from the start until it was ready",
        ),
    )


def failure_classes(study: StoredStudy, *, log_chars: int) -> tuple[FailureClass, ...]:
    """Starts that gave no usable score, by how they failed; the commonest class first.

    Args:
        log_chars: Of the log lines of all examples together; each gets the same share.
    """
    groups: dict[tuple[str, str, str], list[tuple[str, str, tuple[str, ...]]]] = defaultdict(list)
    for trial in study.trials:
        for position, start in enumerate(trial.starts):
            found = _failure(start)
            if found is not None:
                kind, link, message, lines = found
                title = f"trial {trial.number}" + (f", start {position + 1}" if position else "")
                key = (kind, state_of(trial, position), link)
                groups[key].append((f"{title} on {plain(start.host)}", message, lines))
    each = log_chars // max(1, sum(min(EXAMPLES, len(members)) for members in groups.values()))
    classes = [
        FailureClass(
            kind=plain(kind),
            title=KINDS.get(kind, plain(kind)),
            state=state,
            link=plain(link),
            fault=_FAULTS.get(state, ""),
            starts=tuple(title for title, _, _ in members),
            examples=tuple(
                (title, message, _last_lines(lines, each))
                for title, message, lines in members[:EXAMPLES]
            ),
        )
        for (kind, state, link), members in groups.items()
    ]
    return tuple(sorted(classes, key=lambda one: (-len(one.starts), one.kind, one.link)))


def _last_lines(lines: tuple[str, ...], most_chars: int) -> tuple[str, ...]:
    """As many of the last lines as fit, and at least one."""
    sizes = accumulate(len(line) for line in reversed(lines))
    fit = sum(size <= most_chars for size in sizes)
    return lines[-max(1, fit) :]


def _failure(start: StoredStart) -> tuple[str, str, str, tuple[str, ...]] | None:
    failure = start.record.failure if start.record else None
    if failure is not None:
        tail = failure.log_tail[-LOG_LINES:]
        lines = tuple(plain(line, most=LINE_CHARS) for line in tail)
        return failure.kind, failure.link, plain(failure.message, most=2000), lines
    if start.violations:
        return "LimitViolated", "", plain("; ".join(start.violations), most=2000), ()
    return None


def coding_words(study: StoredStudy) -> str:
    """How many samples the shown trial and the reference passed, over all their starts."""
    shown = shown_trial(study)
    groups = {"the reference": [t for t in study.trials if t.reference]}
    if shown is not None and not shown.reference:
        groups[f"trial {shown.number}"] = [shown]
    said = []
    for name, trials in groups.items():
        results = [
            start.record.coding
            for trial in trials
            for start in trial.starts
            if start.record is not None and start.record.coding is not None
        ]
        if results:
            passed = sum(one.passed for one in results)
            answers = passed + sum(one.failed for one in results)
            said.append(f"{name} passed {passed} of {answers} in {count(len(results), 'start')}")
    if not said:
        return ""
    text = listed(said)
    return f"{text[0].upper()}{text[1:]}."
