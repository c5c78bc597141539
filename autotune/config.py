"""Study file and objective file -> one frozen `StudyConfig`; every check that needs no machine.

A wrong file raises one ConfigError that names file, line and key, before anything is contacted.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune import definitions
from autotune.coding.suite import suite_sha256
from autotune.constraints import known_constraints
from autotune.definition_files import (
    ParameterSection,
    ServiceSection,
    StudyFile,
    StudySection,
    comparable,
)
from autotune.doubts import key_of
from autotune.errors import ConfigError, ObjectiveError, SearchSpaceError, UnknownStudy
from autotune.objective_file import (
    CodingSection,
    LosslessSection,
    MeasureSection,
    ObjectiveFile,
    ScoreSection,
)
from autotune.places import Where, nearest, parse, read
from autotune.space import Parameter, ParameterValue, SearchSpace
from autotune.workload import Workload

__all__ = ["StudyConfig", "load_objective", "load_study"]

LEAST_ROUNDS = 3
"""Fewest final rounds but for none: one finalist then leaves two degrees of freedom."""


@dataclass(frozen=True)
class StudyConfig:
    """Everything that a study needs, checked as far as no machine is needed.

    Attributes:
        name: Name of the study; also its name in the storage.
        suite: The coding tasks; None where no answers are asked for.
        enqueue: Points measured before the sampler's own, effective values, without duplicates.
        definition: Both files as plain JSON, reasons included, and the hash of the suite.
        labels: By host: what the study calls it, where that is not its name.
    """

    name: str
    path: Path
    objective_path: Path
    study: StudySection
    service: ServiceSection
    space: SearchSpace
    workload: Workload
    score: ScoreSection
    coding: CodingSection
    suite: Path | None
    lossless: LosslessSection
    measure: MeasureSection
    enqueue: tuple[Mapping[str, ParameterValue], ...]
    definition: Mapping[str, Any]
    labels: Mapping[str, str] = field(default_factory=dict)

    def fingerprint(self) -> str:
        """SHA-256 over what makes the study, coding tasks included: another one is not resumed."""
        text = json.dumps(comparable(self.definition), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def samples_of_final(self) -> int:
        """Coding answers that a start of the final rounds is asked for; 0 without a suite."""
        if self.suite is None:
            return 0
        each = -(-self.coding.final_samples // max(1, self.study.final_rounds))
        return max(self.coding.samples, each)

    def replace_budget(
        self, *, trials: int | None, hours: float | None, hosts: tuple[str, ...]
    ) -> StudyConfig:
        """The same study with another budget or other hosts, from the command line.

        Raises:
            ConfigError: A host is named twice.
        """
        labels = [host.partition(":")[0] for host in hosts]
        if len(set(labels)) < len(labels):
            raise ConfigError(
                f"--host names {max(labels, key=labels.count)} twice", hint="name each host once"
            )
        changes: dict[str, Any] = {}
        if trials is not None:
            changes["trials"] = trials
        if hours is not None:
            changes["hours"] = hours
        study = self.study.model_copy(update=changes)
        service = self.service.model_copy(update={"hosts": hosts}) if hosts else self.service
        return replace(self, study=study, service=service)

    def label_hosts(self, given: tuple[str, ...]) -> StudyConfig:
        """The same study with other names for its hosts: `NAME=LABEL`, or the one host's label.

        Several machines may each tune a host that they call `local`; in the study they differ.

        Raises:
            ConfigError: A label is for no host, or two hosts would be called alike.
        """
        names = [host.partition(":")[0] for host in self.service.hosts]
        labels: dict[str, str] = {}
        for text in given:
            name, equals, label = text.partition("=")
            if not equals and len(names) == 1:
                name, label = names[0], text
            if name not in names or not label:
                raise ConfigError(
                    f"--host-label {text} names no host of the study",
                    hint=f"NAME=LABEL, where NAME is one of {', '.join(names)}",
                )
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", label):
                raise ConfigError(
                    f"--host-label {text}: a label has letters, digits, '.', '_', '-'",
                    hint="for example --host-label gpu-a=left",
                )
            labels[name] = label
        called = [labels.get(name, name) for name in names]
        if len(set(called)) < len(called):
            raise ConfigError(
                f"two hosts would be called {max(called, key=called.count)}",
                hint="give each host a label of its own",
            )
        return replace(self, labels=labels)


def load_study(name: str) -> StudyConfig:
    """Load and check the study called `name` and its objective.

    Raises:
        ConfigError: One sentence with file, line and key.
    """
    if not name.isprintable() or any("\ud800" <= letter <= "\udfff" for letter in name):
        raise ConfigError(
            f"the study name {name!a} has characters that no text can hold",
            hint="rename the file: its name is the study's name in the storage",
        )
    path = definitions.find("search_spaces", name)
    text = read(path)
    file = parse(path, text, StudyFile, SearchSpaceError)
    where = Where(path, text)
    parameters = tuple(_parameter(key, section, where) for key, section in file.parameters.items())
    rules = known_constraints()
    for rule in file.study.constraints:
        if rule not in rules:
            raise SearchSpaceError(
                where(("study", "constraints"), f"no constraint {rule!r}"),
                hint=nearest(rule, rules) or f"there are: {', '.join(rules)}",
            )
    try:
        space = SearchSpace(parameters, tuple(rules[c] for c in file.study.constraints))
        space.validate(space.deployed())
    except SearchSpaceError as error:
        raise SearchSpaceError(where(("parameters",), error.message), hint=error.hint) from error
    _check_flags(file, parameters, where)
    _check_rounds(file, where)
    enqueue = _enqueued(file, space, where)
    objective_path = _objective_path(file.study.objective, where)
    objective = load_objective(objective_path)
    suite = _suite(objective.coding, objective_path)
    return StudyConfig(
        name=path.stem,
        path=path,
        objective_path=objective_path,
        study=file.study,
        service=file.service,
        space=space,
        workload=objective.workload(),
        score=objective.score,
        coding=objective.coding,
        suite=suite,
        lossless=objective.lossless,
        measure=objective.measure,
        enqueue=enqueue,
        definition={
            **file.model_dump(mode="json"),
            "objective": objective.model_dump(mode="json"),
            "suite_sha256": suite_sha256(suite) if suite is not None else "",
        },
    )


def _objective_path(name: str, where: Where) -> Path:
    try:
        return definitions.find("objectives", name, beside=where.path)
    except UnknownStudy as error:
        raise ObjectiveError(
            where(("study", "objective"), f"study.objective: {error.message}"), hint=error.hint
        ) from error


def load_objective(path: Path) -> ObjectiveFile:
    """Load and check one objective file.

    Raises:
        ObjectiveError: One sentence with file, line and key.
    """
    text = read(path)
    objective = parse(path, text, ObjectiveFile, ObjectiveError)
    try:
        objective.workload()
    except ConfigError as error:
        where = Where(path, text)
        raise ObjectiveError(where(("buckets",), error.message), hint=error.hint) from error
    return objective


def _suite(section: CodingSection, objective: Path) -> Path | None:
    """Where the coding tasks of an objective lie."""
    if not section.samples:
        return None
    try:
        return definitions.find_suite(section.suite, beside=objective)
    except UnknownStudy as error:
        where = Where(objective, read(objective))
        raise ObjectiveError(where(("coding", "suite"), error.message), hint=error.hint) from error


def _parameter(name: str, section: ParameterSection, where: Where) -> Parameter:
    def plain(value: float | str) -> ParameterValue:
        return None if value == "none" else value

    try:
        parameter = Parameter(
            name=name,
            kind=section.kind,
            low=section.low,
            high=section.high,
            step=section.step,
            log=section.log,
            choices=tuple(plain(choice) for choice in section.choices),
            flag=section.flag or "",
            aliases=section.aliases,
            env=section.env or "",
            deployed=plain(section.deployed),
            why=section.why,
            source=section.source,
            proof=section.proof,
        )
    except SearchSpaceError as error:
        raise SearchSpaceError(
            where(("parameters", name), error.message), hint=error.hint
        ) from error
    known = {key_of(value) for value in parameter.levels()}
    for key in section.doubtful:
        if key not in known:
            raise SearchSpaceError(
                where(("parameters", name, "doubtful"), f"{key!r} is no value of {name}"),
                hint=nearest(key, sorted(known)) or f"values: {', '.join(sorted(known)[:12])}",
            )
    return parameter


def _check_rounds(file: StudyFile, where: Where) -> None:
    """Fewer than three final rounds of one finalist show the noise once, which decides nothing."""
    study = file.study
    if study.finalists and 0 < study.final_rounds < LEAST_ROUNDS:
        raise SearchSpaceError(
            where(
                ("study", "final_rounds"),
                f"final_rounds is {study.final_rounds}: fewer than {LEAST_ROUNDS} measurements "
                "of each finalist can hardly tell a gain from the noise",
            ),
            hint=f"final_rounds = {LEAST_ROUNDS} or more, or 0 for a study without a verdict",
        )


def _check_flags(file: StudyFile, parameters: tuple[Parameter, ...], where: Where) -> None:
    """Each flag and variable is set by one part of the study alone."""
    carried_by: dict[str, str] = {}
    for parameter in parameters:
        for carrier in filter(None, (parameter.flag, *parameter.aliases, parameter.env)):
            if carrier in carried_by:
                raise SearchSpaceError(
                    where(
                        ("parameters", parameter.name),
                        f"{carrier} is tuned by parameters.{carried_by[carrier]} too",
                    ),
                    hint="one parameter for each flag",
                )
            carried_by[carrier] = parameter.name
    place = ("service", "fixed_flags")
    for fixed in file.service.fixed_flags:
        tuned_by = carried_by.get(fixed.flag)
        if tuned_by is not None:
            raise SearchSpaceError(
                where(
                    place, f"service.fixed_flags: {fixed.flag} is tuned by parameters.{tuned_by}"
                ),
                hint="take it out of fixed_flags, or the parameter out of the study",
            )
        if [other.flag for other in file.service.fixed_flags].count(fixed.flag) > 1:
            raise SearchSpaceError(
                where(place, f"service.fixed_flags: {fixed.flag} stands twice"),
                hint="keep the one that holds",
            )


def _enqueued(
    file: StudyFile, space: SearchSpace, where: Where
) -> tuple[Mapping[str, ParameterValue], ...]:
    points: dict[str, Mapping[str, ParameterValue]] = {}
    for index, row in enumerate(file.study.enqueue):
        place = ("study", "enqueue")
        if len(row) != len(space.parameters):
            raise SearchSpaceError(
                where(place, f"point {index + 1} of enqueue has {len(row)} values"),
                hint=f"one for each of {', '.join(p.name for p in space.parameters)}",
            )
        values = {
            parameter.name: None if value == "none" else value
            for parameter, value in zip(space.parameters, row, strict=True)
        }
        try:
            space.validate(values)
        except SearchSpaceError as error:
            raise SearchSpaceError(
                where(place, f"point {index + 1} of enqueue {list(row)}: {error.message}"),
                hint=error.hint,
            ) from error
        points.setdefault(space.key(values), space.effective(values))
    return tuple(points.values())
