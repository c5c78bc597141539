"""Flags, resolution and the start-up log, without a process."""

from __future__ import annotations

import io
import re

import pytest

from autotune.testing.sglang_server.args import ServerArgs, parse
from autotune.testing.sglang_server.log import ServerLog
from autotune.testing.sglang_server.startup import load, server_args_line
from autotune.testing.sglang_server.switches import Switches

TREE = (
    "--model-path m --speculative-algorithm DDTREE --speculative-draft-model-path d "
    "--speculative-ddtree-budget 8 --speculative-ddtree-topk-cap 4"
)


def resolved(flags: str, **environ: str) -> ServerArgs:
    return parse(flags.split(), switches(**environ))


def switches(**environ: str) -> Switches:
    return Switches.read({f"AUTOTUNE_SIM_{name}": value for name, value in environ.items()})


def start_log(flags: str, **environ: str) -> str:
    settings = switches(**environ)
    args = parse(flags.split(), settings)
    stream = io.StringIO()
    load(args, settings, ServerLog(tp_size=args.tp_size, stream=stream), sleep=lambda _: None)
    return stream.getvalue()


@pytest.mark.parametrize(
    "flag", ["--speculative-draft-window-size", "--speculative-dflash-draft-window-size"]
)
@pytest.mark.parametrize(
    ("style", "key"),
    [
        ("0.5.11", "speculative_dflash_draft_window_size"),
        ("0.5.23", "speculative_draft_window_size"),
    ],
)
def test_both_spellings_of_the_window_are_accepted_and_the_key_follows_the_release(
    flag: str, style: str, key: str
) -> None:
    args = resolved(f"{TREE} {flag} 2048", LOG_STYLE=style)
    assert args.fields[key] == 2048
    assert args.setting.window == 2048


def test_a_prefix_of_a_flag_is_accepted() -> None:
    assert resolved(f"{TREE} --max-run 12").setting.max_running_requests == 12


def test_speculation_limits_the_requests_and_says_so() -> None:
    args = resolved(TREE)
    assert args.fields["max_running_requests"] == 48
    assert "reset to 48" in args.warnings[0]
    plain = resolved("--model-path m")
    assert (plain.fields["max_running_requests"], plain.warnings) == (None, ())


