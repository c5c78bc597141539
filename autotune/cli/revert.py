"""`autotune revert`: put a host back as it was found, whoever left it."""

from __future__ import annotations

from autotune.cli.options import Host, Study

__all__ = ["command"]


def command(study: Study, host: Host = None) -> None:
    """Restore the service of every host now, also where no tuner lives any more.

    Needs nothing but the host: what to go back to is kept there.

    Example: autotune revert --study kimi-k26 --host gpu-a
    """
    import typer

    from autotune.config import load_study
    from autotune.hosts import open_supervisor
    from autotune.opening import plan_host
    from autotune.supervisors.owner import describe_owner

    config = load_study(study).replace_budget(trials=None, hours=None, hosts=tuple(host or ()))
    for name in config.service.hosts:
        plan = plan_host(config, name)
        with open_supervisor(plan) as supervisor:
            held = supervisor.revert()
        left = f"restored; it was left by {describe_owner(held)}" if held else "nothing to restore"
        typer.echo(f"{plan.host}: {left}")
