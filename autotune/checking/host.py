"""What can be known of one host before its service is stopped for the first time."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field

from autotune.checking.findings import CheckState, Finding, tried
from autotune.checking.limits import limit_findings, room_finding
from autotune.config import StudyConfig
from autotune.engines import SGLANG, engine_of, open_server
from autotune.errors import (
    HostBusy,
    MeasurementError,
    StudyError,
    TargetError,
    UnitNotFound,
)
from autotune.hosts import HostPlan, open_connector, open_supervisor
from autotune.launch import Recipe, make_recipe
from autotune.passage import read_words
from autotune.remote.connector import Connector
from autotune.sglang.flags import get_flag
from autotune.sglang.server import ServerInfo, spelling
from autotune.space import Parameter
from autotune.supervisors.base import Original, Start, Supervisor, Word
from autotune.supervisors.owner import describe_owner, owner_lives

__all__ = [
    "HostLook",
    "findings_of",
    "look_at_host",
]

FREE_RUN_KB = 10 * 1024
"""What the agent, the lease and the drop-in need under /run, with room to spare."""
JOURNAL_WAIT_S = 10.0


@dataclass
class HostLook:
    """What was found on one host.

    Attributes:
        recipe: How its command lines are made; None when something was bad.
    """

    plan: HostPlan
    findings: list[Finding] = field(default_factory=list)
    recipe: Recipe | None = None

    def add(self, finding: Finding) -> bool:
        """Keep a finding; whether the next one can be looked for."""
        self.findings.append(finding)
        return finding.state is not CheckState.BAD

    def note(self, what: str, found: str, todo: str = "") -> None:
        self.add(Finding(self.plan.host, what, CheckState.NOTE, found, todo))

    def ok(self, what: str, found: str) -> None:
        self.add(Finding(self.plan.host, what, CheckState.OK, found))


def look_at_host(config: StudyConfig, plan: HostPlan) -> HostLook:
    """Read one host; nothing is changed, and every error is a finding."""
    look = HostLook(plan)
    if plan.supervisor == "process":
        _look_at_process(config, look)
    elif plan.supervisor == "systemd":
        with open_connector(plan) as connector:
            reached = _look_at_machine(config, look, connector)
        if reached:
            _look_at_standing(config, look)
    else:
        _look_at_standing(config, look)
    return look


# -- a process of this machine --------------------------------------------------------------------
def _look_at_process(config: StudyConfig, look: HostLook) -> None:
    plan = look.plan
    original = Original.of_command(plan.command, taken_at_s=0.0)

    def command() -> str:
        if shutil.which(plan.command[0]) is None:
            raise UnitNotFound(
                f"{plan.command[0]!r} cannot be executed",
                hint="give an absolute path, or a program that PATH leads to",
            )
        return f"{shlex.join(plan.command[:3])} ...: runs only while it is tuned"

    def lease() -> str:
        if not plan.directory.exists():
            return "free"
        with open_supervisor(plan) as supervisor:
            return _lease(supervisor, plan)

    if not look.add(tried(plan.host, "command", command)):
        return
    look.add(tried(plan.host, "lease", lease))
    look.ok("port", f"{plan.port}")
    _look_at_flags(config, look, original, None)


# -- a unit ---------------------------------------------------------------------------------------
def _look_at_machine(config: StudyConfig, look: HostLook, connector: Connector) -> bool:
    """Whether it can be reached."""
    host = look.plan.host
    if not look.add(tried(host, "ssh", lambda: _login(connector, host))):
        look.note("everything else", "not looked at: the host cannot be reached")
        return False
    look.add(tried(host, "disk", lambda: _disk(connector)))
    look.add(tried(host, "GPUs", lambda: _gpus(connector, config, host)))
    return True


def _look_at_standing(config: StudyConfig, look: HostLook) -> None:
    plan = look.plan
    with open_supervisor(plan) as supervisor:
        if not look.add(tried(plan.host, "rights and lease", lambda: _lease(supervisor, plan))):
            look.note("everything else", "not looked at: it needs these rights and a free lease")
            return
        original: Original | None = None

        def unit() -> str:
            nonlocal original
            original = supervisor.original()
            files = ", ".join(original.files) or "no file"
            return f"{plan.unit} can be tuned; made of {files}"

        if not look.add(tried(plan.host, "unit", unit)) or original is None:
            return
        _look_at_service(config, look, supervisor, original)


def _look_at_service(
    config: StudyConfig, look: HostLook, supervisor: Supervisor, original: Original
) -> None:
    plan = look.plan
    if original.enabled not in ("enabled", "static", "alias"):
        look.note(
            "reboot",
            f"{plan.unit} is {original.enabled or 'not enabled'}: a reboot in mid-study leaves "
            "it stopped until the tuner is there again",
            f"systemctl enable {plan.unit}",
        )
    look.add(tried(plan.host, "port", lambda: _port(supervisor, plan, active=original.active)))
    if not original.active:
        look.note(
            "server",
            f"{plan.unit} does not run, so the engine could not be asked",
            "start it and check again",
        )
        _look_at_flags(config, look, original, None)
        return
    look.add(tried(plan.host, "journal", lambda: _journal(supervisor, plan.host)))
    info: ServerInfo | None = None

    def server() -> str | Finding:
        nonlocal info
        try:
            with open_server(plan) as asked:
                info = asked.server_info()
        except (TargetError, MeasurementError) as error:
            raise TargetError(
                error.message,
                hint=error.hint
                or "the port must be reachable from this machine: --host 0.0.0.0, a firewall?",
            ) from error
        shown = engine_of(plan.engine).shown
        return f"{shown} {info.version or 'of unknown version'} answers at {plan.base_url}"

    look.add(tried(plan.host, "server", server))
    _look_at_flags(config, look, original, info)


def _login(connector: Connector, host: str) -> str:
    user = connector.run(["id", "-un"]).checked().text.strip()
    return "this machine, without ssh" if host == "local" else f"host key known, login as {user}"


def _disk(connector: Connector) -> str:
    lines = connector.run(["df", "-Pk", "/run"]).checked().text.splitlines()
    words = lines[-1].split() if lines else []
    if len(words) < 4 or not words[3].isdecimal():
        raise TargetError("df does not say how full /run is")
    if int(words[3]) < FREE_RUN_KB:
        raise TargetError(
            f"{words[3]} kB are free under /run", hint=f"{FREE_RUN_KB} kB are needed there"
        )
    return f"{int(words[3]) / 1024:.0f} MB free under /run"


def _gpus(connector: Connector, config: StudyConfig, host: str) -> str | Finding:
    # By `env`, which answers here as a shell does over ssh when there is no such program.
    asked = ["env", "nvidia-smi", "--query-gpu=memory.used,memory.total"]
    completed = connector.run([*asked, "--format=csv,noheader,nounits"])
    if completed.exit_status != 0:
        return Finding(
            host,
            "GPUs",
            CheckState.NOTE,
            "nvidia-smi does not answer: whether GPU memory is idle cannot be seen",
            "nothing, where there is no NVIDIA GPU",
        )
    rows = [line.split(",") for line in completed.text.splitlines() if "," in line]
    wanted = config.service.gpus_per_host
    used = ", ".join(row[0].strip() for row in rows)
    if len(rows) < wanted:
        raise StudyError(
            f"{len(rows)} GPUs, the definition says gpus_per_host = {wanted}",
            hint="write the number of GPUs that the service uses",
        )
    return f"{len(rows)} GPUs, {used} MiB in use with the service running"


def _lease(supervisor: Supervisor, plan: HostPlan) -> str:
    held = supervisor.holder()
    if held is not None and owner_lives(held):
        unit = f"--host {plan.host} --unit {plan.unit}" if plan.unit else "--study STUDY"
        raise HostBusy(
            f"held by {describe_owner(held)}",
            hint=f"let it end; `autotune revert {unit}` ends one whose tuner is gone",
        )
    if held is not None:
        return "left by a tuner that has died; a run restores the host first"
    return "the agent can be run, the lease is free"


def _port(supervisor: Supervisor, plan: HostPlan, *, active: bool) -> str:
    listener = supervisor.listener(plan.port)
    if listener is None:
        if active:
            raise HostBusy(
                f"the service runs, but nobody listens on port {plan.port}",
                hint="is base_url right? Or it is still loading: check again when it serves",
            )
        return f"{plan.port} is free"
    if not listener.belongs:
        raise HostBusy(
            f"{plan.port} is held by {listener.description}",
            hint="stop it, or give the service another port",
        )
    return f"{plan.port} is the service's: {listener.description}"


def _journal(supervisor: Supervisor, host: str) -> str | Finding:
    now = supervisor.identity()
    with supervisor.follow(Start(now.invocation_id, now.main_pid, 0.0, now.n_restarts)) as log:
        line = log.read(JOURNAL_WAIT_S)
    if line is None:
        return Finding(
            host,
            "journal",
            CheckState.NOTE,
            "no line of the running service is kept",
            "the proof needs its log: StandardOutput=journal in the unit, and room in the journal",
        )
    return "lines of the running service can be read"


# -- flags and limits -----------------------------------------------------------------------------
def _look_at_flags(
    config: StudyConfig, look: HostLook, original: Original, info: ServerInfo | None
) -> None:
    plan = look.plan
    ours = plan.engine == SGLANG.name
    for parameter in config.space.parameters:
        # Another engine need not tell its settings.
        look.add(_home(plan.host, parameter, original, info if ours else None))

    def recipe() -> str:
        look.recipe = make_recipe(
            config.space,
            config.service.fixed_flags,
            original,
            host=plan.host,
            info=info,
            engine=engine_of(plan.engine),
        )
        nonce = look.recipe.nonce_flag or "the random seed"
        return f"what the definition calls deployed is what runs; starts are told apart by {nonce}"

    if look.add(tried(plan.host, "deployed", recipe)) and look.recipe is not None:
        argv = read_words(look.recipe.reference.argv, look.recipe.reference.passage)
        engine = engine_of(plan.engine)
        known = list(limit_findings(plan.host, config.workload, argv, info, engine))
        for finding in known:
            look.add(finding)
        if not known:
            look.note("limits", f"of {plan.engine} are not known: buckets must fit by themselves")
        if info is not None and ours:
            look.add(room_finding(plan.host, config.workload, info))


def _home(host: str, parameter: Parameter, original: Original, info: ServerInfo | None) -> Finding:
    """Where a tuned setting lives, and whether this engine knows its spelling."""
    what = f"flag of {parameter.name}"
    if not parameter.flag:
        return Finding(host, what, CheckState.OK, f"the variable {parameter.env}")
    own = get_flag(original.launch.argv, parameter.flag, parameter.aliases)
    live = tuple(Word(text) for text in original.live_argv or original.planned_argv)
    running = get_flag(live, parameter.flag, parameter.aliases)
    where = f"{parameter.flag} {own} in ExecStart" if own else f"{parameter.flag} is left out"
    if own is None and running is not None:
        where = f"{parameter.flag} {running} in a variable or a script that ExecStart uses"
    if original.fragment == "" and own:
        where = f"{parameter.flag} {own} in the command"
    if info is not None and spelling(info, (parameter.flag, *parameter.aliases)) is None:
        return Finding(
            host,
            what,
            CheckState.BAD,
            f"SGLang {info.version or ''} has no setting {parameter.flag}".replace("  ", " "),
            "is it another version? `--help` of the engine names its flags",
        )
    return Finding(host, what, CheckState.OK, where)


def findings_of(looks: list[HostLook]) -> Iterator[Finding]:
    """All findings, host by host."""
    for look in looks:
        yield from look.findings
