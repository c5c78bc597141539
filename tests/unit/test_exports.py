"""What an export would write, what it refuses, and when it is kept: a unit made of values."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from autotune.errors import NotApplied, UnitRefused
from autotune.supervisors.base import Launch, Lease, ProcessFacts, Word
from autotune.systemd.exports import UnitExport, files_hash
from autotune.systemd.facts import ExecCommand
from autotune.systemd.record import UnitRecord
from tests.builders import OWNER
from tests.scripted import an_original

PATH = "/etc/systemd/system/llm.service"
TEXT = "[Service]\nExecStart=/bin/serve --budget 8\n"
HELD = ExecCommand("/bin/serve", ("/bin/serve", "--budget", "8"), frozenset())
LEASE = Lease("lease", "gpu-a", OWNER, 60)


def words(*texts: str) -> Launch:
    return Launch(tuple(Word(text, ours=True) for text in texts))


WINNER = words("/bin/serve", "--budget", "16")


@dataclass
class Unit:
    """Facts, checks and agent of one unit; the calls that would change it are kept."""

    path: str = PATH
    text: bytes = TEXT.encode()
    held: ExecCommand = HELD
    running: tuple[str, ...] = ()
    others: dict[str, bytes] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list)
    payload: bytes = b""
    where: str = "gpu-a: llm.service"
    fragment_path: str = ""
    main_pid: int = 7
    need_reload: bool = False
    from_files: frozenset[str] = frozenset()

    def state(self) -> Any:
        return replace(self, fragment_path=self.path)

    def environment(self) -> Any:
        return self

    def drop_ins(self) -> tuple[str, ...]:
        return tuple(self.others)

    def texts(self, paths: Sequence[str]) -> dict[str, bytes | None]:
        known = {self.path: self.text, **self.others}
        return {path: known.get(path, b"")[:65536] for path in paths}

    def files(self) -> dict[str, str]:
        known = {self.path: self.text, **self.others}
        return {path: hashlib.sha256(text).hexdigest() for path, text in known.items()}

    def one_command(self) -> ExecCommand:
        return self.held

    def process(self, pid: int) -> ProcessFacts:
        return ProcessFacts(pid, self.running, {}, 0.0)

    def call(self, *verb: str, lease: str = "-", payload: bytes = b"") -> bytes:
        self.calls.append((*verb, lease))
        self.payload = payload or self.payload
        return self.answers.get(verb[0], "").encode()

    def export(self, unit: str = "llm.service") -> UnitExport:
        one: Any = self
        return UnitExport(
            unit=unit,
            agent=one,
            facts=one,
            checks=one,
            way_back=one,
            expected_argv=lambda launch, process: launch.texts(),
        )


RECORD = UnitRecord(an_original(*HELD.argv), HELD, "cgroup")


def test_the_units_own_file_with_other_words_and_what_is_said_of_it() -> None:
    unit = Unit()
    written = unit.export().in_place(WINNER, note="# study s\n")
    assert (written.path, written.before) == (PATH, TEXT)
    assert written.after == TEXT.replace("8", "16")
    assert written.kind == ("in-place", hashlib.sha256(TEXT.encode()).hexdigest())
    note, _, text = written.payload.partition(b"\n")
    assert text.decode() == written.after
    said = base64.b64decode(note).decode()
    assert said == f"# study s\nsha256 {hashlib.sha256(text).hexdigest()}\n"
    assert unit.calls == []


@pytest.mark.parametrize(
    ("unit", "name", "launch", "said"),
    [
        (Unit(path="/etc/systemd/system/llm@.service"), "llm@a.service", WINNER, "other units too"),
        (Unit(path="/usr/lib/systemd/system/llm.service"), "llm.service", WINNER, "not its user's"),
        (Unit(), "llm.service", replace(WINNER, environment={"MODE": "a"}), "MODE is a variable"),
        (Unit(), "llm.service", replace(WINNER, unset=("MODE",)), "MODE is a variable"),
        (Unit(others={"/etc/x.conf": TEXT.encode()}), "llm.service", WINNER, "from /etc/x.conf"),
        (Unit(text=TEXT.encode() + b"#" * 65536), "llm.service", WINNER, "64 KiB at most"),
        (Unit(held=replace(HELD, argv=("/bin/a",))), "llm.service", WINNER, "does not read as"),
        (Unit(), "llm.service", words("/bin/other", "--budget", "8"), "the program itself"),
    ],
)
def test_what_is_more_than_words_of_that_file_is_refused(
    unit: Unit, name: str, launch: Launch, said: str
) -> None:
    with pytest.raises(UnitRefused, match=said) as refused:
        unit.export(name).in_place(launch, note="")
    assert "--in-place" in refused.value.hint or "--undo" in refused.value.hint
    assert unit.calls == []


def test_an_earlier_export_as_a_drop_in_is_named_with_its_way_out() -> None:
    path = f"{PATH}.d/zzz-autotune-export.conf"
    with pytest.raises(UnitRefused) as refused:
        Unit(others={path: TEXT.encode()}).export().in_place(WINNER, note="")
    assert refused.value.hint == "`autotune export --undo` takes that export away first"


def test_what_systemd_and_the_process_hold_is_kept() -> None:
    unit = Unit()
    written = unit.export().in_place(WINNER, note="")
    unit.held, unit.running = replace(HELD, argv=WINNER.texts()), WINNER.texts()
    unit.export().keep(LEASE, RECORD, WINNER, written)
    assert unit.calls == [("keep", *written.kind, "lease"), ("kept", "lease")]
    assert unit.payload == written.payload


@pytest.mark.parametrize(
    "changes",
    [
        {"running": HELD.argv},
        {"held": HELD},
        {"held": replace(HELD, argv=WINNER.texts(), flags=frozenset({"privileged"}))},
        {"need_reload": True},
    ],
    ids=["another process", "other words", "another prefix", "not read yet"],
)
def test_what_they_do_not_hold_is_not_kept(changes: dict[str, Any]) -> None:
    unit = Unit(held=replace(HELD, argv=WINNER.texts()), running=WINNER.texts())
    written = unit.export().drop_in(WINNER, header="# ours\n")
    for name, value in changes.items():
        setattr(unit, name, value)
    with pytest.raises(NotApplied, match="does not hold what was written"):
        unit.export().keep(LEASE, RECORD, WINNER, written)
    assert [call[0] for call in unit.calls] == ["keep"]


def test_a_standing_export_knows_whether_its_unit_has_moved_on() -> None:
    assert Unit().export().standing() is None
    drop_in = f"{PATH}.d/zzz-autotune-export.conf"
    unit = Unit(answers={"exported": f"drop-in {drop_in}\n"})
    unit.others = {drop_in: files_hash(unit.files(), without=drop_in).encode()}
    standing = unit.export().standing()
    assert standing is not None
    assert (standing.kind, standing.path, standing.moved) == ("drop-in", drop_in, False)
    unit.text += b"# mine\n"
    moved = unit.export().standing()
    assert moved is not None
    assert moved.moved


def test_an_export_in_place_is_known_by_the_hash_beside_it() -> None:
    note = f"{PATH}.autotune-export"
    unit = Unit(answers={"exported": f"in-place {PATH}\n"})
    unit.others = {note: f"sha256 {hashlib.sha256(unit.text).hexdigest()}\n".encode()}
    standing = unit.export().standing()
    assert standing is not None
    assert (standing.kind, standing.moved) == ("in-place", False)
    unit.text += b"# mine\n"
    moved = unit.export().standing()
    assert moved is not None
    assert moved.moved
