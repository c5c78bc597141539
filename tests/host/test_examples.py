"""The examples of the help texts that need hosts, units or ports of certain names, word for word.

They are typed on the test host itself, as root: its own ssh knows it as `gpu-a`.
"""

from __future__ import annotations

import base64
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.databases import template
from tests.examples import Example, Place, examples_at
from tests.host.services import PORT, ROOT, install, serves, until
from tests.testhost import SystemdHost
from tests.testhost.unit import unit_text

FOLDER = "/srv/examples"
SAID = f"{FOLDER}/said"
KEY, KNOWN, CONFIG = "/etc/ssh/tuner_key", "/etc/ssh/tuner_known_hosts", "/etc/ssh/ssh_config"
OTHER = "llm.service"
OTHER_PORT = PORT + 1000


@pytest.fixture
def typed_on(host: SystemdHost, tmp_path: Path) -> Iterator[SystemdHost]:
    """A host with both services that examples name, a way to itself and a stored study."""
    other = unit_text(port=OTHER_PORT, environment={"AUTOTUNE_SIM_TIME_SCALE": "8"})
    host.write(f"/etc/systemd/system/{OTHER}", other)
    install(host, variables={"AUTOTUNE_SIM_TIME_SCALE": "1"})
    host.run(f"systemctl start {OTHER}")
    config = host.ssh_config.read_text()
    for key, value in (
        ("IdentityFile", KEY),
        ("UserKnownHostsFile", KNOWN),
        ("User", host.sudo_user),
    ):
        config, changed = re.subn(rf"(?m)^  {key} .*$", f"  {key} {value}", config)
        assert changed == 1, key
    host.write(CONFIG, config)
    host.write(KEY, host.key.read_text(), mode=0o600)
    host.write(KNOWN, host.known_hosts.read_text())
    database = base64.b64encode(template(tmp_path).read_bytes()).decode()
    host.run(f"rm -rf {FOLDER}; mkdir -p {FOLDER}; base64 -d >{FOLDER}/autotune.db", input=database)
    asked = f"curl -s -m 2 -o /dev/null http://127.0.0.1:{OTHER_PORT}/health"
    until(lambda: host.run(asked, check=False).returncode == 0, f"{OTHER} serves")
    yield host
    host.run(f"rm -rf {FOLDER} {KEY} {KNOWN} {CONFIG}")


def show(host: SystemdHost, name: str) -> str:
    asked = f"systemctl show --property={name} --value example.service"
    return host.run(asked).stdout.strip()


@pytest.mark.parametrize(("words", "example"), examples_at(Place.HOST))
def test_an_example_does_what_it_says(
    words: tuple[str, ...], example: Example, typed_on: SystemdHost
) -> None:
    host = typed_on

    def said() -> str:
        return host.run(f"cat {SAID}", check=False).stdout

    typed = ["systemd-run", "--unit=example", "--no-block", "--property=RemainAfterExit=yes"]
    typed += [f"--property=StandardOutput=file:{SAID}", "--property=StandardError=inherit"]
    typed += [f"--working-directory={FOLDER}", f"--setenv=PYTHONPATH={ROOT}"]
    typed += ["--setenv=HOME=/root", "--setenv=COLUMNS=200"]
    host.run(shlex.join([*typed, sys.executable, "-m", "autotune", *words]))
    if example.serves:
        until(lambda: example.says in said(), f"{words[0]} serves")
        url = re.search(r"http://\S+", said())
        assert url
        until(lambda: host.run(f"curl -sf {url[0]}", check=False).stdout, "it answers")
    else:
        ended = ("exited", "failed")
        until(lambda: show(host, "SubState") in ended, f"{words[0]} ends", timeout_s=300.0)
        assert int(show(host, "ExecMainStatus")) in example.codes, said()
        assert example.says in said()
    host.run("systemctl stop example.service", check=False)
    assert serves(host)
