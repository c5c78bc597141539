"""Whose fault an error is decides what happens next.

::

    AutotuneError(message, hint="")
    ├─ ConfigError (ValueError)          the user's file or arguments; exit 2, nothing was touched
    │  └─ SearchSpaceError · ObjectiveError · WorkloadError · UnknownStudy
    ├─ StudyError                        the study cannot go on; exit 1
    │  └─ StudyMismatch · FailureRateExceeded · NothingMeasured · NotApplied · StaleWinner
    ├─ StorageError                      exit 1
    │  └─ SchemaOutOfDate · StorageAway
    ├─ TargetError                       the machine's fault; the parameters are tried again
    │  ├─ ConnectError · HostKeyError · AuthenticationError
    │  ├─ CommandError · CommandTimeout
    │  ├─ HostBusy                       the port, the GPU or the lease is held by somebody else
    │  └─ UnitError
    │     └─ UnitNotFound · UnitRefused · DropInConflict · LeaseLost · RestoreFailed
    ├─ TrialError                        the parameters' fault; infeasible, never tried again
    │  └─ ServerStartError · ServerCrashed · OutputCorrupted
    └─ MeasurementError                  nobody's fault yet; failed with its reason, no value told
       ├─ SettingsNotApplied             a broken link of the proof chain
       ├─ NotReady · ServerEnded · NotAnswering      a server that is not there, and nobody says why
       ├─ TooFewRequests · ErrorRateTooHigh · NotSteady · InvocationChanged
       └─ FingerprintMismatch · InvalidBucket
"""

from __future__ import annotations

__all__ = [
    "AuthenticationError",
    "AutotuneError",
    "CommandError",
    "CommandTimeout",
    "ConfigError",
    "ConnectError",
    "DropInConflict",
    "ErrorRateTooHigh",
    "FailureRateExceeded",
    "FingerprintMismatch",
    "HostBusy",
    "HostKeyError",
    "InvalidBucket",
    "InvocationChanged",
    "LeaseLost",
    "MeasurementError",
    "NotAnswering",
    "NotApplied",
    "NotReady",
    "NotSteady",
    "NothingMeasured",
    "ObjectiveError",
    "OutputCorrupted",
    "RestoreFailed",
    "SchemaOutOfDate",
    "SearchSpaceError",
    "ServerCrashed",
    "ServerEnded",
    "ServerStartError",
    "SettingsNotApplied",
    "StaleWinner",
    "StorageAway",
    "StorageError",
    "StudyError",
    "StudyMismatch",
    "TargetError",
    "TooFewRequests",
    "TrialError",
    "UnitError",
    "UnitNotFound",
    "UnitRefused",
    "UnknownStudy",
    "WorkloadError",
]


class AutotuneError(Exception):
    """The root of every error that is ours.

    Args:
        message: One sentence: what is wrong and where.
        hint: What would be right or what to do next; empty when the message says it.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(AutotuneError, ValueError):
    """The user's file or arguments are wrong; no machine was contacted."""


class SearchSpaceError(ConfigError):
    """A search space definition is wrong."""


class ObjectiveError(ConfigError):
    """An objective definition is wrong."""


class WorkloadError(ConfigError):
    """A workload asks for something that cannot be measured."""


class UnknownStudy(ConfigError, LookupError):
    """No definition or no stored study has this name."""


class StudyError(AutotuneError):
    """The study cannot go on."""


class StudyMismatch(StudyError):
    """A definition differs from the one that the stored study was made with."""


class FailureRateExceeded(StudyError):
    """The same failure came back; going on would only cost GPU time."""


class NothingMeasured(StudyError):
    """There is no measured trial to report, export or compare."""


class NotApplied(StudyError):
    """What `verify` or `export --apply` asked for is not what runs."""


class StaleWinner(StudyError):
    """What was measured no longer speaks of what is there now: unit, engine or records changed."""


class StorageError(AutotuneError):
    """The database cannot be reached or refuses."""


class StorageAway(StorageError):
    """The database does not answer now; it may come back, and nothing is lost meanwhile."""


