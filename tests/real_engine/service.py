"""The real engine as a systemd unit on a test host."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tests.host.services import until
from tests.real_engine.place import RealEngine
from tests.testhost import SystemdHost

__all__ = ["PORT", "UNIT", "install", "serves", "state", "unit_text"]

UNIT = "sglang-cpu.service"
PORT = 30110
START_MOST_S = 600.0  # the first NGRAM start compiles its C++ part, on whatever machine this is


def unit_text(
    engine: RealEngine, *, speculation: str, flags: Sequence[str] = (), program: str = ""
) -> str:
    """The unit file.

    Args:
        program: Starts the server in place of the engine's Python, with the same words.
    """
    words = engine.command(port=PORT, speculation=speculation, flags=flags)
    if program:
        words = (program, *words[3:])
    lines = [
        f'Environment="{name}={value}"'
        for name, value in engine.environment("/var/lib/sglang").items()
    ]
    return "\n".join(
        [
            "# A tiny model on SGLang's CPU engine, with stubs for what a CPU has not.",
            "[Unit]",
            f"Description=SGLang on CPU, {speculation}",
            "",
            "[Service]",
            "StateDirectory=sglang",
            *lines,
            "ExecStart=" + " \\\n    ".join(_lines(words)),
            "Restart=on-failure",
            "RestartSec=2",
            "TimeoutStopSec=60",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


def install(
    host: SystemdHost,
    engine: RealEngine,
    *,
    speculation: str,
    flags: Sequence[str] = (),
    program: str = "",
) -> None:
    """Install the unit and start it; returns when it serves."""
    text = unit_text(engine, speculation=speculation, flags=flags, program=program)
    host.write(f"/etc/systemd/system/{UNIT}", text)
    host.run(f"systemctl daemon-reload && systemctl start {UNIT}")
    until(lambda: serves(host), "the deployed engine serves", timeout_s=START_MOST_S, every_s=0.5)


def state(host: SystemdHost) -> tuple[str, ...]:
    """What must be the same before and after a study: command line, drop-ins, activity."""
    shown = host.run(
        f"systemctl show {UNIT} --property=ExecStart,DropInPaths,ActiveState --value"
        " | sed 's/ ; start_time=.*//'"
    )
    pid = host.run(f"systemctl show {UNIT} --property=MainPID --value").stdout.strip()
    words = host.run(f"cat /proc/{pid}/cmdline", check=False).stdout.split("\0")
    return (*shown.stdout.splitlines(), *words)


def serves(host: SystemdHost) -> bool:
    """Whether the server answers and is warm."""
    asked = f'curl -s -m 2 -o /dev/null -w "%{{http_code}}" http://127.0.0.1:{PORT}/health'
    return host.run(asked, check=False).stdout == "200"


def _lines(words: Sequence[str]) -> list[str]:
    """One flag with its value to a line."""
    lines: list[str] = []
    for word in words:
        if word.startswith("-") or not lines or not lines[-1].startswith("--") or " " in lines[-1]:
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return lines
