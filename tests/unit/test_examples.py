"""The examples of the help texts, run on a finished study; what they print as JSON fits its schema.

`run` and `dashboard` have tests of their own; what needs a host is run on test hosts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.config import load_study
from autotune.json_outputs import SHAPES
from autotune.json_shapes import HostsShape
from autotune.repository import Repository, Role
from autotune.roster import Roster
from autotune.storage import open_engine
from autotune.stored import Wanted
from tests.builders import OWNER, a_conclusion, a_start
from tests.command_line import called, command_tree
from tests.databases import template

WINNER: Mapping[str, Any] = {"budget": 16, "topk": 4, "window": None}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished study `demo` in its database."""
    made = tmp_path_factory.mktemp("examples")
    template(made).rename(made / "autotune.db")
    config = load_study("demo")
    engine = open_engine(f"sqlite:///{made}/autotune.db", create=False)
    repository = Repository(engine)
    repository.open_study(
        "demo", definition=config.definition, fingerprint=config.fingerprint(), provenance={}
    )
    points: tuple[Mapping[str, Any], ...] = (config.space.deployed(), WINNER)
    for number, parameters in enumerate(points):
        role = Role.SEARCH if number else Role.REFERENCE
        start = a_start(1.0 + number / 10, host="demo-a", role=role)
        assert start.record is not None
        repository.begin_trial(
            "demo", number, parameters=parameters, reference=not number, retry_of=None
        )
        repository.begin_start(
            "demo",
            number,
            role=role,
            round_=0,
            host="demo-a",
            claim_id=f"claim-{number}",
            nonce="",
            owner=OWNER,
            argv=start.argv,
        )
        repository.end_start(f"claim-{number}", start.record, None)
        repository.end_trial("demo", number, "complete")
    repository.set_verdict("demo", a_conclusion(trial=1, parameters=WINNER))
    engine.dispose()
    return made


def example(command: str) -> list[str]:
    found = re.search(r"Example: autotune (.*)", command_tree()[command].help or "")
    assert found
    return shlex.split(found[1])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("check", "nothing was changed"),
        ("status", "study demo: 2 complete"),
        ("trials", "trials of demo"),
        ("rescore", "nothing was written"),
        ("prune", "demo"),
        ("report", "report: demo-report.html"),
        ("export", "--speculative-ddtree-budget 16"),
        ("db upgrade", "the tables are up to date"),
    ],
)
def test_an_example_does_what_it_says(command: str, said: str, folder: Path) -> None:
    ended = called(*example(command), folder=folder)
    assert ended.code == 0, ended.err
    assert said in ended.out


def test_the_examples_of_hosts_say_what_is_wanted_of_each(tmp_path: Path) -> None:
    template(tmp_path).rename(tmp_path / "autotune.db")
    engine = open_engine(f"sqlite:///{tmp_path}/autotune.db", create=False)
    repository = Repository(engine)
    repository.open_study("kimi-k26", definition={}, fingerprint="f", provenance={})
    Roster(repository, "kimi-k26").want("gpu-a", Wanted.ADD)
    engine.dispose()
    for command, said in (
        ("hosts add", "gpu-c will be used by a run of the study"),
        ("hosts drain", "gpu-a will be restored after the start that runs on it"),
    ):
        ended = called(*example(command), folder=tmp_path)
        assert (ended.code, ended.err) == (0, "")
        assert said in ended.out
    shown = called(*example("hosts list"), folder=tmp_path)
    assert (shown.code, shown.err) == (0, "")
    listed = called(*example("hosts list"), "--json", folder=tmp_path)
    hosts = {one.host: one.wanted for one in HostsShape.model_validate_json(listed.out).root}
    assert hosts == {"gpu-a": "drain", "gpu-c": "add"}


def test_the_tables_of_a_report_are_files(folder: Path, tmp_path: Path) -> None:
    line = f"report --study demo --tables {tmp_path} --tables-format parquet"
    ended = called(*line.split(), folder=folder)
    assert ended.code == 0, ended.err
    assert f"table: {tmp_path}/starts.parquet" in ended.out


@pytest.mark.parametrize(
    ("line", "shape"),
    [
        ("check --study demo --json", "check"),
        ("run --study demo --dry-run --json", "check"),
        ("status --study demo --json", "status"),
        ("status --json", "studies"),
        ("trials --study demo --json", "trials"),
        ("rescore --study demo --json", "rescore"),
        ("hosts list --study demo --json", "hosts"),
        ("prune --study demo --json", "prune"),
        ("export --study demo --format json", "export"),
    ],
)
def test_json_as_it_is_printed_fits_its_schema(line: str, shape: str, folder: Path) -> None:
    ended = called(*line.split(), folder=folder)
    assert ended.code == 0, ended.err
    SHAPES[shape].model_validate_json(ended.out)
