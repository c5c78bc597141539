"""The user's ssh configuration as settings: text in, values out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from autotune.errors import ConfigError
from autotune.remote.ssh_config import (
    SshOptions,
    SshSettings,
    Target,
    parse_ssh_g,
    parse_target,
    resolve,
)

CONFIG = """\
Host gpu-a
    HostName gpu-a.internal
    Port 2222
    User tuner
    IdentityFile /keys/id_gpu
    IdentitiesOnly yes
    UserKnownHostsFile /known/a /known/b
    GlobalKnownHostsFile none
    ProxyJump ops@bastion:2200,inner
    HostKeyAlias gpu-a-key
    ConnectTimeout 7
Host by-command
    ProxyCommand nc %h %p
"""
WANTED = SshSettings(
    alias="gpu-a",
    hostname="gpu-a.internal",
    port=2222,
    user="tuner",
    keys=("/keys/id_gpu",),
    identities_only=True,
    known_hosts=("/known/a", "/known/b"),
    jumps=("ops@bastion:2200", "inner"),
    host_key_alias="gpu-a-key",
    connect_timeout_s=7.0,
)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config"
    path.write_text(CONFIG)
    return str(path)


@pytest.fixture(params=["with ssh", "without ssh"])
def ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways give the same: `ssh -G`, and the parser where there is no ssh program."""
    if request.param == "without ssh":
        monkeypatch.setenv("PATH", "/nonexistent")
    elif shutil.which("ssh") is None:
        pytest.skip("this machine has no ssh program")


@pytest.mark.usefixtures("ways")
def test_every_supported_keyword(config: str) -> None:
    assert resolve("gpu-a", SshOptions(config=config)) == WANTED


@pytest.mark.usefixtures("ways")
def test_a_host_that_is_not_named_gets_defaults(config: str) -> None:
    settings = resolve("10.0.0.7", SshOptions(config=config, user="me"))
    assert (settings.hostname, settings.port, settings.user) == ("10.0.0.7", 22, "me")
    assert settings.keys == ()
    assert settings.jumps == ()
    assert str(Path.home() / ".ssh/known_hosts") in settings.known_hosts
    assert "/etc/ssh/ssh_known_hosts" in settings.known_hosts


@pytest.mark.usefixtures("ways")
def test_what_the_user_says_counts_first(config: str) -> None:
    options = SshOptions(config=config, port=9, user="me", key="/mine", known_hosts="/hosts")
    settings = resolve("gpu-a", options)
    assert (settings.port, settings.user) == (9, "me")
    assert (settings.keys, settings.identities_only) == (("/mine",), True)
    assert settings.known_hosts == ("/hosts",)


@pytest.mark.usefixtures("ways")
def test_a_proxy_command_is_refused(config: str) -> None:
    with pytest.raises(ConfigError, match="ProxyCommand") as seen:
        resolve("by-command", SshOptions(config=config))
    assert "ProxyJump" in seen.value.hint


@pytest.mark.parametrize("line", ["Match localnetwork 192.0.2.0/24", "Include more", "match=all"])
def test_without_ssh_what_cannot_be_understood_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    path = tmp_path / "config"
    path.write_text(f"# a comment\n  {line}\n    ProxyJump wrong-bastion\nHost gpu-a\n")
    with pytest.raises(ConfigError, match=r"config:2: "):
        resolve("gpu-a", SshOptions(config=str(path)))


def test_without_ssh_a_config_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ConfigError, match="no such ssh configuration"):
        resolve("gpu-a", SshOptions(config="/nowhere/config"))


def test_with_ssh_a_config_that_is_wrong(tmp_path: Path) -> None:
    if shutil.which("ssh") is None:
        pytest.skip("this machine has no ssh program")
    path = tmp_path / "config"
    path.write_text("Host a\n  Port none-of-it\n")
    with pytest.raises(ConfigError, match="ssh -G a"):
        resolve("a", SshOptions(config=str(path)))


def test_keys_that_ssh_tries_by_itself_are_not_configured_ones() -> None:
    home = Path.home() / ".ssh"
    text = (
        f"hostname h\nport 22\nuser u\nidentityfile {home}/id_rsa\nidentityfile ~/.ssh/id_ed25519\n"
    )
    assert parse_ssh_g("h", text).keys == ()
    assert parse_ssh_g("h", text + "identityfile ~/.ssh/gpu\n").keys == (f"{home}/gpu",)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("gpu-a", Target("gpu-a")),
        ("me@gpu-a:2222", Target("gpu-a", "me", 2222)),
        ("ssh://me@gpu-a", Target("gpu-a", "me")),
        ("[fe80::1]:22", Target("fe80::1", "", 22)),
        ("[fe80::1]", Target("fe80::1")),
        ("me@fe80::1", Target("fe80::1", "me")),
        ("a@b@gpu", Target("gpu", "a@b")),
    ],
)
def test_targets(text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize("text", ["", "@gpu", "gpu:x", "[fe80::1", "-oProxyCommand=x", "u@"])
def test_no_targets(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_target(text)
