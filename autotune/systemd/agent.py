"""The tuner's side of the agent: one small script on the host does everything that needs root.

The script is called with a fixed command line and told what to do on stdin, so three sudoers lines
without wildcards are enough.  Its verbs, its files and its exit statuses are in `agent_script/`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

from autotune.errors import (
    CommandError,
    DropInConflict,
    HostBusy,
    LeaseLost,
    TargetError,
    UnitError,
)
from autotune.remote.connector import CAP_BYTES, Completed, Connector, LineStream
from autotune.supervisors.base import Owner
from autotune.systemd.dropin import EXPORT_NAME
from autotune.systemd.journal import FIELDS

__all__ = [
    "Agent",
    "Held",
    "agent_path",
    "agent_script",
    "folder_name",
    "restore_units",
    "sudoers_lines",
]

FOLDER = "/run/autotune"
MKDIR = "/usr/bin/mkdir"
TEE = "/usr/bin/tee"
SHELL = "/bin/sh"
PARTS = ("frame", "processes", "lease", "exports", "way_back", "verbs")
"""Files of `agent_script/`, in order; together they are the script."""

_GONE = 3
_LOST = 70
_HELD = 71
_MASKED = 72
_LOCKED = 73
_REFUSED = 74
_INSTALLS = 4  # somebody who leaves the host may take it away at once
_WORD = re.compile(r"[A-Za-z0-9._:@+-]+", re.ASCII)


def folder_name(unit: str) -> str:
    """Name of the unit's folder under /run/autotune: the unit's name; characters that mean
    something to sudoers or to a unit file are written `+` and two hexadecimal digits."""
    return "".join(
        character
        if character.isascii() and (character.isalnum() or character in "._@-")
        else "".join(f"+{byte:02x}" for byte in character.encode())
        for character in unit
    )


def _escaped(name: str) -> str:
    """`systemd-escape NAME` for a folder name (systemd.unit(5), "String Escaping")."""
    return "".join(
        character
        if character.isascii()
        and (character.isalnum() or character in ":_" or (character == "." and position))
        else "".join(f"\\x{byte:02x}" for byte in character.encode())
        for position, character in enumerate(name)
    )


def restore_units(unit: str) -> tuple[str, str]:
    """Names of the service that restores the unit and of the timer that starts it."""
    instance = _escaped(folder_name(unit))
    return f"autotune-restore@{instance}.service", f"autotune-restore@{instance}.timer"


def agent_path(unit: str) -> str:
    """Where the agent lies on the host."""
    return f"{FOLDER}/{folder_name(unit)}/agent"


def agent_script(unit: str) -> bytes:
    """Text of the agent for one unit."""
    folder = resources.files("autotune.systemd") / "agent_script"
    text = "".join((folder / f"{part}.sh").read_text(encoding="utf-8") for part in PARTS)
    for mark, value in (
        ("@UNIT@", shlex.quote(unit)),
        ("@NAME@", folder_name(unit)),
        ("@FIELDS@", FIELDS),
        ("@EXPORT@", EXPORT_NAME),
    ):
        text = text.replace(mark, value)
    return text.encode()


def sudoers_lines(unit: str, user: str) -> list[str]:
    """The lines that let `user` tune `unit` without being root.

    Paths and words are fixed and there is no wildcard.  Who may write the agent and run it is as
    good as root, as is everybody who may write the command line of a service of root.
    """
    path = agent_path(unit)
    folder = path.rpartition("/")[0]
    return [
        f"{user} ALL=(root) NOPASSWD: {command}"
        for command in (
            f"{MKDIR} -p -m 0700 {folder}",
            f"{TEE} {path}",
            f"{SHELL} {path}",
        )
    ]


@dataclass(frozen=True, slots=True)
class Held:
    """A lease as it lies on the host.

    Attributes:
        restoring: Whether the way back has begun: then nobody may change the host.
        record: What the holder wrote down of the original, for the way back.
        failure: Why the restore has not ended yet, "" when nothing went wrong.
    """

    lease_id: str
    claim_id: str
    restoring: bool
    owner: Owner
    record: Mapping[str, Any]
    failure: str


class Agent:
    """Calls the agent of one unit on one host; installs it when it is not there.

    Args:
        user: Login name for the sudoers hint; "" when the login is root's.
    """

    def __init__(self, connector: Connector, *, unit: str, user: str) -> None:
        self._connector = connector
        self._unit = unit
        self._user = user
        self._path = agent_path(unit)
        self._checked = False
        self._boot_id = b""
        self._lock = threading.Lock()

    def call(
        self,
        verb: str,
        *words: str,
        lease: str = "-",
        claim: str = "-",
        payload: bytes = b"",
        deadline_s: float = 60.0,
        cap_bytes: int = CAP_BYTES,
    ) -> bytes:
        """Run one verb.

        Raises:
            LeaseLost: The lease or the claim is not the newest one; nothing was changed.
            DropInConflict: Our drop-in is masked.
            HostBusy: Another command holds the host's lock, or somebody the lease.
            ProcessLookupError: The verb asked for a process that is gone.
            UnitError: The host refused the change.
            CommandError: The agent cannot be run at all.
        """
        first = self._first_line(verb, lease, claim, *words)
        if lease == "-":
            self._prepare()
        completed = self._run(first + payload, deadline_s=deadline_s, cap_bytes=cap_bytes)
        if _not_there(completed):
            if lease != "-":  # the agent goes away with the lease
                raise LeaseLost(f"{self._connector.host}: {self._why_gone()}")
            # Somebody freed the host meanwhile and took the agent away: it had not run.
            self._checked = False
            self._prepare()
            completed = self._run(first + payload, deadline_s=deadline_s, cap_bytes=cap_bytes)
        return self._judged(completed)

    def follow(self, invocation_id: str, cursor: str) -> LineStream:
        """Start `journalctl --follow` for one start."""
        self._prepare()
        first = self._first_line("follow", "-", "-", invocation_id)
        return self._connector.stream(self._argv(), input=first + cursor.encode() + b"\n")

    def follow_file(self, path: str, offset_bytes: int) -> LineStream:
        """Start to follow a file at a byte offset; carriage returns come as line ends."""
        self._prepare()
        first = self._first_line("follow-file", "-", "-", str(offset_bytes))
        return self._connector.stream(self._argv(), input=first + path.encode() + b"\n")

    def tail_of_file(self, path: str, offset_bytes: int, *, lines: int) -> list[str]:
        """The last lines of a file behind a byte offset; none without a path."""
        if not path:
            return []
        payload = path.encode() + b"\n"
        answer = self.call("tail-file", str(offset_bytes), str(lines), payload=payload)
        return answer.decode(errors="replace").splitlines()

    def tail(self, invocation_id: str, cursor: str, *, lines: int) -> list[bytes]:
        """The last entries of one start, as journalctl's JSON lines."""
        payload = cursor.encode() + b"\n"
        return self.call("tail", invocation_id or "-", str(lines), payload=payload).splitlines()

    def holder(self, *, install: bool = True) -> Held | None:
        """Who holds the lease, None when it is free.

        Args:
            install: False leaves a host without agent as it is; without agent there is no lease.
        """
        if install:
            answer = self.call("holder")
        else:
            completed = self._run(self._first_line("holder", "-", "-"))
            if _not_there(completed):
                return None
            answer = self._judged(completed)
        return _held(answer)

    def acquire(
        self, lease_id: str, facts: Mapping[str, str], owner: Owner, record: object
    ) -> Held | None:
        """Take the lease and arm the dead man's switch; None when it is ours now, else who has it.

        Args:
            facts: What the way back needs to know, as `agent_script/lease.sh` names it.
        """
        lines = [f"{key} {value}" for key, value in facts.items()]
        lines += [f"owner {_packed(asdict(owner))}", f"record {_packed(record)}"]
        payload = ("\n".join(lines) + "\n").encode()
        self._prepare()
        text = self._first_line("acquire", lease_id, "-") + payload
        completed = self._run(text)
        if _not_there(completed):  # somebody who only looked has taken it away as he left
            self._checked = False
            self._prepare()
            completed = self._run(text)
        if completed.exit_status == _HELD:
            return _held(completed.stdout)
        self._judged(completed)
        return None

    def leave(self) -> None:
        """Take the agent away when nobody holds the lease."""
        with self._lock:
            self._checked = False
        completed = self._run(self._first_line("leave", "-", "-"))
        if not _not_there(completed):
            self._judged(completed)

    @property
    def installed(self) -> bool:
        """Whether this object has seen the agent on the host."""
        return self._checked

    def _argv(self) -> list[str]:
        return [*self._sudo(), SHELL, self._path]

    def _sudo(self) -> list[str]:
        return ["sudo", "-n"] if self._user else []

    def _first_line(self, *words: str) -> bytes:
        for word in words:
            if not _WORD.fullmatch(word):
                raise ValueError(f"{word!r} is no word for the agent")
        return (" ".join(words) + "\n").encode()

    def _run(
        self, text: bytes, *, deadline_s: float = 60.0, cap_bytes: int = CAP_BYTES
    ) -> Completed:
        return self._connector.run(
            self._argv(), input=text, deadline_s=deadline_s, cap_bytes=cap_bytes
        )

    def _prepare(self) -> None:
        """Make sure that the agent of this version is there; one of another version is left where
        it is while somebody holds the host with it."""
        with self._lock:
            if self._checked:
                return
            script = agent_script(self._unit)
            wanted = hashlib.sha256(script).hexdigest().encode()
            for _ in range(_INSTALLS):
                if self._says_hello() == wanted or self.holder(install=False) is not None:
                    break
                folder = self._path.rpartition("/")[0]
                self._allowed([MKDIR, "-p", "-m", "0700", folder], b"")
                self._allowed([TEE, self._path], script)
            else:
                raise UnitError(f"{self._path} on {self._connector.host} is not what we wrote")
            self._checked = True

    def _says_hello(self) -> bytes:
        """Hash of the agent that is there, empty when there is none."""
        completed = self._run(self._first_line("hello", "-", "-"))
        if _not_there(completed):
            return b""
        script, _, self._boot_id = self._judged(completed).strip().partition(b"\n")
        return script

    def _why_gone(self) -> str:
        if self._boot_id:
            now = self._connector.run(["cat", "/proc/sys/kernel/random/boot_id"]).stdout.strip()
            if now not in (b"", self._boot_id):
                return "the host was rebooted, which ended the lease and every change with it"
        return "no lease holds there any more"

    def _allowed(self, argv: list[str], text: bytes) -> None:
        self._judged(self._connector.run([*self._sudo(), *argv], input=text))

    def _judged(self, completed: Completed) -> bytes:
        said = f"{self._connector.host}: {_one_sentence(completed.stderr_tail)}"
        match completed.exit_status:
            case 0:
                if completed.truncated:
                    raise TargetError(f"{self._connector.host}: the agent's answer is too long")
                return completed.stdout
            case status if status == _GONE:
                raise ProcessLookupError(said)
            case status if status == _LOST:
                raise LeaseLost(said)
            case status if status == _MASKED:
                raise DropInConflict(said)
            case status if status in (_LOCKED, _HELD):
                raise HostBusy(said)
            case status if status == _REFUSED:
                raise UnitError(said)
        hint = ""
        if self._user and b"sudo:" in completed.stderr:
            hint = "sudoers needs: " + "; ".join(sudoers_lines(self._unit, self._user))
        raise CommandError(completed.argv, completed.exit_status, completed.stderr_tail, hint=hint)


def _not_there(completed: Completed) -> bool:
    """Whether the shell found no agent, or half of one: dash ends with 2, bash with 127 or 2.

    A shell reads the whole agent before it runs anything of it, so nothing was done.
    """
    return completed.exit_status in (2, 127) and b"sudo:" not in completed.stderr


def _one_sentence(errors: str) -> str:
    """What the agent says, which is the last line, then what its commands said before."""
    *details, said = errors.splitlines() or ["no message"]
    return ": ".join([said, "; ".join(details)] if details else [said])


def _held(answer: bytes) -> Held | None:
    lines = [*answer.decode().split("\n"), "", "", ""]
    state, *words = lines[0].split(" ")
    if state == "free":
        return None
    try:
        owner, record, failure = (base64.b64decode(line) for line in lines[1:4])
        return Held(
            lease_id=words[0],
            claim_id=words[1] if len(words) > 1 else "",
            restoring=state == "restoring",
            owner=Owner(**json.loads(owner)),
            record=json.loads(record),
            failure=failure.decode(errors="replace"),
        )
    except (ValueError, TypeError, IndexError) as error:
        raise UnitError(f"the lease on the host cannot be read: {error}") from error


def _packed(value: object) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()
