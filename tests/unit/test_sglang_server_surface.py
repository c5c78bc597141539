"""The surface is a documented truth: these tests pin what other tests compute with."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from autotune.testing.sglang_server.faults import Fault
from autotune.testing.sglang_server.ranking import CONCURRENCIES, Ranked, grid, main, rank
from autotune.testing.sglang_server.surface import Algorithm, Setting, Surface
from autotune.testing.sglang_server.tree import (
    Drafter,
    accept_length,
    accept_variance,
    best_first,
    survival,
)

DRAFTER = Drafter(hit=0.7, decay=0.98, tail=0.5, tail_belief=0.6, cover=0.9, depth=7)
DOCS = Path(__file__).parents[2] / "docs" / "simulated-server.md"
DEMO, KIMI = Surface.named("demo"), Surface.named("kimi-k26")
REFERENCE = Setting(budget=8, topk=4)


@pytest.fixture(scope="module", params=["full", "small"])
def ranked_demo(request: pytest.FixtureRequest) -> tuple[Ranked, ...]:
    if request.param == "full":
        return rank(DEMO, grid())
    return rank(DEMO, grid(), contexts_tokens=(60, 1024), concurrencies=(1, 8))


def test_a_chain_survives_by_the_product_of_its_hits() -> None:
    tree = best_first(DRAFTER, topk=1, nodes=3)
    first, second = DRAFTER.first(1), DRAFTER.first(1) * DRAFTER.first(2)
    third = second * DRAFTER.first(3)
    assert survival(tree) == pytest.approx((first, second, third))
    assert accept_length(survival(tree)) == pytest.approx(1 + first + second + third)


def test_the_tree_of_a_smaller_budget_is_a_prefix() -> None:
    large = best_first(DRAFTER, topk=4, nodes=40)
    assert best_first(DRAFTER, topk=4, nodes=15) == large[:15]


def test_a_chain_ends_at_the_block() -> None:
    assert len(best_first(DRAFTER, topk=1, nodes=30)) == DRAFTER.depth


def test_a_topk_above_the_budget_is_the_same_server() -> None:
    lengths = {
        DEMO.accept_length(budget=4, topk=topk, window=512, context_tokens=1024)
        for topk in (4, 9, 16)
    }
    assert len(lengths) == 1


def test_survivals_fall_with_the_depth_and_give_the_moments_of_the_draw() -> None:
    survivals = DEMO.survivals(Setting(budget=21, topk=3, window=512), context_tokens=1024)
    assert all(a >= b for a, b in itertools.pairwise(survivals))
    rng = random.Random(7)
    draws = []
    for _ in range(20_000):
        luck = rng.random()
        draws.append(1 + sum(luck < s for s in survivals))
    mean = sum(draws) / len(draws)
    variance = sum((d - mean) ** 2 for d in draws) / len(draws)
    assert mean == pytest.approx(accept_length(survivals), rel=0.02)
    assert variance == pytest.approx(accept_variance(survivals), rel=0.05)


@pytest.mark.parametrize("context_tokens", [1024, 4096, 8192])
def test_the_window_matters_in_the_demo_from_1024_tokens_on(context_tokens: int) -> None:
    def length(window: int | None) -> float:
        return DEMO.accept_length(budget=8, topk=4, window=window, context_tokens=context_tokens)

    assert length(512) > 1.05 * length(None)


def test_a_window_above_the_context_changes_nothing() -> None:
    assert DEMO.quality(window=4096, context_tokens=60) == DEMO.quality(
        window=None, context_tokens=60
    )


def test_the_reference_of_kimi_gives_about_150_tok_per_s() -> None:
    setting = Setting(budget=8, topk=4, window=2048)
    rate = KIMI.output_tok_per_s(setting, context_tokens=60, concurrency=1)
    assert rate == pytest.approx(150, rel=0.03)


def test_the_demo_optimum_is_inside_the_grid_and_well_above_the_reference(
    ranked_demo: tuple[Ranked, ...],
) -> None:
    best = next(entry for entry in ranked_demo if entry.clean)
    reference = next(e for e in ranked_demo if e.setting == REFERENCE)
    assert 1.15 <= best.tok_per_s / reference.tok_per_s <= 1.25
    assert 1 < best.setting.budget < 64
    assert 1 < best.setting.topk < 16
    assert best.setting.window == 512


def test_the_demo_has_a_fast_region_that_garbles(ranked_demo: tuple[Ranked, ...]) -> None:
    fastest = next(entry for entry in ranked_demo if entry.fits)
    best = next(entry for entry in ranked_demo if entry.clean)
    assert fastest.corruption_rate > 0.5
    assert fastest.tok_per_s > 1.1 * best.tok_per_s


def test_large_trees_do_not_fit() -> None:
    settings = list(grid())
    refused = [s for s in settings if not DEMO.fits(s)]
    assert 0.1 <= len(refused) / len(settings) <= 0.2
    assert min(s.budget for s in refused) > 30
    assert DEMO.fits(REFERENCE)


def test_fewer_requests_make_room_for_a_larger_tree() -> None:
    setting = next(s for s in grid() if not DEMO.fits(s))
    assert DEMO.fits(replace(setting, max_running_requests=16))


def test_a_tiny_memory_fraction_leaves_no_cache() -> None:
    assert DEMO.kv_tokens(replace(REFERENCE, mem_fraction_static=0.5)) <= 0
    assert not DEMO.fits(replace(REFERENCE, mem_fraction_static=0.5))


def test_queued_requests_do_not_add_throughput() -> None:
    limited = replace(REFERENCE, max_running_requests=48)
    rates = [DEMO.output_tok_per_s(limited, context_tokens=60, concurrency=c) for c in (48, 64)]
    assert rates[0] == rates[1]


def test_a_batch_beyond_the_captured_graphs_is_slower() -> None:
    eager = replace(REFERENCE, cuda_graph_max_bs=16)
    assert DEMO.round_s(eager, running=32, context_tokens=60) > 1.3 * DEMO.round_s(
        REFERENCE, running=32, context_tokens=60
    )


def test_a_closed_loop_loses_to_undisturbed_decoding() -> None:
    def rate(output_tokens: int | None) -> float:
        return DEMO.output_tok_per_s(
            REFERENCE, context_tokens=1024, concurrency=8, output_tokens=output_tokens
        )

    assert rate(64) < rate(256) < rate(None)
    assert rate(1_000_000) == pytest.approx(rate(None), rel=0.001)


def test_without_speculation_a_round_gives_one_token() -> None:
    plain = Setting(budget=0, topk=0, algorithm=Algorithm.NONE)
    assert DEMO.survivals(plain, context_tokens=60) == ()
    assert DEMO.output_tok_per_s(plain, context_tokens=60, concurrency=1) < DEMO.output_tok_per_s(
        REFERENCE, context_tokens=60, concurrency=1
    )


@pytest.mark.parametrize("algorithm", [Algorithm.NGRAM, Algorithm.DFLASH, Algorithm.EAGLE])
def test_other_algorithms_accept_more_than_one_token(algorithm: Algorithm) -> None:
    length = DEMO.accept_length(
        budget=7, topk=4, window=None, context_tokens=60, algorithm=algorithm
    )
    assert 1.5 < length < 8


def test_an_unknown_surface_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match="demo, kimi-k26"):
        Surface.named("lunar")


def test_the_command_prints_the_best_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--surface", "kimi-k26", "--top", "2", "--contexts", "60"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| rank | budget | top-k | window |")
    assert [line.split("|")[1].strip() for line in lines[2:5]] == ["1", "2", "reference"]
    assert lines[-1].startswith("5424 settings")


@pytest.mark.parametrize(
    "options",
    [
        ["--surface", "demo"],
        ["--surface", "demo", "--contexts", "60,1024", "--concurrencies", "1,8"],
        ["--surface", "kimi-k26"],
    ],
)
def test_the_documented_table_is_what_the_command_prints(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main(options)
    assert capsys.readouterr().out.strip() in DOCS.read_text("utf-8")


@pytest.mark.parametrize("surface", [DEMO, KIMI])
def test_every_constant_is_documented_with_its_value(surface: Surface) -> None:
    column = 2 if surface is DEMO else 3
    rows = [line.split("|") for line in DOCS.read_text("utf-8").splitlines()]
    documented = {row[1].strip(" `"): row[column].strip() for row in rows if len(row) == 6}
    for constant in fields(surface):
        if constant.name not in ("name", "attention"):
            assert float(documented[constant.name]) == getattr(surface, constant.name)


@pytest.mark.parametrize("fault", list(Fault))
def test_every_fault_is_documented(fault: Fault) -> None:
    assert re.search(rf"^\| `{fault.value}[`\[]", DOCS.read_text("utf-8"), re.MULTILINE)


def test_the_ranking_weights_sum_to_one() -> None:
    assert sum(CONCURRENCIES.values()) == pytest.approx(1)
