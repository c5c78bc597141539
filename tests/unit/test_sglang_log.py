"""The log of one start: recorded and hand-made lines in, state out."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.sglang.log import StartLimits, StartupLog, StartupPhase
from autotune.supervisors.log_lines import LogLine, LogSource

CASES = Path(__file__).parent.parent / "cases" / "sglang"
STAMP = "[2026-11-29 12:50:07]"


def lines_of(name: str) -> list[str]:
    return (CASES / name).read_bytes().decode().split("\n")


def fed(
    *texts: str, log: StartupLog | None = None, source: LogSource = LogSource.SERVICE
) -> StartupLog:
    log = log or StartupLog()
    for text in texts:
        log.feed(LogLine(text, 0.0, source))
    return log


def phases_of(name: str) -> list[str]:
    log = StartupLog()
    seen = [str(log.phase)]
    for text in lines_of(name):
        for piece in text.split("\r"):
            fed(piece, log=log)
            if seen[-1] != log.phase:
                seen.append(str(log.phase))
    return seen


def test_a_real_start_with_a_draft_model_goes_through_all_phases() -> None:
    assert phases_of("dflash-0.5.17.log") == [
        "silent", "arguments", "loading", "draft", "kv-cache", "capturing", "binding", "warming",
        "ready",
    ]  # fmt: skip


def test_the_draft_may_come_after_the_graphs_and_ranks_may_interleave() -> None:
    assert phases_of("tp2-0.5.11.log") == [
        "silent", "arguments", "loading", "kv-cache", "capturing", "draft", "kv-cache",
        "capturing", "binding", "warming", "ready",
    ]  # fmt: skip


def test_a_real_gpu_start_is_proven_by_its_lines() -> None:
    log = fed(*lines_of("dflash-0.5.17.log"))
    assert log.ready
    assert log.draft_runner == {
        "attention_backend": "triton",
        "model": "DFlashDraftModel",
        "block_size": "8",
        "draft_window_size": "64",
        "compact_cache": "True",
    }
    assert log.limits == StartLimits(32, 65536, 4096, 138.48)
    assert log.captured_batches == 32
    assert (log.bound_pid, log.bound) == (1352, "http://127.0.0.1:30110")
    assert log.progress == 1.0
    assert log.server_args is not None
    assert log.server_args["speculative_draft_window_size"] == 64
    assert log.server_args["random_seed"] == 501119508
    config = log.server_args["cuda_graph_config"]
    assert isinstance(config, dict)
    assert config["decode"]["max_bs"] == 32


def test_the_mapping_form_of_the_arguments_is_read_too() -> None:
    log = fed(*lines_of("dflash-0.5.21.log"))
    assert log.ready
    assert log.server_args is not None
    assert len(log.server_args) == 519
    assert log.server_args["random_seed"] == 920777618
    assert log.draft_runner is not None
    assert log.draft_runner["draft_window_size"] == "None"
    assert log.draft_runner["compact_cache"] == "False"
    assert log.captured_batches is None
    assert log.warnings == [
        "Cuda graph is disabled because of using torch native attention backend"
    ]


def test_reordered_and_foreign_keys_of_a_fork_are_found() -> None:
    log = fed(*lines_of("tp2-0.5.11.log"))
    assert log.ready
    assert log.draft_runner is not None
    assert log.draft_runner["draft_window_size"] == "2048"
    assert log.draft_runner["ring_size"] == "528"
    assert log.tree_worker == {"block_size": "8", "tree_budget": "8", "max_tree_nodes": "9"}
    # The draft's own graphs (largest 64) are not the target's.
    assert log.captured_batches == 48
    assert log.warnings == ["DFLASH fused KV materialization disabled: quantized draft"]


def test_odd_values_do_not_cost_the_others() -> None:
    log = fed(*lines_of("tp2-0.5.11.log"))
    assert log.server_args is not None
    assert log.server_args["served_model_name"] == "a (b), c='d'"
    assert log.server_args["speculative_algorithm"] == "DDTREE"
    assert log.server_args["json_model_override_args"] == '{"rope": {"factor": 64, "x": [1, 2]}}'
    assert log.server_args["speculative_ddtree_topk_cap"] == 4
    assert log.server_args["kv_cache_dtype"] == "torch.bfloat16"
    assert log.server_args["api_key"] == "***"
    assert log.server_args["admin_api_key"] is None
    assert log.server_args["tokenizer_path"] == "/models/target"


def test_no_secret_is_kept() -> None:
    log = StartupLog(secrets=("hunter2hunter2",))
    fed(*lines_of("tp2-0.5.11.log"), "error: --api-key hunter2hunter2 DFLASH block", log=log)
    kept = "\n".join([*log.tail, *log.decisive, *log.warnings, str(log.server_args)])
    assert "sk-very-secret-0123" not in kept
    assert "hunter2" not in kept
    assert "api_key='***'" in kept


def test_a_split_arguments_line_is_joined() -> None:
    whole = next(text for text in lines_of("dflash-0.5.17.log") if "server_args=" in text)
    expected = fed(whole).server_args
    for cut in (60, 1000, 9001, len(whole) - 1):
        log = fed(whole[:cut], whole[cut:])
        assert log.server_args == expected
        fed(f"{STAMP} Load weight begin. avail mem=1 GB", log=log)
        assert log.phase is StartupPhase.LOADING


def test_a_cut_off_arguments_line_keeps_its_whole_pairs() -> None:
    log = fed(
        f"{STAMP} server_args=ServerArgs(model_path='/m', port=30000, served_model_name='a, b",
        f"{STAMP} Load weight begin. avail mem=1 GB",
    )
    assert log.server_args == {"model_path": "/m", "port": 30000}
    assert log.phase is StartupPhase.LOADING


def test_progress_is_the_shard_bars_of_the_model_that_loads() -> None:
    log = fed(f"{STAMP} Load weight begin. avail mem=94.14 GB")
    assert log.progress is None
    fed("Loading safetensors checkpoint shards:  45% Completed | 5/11 [00:41<00:49]\r", log=log)
    assert log.progress == pytest.approx(5 / 11)
    fed(
        f"{STAMP} Load weight end. elapsed=94.35 s",
        f"{STAMP} Load weight begin. avail mem=20 GB",
        log=log,
    )
    assert log.phase is StartupPhase.DRAFT
    assert log.progress is None


def test_a_message_behind_a_progress_bar_is_read() -> None:
    log = fed(
        f"Capturing batches:   0%|   | 0/8 [00:00<?, ?it/s]{STAMP} Capture target verify CUDA"
        " graph begin. backend=full, num_tokens_per_req=9, bs=[1, 2, 4], avail mem=1 GB"
    )
    assert log.captured_batches == 4
    assert log.phase is StartupPhase.CAPTURING


def test_the_fired_up_line_of_a_process_that_could_not_bind_is_no_readiness() -> None:
    fired = f"{STAMP} The server is fired up and ready to roll!"
    assert not fed(fired).ready
    log = fed(*lines_of("port-in-use-0.5.21.log"), fired)
    assert log.bind_error is not None
    assert log.phase is StartupPhase.FAILED
    assert log.failed_in is StartupPhase.BINDING
    assert not log.ready
    bound = f"{STAMP} INFO:     Uvicorn running on http://[::1]:30000 (Press CTRL+C to quit)"
    assert fed(bound, fired).ready
    assert fed(fired, bound).phase is StartupPhase.READY
    stopped = f"{STAMP} SIGTERM received. signum=None frame=None."
    assert not fed(stopped, f"{STAMP} ERROR:    [Errno 98] taken", bound, fired).ready


@pytest.mark.parametrize("source", [LogSource.MANAGER, LogSource.LOOSE])
def test_only_lines_of_the_service_prove(source: LogSource) -> None:
    log = fed(*lines_of("dflash-0.5.17.log"), source=source)
    assert log.phase is StartupPhase.SILENT
    assert log.server_args is None
    assert log.draft_runner is None
    assert log.bound is None
    assert not log.ready


@pytest.mark.parametrize("source", list(LogSource))
def test_any_line_may_tell_of_a_failure(source: LogSource) -> None:
    log = fed(
        f"{STAMP} Received sigquit from a child process. It usually means the child failed.",
        source=source,
    )
    assert log.failed
    assert log.closed


def test_a_quoted_line_in_a_request_proves_nothing() -> None:
    log = fed(
        f"{STAMP} Receive: text='server_args=ServerArgs(random_seed=1) The server is fired up"
        " Initialized DFLASH draft runner. draft_window_size=2048 SIGTERM received'"
    )
    assert log.server_args is None
    assert log.draft_runner is None
    assert log.stopping is None


def test_exceptions_of_requests_and_of_steps_long_past_decide_nothing() -> None:
    log = fed("ValueError: harmless, while importing")
    assert list(log.decisive) == ["ValueError: harmless, while importing"]
    fed(*lines_of("dflash-0.5.17.log"), log=log)
    fed("ValueError: this request asks for too many tokens", log=log)
    assert not log.decisive


def test_memory_is_bounded() -> None:
    log = StartupLog()
    for number in range(500):
        fed(f"RuntimeError: {number} " + "x" * 5000, log=log)
    assert len(log.tail) == 60
    assert len(log.decisive) <= 60
    assert max(map(len, log.tail)) < 1100


def test_least_limits_of_all_ranks_count() -> None:
    log = fed(
        f"{STAMP[:-1]} DP0 TP0] max_total_num_tokens=100, max_running_requests=24, context_len=9,"
        " available_gpu_mem=3.5 GB",
        f"{STAMP[:-1]} DP1 TP0] max_total_num_tokens=90, max_running_requests=24, context_len=9,"
        " available_gpu_mem=4.5 GB",
    )
    assert log.limits == StartLimits(24, 90, 9, 3.5)


def test_a_rank_that_loads_later_than_another_does_not_load_the_draft() -> None:
    log = fed(
        f"{STAMP[:-1]} TP0] Load weight begin. avail mem=94.14 GB",
        f"{STAMP[:-1]} TP0] Load weight end. elapsed=94.35 s",
        f"{STAMP[:-1]} TP1] Load weight begin. avail mem=94.14 GB",
    )
    assert str(log.phase) == "loading"
    fed(f"{STAMP[:-1]} TP0] KV Cache is allocated. #tokens: 4578, KV size: 0.30 GB", log=log)
    fed(f"{STAMP[:-1]} TP1] Load weight end. elapsed=99.35 s", log=log)
    assert str(log.phase) == "kv-cache"
