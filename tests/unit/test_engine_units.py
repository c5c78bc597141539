"""Which engine a unit's command line belongs to, and what the vLLM example makes of its units."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from autotune.config import load_study
from autotune.drafting import draft
from autotune.engine_units import LiveUnit, UnitReader
from autotune.engines import SGLANG, Engine, engine_of, engines_to_ask, recognised, require_units
from autotune.errors import ConfigError, UnitRefused
from autotune.launch import make_recipe
from autotune.sglang.server import ServerInfo
from autotune.supervisors.base import Word
from tests.command_line import called
from tests.scripted import an_original
from tests.unit.test_plugins import installed
from tests.vllm_package import install_vllm

SGLANG_LINE = "python -m sglang.launch_server --model-path M --speculative-algorithm DDTREE"
SETTINGS = (
    "--speculative-config.method ngram --speculative-config.num_speculative_tokens 4 "
    "--speculative-config.prompt_lookup_max 4"
)
VLLM_LINE = f"/opt/venv/bin/python /opt/venv/bin/vllm serve Qwen/Qwen3-8B {SETTINGS}"


@pytest.fixture(autouse=True)
def _vllm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(install_vllm(tmp_path_factory.mktemp("vllm"))))


def words(line: str) -> tuple[Word, ...]:
    return tuple(Word(text) for text in shlex.split(line))


def live(line: str, **told: object) -> LiveUnit:
    info = ServerInfo(told) if told else None
    return LiveUnit("gpu-a", "llm.service", "http://{host}:8000", words(line), info)


def engine_at(line: str) -> str:
    return recognised("gpu-a: llm.service", words(line), engines_to_ask()).name


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (SGLANG_LINE, "sglang"),
        ("python -m autotune.testing.sglang_server --port 1", "sglang"),
        ("/srv/sglang-launcher --port 1", "sglang"),
        ("/srv/start --port 1 --speculative-algo EAGLE", "sglang"),
        (VLLM_LINE, "vllm"),
        ("vllm serve /models/sglang-tests --port 1", "vllm"),
        ("python3 -m vllm.entrypoints.openai.api_server --model M", "vllm"),
    ],
)
def test_the_engine_of_a_command_line(line: str, name: str) -> None:
    assert engine_at(line) == name


@pytest.mark.parametrize(
    ("line", "shown"),
    [("/usr/bin/nginx -g x y", "/usr/bin/nginx -g x"), ("vllm bench serve", "vllm bench serve")],
)
def test_nobody_recognises_it(line: str, shown: str) -> None:
    with pytest.raises(UnitRefused) as refused:
        engine_at(line)
    assert refused.value.message == (
        f"gpu-a: llm.service runs {shown}, which no installed engine recognises; "
        "asked: sglang, vllm"
    )
    assert "--engine NAME" in refused.value.hint


def test_an_engine_that_reads_no_units_is_told_apart() -> None:
    silent = Engine("other", SGLANG.open_server, SGLANG.new_log, "--nonce")
    with pytest.raises(UnitRefused, match=r"asked: sglang; other cannot be asked"):
        recognised("gpu-a: x.service", words("nginx"), {"sglang": SGLANG, "other": silent})
    with pytest.raises(ConfigError, match="'other' does not say how its units are read") as refused:
        require_units(silent)
    assert "docs/how-to.md" in refused.value.hint


def test_more_than_one_recognises_it() -> None:
    greedy = UnitReader(lambda argv: True, require_units(SGLANG).read, 1)
    other = Engine("other", SGLANG.open_server, SGLANG.new_log, "--nonce", units=greedy)
    with pytest.raises(UnitRefused, match="more than one engine recognises: sglang, other") as two:
        recognised("gpu-a: x.service", words(SGLANG_LINE), {"sglang": SGLANG, "other": other})
    assert two.value.hint == "say which one it is: --engine sglang or --engine other"


def test_a_named_engine_is_the_only_one_that_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch, "MODULE:MISSING", group="autotune.engines", name="broken")
    assert list(engines_to_ask("vllm")) == ["vllm"]
    with pytest.raises(ConfigError, match="cannot be loaded") as refused:
        engines_to_ask()
    assert refused.value.hint


def test_an_engine_cannot_take_the_shipped_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch, "MODULE:NUMBER", group="autotune.engines", name="sglang")
    with pytest.raises(ConfigError, match="'sglang' is taken more than once"):
        engines_to_ask()


def test_the_command_says_it_before_a_host_is_asked(tmp_path: Path) -> None:
    ended = called(*["init", "--host", "gpu-a", "--unit", "x", "--engine", "nope"], folder=tmp_path)
    assert (ended.code, list(tmp_path.iterdir())) == (2, [])
    assert "no installed package gives the engine 'nope'" in ended.err


# -- what the example makes of a unit --------------------------------------------------------------


def test_a_vllm_unit_becomes_a_study_whose_deployed_is_what_runs(tmp_path: Path) -> None:
    line = f"{VLLM_LINE} -tp 4 --max-num-seqs 32 --port 8000"
    unit = live(line, version="0.11.0", model_path="Qwen/Qwen3-8B", max_model_len=4096)
    engine = engine_of("vllm")
    drafted = draft(unit, "llm", engine)
    for kind, text in (("search_spaces", drafted.study), ("objectives", drafted.objective)):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "llm.toml").write_text(text, encoding="utf-8")
    config = load_study(str(tmp_path / "search_spaces" / "llm.toml"))
    assert (config.service.engine, config.service.gpus_per_host) == ("vllm", 4)
    assert config.space.deployed() == {"draft_tokens": 4, "lookup_max": 4}
    assert all(p.why and p.source for p in config.space.parameters)
    assert config.workload.largest_concurrency == 32
    assert max(bucket.context_tokens for bucket in config.workload.buckets) == 1024
    assert "Qwen/Qwen3-8B behind vLLM 0.11.0 with" in drafted.study
    recipe = make_recipe(
        config.space,
        (),
        an_original(*shlex.split(line)),
        host="gpu-a",
        info=unit.info,
        engine=engine,
    )
    launched = recipe.launch({"draft_tokens": 12, "lookup_max": 6}, None).texts()
    assert launched[4:10] == tuple(SETTINGS.replace(" 4", " 12", 1).replace(" 4", " 6").split())


def test_the_shortest_ngram_bounds_the_longest() -> None:
    unit = live(f"{VLLM_LINE} --speculative_config.prompt_lookup_min 3")
    facts = require_units(engine_of("vllm")).read(unit)
    assert [(knob.low, knob.high) for knob in facts.algorithm.knobs] == [(1, 16), (3, 8)]
    assert (facts.model, facts.gpus, facts.requests) == ("Qwen/Qwen3-8B", 1, None)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("vllm serve M", "runs without speculative decoding"),
        ("vllm serve M --speculative-config.method eagle", "method eagle, whose flags are not"),
        ('vllm serve M --speculative-config \'{"method": "ngram"}\'', "as one JSON text"),
    ],
)
def test_vllm_units_that_cannot_be_tuned(line: str, said: str) -> None:
    with pytest.raises(UnitRefused, match=said) as refused:
        draft(live(line), "llm", engine_of("vllm"))
    assert refused.value.hint