def test_the_random_seed_is_a_nonce_unless_given() -> None:
    assert len({resolved(TREE).fields["random_seed"] for _ in range(4)}) > 1
    assert resolved(f"{TREE} --random-seed 7").fields["random_seed"] == 7


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--model-path m --speculative-algorithm DDTREE", "requires setting --speculative-draft"),
        (f"{TREE} --speculative-draft-window-size 4", "must be >= the block size"),
        (f"{TREE} --speculative-draft-window-size 0", "must be greater than 0, got 0"),
        (f"{TREE} --speculative-num-draft-tokens -1", "must be greater than 0, got -1"),
        (f"{TREE.replace('budget 8', 'budget 0')}", "must be greater than 0, got 0"),
        (f"{TREE} --page-size 16", "page_size == 1"),
        (f"{TREE} --max-running-requests 0", "must be greater than 0"),
        (f"{TREE} --mem-fraction-static 1.2", "between 0 and 1"),
        (
            f"{TREE} --speculative-num-draft-tokens 8 --speculative-dflash-block-size 4",
            "they differ",
        ),
    ],
)
def test_wrong_combinations_are_value_errors(flags: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        resolved(flags)


def test_an_unknown_algorithm_depends_on_the_release(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--model-path m --speculative-algorithm NOPE"
    with pytest.raises(SystemExit) as exit_info:
        resolved(flags)
    assert exit_info.value.code == 2
    assert "invalid choice: 'NOPE'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="Unknown speculative algorithm name: NOPE"):
        resolved(flags, LOG_STYLE="0.5.23")


@pytest.mark.parametrize("flags", ["--model-path m --no-such-flag", "--model-path m --port x", ""])
def test_wrong_flags_end_with_usage_and_2(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        resolved(flags)
    assert exit_info.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("usage: sglang serve")
    assert "sglang serve: error:" in err


def test_ngram_drafts_with_its_own_knobs() -> None:
    setting = resolved(
        "--model-path m --speculative-algorithm NGRAM --speculative-num-draft-tokens 6 "
        "--speculative-ngram-max-bfs-breadth 3"
    ).setting
    assert (setting.algorithm, setting.budget, setting.topk) == ("NGRAM", 6, 3)


def test_dflash_is_a_chain_of_its_block() -> None:
    flags = "--model-path m --speculative-algorithm DFLASH --speculative-draft-model-path d"
    setting = resolved(f"{flags} --speculative-num-draft-tokens 8").setting
    assert (setting.budget, setting.topk) == (7, 1)


@pytest.mark.parametrize(
    ("style", "pattern"),
    [
        ("0.5.11", r"^server_args=ServerArgs\(model_path='m', .*speculative_ddtree_budget=8, "),
        ("0.5.23", r"^server_args=\{'model_path': 'm', .*'speculative_ddtree_budget': 8, "),
    ],
)
def test_the_server_args_line_has_every_field(style: str, pattern: str) -> None:
    settings = switches(LOG_STYLE=style)
    line = server_args_line(parse(TREE.split(), settings), settings.log_style)
    assert re.match(pattern, line)
    assert len(line) > 14_000


@pytest.mark.parametrize(
    ("flags", "environ", "line"),
    [
        (f"{TREE}", {}, "draft_window_size=None, compact_cache=False"),
        (
            f"{TREE} --speculative-draft-window-size 2048",
            {},
            "draft_window_size=2048, compact_cache=True",
        ),
        (
            f"{TREE} --speculative-draft-window-size 2048",
            {"FAULT": "ignore-window"},
            "draft_window_size=None, compact_cache=False",
        ),
        (TREE, {}, "block_size=8, tree_budget=8, topk_cap=4, max_tree_nodes=9"),
        (TREE, {"FAULT": "ignore-budget"}, "tree_budget=7, topk_cap=4, max_tree_nodes=8"),
    ],
)
def test_the_log_shows_what_runs(flags: str, environ: dict[str, str], line: str) -> None:
    assert line in start_log(flags, **environ)


def test_ignored_flags_are_null_in_the_fields() -> None:
    flags = f"{TREE} --speculative-draft-window-size 2048"
    args = resolved(flags, FAULT="ignore-window,ignore-budget", LOG_STYLE="0.5.23")
    assert args.fields["speculative_draft_window_size"] is None
    assert args.fields["speculative_ddtree_budget"] is None
    assert (args.setting.window, args.setting.budget) == (None, 7)


@pytest.mark.parametrize("style", ["0.5.11", "0.5.23"])
def test_the_lines_come_in_the_order_of_the_real_server(style: str) -> None:
    log = start_log(f"{TREE} --tp-size 2", LOG_STYLE=style)
    order = [
        "server_args=",
        "TP0] Init torch distributed begin.",
        "TP1] Init torch distributed begin.",
        "TP0] Load weight begin. avail mem=",
        "\rLoading safetensors checkpoint shards:   0% Completed | 0/4",
        "\rLoading safetensors checkpoint shards: 100% Completed | 4/4",
        "type=KimiK25ForConditionalGeneration",
        "type=DFlashDraftModel",
        "TP0] Initialized DFLASH draft runner. attention_backend=triton, model=DFlashDraftModel",
        "TP0] Initialized DDTree worker.",
        "TP0] KV Cache is allocated. ",
        "TP0] Memory pool end. avail mem=",
        "cuda graph begin." if style == "0.5.11" else "Capture target verify CUDA graph begin.",
        "cuda graph end." if style == "0.5.11" else "Capture draft verify CUDA graph end.",
        "TP0] max_total_num_tokens=",
    ]
    places = [log.index(part) for part in order]
    assert places == sorted(places)
    assert log.count("Load weight end.") == 4
    assert log.count("Initialized DFLASH draft runner") == 1
