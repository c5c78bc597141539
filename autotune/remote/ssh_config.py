"""What ssh would do for a host name: the user's ssh configuration as one value.

`ssh -G host` is asked when the binary exists: it alone knows every keyword.  Without it paramiko's
parser is used for the plain keywords, and a file with `Match` or `Include` is refused with its line
number, because paramiko applies an unknown `Match` to every host and does not follow `Include`.
"""

from __future__ import annotations

import getpass
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import paramiko

from autotune.errors import ConfigError

__all__ = ["SshOptions", "SshSettings", "Target", "parse_ssh_g", "parse_target", "resolve"]

DEFAULT_KEY_NAMES = frozenset(
    {"id_rsa", "id_dsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk", "id_xmss"}
)
"""Keys that ssh tries by itself in ~/.ssh (man ssh_config, IdentityFile): none of them was
configured by the user."""
ASK_S = 20.0


@dataclass(frozen=True, slots=True)
class SshOptions:
    """What the user says beside the ssh configuration; None or "" means: as configured.

    Attributes:
        config: ssh configuration file instead of the user's own.
        key: Private key file; then only this key is offered.
        known_hosts: File with known host keys, instead of the configured ones.
    """

    port: int | None = None
    user: str = ""
    key: str = ""
    known_hosts: str = ""
    config: str = ""


@dataclass(frozen=True, slots=True)
class SshSettings:
    """How one host is reached.

    Attributes:
        alias: The name that the user gave.
        keys: Private key files that were configured; empty: the agent and ssh's default keys.
        known_hosts: Files with known host keys; missing ones are skipped.
        jumps: Hosts to go through, first hop first.
        host_key_alias: Name to look host keys up by; empty: `hostname`.
    """

    alias: str
    hostname: str
    port: int
    user: str
    keys: tuple[str, ...] = ()
    identities_only: bool = False
    known_hosts: tuple[str, ...] = ()
    jumps: tuple[str, ...] = field(default=())
    host_key_alias: str = ""
    connect_timeout_s: float = 15.0


@dataclass(frozen=True, slots=True)
class Target:
    """`[user@]host[:port]`, the host in brackets when it is an IPv6 address with a port."""

    host: str
    user: str = ""
    port: int | None = None


def parse_target(text: str) -> Target:
    """Read `[user@]host[:port]` as ssh's ProxyJump writes it.

    Raises:
        ConfigError: It has no host or its port is no number.
    """
    user, at, rest = text.removeprefix("ssh://").rpartition("@")
    host, port = rest, ""
    if rest.startswith("["):
        host, bracket, port = rest[1:].partition("]")
        if not bracket:
            raise ConfigError(
                f"host {text!r} has no closing bracket", hint="for example [fe80::1]:22"
            )
        port = port.removeprefix(":")
    elif rest.count(":") == 1:
        host, _, port = rest.partition(":")
    if not host or host.startswith("-") or (at and not user) or (port and not port.isdecimal()):
        raise ConfigError(
            f"host {text!r} is no [user@]host[:port]", hint="for example root@gpu-a:22"
        )
    return Target(host, user, int(port) if port else None)


def resolve(alias: str, options: SshOptions = SshOptions()) -> SshSettings:
    """How `alias` is reached; nothing is contacted.

    Raises:
        ConfigError: The configuration asks for something that is not done here (ProxyCommand,
            `Match` or `Include` without an ssh binary) or cannot be read.
    """
    binary = shutil.which("ssh")
    if binary is None:
        return _from_paramiko(alias, options)
    argv = [binary, "-G"]
    if options.config:
        argv += ["-F", str(Path(options.config).expanduser())]
    argv += ["--", alias]
    asked = subprocess.run(
        argv, capture_output=True, timeout=ASK_S, stdin=subprocess.DEVNULL, check=False
    )
    if asked.returncode != 0:
        message = asked.stderr.decode(errors="replace").strip()
        raise ConfigError(
            f"`ssh -G {alias}` refused: {message}", hint="mend the ssh configuration that it names"
        )
    return parse_ssh_g(alias, asked.stdout.decode(errors="replace"), options)


def parse_ssh_g(
    alias: str,
    text: str,
    options: SshOptions = SshOptions(),
) -> SshSettings:
    """Settings from what `ssh -G` printed.

    Raises:
        ConfigError: It names a ProxyCommand.
    """
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.strip().partition(" ")
        found.setdefault(key.lower(), []).append(value)
    return _settings(alias, found, options)


def _settings(alias: str, found: Mapping[str, Sequence[str]], options: SshOptions) -> SshSettings:
    def one(key: str, default: str = "") -> str:
        value = found.get(key, [default])[0]
        return "" if value.lower() == "none" else value

    if one("proxycommand"):
        raise ConfigError(
            f"ssh configuration of {alias}: ProxyCommand is not supported",
            hint="say ProxyJump instead",
        )
    hostname = one("hostname", alias)
    keys = tuple(
        _expand(path, hostname) for path in found.get("identityfile", []) if path != "none"
    )
    home = Path.home() / ".ssh"
    chosen = tuple(
        key for key in keys if Path(key).parent != home or Path(key).name not in DEFAULT_KEY_NAMES
    )
    known = [
        _expand(path, hostname)
        for key in ("userknownhostsfile", "globalknownhostsfile")
        for path in " ".join(found.get(key, [])).split()
        if path != "none"
    ]
    timeout = one("connecttimeout")
    return SshSettings(
        alias=alias,
        hostname=hostname,
        port=options.port or int(one("port", "22")),
        user=options.user or one("user") or getpass.getuser(),
        keys=(_expand(options.key, hostname),) if options.key else chosen,
        identities_only=bool(options.key) or one("identitiesonly") == "yes",
        known_hosts=(_expand(options.known_hosts, hostname),)
        if options.known_hosts
        else tuple(known),
        jumps=tuple(jump.strip() for jump in one("proxyjump").split(",") if jump.strip()),
        host_key_alias=one("hostkeyalias"),
        connect_timeout_s=float(timeout) if timeout.isdecimal() else 15.0,
    )


def _expand(path: str, hostname: str) -> str:
    path = path.strip('"').replace("%d", str(Path.home())).replace("%h", hostname)
    return str(Path(path).expanduser())


def _from_paramiko(alias: str, options: SshOptions) -> SshSettings:
    path = Path(options.config or "~/.ssh/config").expanduser()
    found: dict[str, list[str]] = {
        "userknownhostsfile": ["~/.ssh/known_hosts"],
        "globalknownhostsfile": ["/etc/ssh/ssh_known_hosts"],
    }
    if options.config and not path.exists():
        raise ConfigError(
            f"{path}: there is no such ssh configuration",
            hint="give the path of one, or leave it out for your own",
        )
    if path.exists():
        text = path.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), start=1):
            word = line.strip().replace("=", " ").split(" ")[0].lower()
            if word in ("match", "include"):
                raise ConfigError(
                    f"{path}:{number}: `{word}` needs the ssh program to be understood",
                    hint="install the OpenSSH client",
                )
        try:
            looked_up: Mapping[str, object] = paramiko.SSHConfig.from_text(text).lookup(alias)
        except paramiko.SSHException as error:
            raise ConfigError(f"{path}: {error}", hint="see man ssh_config") from error
        for key, value in looked_up.items():
            found[key] = [str(item) for item in value] if isinstance(value, list) else [str(value)]
    return _settings(alias, found, options)
