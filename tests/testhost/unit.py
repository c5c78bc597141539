"""The service that the tests tune: a unit as people write it, with the simulated server in it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from tests.testhost.host import PROJECT_ROOT, SystemdHost

__all__ = ["SERVER_COMMAND", "SERVER_FLAGS", "UNIT", "install_unit", "unit_text"]

UNIT = "sglang-k26-ddtree.service"
SERVER_COMMAND = (sys.executable, "-m", "autotune.testing.sglang_server")
SERVER_FLAGS = (
    "--model-path /models/Kimi-K2.6",
    "--port {port}",
    "--host 0.0.0.0",
    "--tp-size 8",
    "--trust-remote-code",
    "--mem-fraction-static 0.85",
    "--context-length 16384",
    "--speculative-algorithm DDTREE",
    "--speculative-draft-model-path /models/Kimi-K2.6-DFlash",
    "--speculative-num-draft-tokens 8",
    "--speculative-ddtree-budget 8",
    "--speculative-ddtree-topk-cap 4",
    "--page-size 1",
    "--attention-backend triton",
    "--enable-metrics",
)
"""One line of the unit each; the deployed configuration is 8/4/none."""


def unit_text(
    *,
    port: int = 30000,
    load_s: float = 0.0,
    faults: str = "",
    user: str = "root",
    environment: Mapping[str, str] | None = None,
    command: Sequence[str] = SERVER_COMMAND,
) -> str:
    """The unit file.

    Args:
        port: Port of the server.
        load_s: How long the simulated load takes, seconds.
        faults: Comma list of faults of the simulated server.
        user: Who runs it.
        environment: More variables, or other values for those above.
        command: What comes before the flags in `ExecStart=`.
    """
    variables = {"AUTOTUNE_SIM_LOAD_S": f"{load_s:g}", "AUTOTUNE_SIM_FAULT": faults}
    # The server is of this tree, whichever tree the interpreter has installed.
    variables |= {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(PROJECT_ROOT)}
    variables |= dict(environment or {})
    lines = [f'Environment="{name}={_quoted(value)}"' for name, value in variables.items()]
    words = [" ".join(command), *(flag.format(port=port) for flag in SERVER_FLAGS)]
    return "\n".join(
        [
            "# Kimi K2.6 with DDTree speculative decoding, eight GPUs.",
            "[Unit]",
            "Description=SGLang Kimi-K2.6 DDTree",
            "After=network-online.target",
            "",
            "[Service]",
            f"User={user}",
            "# what the server reads",
            *lines,
            "",
            "# flags: see the model card",
            "ExecStart=" + " \\\n    ".join(words),
            "# a crash costs one load",
            "Restart=on-failure",
            "RestartSec=2",
            "",
            "; drain before the GPUs are taken away",
            "TimeoutStopSec=60",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


def install_unit(
    host: SystemdHost,
    *,
    port: int = 30000,
    load_s: float = 0.0,
    faults: str = "",
    user: str = "root",
    environment: Mapping[str, str] | None = None,
    command: Sequence[str] = SERVER_COMMAND,
) -> str:
    """Install the unit in a host, not started and not enabled; returns its name."""
    text = unit_text(
        port=port,
        load_s=load_s,
        faults=faults,
        user=user,
        environment=environment,
        command=command,
    )
    host.write(f"/etc/systemd/system/{UNIT}", text)
    host.run("systemctl daemon-reload")
    return UNIT


def _quoted(value: str) -> str:
    """As it stands between double quotes in a unit file, where `%` starts a specifier."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
