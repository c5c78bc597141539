"""The service on a test host: installed as its user has it, and looked at without a trace."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.testhost import UNIT, SystemdHost, install_unit
from tests.waiting import until

__all__ = [
    "LAUNCHER",
    "LOAD_S",
    "PORT",
    "ROOT",
    "Found",
    "argv",
    "changes",
    "found",
    "install",
    "is_back",
    "journal",
    "listeners",
    "not_back",
    "require_as_found",
    "restoring",
    "serves",
    "show",
    "traces",
    "until",
]

ROOT = Path(__file__).parents[2]
PORT = 30000
LOAD_S = float(os.environ.get("AUTOTUNE_TEST_LOAD_S", "2"))
"""Load of the study that shows the whole job; 20 is the load of a small real model."""

LAUNCHER = "/srv/sglang-launcher"
"""A program of the user that starts the server, and gives it a fault for some of its flags."""

_LAUNCHER_TEXT = """\
#!{python}
import os, runpy, sys
line = " ".join(sys.argv[1:])
for words, variable, value in {faults!r}:
    if words in line:
        os.environ[variable] = value
sys.argv[0] = "sglang_server"
runpy.run_module("autotune.testing.sglang_server", run_name="__main__", alter_sys=True)
"""


def install(
    host: SystemdHost,
    *,
    load_s: float = 0.0,
    faults: str = "",
    variables: Mapping[str, str] | None = None,
    launcher: tuple[tuple[str, str, str], ...] = (),
    start: bool = True,
) -> None:
    """Install the unit as its user has it, and wait until it serves.

    Args:
        faults: Faults of every start.
        launcher: Part of the command line, variable, value: faults of some starts.
    """
    host.run("rm -rf /run/autotune")
    environment = {
        "AUTOTUNE_SIM_FAULT": faults,
        "AUTOTUNE_SIM_TIME_SCALE": "8",
        "AUTOTUNE_SIM_WATCH_S": "0.2",
        "AUTOTUNE_SIM_ANSWERS": str(ROOT / "objectives" / "coding"),
        "AUTOTUNE_SIM_SEED": "1",
        **(variables or {}),
    }
    if launcher:
        text = _LAUNCHER_TEXT.format(python=sys.executable, faults=launcher)
        host.write(LAUNCHER, text, mode=0o755)
        install_unit(host, load_s=load_s, environment=environment, command=(LAUNCHER,))
    else:
        install_unit(host, load_s=load_s, environment=environment)
    if start:
        host.run(f"systemctl start {UNIT}")
        until(lambda: serves(host), "the deployed server serves")


def show(host: SystemdHost, name: str) -> str:
    """One property of the unit."""
    return host.run(f"systemctl show --property={name} --value '{UNIT}'").stdout.strip()


def listeners(host: SystemdHost) -> str:
    """Process ids that listen on the service's port, as the kernel knows them."""
    lines = host.run(f"ss -ltnpH 'sport = :{PORT}'", check=False).stdout
    return " ".join(re.findall(r"pid=(\d+)", lines))


def serves(host: SystemdHost) -> bool:
    """Whether a process of the unit answers and is warm."""
    asked = f'curl -s -m 2 -o /dev/null -w "%{{http_code}}" http://127.0.0.1:{PORT}/health'
    answer = host.run(asked, check=False).stdout
    return answer == "200" and show(host, "MainPID") in listeners(host).split()


def argv(host: SystemdHost) -> tuple[str, ...]:
    """Command line of the unit's main process; empty while it has none."""
    pid = show(host, "MainPID")
    return tuple(host.run(f"cat /proc/{pid}/cmdline", check=False).stdout.split("\0")[:-1])


def traces(host: SystemdHost) -> str:
    """Everything on the host that is ours; a look at it takes no lock and leaves nothing.

    What systemd notes of the units that it has started is its own: it cannot take a note back while
    /run is read-only, and forgets it.
    """
    found = host.run(
        "find /run /etc/systemd -path /run/systemd/units -prune -o -name '*autotune*' -print"
        " 2>/dev/null;"
        "systemctl list-units --all --plain --no-legend '*autotune*';"
        f"ls -d /run/systemd/system/{UNIT}.d 2>/dev/null",
        check=False,
    )
    return found.stdout


def changes(host: SystemdHost) -> str:
    """The traces but for an agent without a lease, which changes nothing."""
    agent = ("/run/autotune", f"/run/lock/autotune-{UNIT}.lock")
    lines = [line for line in traces(host).splitlines() if line not in agent]
    lease = host.run("ls -d /run/autotune/*/lease 2>/dev/null", check=False).stdout
    return "\n".join([*lines, *lease.splitlines()])


def journal(host: SystemdHost, *matches: str) -> str:
    """What the journal holds about this, as text."""
    return host.run(" ".join(["journalctl --no-pager -o cat", *matches])).stdout


@dataclass(frozen=True)
class Found:
    """The service as its user has it."""

    cat: str
    invocation_id: str
    argv: tuple[str, ...]


def found(host: SystemdHost) -> Found:
    cat = host.run(f"systemctl cat {UNIT}").stdout
    return Found(cat, show(host, "InvocationID"), argv(host))


def require_as_found(host: SystemdHost, before: Found, *, untouched: bool = False) -> None:
    """The host is as it was found.

    Args:
        untouched: The service was not even restarted.
    """
    assert traces(host) == ""
    after = found(host)
    assert after.cat == before.cat
    assert after.argv == before.argv
    assert show(host, "ActiveState") == "active"
    assert show(host, "MainPID") in listeners(host).split()
    if untouched:
        assert after.invocation_id == before.invocation_id


def is_back(host: SystemdHost, before: Found) -> bool:
    """Whether the host has restored itself."""
    return not_back(host, before) == ""


def not_back(host: SystemdHost, before: Found, *, tidy: bool = True) -> str:
    """What keeps the host from being as it was found; "" when nothing does.

    Args:
        tidy: False where an agent without a lease may be left.
    """
    if left := traces(host) if tidy else changes(host):
        return f"left there: {left}"
    if (now := argv(host)) != before.argv:
        return f"running: {' '.join(now) or 'nothing'}"
    return "" if serves(host) else "the service does not serve"


def restoring(host: SystemdHost) -> bool:
    """Whether the way back has begun and is not at its end."""
    return host.run("ls -d /run/autotune/*/lease/restoring", check=False).returncode == 0
