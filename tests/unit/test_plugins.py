"""Parts of installed packages, by entry point: named in a definition, loaded when asked for."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from statistics import NormalDist

import pytest

from autotune.config import load_study
from autotune.constraints import known_constraints
from autotune.errors import ConfigError, ObjectiveError, SearchSpaceError
from autotune.hosts import HostPlan, open_supervisor
from autotune.objective import Reference, Rule, in_tok_per_s, score_start
from autotune.opening import plan_host
from autotune.plugins import Group, function, names
from autotune.search import make_sampler
from autotune.supervisors.base import Supervisor
from autotune.workload import Bucket, Workload
from tests.builders import a_bucket
from tests.provoked import OBJECTIVE, STUDY
from tests.scripted import a_space

MODULE = """\
from optuna.samplers import RandomSampler
from autotune.space import Constraint
from autotune.supervisors.process import ProcessSupervisor

def even(values):
    return () if values["budget"] % 2 == 0 else (f"budget {values['budget']} is odd",)

EVEN = Constraint("even-budget", even, ("budget",))
TAKEN = Constraint("topk-within-budget", even, ("budget",))
NUMBER = 7

def drawn(space, seed):
    return RandomSampler(seed=seed)

def slowest(throughput):
    return min(throughput.values())

def weighted(throughput):
    return sum(bucket.weight * speed for bucket, speed in throughput.items())

def nothing(*arguments):
    return 0

def little(*arguments):
    return 0.5

def below(*arguments):
    return -1.0

def endless(*arguments):
    return float("inf")

def unknown(*arguments):
    return float("nan")

def words(*arguments):
    return "fast"

def container(plan):
    return ProcessSupervisor(
        plan.host, command=plan.command, port=plan.port, directory=plan.directory
    )
