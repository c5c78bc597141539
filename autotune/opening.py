"""Open a study's hosts: read everything first, change nothing until all of it fits."""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from autotune.checking.findings import CheckState
from autotune.checking.limits import limit_findings
from autotune.config import StudyConfig
from autotune.engines import engine_of, open_server
from autotune.errors import (
    ConfigError,
    ConnectError,
    HostBusy,
    MeasurementError,
    StudyError,
    TargetError,
    UnitError,
)
from autotune.hosts import HostPlan
from autotune.launch import Recipe, make_recipe
from autotune.passage import read_words
from autotune.sglang.server import ServerInfo
from autotune.supervisors.base import Original, Supervisor
from autotune.supervisors.owner import describe_owner, owner_lives

__all__ = [
    "Found",
    "data_root",
    "host_address",
    "label_of",
    "look",
    "plan_host",
    "require_no_tuner",
    "service_folder",
]

log = logging.getLogger(__name__)


def label_of(config: StudyConfig, host: str) -> str:
    """How a host of the study file is called in the study: its own name, without a port."""
    name = host.partition(":")[0] if config.service.supervisor == "process" else host
    return config.labels.get(name, name)


def plan_host(config: StudyConfig, host: str) -> HostPlan:
    """How one host is reached, placeholders filled in.

    Raises:
        ConfigError: The base URL has no port, or a key's variable is not set.
    """
    service = config.service
    label = label_of(config, host)
    if service.supervisor == "process":
        name, _, given = host.partition(":")
        if given and not (given.isdecimal() and 0 < int(given) < 65536):
            raise ConfigError(f"host {host!r}: {given!r} is no port", hint="label or label:port")
        directory = service_folder(config, label)
        port = int(given) if given else _standing_port(directory)
        address = "127.0.0.1"
    elif service.supervisor == "systemd":
        name, port, address = host, 0, host_address(host, service.ssh_config)
        directory = Path()
    else:  # what its hosts are, the plug-in alone knows
        name, port, address, directory = host, 0, host, service_folder(config, label)
    url = service.base_url.replace("{host}", address).replace("{port}", str(port))
    try:
        url_port = urlsplit(url).port
    except ValueError:
        url_port = None
    if url_port is None:
        raise ConfigError(
            f"{config.path}: service.base_url {service.base_url} names no port from 1 to 65535",
            hint="for example http://{host}:30000",
        )
    filled = {
        "{port}": str(url_port),
        "{python}": sys.executable,
        "{coding}": str(config.suite or ""),
    }
    return HostPlan(
        host=label,
        reach=name,
        supervisor=service.supervisor,
        base_url=url,
        port=url_port,
        unit=service.unit or "",
        command=tuple(_fill(word, filled) for word in service.command_words()),
        environment={key: _fill(text, filled) for key, text in service.environment.items()},
        ssh_config=service.ssh_config or "",
        directory=directory,
        engine=service.engine,
        api_key=_secret(config.path, "api_key_env", service.api_key_env),
        admin_api_key=_secret(config.path, "admin_api_key_env", service.admin_api_key_env),
        stop_timeout_s=service.stop_timeout_s,
        load_timeout_s=service.load_timeout_s,
        command_timeout_s=service.command_timeout_s,
    )


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of one host before anything is changed on it."""

    plan: HostPlan
    supervisor: Supervisor
    original: Original
    recipe: Recipe
    info: ServerInfo | None


def look(config: StudyConfig, plan: HostPlan, supervisor: Supervisor) -> Found:
    """Read one host and check it against the definition; nothing is changed.

    Raises:
        TargetError: The host cannot be used.
        StudyError: The definition does not fit what runs there.
    """
    try:
        original = supervisor.original()
    except UnitError:
        # A tuner at work is the better reason: what he has laid over the unit is not to be removed.
        require_no_tuner(plan, supervisor)
        raise
    require_no_tuner(plan, supervisor)
    info = _ask(plan) if original.active else None
    listener = supervisor.listener(plan.port)
    if listener is not None and not listener.belongs:
        raise HostBusy(
            f"port {plan.port} of {plan.host} is held by somebody else: {listener.description}",
            hint="stop it, or give the service another port",
        )
    recipe = make_recipe(
        config.space,
        config.service.fixed_flags,
        original,
        host=plan.host,
        info=info,
        engine=engine_of(plan.engine),
    )
    _require_room(config, recipe, plan, info)
    return Found(plan, supervisor, original, recipe, info)


def require_no_tuner(plan: HostPlan, supervisor: Supervisor) -> None:
    """Nobody alive tunes the service: what runs there would be one of his trials."""
    held = supervisor.holder()
    if held is not None and owner_lives(held):
        service = plan.unit or "the service"
        raise HostBusy(
            f"{plan.host}: {service} is held by {describe_owner(held)}",
            hint="let it end, or end that process; if it is dead, the host frees itself after "
            "restore_after_s of [service]",
        )


def _require_room(
    config: StudyConfig, recipe: Recipe, plan: HostPlan, info: ServerInfo | None
) -> None:
    """The largest bucket must fit into what the reference admits at once, the longest into its
    context."""
    words = read_words(recipe.reference.argv, recipe.reference.passage)
    engine = engine_of(plan.engine)
    for finding in limit_findings(plan.host, config.workload, words, info, engine):
        if finding.state is CheckState.BAD:
            raise StudyError(finding.found, hint=finding.todo)


def _ask(plan: HostPlan) -> ServerInfo | None:
    """What the live server says of itself; None when it does not answer (it may be loading)."""
    with open_server(plan) as server:
        try:
            return server.server_info()
        except (ConnectError, TargetError, MeasurementError) as error:
            log.warning("the live server on %s does not answer: %s", plan.host, error)
            return None


def host_address(host: str, ssh_config: str | None) -> str:
    """Network address of an ssh host, as ssh itself resolves it."""
    if host == "local":
        return "127.0.0.1"
    from autotune.remote.ssh_config import SshOptions, resolve

    return resolve(host, SshOptions(config=ssh_config or "")).hostname


def _secret(path: Path, key: str, variable: str | None) -> str | None:
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise ConfigError(
            f"{path}: service.{key}: the environment variable {variable} is not set",
            hint=f"export {variable}=..., or take {key} out of [service]",
        )
    return os.environ[variable]


def _fill(text: str, filled: Mapping[str, str]) -> str:
    for placeholder, value in filled.items():
        text = text.replace(placeholder, value)
    return text


def service_folder(config: StudyConfig, label: str) -> Path:
    """Where a service of the `process` supervisor keeps its lease, state and logs.

    The same for one definition file wherever a command is started: two tuners of one study must
    meet, and `revert` must find what a killed one left.
    """
    place = hashlib.sha256(str(config.path.resolve()).encode()).hexdigest()[:8]
    return data_root() / f"{config.name}-{place}" / label


def data_root() -> Path:
    """Where this user's data lie on this machine: `AUTOTUNE_DATA`, else the folder of state."""
    chosen = os.environ.get("AUTOTUNE_DATA")
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(chosen).resolve() if chosen else Path(state) / "autotune"


def _standing_port(directory: Path) -> int:
    """The port that this service had last, so that every command means the same one; another when
    somebody else has taken it meanwhile."""
    from autotune.supervisors.process_state import kept_port, read_state

    kept = kept_port(directory)
    state = read_state(directory / "state.json")
    if kept and ((state is not None and state.guarded()) or _is_free(kept)):
        return kept
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
