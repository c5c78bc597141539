"""`export --apply`: the chosen configuration into the service unit, proved before it is kept.

The way is the one of a trial: lease, dead man's switch, runtime drop-in, restart, proof.  Only
then it is written where it stays - a drop-in under /etc, or with `--in-place` the unit's own file -
and the runtime drop-in is removed, which needs no second restart.  Whatever fails before systemd is
seen to hold it, the host goes back by itself, every byte of its files too.
"""

from __future__ import annotations

import difflib
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from autotune import holding
from autotune.answers import Answers
from autotune.config import StudyConfig
from autotune.errors import ConfigError, NotApplied, StudyError
from autotune.exporting import Choice
from autotune.hosts import HostPlan, open_supervisor
from autotune.interrupts import undisturbed
from autotune.measurement import BucketMeasurement, Ending
from autotune.opening import Found, look, plan_host
from autotune.proof import Nonce
from autotune.runners.work import work
from autotune.session import HostSession
from autotune.sglang.masking import mask_text, masked_words
from autotune.stored import StoredStudy
from autotune.supervisors.base import Launch
from autotune.supervisors.owner import owner_here
from autotune.supervisors.systemd import SystemdSupervisor
from autotune.systemd.exports import Written, files_hash
from autotune.trial import Notes, TrialSpec

__all__ = ["apply_choice", "dropin_text", "remeasured", "undo"]

HEADER = """\
# Written by `autotune export --apply`: study {study}, trial {trial}.
# {verdict}
# Replaces the command line of the unit files with SHA-256 {files}.
# `autotune export --undo` takes it away again.
"""
NOTE = """\
# Written by `autotune export --apply --in-place`: study {study}, trial {trial}.
# {verdict}
# `autotune export --undo` puts back what the file was before.
"""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """One host, read and checked: what would be written there.

    Attributes:
        written: None when the host runs the choice already.
    """

    found: Found
    launch: Launch
    written: Written | None = None
    difference: str = ""
    note: str = ""


def dropin_text(config: StudyConfig, stored: StoredStudy, choice: Choice) -> str:
    """The permanent drop-in for the first host, nothing changed there.

    Raises:
        ConfigError: The study's service is no systemd unit.
        StaleWinner: It is not what the study measured any more.
    """
    plan = plan_host(config, config.service.hosts[0])
    with _systemd(plan) as supervisor:
        found = _look(config, plan, supervisor, choice)
        _require_holding(stored, choice, found)
        launch = found.recipe.launch(choice.parameters, None)
        return _drop_in(supervisor, found, choice, launch).after


def apply_choice(
    config: StudyConfig,
    stored: StoredStudy,
    choice: Choice,
    *,
    in_place: bool,
    dry_run: bool,
    say: Say,
) -> None:
    """Bring the choice into the service of every host of the study, one after the other.

    Every host is read and checked before the first one is changed.

    Args:
        in_place: Into the unit's own file, not into a drop-in.

    Raises:
        StaleWinner: What was measured is not what is there any more; nothing was changed.
        UnitRefused: The unit's own file cannot be changed safely; nothing was changed.
        NotApplied: The proof failed; the host is as it was found.
    """
    waiting = []
    for host in config.service.hosts:
        plan = plan_host(config, host)
        with _systemd(plan) as supervisor:
            prepared = _prepare(config, stored, choice, plan, supervisor, in_place=in_place)
        if prepared.written is None:
            say(f"{plan.host}: it runs this configuration already: nothing is changed")
            continue
        say(f"{plan.host}: {prepared.written.path}")
        if prepared.note:
            say(f"  note: {prepared.note}")
        say(prepared.difference)
        if dry_run:
            say(mask_text(_file_difference(prepared.written)))
        waiting.append(plan)
    for plan in () if dry_run else waiting:
        with _systemd(plan) as supervisor:
            prepared = _prepare(config, stored, choice, plan, supervisor, in_place=in_place)
            if prepared.written is not None:
                _apply(config, stored, choice, prepared, prepared.written, supervisor, say=say)


def _prepare(
    config: StudyConfig,
    stored: StoredStudy,
    choice: Choice,
    plan: HostPlan,
    supervisor: SystemdSupervisor,
    *,
    in_place: bool,
) -> _Prepared:
    found = _look(config, plan, supervisor, choice)
    launch = found.recipe.launch(choice.parameters, None)
    difference = _difference(found.original.launch.texts(), launch.texts())
    if not difference and not launch.environment and not launch.unset:
        return _Prepared(found, launch)
    note = _require_holding(stored, choice, found)
    if in_place:
        written = supervisor.export.in_place(launch, note=_filled(NOTE, choice))
    else:
        written = _drop_in(supervisor, found, choice, launch)
    return _Prepared(found, launch, written, difference, note)


def _look(
    config: StudyConfig, plan: HostPlan, supervisor: SystemdSupervisor, choice: Choice
) -> Found:
    """The host as `look` finds it, also where the choice is what is deployed there by now."""
    try:
        return look(config, plan, supervisor)
    except StudyError:
        chosen = tuple(
            replace(p, deployed=choice.parameters[p.name]) for p in config.space.parameters
        )
        applied = replace(config, space=replace(config.space, parameters=chosen))
        try:
            return look(applied, plan, supervisor)
        except StudyError:
            pass  # the first reason is the one to tell
        standing = supervisor.export.standing()
        if standing is None:
            raise
        raise NotApplied(
            f"{plan.host}: an earlier export stands in {standing.path}, and what it set is not "
            "what the study calls deployed",
            hint="`autotune export --undo` takes it away first",
        ) from None


