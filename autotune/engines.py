"""The engine behind a service: who reads its log and asks it, and what ties the two together.

SGLang is shipped.  Another engine is a plug-in of the group `autotune.engines` whose entry point
names an `Engine`; docs/how-to.md has one for vLLM.  What is common to servers on PyTorch, argparse
and uvicorn is not asked of it: ends of a process are classified by `autotune.sglang.failure` from
the words of those, and load is measured by the OpenAI interface.  `autotune init` asks every
installed engine whether a unit is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from autotune.engine_units import UnitReader
from autotune.engine_words import SGLANG_COUNTERS, SGLANG_LIMITS, CounterNames, LimitFlags
from autotune.errors import ConfigError, UnitRefused
from autotune.plugins import Group, points, require_known
from autotune.plugins import loaded as load_point
from autotune.sglang.log import StartupLog
from autotune.sglang.server import CacheFlush, Generation, ServerInfo, SglangServer
from autotune.sglang.unit import SGLANG_UNITS
from autotune.supervisors.base import Word

if TYPE_CHECKING:
    from autotune.hosts import HostPlan

__all__ = [
    "SGLANG",
    "Engine",
    "EngineServer",
    "engine_of",
    "engines_to_ask",
    "new_log",
    "open_server",
    "recognised",
    "require_units",
]


class EngineServer(AbstractContextManager["EngineServer"], Protocol):
    """A client for the engine's own answers.  Use as a context manager.

    Every method raises ConnectError when the server refuses or drops the connection, CommandTimeout
    when it does not answer in time, MeasurementError when its answer is unusable.
    """

    def server_info(self) -> ServerInfo:
        """What the server says of its settings, by the names of its flags, `_` for `-`."""
        ...

    def models(self) -> tuple[str, ...]:
        """Names under which it may be asked."""
        ...

    def generate(self, text: str, *, max_new_tokens: int) -> Generation:
        """One greedy answer, not streamed; `weight_version` is the nonce as the answer has it."""
        ...

    def flush_cache(self) -> CacheFlush:
        """Empty the prefix cache."""
        ...


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine.

    Attributes:
        open_server: (base_url, api_key=, admin_api_key=) -> `EngineServer`.
        new_log: (secrets=) -> the log of one start; a `StartupLog` whose `prove` knows the
            engine's lines.
        nonce_flag: Flag with a text of our own that the log shows and every answer carries.
        nonce_replaces: Whether the nonce takes the place of the flag's value in the unit, because
            nothing else would tie log and answer together; an export puts the unit's value back.
        tells_seed: Whether log and answer show the engine's own `random_seed`, which then serves
            where the nonce may not be used.
        limits: Flags that bound requests and context, for the checks before a study.
        counters: Its counters, for the accept length and the audits of a bucket.
        units: How `init` reads its units; None where definitions are written by hand.
        title: Its name as people write it; "" is `name`.
    """

    name: str
    open_server: Callable[..., EngineServer]
    new_log: Callable[..., StartupLog]
    nonce_flag: str
    nonce_replaces: bool = False
    tells_seed: bool = True
    limits: LimitFlags = field(default_factory=LimitFlags)
    counters: CounterNames = field(default_factory=CounterNames)
    units: UnitReader | None = None
    title: str = ""

    @property
    def shown(self) -> str:
        """Its name for people."""
        return self.title or self.name


SGLANG = Engine(
    "sglang",
    SglangServer,
    StartupLog,
    "--weight-version",
    limits=SGLANG_LIMITS,
    counters=SGLANG_COUNTERS,
    units=SGLANG_UNITS,
    title="SGLang",
)


def engine_of(name: str) -> Engine:
    """The engine called `name`.

    Raises:
        ConfigError: No installed package gives it, or it is no `Engine`.
    """
    if name == SGLANG.name:
        return SGLANG
    found = [point for point in points(Group.ENGINES) if point.name == name]
    if not found:
        raise ConfigError(
            f"no installed package gives the engine {name!r}", hint="install the package that does"
        )
    engine = load_point(found[0])
    if not isinstance(engine, Engine):
        raise ConfigError(
            f"plug-in {found[0].value!r} of {Group.ENGINES} is no autotune.engines.Engine",
            hint="its entry point must name one",
        )
    return replace(engine, name=name)  # as a study names it


def engines_to_ask(name: str = "") -> Mapping[str, Engine]:
    """Every installed engine by its name; with `name` that one alone, and no other is loaded.

    Raises:
        ConfigError: It is not installed, does not say how its units are read, has a name that is
            taken, or cannot be loaded.
    """
    if name:
        engine = engine_of(name)
        require_units(engine)
        return {name: engine}
    found = {SGLANG.name: SGLANG}
    for point in points(Group.ENGINES):
        try:
            require_known(point.name, Group.ENGINES, (SGLANG.name,))
        except ValueError as error:
            raise ConfigError(str(error), hint="remove a package that has it") from error
        found[point.name] = engine_of(point.name)
    return found


def require_units(engine: Engine) -> UnitReader:
    """How an engine reads its units.

    Raises:
        ConfigError: It does not say.
    """
    if engine.units is None:
        raise ConfigError(
            f"the engine {engine.name!r} does not say how its units are read",
            hint="write the definition by hand, see docs/how-to.md; its package can offer `units`",
        )
    return engine.units


def recognised(where: str, argv: Sequence[Word], engines: Mapping[str, Engine]) -> Engine:
    """The engine whose command line this is.

    Args:
        where: Host and unit, for people.
        engines: Those of `engines_to_ask`.

    Raises:
        UnitRefused: None of them recognises it, or more than one.
    """
    able = {name: engine.units for name, engine in engines.items() if engine.units is not None}
    mine = [name for name, units in able.items() if units.recognises(argv)]
    if len(mine) == 1:
        return engines[mine[0]]
    shown = " ".join(word.text for word in argv[:3]) or "nothing"
    if mine:
        raise UnitRefused(
            f"{where} runs {shown}, which more than one engine recognises: {', '.join(mine)}",
            hint=f"say which one it is: {' or '.join(f'--engine {name}' for name in mine)}",
        )
    mute = [name for name in engines if name not in able]
    raise UnitRefused(
        f"{where} runs {shown}, which no installed engine recognises; asked: {', '.join(able)}"
        + (f"; {', '.join(mute)} cannot be asked" if mute else ""),
        hint="name the unit whose ExecStart runs the engine; --engine NAME where a script hides "
        "it; else the definition is written by hand, see docs/how-to.md",
    )


def open_server(plan: HostPlan) -> EngineServer:
    """The server of a host, with its keys."""
    return engine_of(plan.engine).open_server(
        plan.base_url, api_key=plan.api_key, admin_api_key=plan.admin_api_key
    )


def new_log(plan: HostPlan, secrets: Iterable[str]) -> StartupLog:
    """The log of one start on a host, empty."""
    return engine_of(plan.engine).new_log(secrets=tuple(secrets))
