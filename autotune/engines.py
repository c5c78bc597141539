"""The engine behind a service: who reads its log and asks it, and what ties the two together.

SGLang is shipped.  Another engine is a plug-in of the group `autotune.engines` whose entry point
names an `Engine`; docs/how-to.md has one for vLLM.  What is common to servers on PyTorch, argparse
and uvicorn is not asked of it: ends of a process are classified by `autotune.sglang.failure` from
the words of those, and load is measured by the OpenAI interface.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from autotune.engine_words import SGLANG_COUNTERS, SGLANG_LIMITS, CounterNames, LimitFlags
from autotune.errors import ConfigError
from autotune.plugins import Group, points
from autotune.plugins import loaded as load_point
from autotune.sglang.log import StartupLog
from autotune.sglang.server import CacheFlush, Generation, ServerInfo, SglangServer

if TYPE_CHECKING:
    from autotune.hosts import HostPlan

__all__ = ["SGLANG", "Engine", "EngineServer", "engine_of", "new_log", "open_server"]


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
    """

    name: str
    open_server: Callable[..., EngineServer]
    new_log: Callable[..., StartupLog]
    nonce_flag: str
    nonce_replaces: bool = False
    tells_seed: bool = True
    limits: LimitFlags = field(default_factory=LimitFlags)
    counters: CounterNames = field(default_factory=CounterNames)


SGLANG = Engine(
    "sglang",
    SglangServer,
    StartupLog,
    "--weight-version",
    limits=SGLANG_LIMITS,
    counters=SGLANG_COUNTERS,
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
    return engine


def open_server(plan: HostPlan) -> EngineServer:
    """The server of a host, with its keys."""
    return engine_of(plan.engine).open_server(
        plan.base_url, api_key=plan.api_key, admin_api_key=plan.admin_api_key
    )


def new_log(plan: HostPlan, secrets: Iterable[str]) -> StartupLog:
    """The log of one start on a host, empty."""
    return engine_of(plan.engine).new_log(secrets=tuple(secrets))