"""


def installed(
    folder: Path, patch: pytest.MonkeyPatch, value: str, *, group: str, name: str = "mine"
) -> None:
    """A package that is on the path like an installed one."""
    module = f"rules_{folder.name.replace('-', '_')}"
    (folder / f"{module}.py").write_text(MODULE)
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    points = f"[{group}]\n{name} = {value.replace('MODULE', module)}\n"
    (about / "entry_points.txt").write_text(points)
    patch.syspath_prepend(str(folder))
    patch.delitem(sys.modules, module, raising=False)


def a_file(folder: Path, *changes: tuple[str, str], score: str = "") -> str:
    """A study with some of its text changed."""
    (folder / "mine.toml").write_text(OBJECTIVE + score)
    text = STUDY
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "study.toml").write_text(text)
    return str(folder / "study.toml")


def test_a_definition_names_a_rule_of_a_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch, "MODULE:EVEN", group=Group.CONSTRAINTS)
    study = a_file(tmp_path, ("topk-within-budget", "even-budget"))
    assert load_study(study).space.violations({"budget": 7, "topk": 4}) == ("budget 7 is odd",)
    study = a_file(
        tmp_path, ("topk-within-budget", "even-budget"), ("deployed = 8", "deployed = 7")
    )
    with pytest.raises(SearchSpaceError, match="budget 7 is odd"):
        load_study(study)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("MODULE:TAKEN", "which is taken"),
        ("MODULE:NUMBER", r"is no autotune\.space\.Constraint"),
        ("MODULE:MISSING", "cannot be loaded"),
        ("no_such_module_at_all:X", "cannot be loaded"),
    ],
)
def test_a_broken_rule_is_named(
    value: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch, value, group=Group.CONSTRAINTS)
    with pytest.raises(ConfigError, match=said) as refused:
        known_constraints()
    assert refused.value.hint


# -- samplers, supervisors, objectives ------------------------------------------------------------

KEYS = {
    Group.SAMPLERS: ("trials = 4", 'trials = 4\nsampler = "mine"'),
    Group.SUPERVISORS: ('supervisor = "systemd"', 'supervisor = "mine"'),
}


@pytest.mark.parametrize("group", KEYS)
def test_a_name_that_nobody_gives_is_told_with_those_there_are(
    group: Group, tmp_path: Path
) -> None:
    with pytest.raises(SearchSpaceError, match=f"'mine' is none of .*packages add more by {group}"):
        load_study(a_file(tmp_path, KEYS[group]))


def test_an_aggregate_that_nobody_gives_is_told(tmp_path: Path) -> None:
    with pytest.raises(ObjectiveError, match="'mine' is none of 'arithmetic', 'geometric'"):
        load_study(a_file(tmp_path, score='\n[score]\naggregate = "mine"\n'))


def test_a_plugin_cannot_take_a_shipped_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch, "MODULE:drawn", group=Group.SAMPLERS, name="tpe")
    changed = ("trials = 4", 'trials = 4\nsampler = "tpe"')
    with pytest.raises(SearchSpaceError, match="'tpe' is taken more than once"):
        load_study(a_file(tmp_path, changed))


@pytest.mark.parametrize("group", [Group.SAMPLERS, Group.SUPERVISORS, Group.OBJECTIVES])
@pytest.mark.parametrize(
    ("value", "said"), [("MODULE:MISSING", "cannot be loaded"), ("MODULE:NUMBER", "be called")]
)
def test_a_broken_part_is_named(
    group: Group, value: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch, value, group=group)
    assert names(group) == ("mine",)
    with pytest.raises(ConfigError, match=said) as refused:
        function(group, "mine")
    assert refused.value.hint
    with pytest.raises(ConfigError, match="no installed package gives 'other'"):
        function(group, "other")


def test_a_sampler_of_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, "MODULE:drawn", group=Group.SAMPLERS)
    name = load_study(a_file(tmp_path, KEYS[Group.SAMPLERS])).study.sampler
    assert type(make_sampler(name, space=a_space(), seed=1)).__name__ == "RandomSampler"


def test_a_sampler_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, "MODULE:nothing", group=Group.SAMPLERS)
    with pytest.raises(ConfigError, match="makes a int, no sampler of Optuna"):
        make_sampler("mine", space=a_space(), seed=1)


def test_a_supervisor_of_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, "MODULE:container", group=Group.SUPERVISORS)
    monkeypatch.setenv("AUTOTUNE_DATA", str(tmp_path))
    study = a_file(
        tmp_path,
        (KEYS[Group.SUPERVISORS][0], 'supervisor = "mine"\ncommand = "true --port {port}"'),
        ('"http://{host}:30000"', '"http://127.0.0.1:30000"'),
    )
    plan = plan_host(load_study(study), "pod-1")
    assert (plan.supervisor, plan.reach, plan.port) == ("mine", "pod-1", 30000)
    assert plan.command == ("true", "--port", "30000")
    with open_supervisor(plan) as supervisor:
        assert isinstance(supervisor, Supervisor)
        assert supervisor.host == "pod-1"
        assert supervisor.original().launch.texts() == plan.command


def test_a_supervisor_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch, "MODULE:nothing", group=Group.SUPERVISORS)
    with pytest.raises(ConfigError, match="makes a int, which lacks methods of"):
        open_supervisor(HostPlan("pod-1", "mine", base_url="http://127.0.0.1:1", port=1))


BUCKETS = (Bucket(60, 1, 64, 0.25), Bucket(60, 8, 64, 0.75))
Z95 = NormalDist().inv_cdf(0.975)
MEASURED = (a_bucket(60, 1, 100.0), a_bucket(60, 8, 400.0))


def test_an_objective_of_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, "MODULE:slowest", group=Group.OBJECTIVES)
    config = load_study(a_file(tmp_path, score='\n[score]\naggregate = "mine"\n'))
    score = score_start(
        MEASURED,
        None,
        workload=Workload(BUCKETS),
        rule=Rule(aggregate=config.score.aggregate),
        reference=None,
    )
    assert score is not None
    assert score.value == 100.0
    # Only the slowest bucket moves it: its own interval is the score's.
    assert score.interval.low == pytest.approx(98.0)
    assert score.interval.high == pytest.approx(102.0)


def test_a_weighted_sum_of_a_plugin_is_scored_as_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch, "MODULE:weighted", group=Group.OBJECTIVES)
    reference = Reference({"60x1": 80.0, "60x8": 300.0}, score=245.0, samples={})
    mine, shipped = (
        score_start(
            MEASURED,
            None,
            workload=Workload(BUCKETS),
            rule=Rule(aggregate=name, floor=0.9),
            reference=reference,
        )
        for name in ("mine", "arithmetic")
    )
    assert mine is not None
    assert shipped is not None
    assert mine.value == in_tok_per_s("mine", {BUCKETS[0]: 100.0, BUCKETS[1]: 400.0}) == 325.0
    assert in_tok_per_s("arithmetic", {BUCKETS[0]: 100.0, BUCKETS[1]: 400.0}) == 325.0
    assert (mine.interval.low, mine.interval.high) == pytest.approx(
        (shipped.interval.low, shipped.interval.high)
    )
    assert mine.ratio == pytest.approx(shipped.ratio)


def test_no_bucket_is_moved_to_nothing_to_see_what_it_matters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However wide its interval is, a bucket moves by half at most: no plug-in meets 0 tok/s."""
    installed(tmp_path, monkeypatch, "MODULE:weighted", group=Group.OBJECTIVES)
    wide = (a_bucket(60, 1, 100.0, relative_half_width=5.0), MEASURED[1])
    score = score_start(
        wide, None, workload=Workload(BUCKETS), rule=Rule(aggregate="mine"), reference=None
    )
    assert score is not None
    errors = (0.25 * 50.0, 0.75 * 400.0 * 0.02 / Z95)
    assert score.interval.half_width == pytest.approx(Z95 * math.hypot(*errors))


def test_any_positive_number_is_a_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, "MODULE:little", group=Group.OBJECTIVES)
    assert in_tok_per_s("mine", {BUCKETS[0]: 1.0}) == 0.5


@pytest.mark.parametrize(
    ("made", "shown"),
    [("nothing", "0"), ("below", "-1.0"), ("endless", "inf"), ("unknown", "nan"),
     ("words", "'fast'")],
)  # fmt: skip
def test_an_objective_that_makes_no_number_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str, shown: str
) -> None:
    installed(tmp_path, monkeypatch, f"MODULE:{made}", group=Group.OBJECTIVES)
    with pytest.raises(ObjectiveError) as caught:
        in_tok_per_s("mine", {BUCKETS[0]: 1.0})
    assert caught.value.message == (
        f"the plug-in objective 'mine' makes {shown} of these throughputs"
    )
    assert caught.value.hint == "it must return a positive number, tok/s"
