"""Real hosts for tests: systemd, journald, D-Bus and sshd, booted in a second or less each."""

from __future__ import annotations

from tests.testhost.host import BootFailed, SystemdHost, boot, interpreter_binds
from tests.testhost.needs import unavailable
from tests.testhost.unit import SERVER_COMMAND, SERVER_FLAGS, UNIT, install_unit, unit_text

__all__ = [
    "SERVER_COMMAND",
    "SERVER_FLAGS",
    "UNIT",
    "BootFailed",
    "SystemdHost",
    "boot",
    "install_unit",
    "interpreter_binds",
    "unavailable",
    "unit_text",
]
