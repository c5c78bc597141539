"""Commands over real ssh."""

from __future__ import annotations

import subprocess
import threading
from contextlib import closing
from pathlib import Path

import pytest

from autotune.errors import AuthenticationError, CommandTimeout, ConnectError, HostKeyError
from autotune.remote.command import Masked
from autotune.remote.connector import Connector
from autotune.remote.ssh import SshConnector
from autotune.remote.ssh_config import SshOptions
from autotune.testing.supervisor_contract import eventually
from tests.testhost import SystemdHost

MANY = 32_000_000


def connect(host: SystemdHost, *, user: str = "root", **options: object) -> SshConnector:
    chosen = {"config": str(host.ssh_config), **options}
    return SshConnector(f"{user}@{host.name}", SshOptions(**chosen))  # type: ignore[arg-type]


def keygen(*words: str) -> None:
    subprocess.run(["ssh-keygen", "-q", *words], check=True, stdin=subprocess.DEVNULL)


def test_both_outputs_and_the_input_flow_at_once(host: SystemdHost) -> None:
    with connect(host) as connector:
        script = f"cat; head -c {MANY} /dev/zero >&2; head -c {MANY} /dev/zero; exit 3"
        completed = connector.run(["sh", "-c", script], input=b"x" * MANY, cap_bytes=2 * MANY)
        assert isinstance(connector, Connector)
    assert completed.exit_status == 3
    assert completed.stdout == b"x" * MANY + bytes(MANY)
    assert completed.stderr == bytes(MANY)
    assert not completed.truncated


def test_more_than_the_cap_is_read_and_dropped(host: SystemdHost) -> None:
    with connect(host) as connector:
        completed = connector.run(["head", "-c", str(MANY), "/dev/zero"], cap_bytes=10)
    assert (completed.stdout, completed.truncated, completed.exit_status) == (bytes(10), True, 0)


@pytest.mark.parametrize("size", [1, MANY])
def test_a_command_that_reads_no_input_still_tells_its_end(host: SystemdHost, size: int) -> None:
    with connect(host) as connector:
        for _ in range(20):
            completed = connector.run(["sh", "-c", "echo no; exit 9"], input=b"x" * size)
            assert (completed.exit_status, completed.text) == (9, "no\n")
        with closing(connector.stream(["sh", "-c", "echo no; exit 9"], input=b"x" * size)) as lines:
            assert lines.read(30.0) == b"no"
        assert connector.connections == 1


def test_words_and_secrets(host: SystemdHost) -> None:
    words = ["$HOME", "a b", "'", '"', "\\", "*", "é", "", "a\nb"]
    with connect(host) as connector:
        seen = connector.run(["printf", r"%s\0", *words, Masked("s3cret")])
        with pytest.raises(CommandTimeout, match=r"\*\*\*") as late:
            connector.run(["sh", "-c", "sleep 60", Masked("s3cret")], deadline_s=0.5)
        assert connector.run(["echo", "still here"]).text == "still here\n"
        assert connector.connections == 1
    assert seen.text.split("\0") == [*words, "s3cret", ""]
    assert "s3cret" not in repr(seen.argv)
    assert "s3cret" not in str(late.value)


def test_a_command_ended_by_a_signal(host: SystemdHost) -> None:
    with connect(host) as connector:
        assert connector.run(["sh", "-c", "kill -9 $$"]).exit_status == -1


def test_a_stream_ends_with_its_reader(host: SystemdHost) -> None:
    with connect(host) as connector:
        stream = connector.stream(["sh", "-c", "head -n 1; exec journalctl -f -n 1"], input=b"a\n")
        assert stream.read(20) == b"a"
        stream.close()
        host.run("logger one; logger two")
        quiet = eventually(
            lambda: host.run("pgrep -x journalctl", check=False).returncode, lambda code: code != 0
        )
        assert quiet == 1
        ended = connector.stream(["sh", "-c", "echo last words >&2; echo out"])
        assert ended.read(20) == b"out"
        with pytest.raises(ConnectError, match="has ended: last words"):
            ended.read(20)
        ended.close()


