"""What a study and its trials say about themselves in Optuna's dashboard: Markdown.  Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from autotune.report import story
from autotune.report.caveats import caveats
from autotune.report.frames import state_of
from autotune.report.tables import bounds
from autotune.report.words import clock, count, number, plain, point
from autotune.stored import StoredStart, StoredStudy, StoredTrial

__all__ = ["log_of", "study_note", "trial_note"]

LOG_LINES = 15
_SPECIAL = "\\`*_[]<>#|~&"


def study_note(study: StoredStudy) -> str:
    """The verdict, the configuration to copy, and what a reader should know."""
    headline = story.headline(study)
    parts = [f"## {_text(study.name)}", f"**{_text(headline.sentence)}**"]
    parts += [_text(detail) for detail in headline.details]
    if chosen := story.configuration(study):
        parts += [f"### {_text(chosen.title)}", _code("\n".join((chosen.flags, chosen.variables)))]
    parts.append(
        "\n".join(
            f"- {_text(name)}: {_text(value)} ({_text(words)})"
            for name, value, words in story.brief(study)
        )
    )
    parts += ["### Mind", "\n".join(f"- {_text(one)}" for one in caveats(study))]
    parts.append("The whole report is among the artifacts of this study.")
    return "\n\n".join(part for part in parts if part)


def trial_note(study: StoredStudy, trial: StoredTrial) -> str:
    """Settings, how each start ended, what was measured on it, and why it failed."""
    kind = " (the deployed configuration)" if trial.reference else ""
    parts = [f"## Trial {trial.number}: {trial.state}{kind}", _text(point(trial.parameters))]
    if flags := _flags(study, trial):
        parts.append(_code(flags))
    for position, start in enumerate(trial.starts):
        parts += _start(trial, position, start)
    return "\n\n".join(parts)


def log_of(trial: StoredTrial) -> str:
    """The lines that were kept of the starts that failed; "" when there are none."""
    texts = []
    for position, start in enumerate(trial.starts):
        failure = start.record.failure if start.record else None
        if failure is not None and failure.log_tail:
            lines = "\n".join(plain(line) for line in failure.log_tail)
            texts.append(f"# start {position + 1} on {start.host}: {failure.kind}\n{lines}\n")
    return "\n".join(texts)


def _start(trial: StoredTrial, position: int, start: StoredStart) -> Iterable[str]:
    record, score = start.record, start.score
    role, at, ended = str(start.role), clock(start.started_at_s), state_of(trial, position)
    yield f"### {role.capitalize()} on {_text(start.host)}, {at}: {ended}"
    if score is not None:
        interval = bounds(score.interval.low, score.interval.high, 1)
        yield f"**Score {number(score.value)}** ({interval}), ratio {number(score.ratio, 3)}"
    if start.violations:
        yield _text("; ".join(start.violations))
    if start.buckets:
        rows = [
            f"| {b.context_tokens} x {b.concurrency} | {number(b.output_tok_per_s)} "
            f"| {bounds(b.interval.low, b.interval.high, 1)} | {number(b.accept_length, 2)} "
            f"| {number(b.ttft_ms)} | {number(b.tpot_ms, 2)} |{'' if b.valid else ' not valid'}"
            for b in start.buckets
        ]
        head = "| context x concurrency | tok/s | 95 % | accept length | TTFT ms | TPOT ms |"
        yield "\n".join([head, "|---|---|---|---|---|---|", *rows])
    if record is None:
        return
    if record.proof:
        broken = [_text(link.link) for link in record.proof if not link.ok]
        whole = f"broken: {', '.join(broken)}" if broken else "all hold"
        yield f"{count(len(record.proof), 'proof link')}, {whole}; start {record.invocation_id}"
    if record.failure is not None:
        yield f"**{_text(record.failure.kind)}**: {_text(record.failure.message)}"
        if record.failure.log_tail:
            yield _code("\n".join(record.failure.log_tail[-LOG_LINES:]))


def _flags(study: StoredStudy, trial: StoredTrial) -> str:
    sections = study.definition.get("parameters", {})
    return " ".join(
        f"{section['flag']} {shlex.quote(str(value))}"
        for name, section in sections.items()
        if section.get("flag") and (value := trial.parameters.get(name)) is not None
    )


def _text(foreign: str) -> str:
    """Foreign text that Markdown shows as it is."""
    clean = " ".join(plain(foreign).split())
    return "".join(f"\\{one}" if one in _SPECIAL else one for one in clean)


def _code(foreign: str) -> str:
    clean = plain(foreign.strip(), most=4000).replace("```", "'''")
    return f"```\n{clean}\n```" if clean else ""
