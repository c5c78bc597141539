"""Constraints of installed packages, by entry point."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autotune.config import load_study
from autotune.constraints import known_constraints
from autotune.errors import SearchSpaceError
from tests.provoked import OBJECTIVE, STUDY

MODULE = """\
from autotune.space import Constraint

def even(values):
    return () if values["budget"] % 2 == 0 else (f"budget {values['budget']} is odd",)

EVEN = Constraint("even-budget", even, ("budget",))
TAKEN = Constraint("topk-within-budget", even, ("budget",))
NUMBER = 7
"""


def installed(folder: Path, patch: pytest.MonkeyPatch, value: str) -> None:
    """A package that is on the path like an installed one."""
    module = f"rules_{folder.name.replace('-', '_')}"
    (folder / f"{module}.py").write_text(MODULE)
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    points = f"[autotune.constraints]\nmine = {value.replace('MODULE', module)}\n"
    (about / "entry_points.txt").write_text(points)
    patch.syspath_prepend(str(folder))
    patch.delitem(sys.modules, module, raising=False)


def test_a_definition_names_a_rule_of_a_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch, "MODULE:EVEN")
    (tmp_path / "mine.toml").write_text(OBJECTIVE)
    study = tmp_path / "study.toml"
    study.write_text(STUDY.replace("topk-within-budget", "even-budget"))
    space = load_study(str(study)).space
    assert space.violations({"budget": 7, "topk": 4}) == ("budget 7 is odd",)
    study.write_text(study.read_text().replace("deployed = 8", "deployed = 7"))
    with pytest.raises(SearchSpaceError, match="budget 7 is odd"):
        load_study(str(study))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("MODULE:TAKEN", "which is taken"),
        ("MODULE:NUMBER", "is no autotune.space.Constraint"),
        ("MODULE:MISSING", "cannot be loaded"),
        ("no_such_module_at_all:X", "cannot be loaded"),
    ],
)
def test_a_broken_plugin_is_named(
    value: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch, value)
    with pytest.raises(SearchSpaceError, match=said) as refused:
        known_constraints()
    assert refused.value.hint