def test_one_session_is_enough(host: SystemdHost, tmp_path: Path) -> None:
    """`MaxSessions 1` allows one channel a connection: the second gets a connection of its own."""
    server = "/usr/sbin/sshd -D -p 2222 -o MaxSessions=1 -o PidFile=none"
    host.run(f"systemd-run --quiet --unit=narrow {server}")
    eventually(lambda: host.run("ss -ltnH sport = :2222").stdout, bool)
    known = tmp_path / "known"
    known.write_text(f"[{host.host}]:2222 {host.known_hosts.read_text().split(' ', 1)[1]}")
    with connect(host, port=2222, known_hosts=str(known)) as connector:
        stream = connector.stream(["sh", "-c", "echo on; exec sleep 60"])
        assert stream.read(20) == b"on"
        assert connector.run(["echo", "beside"]).text == "beside\n"
        assert connector.connections == 2
        stream.close()


def test_threads_share_a_connection(host: SystemdHost) -> None:
    seen: list[str] = []
    with connect(host) as connector:
        threads = [
            threading.Thread(target=lambda n=n: seen.append(connector.run(["echo", str(n)]).text))
            for n in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert connector.connections == 1
    assert sorted(seen) == [f"{n}\n" for n in range(6)]


def test_a_lost_connection_is_told_and_the_next_command_connects(host: SystemdHost) -> None:
    with connect(host) as connector:
        stream = connector.stream(["sh", "-c", "echo on; exec sleep 60"])
        assert stream.read(20) == b"on"
        host.run("pkill -KILL -f 'sshd: root@notty'")
        with pytest.raises(ConnectError):
            stream.read(20)
        stream.close()
        assert connector.run(["echo", "again"]).text == "again\n"
        assert connector.connections == 2


def test_a_jump_host(host: SystemdHost, tmp_path: Path) -> None:
    """Through the host to its own loopback address, which nothing outside can reach."""
    known = host.known_hosts.read_text().split(" ", 1)[1]
    hosts = tmp_path / "known"
    hosts.write_text(f"inner {known}{host.known_hosts.read_text()}")
    config = tmp_path / "config"
    config.write_text(
        f"Host inner\n  HostName 127.0.0.1\n  HostKeyAlias inner\n  ProxyJump {host.name}\n"
        f"Host *\n  User root\n  IdentityFile {host.key}\n  UserKnownHostsFile {hosts}\n"
        f"Host {host.name}\n  HostName {host.host}\n"
    )
    with SshConnector("inner", SshOptions(config=str(config))) as connector:
        seen = connector.run(["sh", "-c", "hostname; echo $SSH_CONNECTION"]).text
    assert seen.split()[0] == host.name
    assert seen.split()[1] == "127.0.0.1"


@pytest.mark.parametrize("hashed", [False, True], ids=["plain", "hashed"])
def test_a_port_of_an_ipv6_address(host: SystemdHost, tmp_path: Path, hashed: bool) -> None:
    """Its key stands under `[address]:port`, and under no other name."""
    serve = "/usr/sbin/sshd -D -o 'ListenAddress=[::1]:2222' -o PidFile=none"
    host.run(f"systemd-run --quiet --unit=other-sshd {serve}")
    eventually(lambda: host.run("ss -ltnH 'sport = :2222'").stdout, bool)
    known = tmp_path / "known"
    known.write_text(f"[::1]:2222 {host.known_hosts.read_text().split(' ', 1)[1]}")
    if hashed:
        keygen("-H", "-f", str(known))
    config = tmp_path / "config"
    config.write_text(
        f"Host inner\n  HostName ::1\n  Port 2222\n  ProxyJump {host.name}\n"
        f"Host *\n  User root\n  IdentityFile {host.key}\n"
        f"  UserKnownHostsFile {known} {host.known_hosts}\n"
        f"Host {host.name}\n  HostName {host.host}\n"
    )
    with SshConnector("inner", SshOptions(config=str(config))) as connector:
        seen = connector.run(["sh", "-c", "echo $SSH_CONNECTION"]).text.split()
    assert seen[2:] == ["::1", "2222"]


@pytest.mark.parametrize("hashed", [False, True], ids=["plain", "hashed"])
def test_known_hosts(host: SystemdHost, tmp_path: Path, hashed: bool) -> None:
    known = tmp_path / "known"
    known.write_text(host.known_hosts.read_text())
    if hashed:
        keygen("-H", "-f", str(known))
        assert host.host not in known.read_text()
    with connect(host, known_hosts=str(known)) as connector:
        assert connector.run(["true"]).exit_status == 0


def test_an_unknown_key_is_refused(host: SystemdHost, tmp_path: Path) -> None:
    with (
        connect(host, known_hosts=str(tmp_path / "none")) as connector,
        pytest.raises(HostKeyError, match="SHA256:"),
    ):
        connector.run(["true"])


def test_a_changed_key_is_refused(host: SystemdHost, tmp_path: Path) -> None:
    keygen("-t", "ed25519", "-N", "", "-f", str(tmp_path / "other"))
    words = (tmp_path / "other.pub").read_text().split()
    (tmp_path / "known").write_text(f"{host.host} {words[0]} {words[1]}\n")
    with (
        connect(host, known_hosts=str(tmp_path / "known")) as connector,
        pytest.raises(HostKeyError, match="changed"),
    ):
        connector.run(["true"])


def test_a_wrong_key_is_named_and_no_other_is_tried(host: SystemdHost, tmp_path: Path) -> None:
    key = tmp_path / "wrong"
    keygen("-t", "ed25519", "-N", "", "-f", str(key))
    with (
        connect(host, key=str(key)) as connector,
        pytest.raises(AuthenticationError, match=rf"tried {key} \(put"),
    ):
        connector.run(["true"])


def locked_key(host: SystemdHost, folder: Path) -> Path:
    """The host's key with a passphrase, and its public half beside it."""
    key = folder / "locked"
    key.write_bytes(host.key.read_bytes())
    key.chmod(0o600)
    (folder / "locked.pub").write_text(host.key.with_suffix(".pub").read_text())
    keygen("-p", "-N", "a passphrase", "-f", str(key))
    return key


def test_a_key_with_a_passphrase_asks_for_the_agent(
    host: SystemdHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with (
        connect(host, key=str(locked_key(host, tmp_path))) as connector,
        pytest.raises(AuthenticationError, match="passphrase") as seen,
    ):
        connector.run(["true"])
    assert "ssh-add" in seen.value.hint


def test_the_agent_signs_for_a_key_with_a_passphrase_among_many(
    host: SystemdHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven wrong keys in the agent: a client that offered them all would be hung up on."""
    agent = ["ssh-agent", "-D", "-a", str(tmp_path / "agent")]
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    with subprocess.Popen(agent, stdout=subprocess.DEVNULL) as process:
        try:
            eventually((tmp_path / "agent").exists, bool)
            for number in range(7):
                keygen("-t", "ed25519", "-N", "", "-f", str(tmp_path / f"wrong{number}"))
                subprocess.run(["ssh-add", "-q", str(tmp_path / f"wrong{number}")], check=True)
            subprocess.run(["ssh-add", "-q", str(host.key)], check=True)
            with connect(host, key=str(locked_key(host, tmp_path))) as connector:
                assert connector.run(["echo", "in"]).text == "in\n"
        finally:
            process.terminate()


def test_nobody_answers(host: SystemdHost) -> None:
    with connect(host, port=9) as connector, pytest.raises(ConnectError, match="refused"):
        connector.run(["true"])
