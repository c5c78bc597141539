"""One check of a whole study: this machine first, then every host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autotune.checking.findings import HERE, CheckState, Finding
from autotune.checking.here import findings_here, stored_study
from autotune.checking.host import HostLook, look_at_host
from autotune.config import StudyConfig
from autotune.errors import StorageError
from autotune.opening import plan_host
from autotune.sglang.masking import masked_words
from autotune.space import value_to_file

__all__ = ["Checked", "check_study"]


@dataclass(frozen=True, slots=True)
class Checked:
    """The result for a whole study.

    Attributes:
        looks: One for each host, in the order of the definition.
    """

    config: StudyConfig
    findings: tuple[Finding, ...]
    looks: tuple[HostLook, ...]

    @property
    def bad(self) -> tuple[Finding, ...]:
        return tuple(one for one in self.findings if one.state is CheckState.BAD)

    def reference_argv(self) -> tuple[str, ...]:
        """The command line of the reference on the first host that could be read, masked."""
        values = self.config.space.deployed()
        for look in self.looks:
            if look.recipe is not None:
                return masked_words(look.recipe.launch(values, None).texts())
        return ()

    def json(self) -> dict[str, Any]:
        """What `check --json` prints."""
        return {
            "study": self.config.name,
            "ok": not self.bad,
            "findings": [
                {
                    "place": one.place,
                    "what": one.what,
                    "state": str(one.state),
                    "found": one.found,
                    "todo": one.todo,
                }
                for one in self.findings
            ],
            "deployed": {
                name: value_to_file(value) for name, value in self.config.space.deployed().items()
            },
            "reference_argv": list(self.reference_argv()),
            "buckets": [bucket.key for bucket in self.config.workload.buckets],
        }


def check_study(config: StudyConfig, storage: str | None) -> Checked:
    """Check a study and its hosts; nothing is changed, no file and no database is made.

    Raises:
        ConfigError: A host or a variable of the definition is wrong; nothing was contacted.
    """
    plans = [plan_host(config, host) for host in config.service.hosts]
    findings: list[Finding] = []
    stored = None
    try:
        stored = stored_study(config, storage)
    except StorageError as error:
        findings.append(Finding(HERE, "database", CheckState.BAD, error.message, error.hint))
    findings[:0] = findings_here(config, storage, stored)
    looks = tuple(look_at_host(config, plan) for plan in plans)
    for look in looks:
        findings += look.findings
    return Checked(config, tuple(findings), looks)
