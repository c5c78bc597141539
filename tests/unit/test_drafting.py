"""A live unit becomes two definition files that load, with what runs as the reference."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from autotune.config import StudyConfig, load_study
from autotune.drafting import draft
from autotune.engine_units import LiveUnit
from autotune.engines import SGLANG
from autotune.errors import UnitRefused
from autotune.sglang.algorithms import ALGORITHMS
from autotune.sglang.server import ServerInfo
from autotune.supervisors.base import Word

SERVE = "python -m sglang.launch_server --model-path /models/M --tp-size 8 --port 30000"
DDTREE = (
    f"{SERVE} --context-length 16384 --speculative-algorithm DDTREE --speculative-num-draft-tokens "
    "8 --speculative-ddtree-budget 8 --speculative-ddtree-topk-cap 4"
)


def live(command: str, **told: object) -> LiveUnit:
    info = ServerInfo(flat={"version": "0.5.21", **told}) if told else None
    argv = tuple(Word(text) for text in shlex.split(command))
    return LiveUnit("gpu-a", "llm.service", "http://{host}:30000", argv, info)


def written(unit: LiveUnit, folder: Path) -> StudyConfig:
    drafted = draft(unit, "llm", SGLANG)
    for kind, text in (("search_spaces", drafted.study), ("objectives", drafted.objective)):
        (folder / kind).mkdir()
        (folder / kind / "llm.toml").write_text(text, encoding="utf-8")
    return load_study(str(folder / "search_spaces" / "llm.toml"))


def test_a_ddtree_unit(tmp_path: Path) -> None:
    config = written(live(DDTREE, max_running_requests=64), tmp_path)
    assert config.space.deployed() == {"budget": 8, "topk": 4, "window": None}
    assert [c.name for c in config.space.constraints] == ["topk-within-budget"]
    assert config.service.gpus_per_host == 8
    assert config.service.unit == "llm.service"
    assert {(b.context_tokens, b.concurrency) for b in config.workload.buckets} == {
        (c, n) for c in (60, 1024, 4096, 8192) for n in (1, 8, 32, 64)
    }
    assert all(p.why for p in config.space.parameters)


def test_what_does_not_fit_is_left_out_and_told(tmp_path: Path) -> None:
    short = DDTREE.replace("16384", "2048")
    drafted = draft(live(short), "llm", SGLANG)
    assert any("admits 48" in sentence for sentence in drafted.left_out)
    assert any("2048" in sentence for sentence in drafted.left_out)
    config = written(live(short), tmp_path)
    assert config.workload.largest_concurrency == 32
    assert {b.context_tokens for b in config.workload.buckets} == {60, 1024}
    assert config.space.parameters[2].choices == (512, 1024, 2048, None)


def test_a_value_outside_the_usual_range_widens_it(tmp_path: Path) -> None:
    config = written(live(DDTREE.replace("budget 8", "budget 100")), tmp_path)
    budget = config.space.parameters[0]
    assert (budget.low, budget.high, budget.deployed) == (1, 100, 100)


@pytest.mark.parametrize("name", ["EAGLE", "EAGLE3", "NEXTN", "STANDALONE"])
def test_an_eagle_unit(name: str, tmp_path: Path) -> None:
    command = (
        f"{SERVE} --speculative-algorithm {name} --speculative-num-steps 3 "
        "--speculative-eagle-topk 4 --speculative-num-draft-tokens 16"
    )
    space = written(live(command), tmp_path).space
    assert space.deployed() == {"steps": 3, "topk": 4, "draft_tokens": 16}
    assert space.effective({"steps": 3, "topk": 1, "draft_tokens": 16})["draft_tokens"] == 4
    assert space.effective({"steps": 1, "topk": 4, "draft_tokens": 64})["draft_tokens"] == 5


def test_values_that_the_engine_chose_itself(tmp_path: Path) -> None:
    told = {
        "speculative_num_steps": 5,
        "speculative_eagle_topk": 4,
        "speculative_num_draft_tokens": 8,
    }
    config = written(live(f"{SERVE} --speculative-algorithm EAGLE", **told), tmp_path)
    assert config.space.deployed() == {"steps": 5, "topk": 4, "draft_tokens": 8}


def test_an_attention_backend_that_refuses_trees(tmp_path: Path) -> None:
    command = (
        f"{SERVE} --speculative-algorithm EAGLE3 --page-size 64 --attention-backend triton "
        "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    )
    config = written(live(command), tmp_path)
    assert config.space.names == ("steps", "draft_tokens")
    assert config.space.effective({"steps": 6, "draft_tokens": 2})["draft_tokens"] == 7


def test_an_ngram_unit_without_its_flags(tmp_path: Path) -> None:
    config = written(live(f"{SERVE} --speculative-algorithm NGRAM"), tmp_path)
    assert config.space.deployed() == {"draft_tokens": None, "breadth": None}
    assert config.space.parameters[0].choices == (2, 4, 8, 16, 32, None)


def test_a_dflash_unit(tmp_path: Path) -> None:
    config = written(live(f"{SERVE} --speculative-algorithm DFLASH"), tmp_path)
    assert config.space.names == ("window",)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_knob_says_why(name: str) -> None:
    for knob in ALGORITHMS[name].knobs:
        assert knob.why
        assert knob.source
        assert knob.choices or 1 <= knob.low < knob.high


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (SERVE, "runs without speculative decoding"),
        (f"{SERVE} --speculative-algorithm MEDUSA", "whose flags are not known"),
        (f"{SERVE} --speculative-algorithm EAGLE", "does not give --speculative-num-steps"),
    ],
)
def test_units_that_cannot_be_tuned(command: str, said: str) -> None:
    with pytest.raises(UnitRefused, match=said) as refused:
        draft(live(command), "llm", SGLANG)
    assert refused.value.hint
