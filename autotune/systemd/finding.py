"""Read a unit as it is found, and refuse what cannot be tuned and proved, before any change."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence

from autotune.errors import UnitRefused
from autotune.passage import find_passage, shown
from autotune.supervisors.base import Launch, Original, Word
from autotune.systemd.checks import UnitChecks
from autotune.systemd.expand import expand
from autotune.systemd.facts import ExecCommand, UnitState
from autotune.systemd.unit import UnitFacts

__all__ = ["find_original"]

_CONTAINER_CLIENTS = frozenset({"docker", "podman", "nerdctl", "ctr", "crictl", "docker-compose"})
_TELLING = re.compile(r"\bexec\b|\\\s+#")
_SCRIPT_SHELLS = (b"sh", b"bash", b"dash", b"zsh", b"ksh")


def find_original(facts: UnitFacts, checks: UnitChecks, state: UnitState) -> Original:
    """The unit as it is now.

    Raises:
        UnitNotFound: There is no such unit.
        UnitRefused: It cannot be tuned and proved; the hint names the way out.
        DropInConflict: Something of ours, or masking ours, is already there.
    """
    checks.require_tunable(state)
    checks.require_free_of_ours()
    command = checks.one_command()
    process = facts.process(state.main_pid) if state.main_pid else None
    _refuse_containers(command.argv, process.argv if process else (), checks.where)
    checks.require_alone(state)
    checks.require_log()
    environment = facts.environment()
    planned = _executed(command, environment.variables)
    live = process.argv if process else ()
    environ = {**environment.variables, **process.environ} if process else environment.variables
    try:
        if process is not None and planned != _executed(command, process.environ):
            raise UnitRefused(
                "a variable of its command line has changed since the service started",
                hint="restart the service, or put the variable or its file back",
            )
        passage = find_passage(planned, live, environ)
        planned = shown(planned, passage, environ)
    except UnitRefused as error:
        where = "; ".join(_telling_lines(_scripts(facts, command)))
        said = f"{checks.where}: {error.message}" + (f" ({where})" if where else "")
        raise UnitRefused(said, hint=error.hint) from error
    direct = passage.dropped == 0 and not passage.shell
    return Original(
        launch=Launch(tuple(Word(text) for text in command.argv), passage=passage),
        live_argv=live,
        live_environ=process.environ if process else {},
        active=state.active_state in ("active", "reloading"),
        enabled=state.unit_file_state,
        files=facts.files(),
        fragment=facts.cat(),
        taken_at_s=time.time(),
        planned_argv=planned,
        environ=environment.variables,
        scripts={} if direct else _scripts(facts, command),
    )


def _executed(command: ExecCommand, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The words that systemd executes."""
    return expand(command.argv, environ) if command.expands else command.argv


def _scripts(facts: UnitFacts, command: ExecCommand) -> dict[str, str]:
    """Shell scripts among the first words, for messages that show a line of them."""
    paths = [word for word in (command.path, *command.argv[1:3]) if word.startswith("/")]
    texts = facts.texts(paths)
    return {
        path: text.decode(errors="replace")
        for path, text in texts.items()
        if text is not None and text.startswith(b"#!") and _is_for_a_shell(text.split(b"\n")[0])
    }


def _telling_lines(scripts: Mapping[str, str]) -> list[str]:
    """Lines that execute the server, and those that end a command with a comment."""
    return [
        f"{path}:{number}: {line.strip()}"
        for path, text in scripts.items()
        for number, line in enumerate(text.split("\n"), start=1)
        if not line.lstrip().startswith("#") and _TELLING.search(line)
    ]


def _is_for_a_shell(first: bytes) -> bool:
    names = [os.path.basename(word) for word in first.removeprefix(b"#!").split()]
    return any(name in _SCRIPT_SHELLS for name in names)


def _refuse_containers(words: Sequence[str], live: Sequence[str], where: str) -> None:
    """Of a container the unit has the client only: neither argv nor socket of the server."""
    seen = [*words[:3], *live[:2], *(" ".join(words).split() if len(words) <= 4 else ())]
    names = [os.path.basename(word) for word in seen]
    client = next((name for name in names if name in _CONTAINER_CLIENTS), "")
    if client:
        raise UnitRefused(
            f"{where}: its main process is the client of a container ({client}): what the server "
            "in the container was started with and who holds its socket cannot be proved from here",
            hint="run the server as the unit's own process, or tune it where it runs: in a unit "
            'inside the container, or with supervisor = "process"',
        )
