"""A winner in the unit of a real host: as a drop-in or in the unit's own file, and back again."""

from __future__ import annotations

import difflib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.config import StudyConfig, load_study
from autotune.exporting import choose
from autotune.fingerprint import fingerprint
from autotune.hosts import open_supervisor
from autotune.json_outputs import SHAPES
from autotune.opening import look, plan_host
from autotune.reading import load_stored
from autotune.repository import Repository, Role
from autotune.roster import Roster
from autotune.sglang.log import StartupLog
from autotune.storage import open_engine
from autotune.supervisors.owner import owner_here
from autotune.supervisors.systemd import SystemdSupervisor
from autotune.systemd.agent import restore_units
from tests.builders import OWNER, a_conclusion, a_start
from tests.databases import template
from tests.host.services import argv, found, install, require_as_found, serves, traces, until
from tests.host.studies import StudyOnHost, deploy
from tests.testhost import UNIT, SystemdHost

FILE = f"/etc/systemd/system/{UNIT}"
BEFORE, NOTE = f"{FILE}.autotune-before", f"{FILE}.autotune-export"
WINNER: dict[str, Any] = {"budget": 16, "topk": 4, "window": 2048}
CHANGED = [
    "-    --speculative-ddtree-budget 8 \\",
    "+    --speculative-ddtree-budget 16 \\",
    "-    --enable-metrics",
    "+    --enable-metrics \\",
    "+    --max-running-requests 64 \\",
    "+    --speculative-dflash-draft-window-size 2048",
]


def measured(host: SystemdHost, folder: Path, winner: dict[str, Any]) -> StudyOnHost:
    """A study of the host as it is now, that has come to its end with this winner."""
    study = deploy(host, folder, lines={"restore_after_s": "restore_after_s = 60"})
    config = load_study(str(study.file))
    template(folder).rename(study.database)
    engine = open_engine(f"sqlite:///{study.database}", create=False)
    repository = Repository(engine)
    repository.open_study(
        study.name, definition=config.definition, fingerprint=config.fingerprint(), provenance={}
    )
    plan = plan_host(config, host.name)
    with open_supervisor(plan) as supervisor:
        seen = look(config, plan, supervisor)
    Roster(repository, study.name).took(
        host.name, original=seen.original, lease_id="gone", owner=OWNER
    )
    assert seen.info is not None
    shown = fingerprint(seen.info, StartupLog())
    for number, parameters in enumerate((config.space.deployed(), winner)):
        start = a_start(1.0 + number / 10, host=host.name)
        assert start.record is not None
        repository.begin_trial(
            study.name, number, parameters=parameters, reference=not number, retry_of=None
        )
        repository.begin_start(
            study.name,
            number,
            role=Role.SEARCH if number else Role.REFERENCE,
            round_=0,
            host=host.name,
            claim_id=f"claim-{number}",
            nonce="",
            owner=OWNER,
            argv=start.argv,
        )
        repository.end_start(f"claim-{number}", replace(start.record, fingerprint=shown), None)
        repository.end_trial(study.name, number, "complete")
    repository.set_verdict(study.name, a_conclusion(trial=1, parameters=winner))
    engine.dispose()
    return study


