"""Where a model's program runs: bubblewrap, or a weaker mode that has to be allowed.

Order of the wrappers as root: ``unshare`` (only where the interpreter lies below a directory that
an unprivileged user cannot enter: it is bound to a neutral path first) → ``setpriv`` → ``bwrap`` →
``prlimit`` → interpreter. The privileges go before bwrap because RLIMIT_NPROC does not hold for
real uid 0 (``setrlimit(2)``), and ``prlimit`` comes inside because the kernel counts processes per
user namespace, so that sandboxes running side by side do not eat each other's share. ``nice`` is
the outermost: with several hosts another's bucket may be measured from this machine.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from autotune.coding.launch import Limits, Program, SandboxReport, Worker, harness_bundle
from autotune.errors import TargetError

__all__ = [
    "MOST_WORKERS",
    "BubblewrapSandbox",
    "Limits",
    "Program",
    "Runs",
    "Sandbox",
    "SandboxReport",
    "WeakSandbox",
    "Worker",
    "choose_sandbox",
    "process_limit_holds",
]

_NOBODY = 65534  # kernel/sys.c, overflowuid; `nobody` of every distribution
MOST_WORKERS = 15
"""Of one kind at once: 65520 to 65534 are the users that systemd and distributions leave unused
(systemd's UIDS-GIDS)."""
_NICE = ("nice", "-n", "10")
_NEUTRAL_PATHS = ("/mnt", "/media", "/srv", "/opt")  # FHS 3.0, mount points that a host has


class Runs(Protocol):
    """Runs one program after another and survives them; for one thread at a time."""

    def run(self, program: Program) -> SandboxReport:
        """Raises: TargetError if the sandbox itself could not be started."""
        ...


class Sandbox(Protocol):
    """Where programs of strangers run."""

    @property
    def name(self) -> str:
        """One word for tables."""
        ...

    @property
    def weaknesses(self) -> tuple[str, ...]:
        """What it does not protect from; empty where nothing is known."""
        ...

    def worker(self, slot: int = 0) -> AbstractContextManager[Runs]:
        """A sandbox that stays warm for many programs.

        Args:
            slot: Below `MOST_WORKERS`; two that run at once have different ones.

        Raises: TargetError if a part of it is missing.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BubblewrapSandbox:
    """No network, no home, a read-only system, own namespaces, every limit of `Limits`.

    Args:
        limits: What one answer may use.
        uid: The user to drop to as root; unused otherwise.
        bwrap: Path of bubblewrap, 0.8 or newer; None looks it up.
    """

    limits: Limits = field(default_factory=Limits)
    uid: int = _NOBODY
    bwrap: str | None = None
    _bundle: bytes = field(default_factory=harness_bundle, repr=False)

    @property
    def name(self) -> str:
        return "bubblewrap"

    @property
    def weaknesses(self) -> tuple[str, ...]:
        return ()

    def argv(self) -> tuple[str, ...]:
        """The whole command line up to the interpreter's arguments.

        Raises: TargetError if a wrapper is missing.
        """
        bwrap = self.bwrap or _tool("bwrap", "install bubblewrap")
        source = _interpreter_prefix()
        outer: tuple[str, ...] = ()
        if os.geteuid() == 0:
            outer, source = _dropped(self.uid, source)
        inside = source if _below(source, "/usr") else "/python"
        python = f"{inside}/bin/{_interpreter_name()}"
        mounts: list[str] = ["--ro-bind", "/usr", "/usr"]
        for path in ("/bin", "/lib", "/lib64", "/lib32"):
            if os.path.islink(path):
                mounts += ["--symlink", os.readlink(path), path]
            elif os.path.isdir(path):
                mounts += ["--ro-bind", path, path]
        if inside == "/python":
            mounts += ["--ro-bind", source, inside]
        for device in ("/dev/null", "/dev/zero", "/dev/urandom"):
            mounts += ["--dev-bind", device, device]
        scratch = ["--size", str(self.limits.scratch_bytes), "--tmpfs", "/tmp"]
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
            "LD_LIBRARY_PATH": f"{inside}/lib",
        }
        settings = [w for key, value in environment.items() for w in ("--setenv", key, value)]
        return (
            *_NICE,
            *outer,
            *(bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"),
            *("--new-session", "--as-pid-1", "--uid", str(_NOBODY), "--gid", str(_NOBODY)),
            *("--hostname", "sandbox", "--clearenv", *settings),
            *(*mounts, *scratch, "--remount-ro", "/", "--chdir", "/tmp", "--"),
            *self.limits.prlimit_argv(processes=self.limits.processes),
            python,
        )

    def worker(self, slot: int = 0) -> Worker:
        return Worker(self.argv(), limits=self.limits, bundle=self._bundle)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeakSandbox:
    """A session of its own with limits, an empty environment and, as root, the user nobody.

    The checks are as hard to forge as under bubblewrap, the machine is not as well protected:
    see `weaknesses`.

    Args:
        limits: As for `BubblewrapSandbox`; the process limit holds only as root, because for
            other users the kernel would count all that they run.
        allow_root: Root has to say that this is enough.
        uid: The user to drop to as root; a worker in slot n takes the n-th below it, since the
            kernel counts all processes of a user together.

    Raises: TargetError for root without `allow_root`.
    """

    limits: Limits = field(default_factory=Limits)
    allow_root: bool = False
    uid: int = _NOBODY
    _bundle: bytes = field(default_factory=harness_bundle, repr=False)

    def __post_init__(self) -> None:
        if os.geteuid() == 0 and not self.allow_root:
            raise TargetError(
                "the weaker sandbox is refused for root",
                hint='install bubblewrap, run as another user, or set sandbox = "weak"',
            )

    @property
    def name(self) -> str:
        return "weak"

    @property
    def weaknesses(self) -> tuple[str, ...]:
        return (
            "reaches the network",
            "reads every file that its user may read",
            "writes where its user may write, such as /tmp",
            "sees and may signal other processes of its user",
            "memory is limited per process only",
            "an answer that kills its harness can leave processes behind",
            *(("no limit on processes",) if os.geteuid() != 0 else ()),
        )

    def argv(self, slot: int = 0) -> tuple[str, ...]:
        """As `BubblewrapSandbox.argv`."""
        source = _interpreter_prefix()
        outer: tuple[str, ...] = ()
        processes = None
        if os.geteuid() == 0:
            outer, source = _dropped(self.uid - slot, source)
            bare = ("--no-new-privs", "--inh-caps=-all", "--bounding-set=-all")
            outer = (*outer, *bare)
            processes = self.limits.processes
        python = f"{source}/bin/{_interpreter_name()}"
        return (*_NICE, *outer, *self.limits.prlimit_argv(processes=processes), python)

    def worker(self, slot: int = 0) -> Worker:
        return Worker(self.argv(slot), limits=self.limits, bundle=self._bundle)


def choose_sandbox(*, allow_weak: bool, limits: Limits | None = None) -> Sandbox:
    """Bubblewrap where it works, else the weaker mode where it is allowed.

    Works means: a program that must pass did pass, and a process limit was seen to hold.

    Raises: TargetError with the way out.
    """
    limits = limits or Limits()
    try:
        sandbox = BubblewrapSandbox(limits=limits)
        _require_sound(sandbox)
    except TargetError as error:
        if not allow_weak:
            raise TargetError(
                f"no sandbox for the coding eval: {error.message}",
                hint=f"{error.hint or 'install bubblewrap 0.8 or newer'}; in a container allow "
                'user namespaces; or allow the weaker sandbox: sandbox = "weak" under [coding]',
            ) from error
        weak = WeakSandbox(limits=limits, allow_root=True)
        _require_sound(weak)
        return weak
    return sandbox


def process_limit_holds(sandbox: Sandbox, *, limit: int, attempts: int = 64) -> bool:
    """Whether a program that forks `attempts` times is stopped at the limit; it is bounded."""
    code = (
        "import os, time\n"
        f"def forks():\n    for made in range({attempts}):\n        try:\n"
        "            if os.fork() == 0:\n                time.sleep(60)\n"
        "        except OSError:\n            return made\n"
        f"    return {attempts}\n"
    )
    with sandbox.worker() as worker:
        report = worker.run(Program(code, "forks", (f"0 <= forks() <= {limit}",)))
    return report.status == "passed"


def _require_sound(sandbox: BubblewrapSandbox | WeakSandbox) -> None:
    with sandbox.worker() as worker:
        report = worker.run(Program("def two():\n    return 2\n", "two", ("two() == 2",)))
    if report.status != "passed":
        raise TargetError(f"the {sandbox.name} sandbox does not work: {report.detail}")
    limited = sandbox.name == "bubblewrap" or os.geteuid() == 0
    if limited and not process_limit_holds(sandbox, limit=sandbox.limits.processes):
        raise TargetError(f"the {sandbox.name} sandbox does not hold its process limit")


def _tool(name: str, way_out: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise TargetError(f"`{name}` is not installed", hint=way_out)
    return found


def _interpreter_prefix() -> str:
    return os.path.realpath(sys.base_prefix)


def _interpreter_name() -> str:
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def _reachable(path: str) -> bool:
    """Whether everybody may enter the folder and all those above it."""
    return all(os.stat(folder).st_mode & 0o001 for folder in (path, *map(str, Path(path).parents)))


def _dropped(uid: int, prefix: str) -> tuple[tuple[str, ...], str]:
    """The wrappers that leave root, and where the interpreter's prefix is to be found then.

    Raises: TargetError if a wrapper is missing or no neutral path is free.
    """
    way_out = "install util-linux"
    drop = (*(_tool("setpriv", way_out), f"--reuid={uid}", f"--regid={uid}", "--clear-groups"),)
    if _reachable(prefix):
        return drop, prefix
    neutral = next(
        (p for p in _NEUTRAL_PATHS if os.path.isdir(p) and _reachable(p) and not _below(prefix, p)),
        None,
    )
    if neutral is None:
        raise TargetError(
            f"the interpreter at {prefix} is out of reach of unprivileged users",
            hint="install Python where everybody may read it",
        )
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    stage = (
        *(_tool("unshare", way_out), "--mount", "--propagation", "private", "--"),
        *("sh", "-c", script, "sh", prefix, neutral),
    )
    return (*stage, *drop), neutral