def _require_holding(stored: StoredStudy, choice: Choice, found: Found) -> str:
    host = found.plan.host
    note = holding.require_same_unit(stored, host, found.original)
    measured = holding.measured_fingerprint(stored, choice, host)
    holding.require_same_engine(measured, host, found.info)
    return note


def undo(config: StudyConfig, *, say: Callable[[str], None]) -> None:
    """Take an applied export away on every host and restart what was there before."""
    for host in config.service.hosts:
        plan = plan_host(config, host)
        with _systemd(plan) as supervisor:
            done = supervisor.export.undo()
            say(f"{plan.host}: {'undone, the unit serves again' if done else 'nothing to undo'}")


def _apply(
    config: StudyConfig,
    stored: StoredStudy,
    choice: Choice,
    prepared: _Prepared,
    written: Written,
    supervisor: SystemdSupervisor,
    *,
    say: Say,
) -> None:
    found, launch, plan = prepared.found, prepared.launch, prepared.found.plan
    say(f"{plan.host}: restart, load and proof ...")
    lease = supervisor.take_lease(
        owner_here(config.name), found.original, restore_after_s=config.service.restore_after_s
    )
    session = HostSession(
        plan, supervisor, lease=lease, original=found.original, recipe=found.recipe
    )
    kept = False
    try:
        bucket = max(config.workload.buckets, key=lambda b: b.weight)
        spec = TrialSpec(
            study=config.name,
            number=choice.trial.number,
            claim_id=secrets.token_hex(16),
            plan=plan,
            lease=lease,
            launch=launch,
            intents=found.recipe.intents(choice.parameters),
            nonce=Nonce("", ""),
            buckets=(bucket,),
            measure=config.measure.settings(),
            answers=_no_answers(),
            prompts_seed=config.study.seed,
            fingerprint=holding.measured_fingerprint(stored, choice, plan.host),
        )
        record = work(spec, Notes())
        if record.ending is not Ending.COMPLETE:
            reason = record.failure.message if record.failure else str(record.ending)
            raise NotApplied(
                f"{plan.host} does not run the exported configuration: {reason}",
                hint="the host is put back as it was found",
            )
        say(f"{plan.host}: {len(record.proof)} proof links hold")
        earlier = (b for start in choice.trial.starts for b in start.buckets)
        say(f"  {remeasured(record.buckets[0], earlier)}")
        supervisor.keep_export(lease, launch, written)
        kept = True
    finally:
        with undisturbed((plan.host,)):
            session.leave() if kept else session.restore()
    say(f"{plan.host}: applied; `autotune export --undo --study {config.name}` takes it back")


def _systemd(plan: HostPlan) -> SystemdSupervisor:
    supervisor = open_supervisor(plan)
    if not isinstance(supervisor, SystemdSupervisor):
        raise ConfigError(
            "the study's service is no systemd unit, so there is nothing to write to",
            hint="use --format flags and start your service with them",
        )
    return supervisor


def _drop_in(
    supervisor: SystemdSupervisor, found: Found, choice: Choice, launch: Launch
) -> Written:
    files = files_hash(found.original.files, without=supervisor.export.path)
    return supervisor.export.drop_in(launch, header=_filled(HEADER, choice, files=files))


def _filled(template: str, choice: Choice, **more: str) -> str:
    verdict = " ".join(str(choice.conclusion.get("sentence", "")).split())
    return template.format(study=choice.study, trial=choice.trial.number, verdict=verdict, **more)


def remeasured(now: BucketMeasurement, earlier: Iterable[BucketMeasurement]) -> str:
    """One bucket of the applied server beside the same one in the study, for people."""
    interval = f"[{now.interval.low:.1f}, {now.interval.high:.1f}]"
    said = f"bucket {now.key}: {now.output_tok_per_s:.1f} tok/s {interval} now"
    before = [bucket for bucket in earlier if bucket.key == now.key and bucket.valid]
    if not before:
        return said
    mean = sum(bucket.output_tok_per_s for bucket in before) / len(before)
    low = min(bucket.interval.low for bucket in before)
    slower = "; slower than every measurement there" if now.interval.high < low else ""
    return f"{said}, {mean:.1f} tok/s in the study{slower}"


def _difference(before: Iterable[str], after: Iterable[str]) -> str:
    words = (masked_words(tuple(before)), masked_words(tuple(after)))
    lines = difflib.unified_diff(*words, "now", "exported", lineterm="", n=1)
    return "\n".join(f"  {line}" for line in lines)


def _file_difference(written: Written) -> str:
    if not written.before:
        return written.after
    before, after = written.before.splitlines(), written.after.splitlines()
    return "\n".join(difflib.unified_diff(before, after, "now", "exported", lineterm="", n=2))


def _no_answers() -> Answers:
    return Answers(
        greedy={},
        greedy_tokens=1,
        reference={},
        samples=(),
        coding_tokens=1,
        concurrency=1,
        timeout_s=1.0,
        allow_weak=False,
    )
