"""What is written down of a unit before the first change, on the host and for other processes.

The environment of the running process is left out: it may hold secrets and is not needed to go
back.  Of the variables that the unit sets those whose names speak of a secret are left out; the
others are needed to find flags in them when a killed tuner's study goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from autotune.errors import UnitError
from autotune.sglang.masking import is_secret_name
from autotune.supervisors.base import Launch, Original, Passage, Word
from autotune.systemd.facts import ExecCommand

__all__ = ["UnitRecord"]


@dataclass(frozen=True, slots=True)
class UnitRecord:
    """A unit as it was found.

    Attributes:
        command: Its one command, with program and prefixes.
        listen: `cgroup` when the listener belonged to the unit's own processes, `any` when it was
            another's (a container engine's), which the way back then accepts too.
        from_files: Variables that files of `EnvironmentFile=` set.
    """

    original: Original
    command: ExecCommand
    listen: str
    from_files: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For the host's lease folder."""
        original = self.original
        return {
            "argv": [[word.text, word.ours] for word in original.launch.argv],
            "live_argv": list(original.live_argv),
            "active": original.active,
            "enabled": original.enabled,
            "files": dict(original.files),
            "fragment": original.fragment,
            "taken_at_s": original.taken_at_s,
            "path": self.command.path,
            "exec_argv": list(self.command.argv),
            "flags": sorted(self.command.flags),
            "listen": self.listen,
            "from_files": list(self.from_files),
            "passage": asdict(original.launch.passage),
            "planned_argv": list(original.planned_argv),
            "environ": {k: v for k, v in original.environ.items() if not is_secret_name(k)},
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> UnitRecord:
        """From the host's lease folder.

        Raises:
            UnitError: Another program wrote it.
        """
        try:
            passage = dict(stored["passage"])
            before = passage.pop("before")
            original = Original(
                launch=Launch(
                    tuple(Word(text, ours) for text, ours in stored["argv"]),
                    passage=Passage(tuple(before), **passage),
                ),
                live_argv=tuple(stored["live_argv"]),
                live_environ={},
                active=stored["active"],
                enabled=stored["enabled"],
                files=dict(stored["files"]),
                fragment=stored["fragment"],
                taken_at_s=stored["taken_at_s"],
                planned_argv=tuple(stored["planned_argv"]),
                environ=dict(stored["environ"]),
            )
            command = ExecCommand(
                stored["path"], tuple(stored["exec_argv"]), frozenset(stored["flags"])
            )
            return cls(original, command, stored["listen"], tuple(stored["from_files"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UnitError(f"the record on the host cannot be read: {error!r}") from error
