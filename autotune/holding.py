"""Whether what was measured still speaks of what is there now.  Pure.

A winner is worth a restart only while the command line around its parameters, the engine and the
model are those that it was measured with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.errors import FingerprintMismatch, StaleWinner
from autotune.exporting import Choice
from autotune.fingerprint import fingerprint, require_comparable
from autotune.measurement import Ending
from autotune.sglang.log import StartupLog
from autotune.sglang.masking import masked_words
from autotune.sglang.server import ServerInfo
from autotune.stored import StoredStart, StoredStudy
from autotune.supervisors.base import Original

__all__ = ["measured_fingerprint", "require_records", "require_same_engine", "require_same_unit"]

_AGAIN = "put back what it was measured with, or tune anew: a new study, begun with `run --from`"


def require_records(choice: Choice) -> None:
    """The chosen trial has a start that was measured and whose whole proof held.

    Raises:
        StaleWinner: There is none.
    """
    for start in choice.trial.starts:
        record = start.record
        if (
            record is not None
            and record.ending is Ending.COMPLETE
            and record.proof
            and all(link.ok for link in record.proof)
            and start.buckets
        ):
            return
    raise StaleWinner(
        f"study {choice.study!r}: trial {choice.trial.number} has no record of a start that was "
        "proved and measured",
        hint="run the study again, or take the flags from the report on your own authority",
    )


def require_same_unit(stored: StoredStudy, host: str, original: Original) -> str:
    """The host's command line is the one around which the study measured.

    Returns:
        What has changed beside the command line, for people; "" when nothing has.

    Raises:
        StaleWinner: It is another one.
    """
    own = [h.original for h in stored.hosts if h.host == host and h.original.get("argv")]
    others = [h.original for h in stored.hosts if h.original.get("argv")]
    known = own or others
    if not known:
        raise StaleWinner(
            f"study {stored.name!r} does not say what {host} ran when it was measured", hint=_AGAIN
        )
    argv = list(masked_words(original.launch.texts()))
    running = list(masked_words(original.live_argv))
    for record in known:
        live = record.get("live_argv", [])
        if record["argv"] == argv and (not live or not running or live == running):
            moved = _moved(record.get("files", {}), original.files) if own else ""
            return f"{moved} changed since the study, the command line did not" if moved else ""
    before, now = known[0]["argv"], argv
    if before == now:
        before, now = known[0].get("live_argv", []), running
    raise StaleWinner(
        f"{host}: the command line is not the one that the study measured: "
        f"{_difference(before, now)}",
        hint=_AGAIN,
    )


def measured_fingerprint(stored: StoredStudy, choice: Choice, host: str) -> Mapping[str, str]:
    """Engine and model as the newest measured start saw them: the host's own, else the winner's."""
    own = [s for trial in stored.trials for s in trial.starts if s.host == host and _saw(s)]
    found = own or [s for s in choice.trial.starts if _saw(s)]
    if not found:
        return {}
    newest = max(found, key=lambda start: start.order)
    return newest.record.fingerprint if newest.record else {}


def require_same_engine(measured: Mapping[str, str], host: str, info: ServerInfo | None) -> None:
    """The live engine is the one that was measured; nothing is said while none answers.

    Raises:
        StaleWinner: It has another version, model or precision.
    """
    if info is None:
        return
    try:
        require_comparable(measured, fingerprint(info, StartupLog()))
    except FingerprintMismatch as error:
        raise StaleWinner(f"{host}: {error.message}", hint=_AGAIN) from error


def _saw(start: StoredStart) -> bool:
    record = start.record
    return record is not None and record.ending is Ending.COMPLETE and bool(record.fingerprint)


def _moved(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    return ", ".join(
        sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))
    )


def _difference(before: Sequence[str], now: Sequence[str]) -> str:
    for at, (one, other) in enumerate(zip(before, now, strict=False)):
        if one != other:
            return f"word {at + 1} was {one!r} and is {other!r}"
    longer, word = (now, "new") if len(now) > len(before) else (before, "gone")
    return f"{longer[min(len(before), len(now))]!r} is {word}"
