"""The environment variables that only a simulation needs, read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from autotune.testing.sglang_server.faults import Faults
from autotune.testing.sglang_server.surface import Surface

__all__ = ["PREFIX", "Inherited", "LogStyle", "Switches"]

PREFIX = "AUTOTUNE_SIM_"


class LogStyle(StrEnum):
    """Which release the log, the keys and the shutdown look like."""

    OLD = "0.5.11"
    NEW = "0.5.23"


@dataclass(frozen=True, slots=True)
class Inherited:
    """What an orphan gets from its parent.

    Attributes:
        fd: File descriptor of the listening socket.
        life_s: How long it answers, seconds.
        random_seed: The parent's nonce.
    """

    fd: int
    life_s: float
    random_seed: int

    @classmethod
    def parse(cls, text: str) -> Inherited | None:
        """Read `FD:SECONDS:SEED`; None for an empty text."""
        if not text:
            return None
        fd, life_s, random_seed = text.split(":")
        return cls(fd=int(fd), life_s=float(life_s), random_seed=int(random_seed))

    def __str__(self) -> str:
        return f"{self.fd}:{self.life_s}:{self.random_seed}"


@dataclass(frozen=True, slots=True)
class Switches:
    """How the simulation behaves.

    Attributes:
        surface: The tuning surface.
        load_s: Duration of the load, seconds of the wall clock.
        time_scale: Virtual seconds in a real second; 20 is a server 20 times as fast.
        seed: Seed of the noise; None draws one.
        shared_sd: Noise that one start shares, standard deviation of the logarithm.
        bucket_sd: Slowly varying noise of the rounds, standard deviation of the logarithm.
        log_style: Release whose log is imitated.
        faults: What goes wrong.
        drain_s: How long `slow-drain` answers after SIGTERM, seconds.
        watch_s: Period of the watcher that ends the server after SIGTERM, seconds.
        warm_poll_s: Period of the self warm-up's polls, seconds.
        health_s: How long /health waits for a stuck engine, seconds.
        answers: Folder or file with coding tasks; None for none.
        inherited: Set in an orphan only.
    """

    surface: Surface
    load_s: float = 0.0
    time_scale: float = 1.0
    seed: int | None = None
    shared_sd: float = 0.0
    bucket_sd: float = 0.0
    log_style: LogStyle = LogStyle.OLD
    faults: Faults = field(default_factory=Faults)
    drain_s: float = 10.0
    watch_s: float = 5.0
    warm_poll_s: float = 0.05
    health_s: float = 20.0
    answers: Path | None = None
    inherited: Inherited | None = None

    def __post_init__(self) -> None:
        if self.time_scale <= 0:
            raise ValueError(f"{PREFIX}TIME_SCALE is {self.time_scale}, must be above 0")
        for name in ("load_s", "shared_sd", "bucket_sd", "drain_s", "watch_s", "warm_poll_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{PREFIX}{name.upper()} must not be negative")

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Switches:
        """Read the variables of an environment.

        Raises:
            ValueError: A value has the wrong form.
            KeyError: No surface has the given name.
        """

        def text(name: str, default: str = "") -> str:
            return environ.get(PREFIX + name, default)

        surface = Surface.named(text("SURFACE", "demo"))
        time_scale = float(text("TIME_SCALE", "1"))
        load_s = float(text("LOAD_S", "0"))
        seed = text("SEED")
        answers = text("ANSWERS")
        return cls(
            surface=surface,
            load_s=load_s,
            time_scale=time_scale,
            seed=int(seed) if seed else None,
            shared_sd=float(text("SHARED_SD", str(surface.shared_sd))),
            bucket_sd=float(text("BUCKET_SD", str(surface.bucket_sd))),
            log_style=LogStyle(text("LOG_STYLE", LogStyle.OLD.value)),
            faults=Faults.parse(text("FAULT")),
            drain_s=float(text("DRAIN_S", "10")),
            watch_s=float(text("WATCH_S", str(5.0 / time_scale))),
            warm_poll_s=float(text("WARM_POLL_S", "1" if load_s >= 10 else "0.05")),
            health_s=float(text("HEALTH_S", "20")),
            answers=Path(answers) if answers else None,
            inherited=Inherited.parse(text("INHERIT")),
        )
