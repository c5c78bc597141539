"""Parameters -> the command line and the variables of one start.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from autotune.definition_files import FixedFlag
from autotune.errors import StudyError, UnitRefused
from autotune.proof import Nonce, ParameterIntent
from autotune.sglang.flags import get_flag, set_flag
from autotune.sglang.server import ServerInfo, spelling
from autotune.space import Parameter, ParameterValue, SearchSpace, Values, value_to_file
from autotune.supervisors.base import Launch, Original, Word

__all__ = ["Recipe", "make_recipe"]

NONCE_FLAG = "--weight-version"
SEED_FLAG = "--random-seed"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a host's command line is made from parameters.

    Attributes:
        reference: The live command line with the study's fixed flags laid over it.
        parameters: With the flag spelling that this engine knows first.
        nonce_flag: Flag that carries the nonce; empty when the engine's random seed must serve.
    """

    reference: Launch
    parameters: tuple[Parameter, ...]
    nonce_flag: str

    def nonce(self, value: str) -> Nonce:
        return Nonce(self.nonce_flag, value if self.nonce_flag else "")

    def launch(self, values: Values, nonce: Nonce | None) -> Launch:
        """The whole command line for one point; without `nonce` it is fit for export."""
        argv, environment = self.reference.argv, dict(self.reference.environment)
        for parameter in self.parameters:
            text = _text(values[parameter.name])
            if parameter.flag:
                argv = set_flag(argv, parameter.flag, parameter.aliases, text)
            elif text is not None:
                environment[parameter.env] = text
        if nonce is not None and nonce.flag:
            argv = set_flag(argv, nonce.flag, (), nonce.value)
        return Launch(argv, environment)

    def intents(self, values: Values) -> tuple[ParameterIntent, ...]:
        """What the proof must find for one point."""
        return tuple(
            ParameterIntent(p.name, values[p.name], p.flag, p.aliases, p.env, p.proof)
            for p in self.parameters
        )


def make_recipe(
    space: SearchSpace,
    fixed_flags: Iterable[FixedFlag],
    original: Original,
    *,
    host: str,
    info: ServerInfo | None,
) -> Recipe:
    """Find where each tuned flag lives and lay the fixed flags over the live command line.

    Args:
        info: What the live server says of itself; None when it does not run.

    Raises:
        UnitRefused: A tuned flag lives where it cannot be changed safely.
        StudyError: `deployed` in the definition is not what runs.
    """
    argv = original.launch.argv
    for parameter in space.parameters:
        _require_home(parameter, original)
        _require_deployed(parameter, original, host)
    for fixed in fixed_flags:
        argv = set_flag(argv, fixed.flag, (), fixed.value if fixed.value is not None else True)
    unit_sets_it = get_flag(argv, NONCE_FLAG, ()) is not None
    known = info is None or spelling(info, (NONCE_FLAG,)) is not None
    if (unit_sets_it or not known) and get_flag(argv, SEED_FLAG, ()) is not None:
        raise UnitRefused(
            f"{host}: the unit pins {SEED_FLAG} and {NONCE_FLAG} is not free, so nothing tells one "
            "start from another",
            hint=f"take {SEED_FLAG} out of the unit",
        )
    return Recipe(
        reference=replace(original.launch, argv=argv),
        parameters=tuple(_spelled(parameter, info) for parameter in space.parameters),
        nonce_flag=NONCE_FLAG if known and not unit_sets_it else "",
    )


def _text(value: ParameterValue) -> str | None:
    return None if value is None else str(value)


def _spelled(parameter: Parameter, info: ServerInfo | None) -> Parameter:
    """The parameter with the flag spelling first that the running engine knows."""
    if info is None or not parameter.aliases:
        return parameter
    spellings = (parameter.flag, *parameter.aliases)
    known = spelling(info, spellings) or parameter.flag
    return replace(parameter, flag=known, aliases=tuple(s for s in spellings if s != known))


def _require_home(parameter: Parameter, original: Original) -> None:
    """A flag that the process has but the unit's own words have not hides in a variable."""
    if not parameter.flag or not original.live_argv:
        return
    own = get_flag(original.launch.argv, parameter.flag, parameter.aliases)
    live = get_flag(_words(original.live_argv), parameter.flag, parameter.aliases)
    if own is None and live is not None:
        raise UnitRefused(
            f"{parameter.flag} {live} comes from a variable that the unit expands, "
            "not from the words of ExecStart",
            hint="write the flag itself into ExecStart, then run again",
        )


def _require_deployed(parameter: Parameter, original: Original, host: str) -> None:
    """What the definition calls deployed must be what runs (or would run)."""
    if parameter.flag:
        words = _words(original.live_argv) if original.live_argv else original.launch.argv
        running = get_flag(words, parameter.flag, parameter.aliases)
    else:
        running = original.live_environ.get(parameter.env)
    if not _means(running, parameter.deployed):
        raise StudyError(
            f"parameters.{parameter.name}: deployed = {value_to_file(parameter.deployed)}, but "
            f"{host} runs {running if running is not None else 'none'}",
            hint="write into the definition what runs, or deploy what the definition says",
        )


def _means(text: str | None, value: ParameterValue) -> bool:
    """Whether a word of the command line is this value: 0.90 is 0.9."""
    if text is None or value is None or isinstance(value, str):
        return text == value
    try:
        return float(text) == float(value)
    except ValueError:
        return False


def _words(texts: tuple[str, ...]) -> tuple[Word, ...]:
    return tuple(Word(text) for text in texts)