def export(study: StudyOnHost, *words: str, code: int = 0) -> str:
    """What `autotune export` says."""
    ended = study.run("export", *words)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def changes(before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def apply_in_place(study: StudyOnHost, host: SystemdHost) -> None:
    said = export(study, "--apply", "--in-place")
    assert "proof links hold" in said
    assert "tok/s" in said
    until(lambda: serves(host), "the winner serves")


def test_into_the_units_own_file_and_back(host: SystemdHost, tmp_path: Path) -> None:
    install(host)
    before, text = found(host), host.read(FILE)
    study = measured(host, tmp_path, WINNER)

    shown = export(study, "--apply", "--in-place", "--dry-run")
    assert all(line in shown for line in CHANGED)
    require_as_found(host, before, untouched=True)

    apply_in_place(study, host)
    exported = host.read(FILE)
    assert changes(text, exported) == CHANGED
    assert host.read(BEFORE) == text
    assert set(traces(host).split()) == {BEFORE, NOTE}
    words = argv(host)
    assert words[-2:] == ("--speculative-dflash-draft-window-size", "2048")
    assert words[words.index("--speculative-ddtree-budget") + 1] == "16"

    assert "runs this configuration already" in export(study, "--apply")
    same = study.run("verify", "--json")
    assert same.returncode == 0
    SHAPES["verify"].model_validate_json(same.stdout)
    host.run(f"printf '# mine\\n' >>{FILE}; systemctl daemon-reload")
    moved = study.run("verify")
    assert moved.returncode == 1
    assert "made for the unit's files, but process they have changed since" in moved.stderr
    assert f"{FILE} has changed since the export wrote it" in export(study, "--undo", code=1)
    assert host.read(FILE) == exported + "# mine\n"

    host.run(f"sed -i '$d' {FILE}; systemctl daemon-reload")
    by_hand = (
        "--host",
        host.name,
        "--unit",
        UNIT,
        "--ssh-config",
        str(study.folder / "ssh_config"),
    )
    kept = revert(study, *by_hand)
    assert "nothing to restore" in kept
    assert host.read(FILE) == exported
    assert "the export is taken away" in revert(study, *by_hand, "--exported")
    until(lambda: serves(host), "the user's own configuration serves")
    require_as_found(host, before)
    assert host.read(FILE) == text


def revert(study: StudyOnHost, *words: str) -> str:
    """`autotune revert` without a study."""
    command = [word for word in study.command("revert", *words) if word != "--study"]
    command.remove(str(study.file))
    ended = subprocess.run(command, cwd=study.folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_what_fails_leaves_every_byte(host: SystemdHost, tmp_path: Path) -> None:
    install(host, faults="ignore-window")
    before, text = found(host), host.read(FILE)
    study = measured(host, tmp_path, WINNER)
    said = export(study, "--apply", "--in-place", code=1)
    assert "does not run the exported configuration" in said
    assert "window" in said
    require_as_found(host, before)

    small = tmp_path / "small"
    small.mkdir()
    study = measured(host, small, {"budget": 16, "topk": 4, "window": None})
    with read_only(host, "/etc/systemd/system"):
        assert f"{BEFORE} cannot be written" in export(study, "--apply", "--in-place", code=1)
    until(lambda: serves(host), "the original serves")
    require_as_found(host, before)
    assert host.read(FILE) == text


@contextmanager
def read_only(host: SystemdHost, folder: str) -> Iterator[None]:
    host.run(f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}")
    try:
        yield
    finally:
        host.run(f"umount {folder}")


def test_a_tuner_that_dies_before_the_end_leaves_every_byte(
    host: SystemdHost, tmp_path: Path
) -> None:
    install(host)
    before = found(host)
    study = measured(host, tmp_path, WINNER)
    config = load_study(str(study.file))
    choice = choose(load_stored(str(study.file), f"sqlite:///{study.database}"))
    with opened(config, host) as supervisor:
        plan = plan_host(config, host.name)
        seen = look(config, plan, supervisor)
        launch = seen.recipe.launch(choice.parameters, None)
        written = supervisor.export.in_place(launch, note="")
        lease = supervisor.take_lease(owner_here(study.name), seen.original, restore_after_s=60)
        with supervisor.claim(lease, "one"):
            supervisor.apply(launch)
            supervisor.stop(timeout_s=30)
            supervisor.start()
        agent = supervisor.export.agent
        agent.call("keep", *written.kind, lease=lease.id, payload=written.payload)
        assert changes(before.cat, host.run(f"systemctl cat {UNIT}").stdout) == CHANGED
    # What the timer starts when nobody beats any more.
    host.run(f"systemctl start --no-block '{restore_units(UNIT)[0]}'")
    until(lambda: traces(host) == "" and serves(host), "the host has put itself back")
    require_as_found(host, before)


@contextmanager
def opened(config: StudyConfig, host: SystemdHost) -> Iterator[SystemdSupervisor]:
    with open_supervisor(plan_host(config, host.name)) as supervisor:
        assert isinstance(supervisor, SystemdSupervisor)
        yield supervisor


def test_what_does_not_hold_any_more_is_refused(host: SystemdHost, tmp_path: Path) -> None:
    install(host)
    study = measured(host, tmp_path, WINNER)
    text = host.read(FILE)
    host.write(f"{FILE}.d/50-mine.conf", "[Service]\nExecStart=\n" + command_line(text))
    host.run("systemctl daemon-reload")
    before = found(host)
    said = export(study, "--apply", "--in-place", code=1)
    assert f"comes from {FILE}.d/50-mine.conf" in said
    require_as_found(host, before, untouched=True)

    host.run(f"rm -r {FILE}.d")
    host.write(FILE, text.replace("--mem-fraction-static 0.85", "--mem-fraction-static 0.80"))
    host.run(f"systemctl daemon-reload; systemctl restart {UNIT}")
    until(lambda: serves(host), "the changed unit serves")
    before = found(host)
    for words in (("--apply", "--in-place"), ("--apply",), ("--format", "dropin")):
        assert "was '0.85' and is '0.80'" in export(study, *words, code=1)
    require_as_found(host, before, untouched=True)


def command_line(text: str) -> str:
    """The ExecStart= of the unit's text."""
    lines = text.split("\n")
    begin = next(i for i, line in enumerate(lines) if line.startswith("ExecStart="))
    end = next(i for i in range(begin, len(lines)) if not lines[i].endswith("\\"))
    return "\n".join(lines[begin : end + 1]) + "\n"
