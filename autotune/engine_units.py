"""What `autotune init` asks an engine of a unit: is it yours, and what of it is worth tuning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.sglang.flags import get_flag
from autotune.sglang.server import ServerInfo, setting
from autotune.space import ParameterValue
from autotune.supervisors.base import Word

__all__ = ["Algorithm", "Knob", "LiveUnit", "UnitFacts", "UnitReader"]


@dataclass(frozen=True, slots=True)
class Knob:
    """One flag worth tuning.

    Attributes:
        low, high: Range of an int; `choices` is empty then.
        choices: Values of a categorical; None leaves the flag out.
        why, source: For the definition.
    """

    name: str
    flag: str
    why: str
    source: str
    low: int = 1
    high: int = 1
    choices: tuple[ParameterValue, ...] = ()
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One speculative algorithm.

    Attributes:
        title: Of the algorithm, for people.
        knobs: What is tuned, in the order of their effect.
        constraints: Names of the rules between the knobs.
        leaves_alone: What is not tuned although it could be set, and why.
    """

    name: str
    title: str
    knobs: tuple[Knob, ...]
    constraints: tuple[str, ...] = ()
    leaves_alone: str = ""


@dataclass(frozen=True, slots=True)
class LiveUnit:
    """What was read of one unit.

    Attributes:
        argv: Words of the running process; of the unit when it does not run.
        info: What the server says of itself; None when it does not answer.
    """

    host: str
    unit: str
    base_url: str
    argv: tuple[Word, ...]
    info: ServerInfo | None
    ssh_config: str = ""
    api_key_env: str = ""

    def flag(self, *names: str) -> str | None:
        """The value of a flag under any of its names."""
        return get_flag(self.argv, names[0], names[1:])

    def number(self, *names: str) -> int | None:
        """A whole number: by the engine's answer, else by the command line."""
        if self.info is not None:
            told = setting(self.info, names[0], names[1:])
            if isinstance(told, int) and not isinstance(told, bool):
                return told
        text = self.flag(*names)
        return int(text) if text is not None and text.isdecimal() else None

    def told(self, key: str) -> str | None:
        """A text by the engine's answer."""
        value = self.info.merged.get(key) if self.info is not None else None
        return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class UnitFacts:
    """What an engine makes of one unit of its own.

    Attributes:
        algorithm: What is tuned, without the values that this server would refuse.
        model: For people.
        gpus: GPUs of one host.
        requests: Requests that the server admits at once; None when nobody knows.
        context_tokens: Longest context, tokens; None when nobody knows.
    """

    algorithm: Algorithm
    model: str = "a model"
    gpus: int = 1
    requests: int | None = None
    context_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class UnitReader:
    """How an engine reads units.

    Attributes:
        recognises: Whether a command line starts this engine, by its words alone.
        read: What of a recognised unit can be tuned.  Raises `UnitRefused` when nothing can.
        default_port: The port when the command line has no `--port`.
    """

    recognises: Callable[[Sequence[Word]], bool]
    read: Callable[[LiveUnit], UnitFacts]
    default_port: int
