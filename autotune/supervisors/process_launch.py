"""What the next start of a `process` supervisor's service runs: `launch.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune.errors import ConfigError, TargetError
from autotune.supervisors.base import Launch
from autotune.supervisors.process_state import write_json

__all__ = ["NextStart", "read_next_start", "write_next_start"]


@dataclass(frozen=True, slots=True)
class NextStart:
    """Argument vector, variables that are set, and variables that the service must not have."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()

    def variables(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The whole environment."""
        both = {**inherited, **self.environment}
        return {name: value for name, value in both.items() if name not in self.unset}


def write_next_start(path: Path, launch: Launch) -> None:
    """Write down what the next start runs, and read it back.

    Raises:
        ConfigError: No word, or one with a NUL character, which no process can be given.
        TargetError: The file does not hold what was written.
    """
    words = (*launch.texts(), *launch.environment, *launch.environment.values())
    if not launch.argv or any("\0" in word for word in words):
        raise ConfigError(
            f"{launch.texts()!r} is no command line", hint="at least one word, none with a NUL"
        )
    wanted = NextStart(launch.texts(), dict(launch.environment), launch.unset)
    stored = {"argv": wanted.argv, "environment": wanted.environment, "unset": wanted.unset}
    write_json(path, stored)
    if read_next_start(path) != wanted:
        raise TargetError(f"{path} does not hold what was written into it")


def read_next_start(path: Path) -> NextStart | None:
    """What the next start runs, None for the command as it was given."""
    try:
        stored = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return NextStart(tuple(stored["argv"]), stored["environment"], tuple(stored["unset"]))