class SchemaOutOfDate(StorageError):
    """Our tables were made by another version; `autotune db upgrade` repairs it."""


class TargetError(AutotuneError):
    """The machine's fault: the parameters say nothing about it."""


class ConnectError(TargetError, ConnectionError):
    """The host cannot be reached."""


class HostKeyError(ConnectError):
    """The host's key is unknown or has changed."""


class AuthenticationError(ConnectError):
    """The host refused every identity that was offered."""


class CommandError(TargetError):
    """A command on the host ended with a status other than 0."""

    def __init__(
        self, argv: tuple[str, ...], exit_status: int, stderr_tail: str, *, hint: str = ""
    ) -> None:
        tail = stderr_tail.strip() or "no message"
        super().__init__(f"`{' '.join(argv)}` ended with status {exit_status}: {tail}", hint=hint)
        self.argv = argv
        self.exit_status = exit_status
        self.stderr_tail = stderr_tail

    def __reduce__(self) -> tuple[type[CommandError], tuple[tuple[str, ...], int, str]]:
        return type(self), (self.argv, self.exit_status, self.stderr_tail)


class CommandTimeout(TargetError, TimeoutError):
    """A command on the host did not end within its deadline."""


class HostBusy(TargetError):
    """The port, the GPU memory or the lease of the host is held by somebody else."""


class UnitError(TargetError):
    """The service unit is not in the state that the tuner needs."""


class UnitNotFound(UnitError, LookupError):
    """The host has no such unit."""


class UnitRefused(UnitError):
    """The unit has a shape that cannot be tuned safely; the hint names the way out."""


class DropInConflict(UnitError):
    """Somebody else changed the unit, or masks our drop-in; it is not overwritten."""


class LeaseLost(UnitError):
    """The host's lease is no longer ours: every change is refused."""


class RestoreFailed(UnitError):
    """The host could not be proven to be as it was found; the study stops."""


class TrialError(AutotuneError):
    """The parameters' fault.

    Args:
        log_tail: The deciding log lines, oldest first.
    """

    def __init__(self, message: str, *, hint: str = "", log_tail: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.log_tail = log_tail


class ServerStartError(TrialError):
    """The server refused the parameters or died while it started."""


class ServerCrashed(TrialError):
    """The server died under load after a proven start."""


class OutputCorrupted(TrialError):
    """A server whose settings are proven writes garbage that the reference does not write."""


class MeasurementError(AutotuneError):
    """Nobody's fault yet: the measurement is not valid."""


class SettingsNotApplied(MeasurementError):
    """A link of the proof chain is broken: what runs is not what was asked for.

    Args:
        link: Name of the broken link.
        wanted: What the link should have shown.
        seen: What it showed.
    """

    def __init__(self, link: str, *, wanted: str, seen: str) -> None:
        super().__init__(f"proof link {link!r} is broken: wanted {wanted}, seen {seen}")
        self.link = link
        self.wanted = wanted
        self.seen = seen

    def __reduce__(self) -> tuple[object, tuple[str, str, str]]:
        return _settings_not_applied, (self.link, self.wanted, self.seen)


def _settings_not_applied(link: str, wanted: str, seen: str) -> SettingsNotApplied:
    return SettingsNotApplied(link, wanted=wanted, seen=seen)


class NotReady(MeasurementError):
    """The server did not become ready within its deadline and nothing says why."""


class ServerEnded(MeasurementError):
    """The server ended after it was ready and nothing says why."""


class NotAnswering(MeasurementError):
    """The server was ready and lives, and does not answer."""


class TooFewRequests(MeasurementError):
    """Too few requests ended within the bucket."""


class ErrorRateTooHigh(MeasurementError):
    """Too many requests of a bucket failed."""


class NotSteady(MeasurementError):
    """Throughput did not settle within the warm-up limit."""


class InvocationChanged(MeasurementError):
    """The server was restarted by somebody else while it was measured."""


class FingerprintMismatch(MeasurementError):
    """The server is not the one that the reference was measured on."""


class InvalidBucket(MeasurementError):
    """A bucket was measured and must not be believed."""
