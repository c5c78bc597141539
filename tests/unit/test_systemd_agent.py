"""The tuner's side of the agent: what is sent, and what each answer means."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict

import pytest

from autotune.errors import (
    AutotuneError,
    CommandError,
    DropInConflict,
    HostBusy,
    LeaseLost,
    UnitError,
)
from autotune.remote.command import Words, shown
from autotune.remote.connector import Completed
from autotune.supervisors.base import Launch, Original, Owner, Passage, Word
from autotune.systemd.agent import (
    Agent,
    agent_script,
    folder_name,
    restore_units,
    sudoers_lines,
)
from autotune.systemd.facts import ExecCommand
from autotune.systemd.record import UnitRecord

UNIT = "llm-web@a.service"
OWNER = Owner("study", "desk", "b" * 36, 7, 1.5, 2.5)
PATH = "/run/autotune/llm-web@a.service/agent"


class Host:
    """Answers the commands in order and remembers them."""

    host = "gpu-a"

    def __init__(self, *answers: tuple[int, bytes, bytes]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[tuple[str, ...], bytes]] = []

    def run(
        self,
        argv: Words,
        *,
        input: bytes = b"",  # noqa: A002
        deadline_s: float = 0.0,
        cap_bytes: int = 0,
    ) -> Completed:
        self.asked.append((shown(argv), input))
        status, output, errors = self.answers.pop(0)
        return Completed(shown(argv), status, output, errors)

    def stream(self, argv: Words, *, input: bytes = b"") -> None:  # noqa: A002
        raise AssertionError("nothing is streamed here")

    def close(self) -> None: ...
    def __enter__(self) -> Host:
        return self

    def __exit__(self, *ending: object) -> None: ...


BOOT_ID = b"0d5f1a3e-7c1b-4a52-9a35-0f6f4d0d2b11\n"


def hello() -> tuple[int, bytes, bytes]:
    script = subprocess.run(["sha256sum"], input=agent_script(UNIT), capture_output=True)
    return 0, script.stdout.split()[0] + b"\n" + BOOT_ID, b""


MISSING = (2, b"", b"/bin/sh: 0: cannot open /run/autotune/x/agent: No such file")


def agent(host: Host, *, user: str = "") -> Agent:
    return Agent(host, unit=UNIT, user=user)  # type: ignore[arg-type]


def test_the_script_is_one_for_a_posix_shell() -> None:
    script = agent_script(r"a\x2db'c.service")
    checked = subprocess.run(["sh", "-n"], input=script, capture_output=True)
    assert (checked.returncode, checked.stderr) == (0, b"")
    assert b"@UNIT@" not in script
    assert rb"""UNIT='a\x2db'"'"'c.service'""" in script


def test_half_a_script_does_nothing() -> None:
    script = agent_script(UNIT)
    for length in (20, 1000, len(script) // 2, len(script) - 3):
        ran = subprocess.run(["sh"], input=script[:length], capture_output=True)
        assert ran.returncode == 2
        assert ran.stdout == b""


@pytest.mark.parametrize(
    ("unit", "name"),
    [
        ("llm.service", "llm.service"),
        ("llm-web@a_b.service", "llm-web@a_b.service"),
        (r"a\x2db:c.service", "a+5cx2db+3ac.service"),
    ],
)
def test_folder_names(unit: str, name: str) -> None:
    assert folder_name(unit) == name


def test_restore_units_are_escaped_instances() -> None:
    assert restore_units("llm-web@a.service") == (
        r"autotune-restore@llm\x2dweb\x40a.service.service",
        r"autotune-restore@llm\x2dweb\x40a.service.timer",
    )


def test_sudoers_lines_have_no_wildcard() -> None:
    lines = sudoers_lines(r"a\x2d*[b]?.service", "tuner")
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("tuner ALL=(root) NOPASSWD: /")
        assert not set(line.partition("NOPASSWD: ")[2]) & set("*?[]\\,:=!")


def test_the_agent_is_installed_when_it_is_not_there() -> None:
    host = Host(MISSING, MISSING, (0, b"", b""), (0, b"", b""), hello(), (0, b"free\n", b""))
    assert agent(host, user="me").holder() is None
    sudo = ("sudo", "-n")
    assert [words for words, _ in host.asked][2:4] == [
        (*sudo, "/usr/bin/mkdir", "-p", "-m", "0700", PATH.rpartition("/")[0]),
        (*sudo, "/usr/bin/tee", PATH),
    ]
    assert host.asked[3][1] == agent_script(UNIT)
    assert host.asked[5] == ((*sudo, "/bin/sh", PATH), b"holder - -\n")


def test_every_command_has_its_sudoers_line() -> None:
    host = Host(MISSING, MISSING, (0, b"", b""), (0, b"", b""), hello(), (0, b"free\n", b""))
    agent(host, user="me").holder()
    allowed = {line.partition("NOPASSWD: ")[2] for line in sudoers_lines(UNIT, "me")}
    assert {" ".join(words[2:]) for words, _ in host.asked} == allowed


def test_an_agent_of_another_version_stays_while_somebody_holds_the_host() -> None:
    host = Host((0, b"other\n", b""), (0, held("armed"), b""), (0, held("armed"), b""))
    seen = agent(host).holder()
    assert seen is not None
    assert seen.owner == OWNER
    assert not any("tee" in words[0] for words, _ in host.asked)


def held(state: str, failure: str = "") -> bytes:
    packed = [json.dumps(asdict(OWNER)), json.dumps({"a": 1}), failure]
    lines = [
        f"{state} {'1' * 32} trial-3",
        *(base64.b64encode(x.encode()).decode() for x in packed),
    ]
    return ("\n".join(lines) + "\n").encode()


def test_a_lease_is_read() -> None:
    seen = agent(Host(hello(), (0, held("restoring", "no port"), b""))).holder()
    assert seen is not None
    assert (seen.lease_id, seen.claim_id, seen.restoring) == ("1" * 32, "trial-3", True)
    assert (seen.owner, seen.record, seen.failure) == (OWNER, {"a": 1}, "no port")


def test_a_lease_that_cannot_be_read() -> None:
    with pytest.raises(UnitError, match="cannot be read"):
        agent(Host(hello(), (0, b"armed 1 2\nbroken\n", b""))).holder()


def test_the_lease_of_another_is_given_back_by_acquire() -> None:
    host = Host(hello(), (71, held("armed"), b""), (0, b"", b""))
    ours = agent(host)
    seen = ours.acquire("2" * 32, {"active": "1"}, OWNER, {"a": 1})
    assert seen is not None
    assert seen.lease_id == "1" * 32
    assert ours.acquire("2" * 32, {"active": "1"}, OWNER, {"a": 1}) is None
    first, *facts = host.asked[-1][1].decode().splitlines()
    assert first == f"acquire {'2' * 32} -"
    assert [fact.split(" ")[0] for fact in facts] == ["active", "owner", "record"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (70, LeaseLost),
        (71, HostBusy),
        (72, DropInConflict),
        (73, HostBusy),
        (74, UnitError),
        (3, ProcessLookupError),
        (1, CommandError),
        (64, CommandError),
        (255, CommandError),
    ],
)
def test_what_each_status_means(status: int, kind: type[Exception]) -> None:
    host = Host(hello(), (0, b"free\n", b""), (status, b"", b"says why\n"))
    ours = agent(host)
    ours.holder()
    with pytest.raises(kind, match="says why"):
        ours.call("stop", lease="1", claim="2")


def test_a_lease_is_lost_with_its_agent() -> None:
    host = Host(MISSING)
    with pytest.raises(LeaseLost):
        agent(host).call("beat", lease="1")
    assert len(host.asked) == 1


def test_an_agent_that_went_away_is_put_back_for_a_look() -> None:
    put_back: Sequence[tuple[int, bytes, bytes]] = [MISSING, MISSING, (0, b"", b""), (0, b"", b"")]
    host = Host(hello(), MISSING, *put_back, hello(), (0, b"free\n", b""))
    assert agent(host).holder() is None


@pytest.mark.parametrize("word", ["", "two words", "a\nb", "ünï", "$(id)"])
def test_words_that_the_agent_would_read_otherwise(word: str) -> None:
    with pytest.raises(ValueError, match="no word"):
        agent(Host()).call("claim", lease="1", claim=word)


def test_sudo_that_refuses_names_the_lines() -> None:
    refused = (1, b"", b"sudo: a password is required\n")
    with pytest.raises(CommandError) as seen:
        agent(Host(refused), user="me").holder()
    assert sudoers_lines(UNIT, "me")[0] in seen.value.hint
    assert isinstance(seen.value, AutotuneError)


def test_records_come_back_without_the_environment() -> None:
    original = Original(
        launch=Launch((Word("/bin/x"), Word("$A")), passage=Passage(("/bin/sh",), 1)),
        live_argv=("/bin/x", "a\udcff"),
        live_environ={"API_KEY": "s3cret"},
        active=True,
        enabled="enabled",
        files={"/etc/x": "00"},
        fragment="[Service]\n",
        taken_at_s=1.5,
        planned_argv=("/bin/sh", "a"),
        environ={"A": "a", "API_KEY": "s3cret"},
    )
    command = ExecCommand("/bin/x", ("/bin/x", "$A"), frozenset({"privileged"}))
    text = json.dumps(UnitRecord(original, command, "cgroup").to_json())
    assert "s3cret" not in text
    back = UnitRecord.from_json(json.loads(text))
    assert back.command == command
    assert back.original.live_environ == {}
    assert back.original.live_argv == original.live_argv
    assert back.original.planned_argv == original.planned_argv
    assert back.original.launch == original.launch
    assert back.original.environ == {"A": "a"}
    with pytest.raises(UnitError, match="record"):
        UnitRecord.from_json({"argv": 3})


@pytest.mark.parametrize(
    ("boot_id", "why"),
    [
        (b"b31f0f4c-5d0e-4c5c-8a38-5b5b4b9a7c22\n", "the host was rebooted"),
        (BOOT_ID, "no lease holds there any more"),
        (b"", "no lease holds there any more"),
    ],
)
def test_a_lease_that_went_with_its_agent_says_whether_the_host_was_rebooted(
    boot_id: bytes, why: str
) -> None:
    host = Host(hello(), (0, b"free\n", b""), MISSING, (0, boot_id, b""))
    one = agent(host, user="me")
    one.holder()
    with pytest.raises(LeaseLost, match=f"^gpu-a: {why}"):
        one.call("guard", lease="1" * 32, claim="trial-3")


def test_what_the_commands_of_the_agent_said_comes_after_what_it_says_itself() -> None:
    errors = b"cat: write error: No space left on device\nthe claim cannot be written\n"
    host = Host(hello(), (0, b"free\n", b""), (74, b"", errors))
    one = agent(host)
    one.holder()
    with pytest.raises(UnitError) as caught:
        one.call("claim", lease="1" * 32, claim="trial-3")
    assert caught.value.message == (
        "gpu-a: the claim cannot be written: cat: write error: No space left on device"
    )
