"""`export --apply`: the chosen configuration into the service unit, proved before it is kept.

The way is the one of a trial: lease, dead man's switch, runtime drop-in, restart, proof.  Only then
the permanent drop-in is written and the runtime one removed, in one step of the host that needs no
second restart; interrupted before that, the host goes back by itself.
"""

from __future__ import annotations

import difflib
import hashlib
import secrets
from collections.abc import Callable, Mapping

from autotune.answers import Answers
from autotune.config import StudyConfig
from autotune.errors import ConfigError, NotApplied
from autotune.exporting import Choice
from autotune.hosts import HostPlan, open_supervisor
from autotune.interrupts import undisturbed
from autotune.measurement import Ending
from autotune.opening import Found, look, plan_host
from autotune.proof import Nonce
from autotune.runners.work import work
from autotune.session import HostSession
from autotune.sglang.masking import mask_text, masked_words
from autotune.supervisors.base import Launch
from autotune.supervisors.owner import owner_here
from autotune.supervisors.systemd import SystemdSupervisor
from autotune.trial import Notes, TrialSpec
from autotune.workload import Bucket

__all__ = [
    "apply_choice",
    "dropin_text",
    "files_hash",
    "undo",
]

HEADER = """\
# Written by `autotune export --apply`: study {study}, trial {trial}.
# {verdict}
# Replaces the command line of the unit files with SHA-256 {files}.
# `autotune export --undo` takes it away again.
"""


def dropin_text(config: StudyConfig, choice: Choice) -> str:
    """The permanent drop-in for the first host, nothing changed there.

    Raises:
        ConfigError: The study's service is no systemd unit.
    """
    plan = plan_host(config, config.service.hosts[0])
    with _systemd(plan) as supervisor:
        found = look(config, plan, supervisor)
        return _text(supervisor, found, choice)


def apply_choice(
    config: StudyConfig, choice: Choice, *, dry_run: bool, say: Callable[[str], None]
) -> None:
    """Bring the choice into the service of every host of the study, one after the other.

    Raises:
        NotApplied: The proof failed; the host is as it was found.
    """
    for host in config.service.hosts:
        plan = plan_host(config, host)
        with _systemd(plan) as supervisor:
            found = look(config, plan, supervisor)
            launch = found.recipe.launch(choice.parameters, None)
            text = _text(supervisor, found, choice)
            say(f"{plan.host}: {supervisor.export.path}")
            difference = _difference(found.original.launch, launch)
            say(difference or "  it runs this configuration already: nothing is changed")
            if dry_run and difference:
                say(mask_text(text))
            if dry_run or not difference:
                continue
            _apply(config, choice, found, supervisor, launch=launch, text=text, say=say)


def undo(config: StudyConfig, *, say: Callable[[str], None]) -> None:
    """Take an applied export away on every host and restart what was there before."""
    for host in config.service.hosts:
        plan = plan_host(config, host)
        with _systemd(plan) as supervisor:
            done = supervisor.export.undo()
            say(f"{plan.host}: {'undone, the unit serves again' if done else 'nothing to undo'}")


def _apply(
    config: StudyConfig,
    choice: Choice,
    found: Found,
    supervisor: SystemdSupervisor,
    *,
    launch: Launch,
    text: str,
    say: Callable[[str], None],
) -> None:
    plan = found.plan
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
        )
        record = work(spec, Notes())
        if record.ending is not Ending.COMPLETE:
            reason = record.failure.message if record.failure else str(record.ending)
            raise NotApplied(
                f"{plan.host} does not run the exported configuration: {reason}",
                hint="the host is put back as it was found",
            )
        say(f"{plan.host}: {len(record.proof)} proof links hold")
        say(_remeasured(record.buckets[0].output_tok_per_s, bucket, choice))
        supervisor.keep_export(lease, launch, text)
        kept = True
    finally:
        with undisturbed((plan.host,)):
            session.leave() if kept else session.restore()
    say(f"{plan.host}: applied; `autotune export --undo --study {config.name}` takes it back")


def _systemd(plan: HostPlan) -> SystemdSupervisor:
    supervisor = open_supervisor(plan)
    if not isinstance(supervisor, SystemdSupervisor):
        raise ConfigError(
            "the study's service is a process of the tuner, so there is no unit to write to",
            hint="use --format flags and start your service with them",
        )
    return supervisor


def _text(supervisor: SystemdSupervisor, found: Found, choice: Choice) -> str:
    header = HEADER.format(
        study=choice.study,
        trial=choice.trial.number,
        verdict=choice.conclusion.get("sentence", ""),
        files=files_hash(found.original.files, without=supervisor.export.path),
    )
    return supervisor.export.render(found.recipe.launch(choice.parameters, None), header=header)


def files_hash(files: Mapping[str, str], *, without: str) -> str:
    """One hash over the unit's files, ours left out: it moves when the unit does."""
    lines = [f"{path} {digest}" for path, digest in sorted(files.items()) if path != without]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _difference(before: Launch, after: Launch) -> str:
    lines = difflib.unified_diff(
        masked_words(before.texts()),
        masked_words(after.texts()),
        "now",
        "exported",
        lineterm="",
        n=1,
    )
    return "\n".join(f"  {line}" for line in lines)


def _remeasured(tok_per_s: float, bucket: Bucket, choice: Choice) -> str:
    before = [
        b.output_tok_per_s
        for start in choice.trial.starts
        for b in start.buckets
        if b.key == bucket.key and b.valid
    ]
    expected = f", {sum(before) / len(before):.1f} tok/s in the study" if before else ""
    return f"  bucket {bucket.key}: {tok_per_s:.1f} tok/s now{expected}"


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
