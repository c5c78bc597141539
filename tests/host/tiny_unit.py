"""A small server as a unit of a host, and what can be seen of it there."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from autotune.remote.ssh import SshConnector
from autotune.remote.ssh_config import SshOptions
from autotune.supervisors.base import Launch, Owner, Word
from autotune.supervisors.process_lease import owner_here
from autotune.supervisors.systemd import SystemdSupervisor
from autotune.systemd.dropin import dropin_path, quote
from autotune.systemd.facts import bus_command, parse_bus
from autotune.systemd.way_back import Limits
from autotune.testing import tiny_server
from autotune.testing.supervisor_contract import (
    PATIENCE_S,
    eventually,
)
from tests.testhost import SystemdHost

UNIT = "tiny-web.service"
PORT = 30000
SERVER = (sys.executable, "-I", "-S", tiny_server.__file__, "--host", "0.0.0.0")
FRAGMENT = f"/etc/systemd/system/{UNIT}"


def unit_text(*lines: str) -> str:
    """A unit with `$` and `%` in its command, as people write them."""
    command = " ".join(quote(word) for word in (*SERVER, "--port", str(PORT)))
    return "\n".join(
        [
            "# kept byte for byte",
            "[Service]",
            'Environment="GREETING=--say hello"',
            f'ExecStart={command} $GREETING "100%%"',
            *lines,
            "",
        ]
    )


class SystemdService:
    """`tiny_server.py` as a unit of a host."""

    lacks: Mapping[str, str] = {}
    port = PORT

    def __init__(self, host: SystemdHost, *, user: str = "root") -> None:
        self.host = host
        self.user = user
        self.base_url = f"http://{host.host}:{PORT}"

    def open(self) -> SystemdSupervisor:
        options = SshOptions(config=str(self.host.ssh_config))
        connector = SshConnector(f"{self.user}@{self.host.name}", options)
        limits = Limits(serve_s=PATIENCE_S, restore_s=2 * PATIENCE_S, start_s=PATIENCE_S)
        return SystemdSupervisor(self.host.name, connector, unit=UNIT, port=PORT, limits=limits)

    def launch(self, *words: str, environment: Mapping[str, str] | None = None) -> Launch:
        argv = (*SERVER, "--port", str(PORT), *words)
        return Launch(tuple(Word(word, ours=True) for word in argv), environment or {})

    def owner(self, study: str = "contract") -> Owner:
        return owner_here(study)

    def kill_main(self) -> None:
        self.host.run(f"kill -9 {show(self.host, 'MainPID')}")

    @contextmanager
    def occupy(self) -> Iterator[int]:
        command = " ".join(quote(word) for word in (*SERVER, "--port", str(PORT)))
        self.host.run(f"systemd-run --quiet --unit=stranger {command}")
        with self.open() as supervisor:
            listener = eventually(lambda: supervisor.listener(PORT), lambda seen: seen is not None)
        assert listener is not None
        yield listener.pid
        self.host.run("systemctl stop stranger")


def install(host: SystemdHost, *lines: str, start: bool = False) -> None:
    host.run("rm -rf /run/autotune")
    host.write(FRAGMENT, unit_text(*lines))
    host.run("systemctl daemon-reload")
    if start:
        host.run(f"systemctl start {UNIT}")


def show(host: SystemdHost, name: str, unit: str = UNIT) -> str:
    return host.run(f"systemctl show --property={name} --value '{unit}'").stdout.strip()


def traces(host: SystemdHost) -> str:
    """What a tuner has left on a host."""
    found = host.run(
        "find /run/autotune /run/lock /run/systemd/system -name '*autotune*' 2>/dev/null;"
        "systemctl list-units --all --plain --no-legend '*autotune*'",
        check=False,
    )
    return found.stdout


def argv_of(host: SystemdHost) -> list[str]:
    pid = show(host, "MainPID")
    return host.run(f"cat /proc/{pid}/cmdline", check=False).stdout.split("\0")[:-1]


class Probe:
    """A unit that writes down the command line and the environment it was given."""

    def __init__(self, host: SystemdHost) -> None:
        self.host = host
        lines = [f"base64 -w 0 /proc/$$/{name} >/run/{name}" for name in ("environ", "cmdline")]
        host.write("/srv/dump", "\n".join(["#!/bin/sh", *lines, ""]), mode=0o755)
        fragment = "[Service]\nType=oneshot\nExecStart=/srv/dump\n"
        host.write("/etc/systemd/system/probe.service", fragment)

    def load(self, text: str) -> dict[str, Any]:
        """What systemd holds with this drop-in."""
        self.host.write(dropin_path("probe.service"), text)
        names = ["ExecStartEx", "Environment"]
        asked = " ".join(bus_command("probe.service", "Service", names))
        return parse_bus(self.host.run(f"systemctl daemon-reload && {asked}").stdout, names)

    def start(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Words and environment of the started process."""
        texts = self.host.run(
            "systemctl start probe && cat /run/cmdline && echo && cat /run/environ"
        )
        words, variables = (
            base64.b64decode(line).decode().split("\0")[:-1] for line in texts.stdout.split("\n")
        )
        pairs = (variable.partition("=") for variable in variables)
        return tuple(words), {name: value for name, _, value in pairs}
