"""`autotune revert`: put a host back as it was found, whoever left it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import Host, Storage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.hosts import HostPlan
    from autotune.supervisors.base import Supervisor

__all__ = ["command"]


def command(
    study: Annotated[
        str | None,
        typer.Option("--study", help="Study: a name in search_spaces/, or a path to a .toml file."),
    ] = None,
    host: Host = None,
    storage: Storage = None,
    unit: Annotated[
        str | None, typer.Option("--unit", help="With --host: the unit, when there is no study.")
    ] = None,
    exported: Annotated[
        bool,
        typer.Option("--exported", help="Take an applied export away too, like export --undo."),
    ] = False,
    ssh_config: Annotated[
        str | None, typer.Option("--ssh-config", help="With --unit: read it instead of your own.")
    ] = None,
) -> None:
    """Restore the service of every host now, also where no tuner lives any more.

    Needs nothing but the host: what to go back to is kept there. A configuration that
    `export --apply` has put into the service stays, unless --exported is given.

    Example: autotune revert --host gpu-a --unit llm.service
    """
    from autotune.errors import ConfigError
    from autotune.hosts import open_supervisor
    from autotune.supervisors.owner import describe_owner

    hosts = tuple(host or ())
    if unit and not study and hosts:
        plans = _by_unit(hosts, unit, ssh_config or "")
    elif study and not unit:
        plans = _by_study(study, hosts, storage)
    else:
        raise ConfigError("say what to restore", hint="--study S, or --host H --unit U")
    for plan in plans:
        with open_supervisor(plan) as supervisor:
            held = supervisor.revert()
            left = (
                f"restored; it was left by {describe_owner(held)}" if held else "nothing to restore"
            )
            away = exported and _take_export_away(plan, supervisor)
        typer.echo(f"{plan.host}: {left}{'; the export is taken away' if away else ''}")
        if study:
            _note(study, storage, plan.host)


def _take_export_away(plan: HostPlan, supervisor: Supervisor) -> bool:
    from autotune.errors import ConfigError
    from autotune.supervisors.systemd import SystemdSupervisor

    if not isinstance(supervisor, SystemdSupervisor):
        raise ConfigError(
            f"{plan.host} is a process of the tuner: no export stands there",
            hint="leave --exported out",
        )
    return supervisor.export.undo()


def _note(study: str, storage: str | None, host: str) -> None:
    """Note in the study's database, where there is one, that the host is back."""
    from autotune.errors import StorageError, UnknownStudy
    from autotune.reading import study_name
    from autotune.repository import Repository
    from autotune.roster import Roster
    from autotune.storage import open_engine, storage_url

    name = study_name(study)
    try:
        engine = open_engine(storage_url(storage), create=False)
    except StorageError:
        return  # reverting needs nothing but the host
    try:
        repository = Repository(engine)
        if any(h.host == host and h.restored_at_s is None for h in repository.load(name).hosts):
            Roster(repository, name).restored(host)
    except UnknownStudy:
        return
    finally:
        engine.dispose()


def _by_unit(hosts: tuple[str, ...], unit: str, ssh_config: str) -> Iterator[HostPlan]:
    from autotune.hosts import HostPlan

    for name in hosts:
        yield HostPlan(name, "systemd", base_url="", port=0, unit=unit, ssh_config=ssh_config)


def _by_study(study: str, hosts: tuple[str, ...], storage: str | None) -> Iterator[HostPlan]:
    from autotune.errors import ConfigError
    from autotune.opening import plan_host, service_folder
    from autotune.reading import find_study

    config = find_study(study, storage).replace_budget(trials=None, hours=None, hosts=())
    own = {name.partition(":")[0] for name in config.service.hosts}
    if config.service.supervisor == "process":
        for name in hosts:
            label = name.partition(":")[0]
            if label not in own and not service_folder(config, label).exists():
                raise ConfigError(
                    f"study {config.name!r} has no host {label!r} and never had",
                    hint=f"its hosts: {', '.join(sorted(own))}",
                )
    for name in hosts or config.service.hosts:
        yield plan_host(config, name)
