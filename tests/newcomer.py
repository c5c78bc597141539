"""A newcomer's way with a unit that nobody tuned before, from `init` to an applied winner.

`python -m tests.newcomer` (as root, on a quiet machine, about 20 minutes) boots a test host with
such a unit, runs the commands of docs/tutorial.md word for word, and writes what they print into
docs/transcript.md.  No file is edited in between.  The server is the simulated one.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from autotune.sglang.masking import mask_text
from tests.host.services import until
from tests.host.studies import StudyOnHost, environment
from tests.testhost import SystemdHost, boot
from tests.testhost.unit import unit_text

__all__ = ["COMMANDS", "PAGE", "TUTORIAL", "a_unit", "commands_of"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "transcript.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
UNIT = "llm.service"
COMMANDS = (
    "autotune init --host gpu-a --unit llm.service --ssh-config ssh_config",
    "autotune check --study llm",
    "autotune run --study llm --trials 6",
    "autotune status --study llm",
    "autotune report --study llm --tables tables",
    "autotune export --study llm --apply --in-place --dry-run",
    "autotune export --study llm --apply --in-place",
    "autotune verify --study llm",
)
HEAD = """\
# Transcript

What the commands of the [tutorial](tutorial.md) printed, from `init` to an applied and proved
winner, on a real systemd host over real ssh as a user with `sudo -n`. Made by
`python -m tests.newcomer`; no file was edited by hand. The server in the unit is the simulated one
([simulated-server.md](simulated-server.md)), sped up: its numbers say nothing about a GPU.
"""


def a_unit() -> str:
    """A service as its owner has it: small limits, so that two buckets fit."""
    changes = {
        "AUTOTUNE_SIM_TIME_SCALE": "8",
        "AUTOTUNE_SIM_ANSWERS": str(ROOT / "objectives" / "coding"),
        "AUTOTUNE_SIM_SEED": "1",
    }
    text = unit_text(load_s=2, environment=changes)
    return text.replace(
        "--context-length 16384", "--context-length 1200 \\\n    --max-running-requests 8"
    )


def commands_of(page: str) -> tuple[str, ...]:
    """The commands that a page shows, in order."""
    return tuple(re.findall(r"^    (?:\$ )?(autotune .+)$", page, re.MULTILINE))


def installed(host: SystemdHost, folder: Path) -> None:
    """The unit on the host, serving, and the way there in the folder."""
    host.write(f"/etc/systemd/system/{UNIT}", a_unit())
    host.run(f"systemctl daemon-reload && systemctl enable --now {UNIT}")
    asked = "curl -s -m 2 -o /dev/null -w '%{http_code}' http://127.0.0.1:30000/health"
    until(lambda: host.run(asked, check=False).stdout == "200", "the unit serves")
    StudyOnHost(host, folder).ssh_config()


def told(command: str, folder: Path) -> str:
    """A command and what it printed, as the page shows it; stops when it fails."""
    words = [sys.executable, "-m", *shlex.split(command)]
    ended = subprocess.run(
        words,
        cwd=folder,
        env={**environment(), "COLUMNS": "110"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said = mask_text(ended.stdout).replace(f"{folder}/", "").replace(sys.prefix, "/opt/venv")
    said = said.replace(str(ROOT), "/opt/autotune").replace(str(folder), "/home/user/llm")
    lines = [f"    {line}".rstrip() for line in (f"$ {command}", *said.splitlines())]
    print("\n".join(lines), flush=True)
    if ended.returncode:
        raise SystemExit(f"{command} ended with {ended.returncode}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the way and write the page."""
    with tempfile.TemporaryDirectory() as name, boot("gpu-a") as host:
        folder = Path(name).resolve()
        installed(host, folder)
        parts = [told(command, folder) for command in COMMANDS]
    PAGE.write_text("\n".join([HEAD, *parts]), encoding="utf-8")


if __name__ == "__main__":
    main()
