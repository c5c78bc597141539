"""Parameters -> the command line and the variables of one start.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from autotune.definition_files import FixedFlag
from autotune.engines import SGLANG, Engine
from autotune.errors import StudyError, UnitRefused
from autotune.homes import Flag, nearest_flag, resolved
from autotune.passage import edited, read_words
from autotune.proof import Nonce, ParameterIntent
from autotune.sglang.flags import get_flag, set_flag
from autotune.sglang.server import ServerInfo, setting, spelling
from autotune.space import Parameter, ParameterValue, SearchSpace, Values, value_to_file
from autotune.supervisors.base import Launch, Original, Word

__all__ = ["Recipe", "make_recipe"]

NONCE_FLAG = SGLANG.nonce_flag
SEED_FLAG = "--random-seed"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a host's command line is made from parameters.

    Attributes:
        reference: The live command line with the study's fixed flags laid over it.
        parameters: With the flag spelling that this engine knows first.
        nonce_flag: Flag that carries the nonce; empty when the engine's random seed must serve.
        known_flags: All flags of the engine, as far as it says; for abbreviated ones.
    """

    reference: Launch
    parameters: tuple[Parameter, ...]
    nonce_flag: str
    known_flags: frozenset[str] = frozenset()

    def nonce(self, value: str) -> Nonce:
        return Nonce(self.nonce_flag, value if self.nonce_flag else "")

    def launch(self, values: Values, nonce: Nonce | None) -> Launch:
        """The whole command line for one point; without `nonce` it is fit for export."""
        environment = dict(self.reference.environment)
        unset: list[str] = []

        def change(words: tuple[Word, ...]) -> tuple[Word, ...]:
            for p in self.parameters:
                if p.flag:
                    text = _text(values[p.name])
                    words = set_flag(words, p.flag, p.aliases, text, known_flags=self.known_flags)
            if nonce is not None and nonce.flag:
                words = set_flag(words, nonce.flag, (), nonce.value)
            return words

        for parameter in self.parameters:
            text = _text(values[parameter.name])
            if parameter.env and text is None:
                unset.append(parameter.env)
            elif parameter.env and text is not None:
                environment[parameter.env] = text
        argv = edited(self.reference.argv, self.reference.passage, change)
        return replace(self.reference, argv=argv, environment=environment, unset=tuple(unset))

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
    engine: Engine = SGLANG,
) -> Recipe:
    """Find where each tuned flag lives and lay the fixed flags over the live command line.

    Args:
        info: What the live server says of itself; None when it does not run.

    Raises:
        UnitRefused: A tuned flag lives where it cannot be changed safely.
        StudyError: `deployed` in the definition is not what runs.
    """
    fixed_flags = tuple(fixed_flags)
    known_flags = _known_flags(space, info)
    passage = original.launch.passage
    try:
        argv = resolved(original, _flags(space, fixed_flags), known_flags=known_flags)
    except UnitRefused as error:
        raise UnitRefused(f"{host}: {error.message}", hint=error.hint) from error
    for parameter in space.parameters:
        _require_deployed(parameter, original, read_words(argv, passage), host, known_flags, info)

    def lay(words: tuple[Word, ...]) -> tuple[Word, ...]:
        for fixed in fixed_flags:
            value = fixed.value if fixed.value is not None else True
            words = set_flag(words, fixed.flag, (), value, known_flags=known_flags)
        return words

    argv = edited(argv, passage, lay)
    words = read_words(argv, passage)
    flag = engine.nonce_flag
    free = engine.nonce_replaces or get_flag(words, flag, ()) is None
    known = info is None or spelling(info, (flag,)) is not None
    if not (free and known) and get_flag(words, SEED_FLAG, ()) is not None:
        raise UnitRefused(
            f"{host}: the unit pins {SEED_FLAG} and {flag} is not free, so nothing tells one "
            "start from another",
            hint=f"take {SEED_FLAG} out of the unit",
        )
    return Recipe(
        reference=replace(original.launch, argv=argv),
        parameters=tuple(_spelled(parameter, info) for parameter in space.parameters),
        nonce_flag=flag if known and free else "",
        known_flags=known_flags,
    )


def _flags(space: SearchSpace, fixed_flags: tuple[FixedFlag, ...]) -> tuple[Flag, ...]:
    return (
        *(Flag(p.flag, p.aliases, None in p.choices) for p in space.parameters if p.flag),
        *(Flag(fixed.flag) for fixed in fixed_flags if fixed.value is not None),
    )


def _known_flags(space: SearchSpace, info: ServerInfo | None) -> frozenset[str]:
    """Every flag that the engine names by its settings; empty when it does not answer."""
    if info is None:
        return frozenset()
    named = {f"--{key.replace('_', '-')}" for key in info.merged}
    return frozenset(named | {s for p in space.parameters for s in (p.flag, *p.aliases) if s})


def _text(value: ParameterValue) -> str | None:
    return None if value is None else str(value)


def _spelled(parameter: Parameter, info: ServerInfo | None) -> Parameter:
    """The parameter with the flag spelling first that the running engine knows."""
    if info is None or not parameter.aliases:
        return parameter
    spellings = (parameter.flag, *parameter.aliases)
    known = spelling(info, spellings) or parameter.flag
    return replace(parameter, flag=known, aliases=tuple(s for s in spellings if s != known))


def _require_deployed(
    parameter: Parameter,
    original: Original,
    words: tuple[Word, ...],
    host: str,
    known_flags: frozenset[str],
    info: ServerInfo | None,
) -> None:
    """What the definition calls deployed must be what runs (or would run)."""
    live = tuple(Word(t) for t in original.live_argv or original.planned_argv) or words
    if parameter.flag:
        running = get_flag(live, parameter.flag, parameter.aliases, known_flags=known_flags)
        carrier = parameter.flag
    else:
        running = (original.live_environ or original.environ).get(parameter.env)
        carrier = parameter.env
    if _means(running, parameter.deployed):
        return
    chosen = ""
    if running is None and parameter.flag and info is not None:
        # The flag is left out, and the engine has chosen for itself.
        told = setting(info, parameter.flag, parameter.aliases)
        if isinstance(told, int | float | str):
            if _means(str(told), parameter.deployed):
                return
            chosen = str(told)
    close = nearest_flag(live, parameter.flag) if parameter.flag and running is None else ""
    missing = [path for path, digest in original.files.items() if digest == "missing"]
    raise StudyError(
        f"parameters.{parameter.name}: deployed = {value_to_file(parameter.deployed)}, but "
        f"{host} runs {running if running is not None else 'none'} ({carrier}"
        + (f"; the engine chose {chosen}" if chosen else "")
        + (f"; the nearest there is {close}" if close else "")
        + (f"; {missing[0]} is missing" if missing else "")
        + ")",
        hint="write into the definition what runs, or deploy what the definition says; after "
        "`autotune export --apply`, `--undo` takes it back and `init --name` begins anew from it",
    )


def _means(text: str | None, value: ParameterValue) -> bool:
    """Whether a word of the command line is this value: 0.90 is 0.9."""
    if text is None or value is None or isinstance(value, str):
        return text == value
    try:
        return float(text) == float(value)
    except ValueError:
        return False
