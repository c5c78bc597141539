"""The examples of the help texts, run on a stored study; what is printed as JSON fits its schema.

What needs a service or a host is run elsewhere: `tests/examples.py` says where, and no example is
run nowhere.
"""

from __future__ import annotations

import importlib
import shutil
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
from tests.examples import Example, Place, examples_at, words_of

WINNER: Mapping[str, Any] = {"budget": 16, "topk": 4, "window": None}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished study `demo`, and one with a host, in its database."""
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
    repository.open_study("kimi-k26", definition={}, fingerprint="f", provenance={})
    Roster(repository, "kimi-k26").want("gpu-a", Wanted.ADD)
    engine.dispose()
    return made


@pytest.mark.parametrize(("words", "example"), examples_at(Place.STORED))
def test_an_example_does_what_it_says(
    words: tuple[str, ...], example: Example, folder: Path
) -> None:
    ended = called(*words, folder=folder)
    assert ended.code in example.codes, ended.err
    assert example.says in ended.out


def test_no_example_is_run_nowhere() -> None:
    """Each command's own words stand in the one test of exactly one place."""
    run: list[tuple[str, ...]] = []
    for place in Place:
        test = importlib.import_module(place).test_an_example_does_what_it_says
        (over,) = [mark for mark in test.pytestmark if mark.name == "parametrize"]
        run += [param.values[0] for param in over.args[1]]
    assert sorted(run) == sorted(map(words_of, command_tree()))


def test_what_is_wanted_of_hosts_is_kept(folder: Path, tmp_path: Path) -> None:
    shutil.copyfile(folder / "autotune.db", tmp_path / "autotune.db")
    for command in ("hosts add", "hosts drain"):
        assert called(*words_of(command), folder=tmp_path).code == 0
    listed = called(*words_of("hosts list"), "--json", folder=tmp_path)
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
