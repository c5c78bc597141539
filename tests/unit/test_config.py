"""Definition files: the packaged ones are valid, every bad one is refused in one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from autotune import definitions
from autotune.config import load_objective, load_study
from autotune.errors import ConfigError, ObjectiveError, UnknownStudy
from autotune.schemas import SCHEMAS, schema_text, tables_text

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "cases"


def cases(folder: str) -> list[Path]:
    found = sorted((CASES / folder).glob("*.toml"))
    assert found, folder
    return found


def expectation(path: Path) -> str:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# expect: "), path
    return first.removeprefix("# expect: ")


@pytest.mark.parametrize("path", cases("search_spaces/good"), ids=lambda p: p.stem)
def test_good_studies_load(path: Path) -> None:
    config = load_study(str(path))
    assert config.name == path.stem
    assert config.enqueue == ({"budget": 16, "topk": 4},)


@pytest.mark.parametrize("path", cases("search_spaces/bad"), ids=lambda p: p.stem)
def test_bad_studies_are_refused_in_one_sentence(path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_study(str(path))
    assert expectation(path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("path", cases("objectives/good"), ids=lambda p: p.stem)
def test_good_objectives_load(path: Path) -> None:
    assert load_objective(path).workload().buckets[0].weight == 1.0


@pytest.mark.parametrize("path", cases("objectives/bad"), ids=lambda p: p.stem)
def test_bad_objectives_are_refused_in_one_sentence(path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_objective(path)
    assert expectation(path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", definitions.names("search_spaces"))
def test_packaged_studies_load(name: str) -> None:
    config = load_study(name)
    for point in config.enqueue:
        config.space.validate(point)


def test_kimi_study_is_what_its_users_asked_for() -> None:
    config = load_study("kimi-k26")
    assert config.service.unit == "sglang-k26-ddtree.service"
    assert config.space.deployed() == {"budget": 8, "topk": 4, "window": None}
    asked = [(p["budget"], p["topk"], p["window"]) for p in config.enqueue]
    assert asked == [(8, 4, None), (8, 4, 2048), (16, 4, 2048), (4, 4, 2048), (12, 6, 2048)]
    cells = {(b.context_tokens, b.concurrency) for b in config.workload.buckets}
    assert cells == {(c, n) for c in (60, 1024, 4096, 8192) for n in (1, 8, 32, 64)}
    assert [(f.flag, f.value) for f in config.service.fixed_flags] == [
        ("--max-running-requests", "64")
    ]


def test_unknown_study_names_those_that_exist() -> None:
    with pytest.raises(UnknownStudy, match=r"no study 'nope'.*demo, .*kimi-k26"):
        load_study("nope")


@pytest.mark.parametrize("folder", sorted(SCHEMAS))
def test_committed_schemas_are_current(folder: str) -> None:
    """Read as JSON: versions of pydantic write 0 or 0.0."""
    committed = json.loads((ROOT / folder / "schema.json").read_text())
    assert committed == json.loads(schema_text(folder))


def test_the_page_about_our_tables_is_current() -> None:
    assert (ROOT / "storage" / "schema.md").read_text() == tables_text()


def test_budget_and_hosts_do_not_make_another_study() -> None:
    config = load_study("demo")
    other = config.replace_budget(trials=99, hours=2.0, hosts=("elsewhere",))
    assert other.fingerprint() == config.fingerprint()
    assert (other.study.trials, other.service.hosts) == (99, ("elsewhere",))


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A study whose objective lies in another folder, with a suite of its own beside that."""
    spaces, objectives = tmp_path / "spaces", tmp_path / "goals"
    shutil.copytree(CASES / "search_spaces" / "good", spaces)
    (objectives / "mine").mkdir(parents=True)
    (objectives / "mine" / "tasks.toml").write_text("# tasks\n", "utf-8")
    (objectives / "goal.toml").write_text(
        "[[buckets]]\ncontext_tokens = 60\nconcurrency = 1\noutput_tokens = 8\nweight = 1\n"
        '[coding]\nsuite = "mine"\n',
        "utf-8",
    )
    study = spaces / "minimal.toml"
    lines = study.read_text("utf-8").splitlines()
    study.write_text(
        "\n".join(
            'objective = "../goals/goal.toml"' if line.startswith("objective") else line
            for line in lines
        ),
        "utf-8",
    )
    return study


def test_a_suite_lies_beside_the_objective_that_names_it(pair: Path) -> None:
    suite = pair.parents[1] / "goals" / "mine"
    assert load_study(str(pair)).suite == suite.resolve()
    goal = pair.parents[1] / "goals" / "goal.toml"
    text = goal.read_text("utf-8")
    goal.write_text(text.replace('"mine"', '"coding"'), "utf-8")
    assert load_study(str(pair)).suite == Path(__file__).parents[2] / "objectives" / "coding"
    goal.write_text(text.replace('"mine"', '"theirs"'), "utf-8")
    with pytest.raises(ObjectiveError, match=r"goal\.toml:7: no suite of coding tasks 'theirs'"):
        load_study(str(pair))
    goal.write_text(text + "samples = 0\n", "utf-8")
    assert load_study(str(pair)).suite is None


def test_other_coding_tasks_make_another_study(pair: Path) -> None:
    before = load_study(str(pair)).fingerprint()
    assert load_study(str(pair)).fingerprint() == before
    (pair.parents[1] / "goals" / "mine" / "tasks.toml").write_text("# others\n", "utf-8")
    assert load_study(str(pair)).fingerprint() != before


def test_a_copied_study_finds_the_objective_and_not_its_original(tmp_path: Path) -> None:
    for folder in ("search_spaces", "objectives"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.toml").touch()
    copied = tmp_path / "search_spaces" / "copied.toml"
    assert (
        definitions.find("objectives", "mine", beside=copied)
        == tmp_path / "objectives" / "mine.toml"
    )


def test_an_objective_may_lie_beside_its_study(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").touch()
    assert (
        definitions.find("objectives", "mine", beside=tmp_path / "study.toml")
        == tmp_path / "mine.toml"
    )
