"""The best configuration as flags, drop-in, JSON, YAML or variables.  Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from autotune.errors import NothingMeasured, StaleWinner

if TYPE_CHECKING:
    from autotune.repository import StoredStudy, StoredTrial
    from autotune.space import Parameter, SearchSpace, Values

__all__ = ["Choice", "ExportFormat", "choose", "rendered"]


class ExportFormat(StrEnum):
    """The form in which a configuration is printed."""

    FLAGS = "flags"
    DROPIN = "dropin"
    JSON = "json"
    ENV = "env"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class Choice:
    """What is exported.

    Attributes:
        trial: Its trial, whose proof and buckets the report shows.
        conclusion: The study's conclusion as it was stored.
    """

    study: str
    trial: StoredTrial
    parameters: Values
    conclusion: Mapping[str, Any]

    def json(self) -> dict[str, Any]:
        """The contract of `export --format json` and `yaml`."""
        interval = self.conclusion.get("interval")
        return {
            "study": self.study,
            "trial": self.trial.number,
            "parameters": dict(self.parameters),
            "score": self.conclusion.get("score"),
            "interval": [interval["low"], interval["high"]] if interval else None,
            "reference_score": self.conclusion.get("reference_score"),
            "verdict": self.conclusion.get("sentence"),
            "findings": self.conclusion.get("findings", {}),
        }


def choose(stored: StoredStudy) -> Choice:
    """What the study's verdict says should run: the winner, or what is deployed.

    Raises:
        NothingMeasured: There is no verdict yet, or nothing was measured.
        StaleWinner: The trial that the verdict names is not in the storage any more.
    """
    verdict = stored.verdict
    if verdict is None or verdict.get("trial") is None:
        failures = [
            start.record.failure.message
            for trial in stored.trials
            for start in trial.starts
            if start.record is not None and start.record.failure is not None
        ]
        reason = f"; the last failure: {failures[-1]}" if failures else ""
        raise NothingMeasured(
            f"study {stored.name!r} has no verdict yet{reason}",
            hint=f"let `autotune run --study {stored.name}` come to its end",
        )
    if verdict["kind"] == "not-enough-data":
        raise NothingMeasured(
            f"study {stored.name!r} has no winner: {verdict['sentence']}",
            hint="run it again with a larger budget",
        )
    trial = next((t for t in stored.trials if t.number == verdict["trial"]), None)
    if trial is None:
        raise StaleWinner(
            f"study {stored.name!r}: the verdict names trial {verdict['trial']}, which the storage "
            "does not hold",
            hint="run the study again",
        )
    return Choice(stored.name, trial, verdict["parameters"], verdict)


def rendered(choice: Choice, space: SearchSpace, format_: ExportFormat, *, dropin: str = "") -> str:
    """The choice as text.

    Args:
        dropin: Text of the drop-in, for that format; it needs the live unit.
    """
    if format_ is ExportFormat.JSON:
        return json.dumps(choice.json(), indent=2)
    if format_ is ExportFormat.YAML:
        import yaml

        text: str = yaml.safe_dump(choice.json(), sort_keys=False, allow_unicode=True)
        return text.rstrip()
    if format_ is ExportFormat.DROPIN:
        return dropin
    words = [_word(p, choice.parameters, format_) for p in space.parameters]
    return (" " if format_ is ExportFormat.FLAGS else "\n").join(word for word in words if word)


def _word(parameter: Parameter, values: Values, format_: ExportFormat) -> str:
    value = values[parameter.name]
    if value is None:
        return ""
    if format_ is ExportFormat.FLAGS and parameter.flag:
        return f"{parameter.flag} {shlex.quote(str(value))}"
    if format_ is ExportFormat.ENV:
        return f"{parameter.env or parameter.name.upper()}={shlex.quote(str(value))}"
    return ""
