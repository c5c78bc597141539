"""One host of a study as plain values, and the objects that drive it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import ConfigError
from autotune.plugins import Group, function
from autotune.supervisors.base import Supervisor

if TYPE_CHECKING:
    from autotune.remote.connector import Connector

__all__ = ["HostPlan", "open_connector", "open_supervisor"]


@dataclass(frozen=True, slots=True)
class HostPlan:
    """How one host is reached; plain values, so that a worker process can open it again.

    Attributes:
        host: What the study calls it.
        reach: How it is reached: its ssh name, or `local`; empty when that is its name.
        supervisor: "systemd", "process" or a plug-in's name.
        base_url: Address of the server, placeholders filled in.
        port: Port that the server listens on.
        unit: systemd unit; empty for a process.
        command: Command of a process; empty for a unit.
        engine: "sglang" or a plug-in's name.
        ssh_config: ssh configuration file instead of the user's own; empty for that one.
        directory: Where a process keeps its lease and logs.
        api_key, admin_api_key: Secrets; never shown.
        stop_timeout_s, load_timeout_s, command_timeout_s: Limits, seconds.
    """

    host: str
    supervisor: str
    base_url: str
    port: int
    unit: str = ""
    reach: str = ""
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: Path = Path()
    engine: str = "sglang"
    ssh_config: str = ""
    api_key: str | None = field(default=None, repr=False)
    admin_api_key: str | None = field(default=None, repr=False)
    stop_timeout_s: float = 300.0
    load_timeout_s: float = 1800.0
    command_timeout_s: float = 60.0

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(secret for secret in (self.api_key, self.admin_api_key) if secret)


def open_supervisor(plan: HostPlan) -> Supervisor:
    """The supervisor of a host; connects when it is entered."""
    if plan.supervisor == "process":
        from autotune.supervisors.process import ProcessSupervisor

        return ProcessSupervisor(
            plan.host,
            command=plan.command,
            port=plan.port,
            directory=plan.directory,
            environment={**os.environ, **plan.environment},
            stop_timeout_s=plan.stop_timeout_s,
        )
    if plan.supervisor != "systemd":
        return _of_plugin(plan)
    from autotune.supervisors.systemd import SystemdSupervisor
    from autotune.systemd.way_back import Limits

    connector = open_connector(plan)
    return SystemdSupervisor(
        plan.host,
        connector,
        unit=plan.unit,
        port=plan.port,
        limits=Limits(
            serve_s=plan.load_timeout_s, restore_s=plan.load_timeout_s + plan.stop_timeout_s
        ),
    )


def _of_plugin(plan: HostPlan) -> Supervisor:
    """The supervisor of an installed package.

    Raises:
        ConfigError: Its function makes something else.
    """
    made = function(Group.SUPERVISORS, plan.supervisor)(plan)
    if not isinstance(made, Supervisor):
        raise ConfigError(
            f"the plug-in supervisor {plan.supervisor!r} makes a {type(made).__name__}, which "
            "lacks methods of autotune.supervisors.base.Supervisor",
            hint="autotune.testing.supervisor_contract tests them",
        )
    return made


def open_connector(plan: HostPlan) -> Connector:
    """The way to a host; connects with the first command."""
    from autotune.remote.local import LocalConnector
    from autotune.remote.ssh import SshConnector
    from autotune.remote.ssh_config import SshOptions

    name = plan.reach or plan.host
    if name == "local":
        return LocalConnector()
    return SshConnector(name, SshOptions(config=plan.ssh_config))
