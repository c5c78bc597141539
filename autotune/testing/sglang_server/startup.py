"""What the server prints and does before it listens."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from autotune.testing.sglang_server.args import ServerArgs, captured_batch_sizes
from autotune.testing.sglang_server.faults import Fault
from autotune.testing.sglang_server.log import ServerLog
from autotune.testing.sglang_server.surface import Algorithm
from autotune.testing.sglang_server.switches import LogStyle, Switches

__all__ = ["die_out_of_memory", "kill_self", "load", "server_args_line"]

_SITE = "/usr/lib/python3/site-packages/sglang/srt"
_SHARDS_SHARE, _DRAFT_SHARE, _CAPTURE_SHARE = 0.8, 0.05, 0.15


def server_args_line(args: ServerArgs, style: LogStyle) -> str:
    """The line with every argument; it holds the keys in clear, as the real one does."""
    if style is LogStyle.NEW:
        return f"server_args={args.fields!r}"
    return "server_args=ServerArgs(" + ", ".join(f"{k}={v!r}" for k, v in args.fields.items()) + ")"


def load(
    args: ServerArgs,
    switches: Switches,
    log: ServerLog,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Print the lines of a load and take its time; ends the process when it runs out of memory."""
    for warning in args.warnings:
        log.main(warning)
    log.main(server_args_line(args, switches.log_style))
    log.main("Using default HuggingFace chat template with detected content format: string")
    surface, setting = switches.surface, args.setting
    total, fraction = surface.total_gib, setting.mem_fraction_static or surface.mem_fraction
    free = total - 0.9
    log.ranks("Init torch distributed begin.")
    log.ranks("Init torch distributed ends. elapsed=0.42 s, mem usage=0.28 GB")
    log.ranks(f"Load weight begin. avail mem={free:.2f} GB")
    seconds = switches.load_s * _SHARDS_SHARE
    if Fault.HANG_LOAD in switches.faults:
        _shards(log, seconds=seconds, count=64, until=24, sleep=sleep)
        while True:
            sleep(3600)
    _shards(log, seconds=seconds, count=64 if switches.load_s >= 1 else 4, sleep=sleep)
    free -= surface.weights_gib
    log.ranks(
        f"Load weight end. elapsed={seconds:.2f} s, type=KimiK25ForConditionalGeneration, "
        f"dtype=torch.bfloat16, avail mem={free:.2f} GB, mem usage={surface.weights_gib:.2f} GB."
    )
    if args.speculates and setting.algorithm != Algorithm.NGRAM:
        log.ranks(f"Load weight begin. avail mem={free:.2f} GB")
        _shards(log, seconds=switches.load_s * _DRAFT_SHARE, count=1, sleep=sleep)
        free -= 1.1
        log.ranks(
            f"Load weight end. elapsed={switches.load_s * _DRAFT_SHARE:.2f} s, "
            f"type={_draft_model(args)}, dtype=torch.bfloat16, avail mem={free:.2f} GB, "
            "mem usage=1.10 GB."
        )
    _draft_runner_lines(args, log)
    tokens = int(args.fields["max_total_tokens"] or surface.kv_tokens(setting))
    if tokens <= 0:
        _no_room_for_cache(args, log, fraction)
    kv_gib = tokens * surface.kv_gib_per_token
    label = "dtype: torch.bfloat16, " if switches.log_style is LogStyle.NEW else ""
    log.ranks(f"KV Cache is allocated. {label}#tokens: {tokens}, KV size: {kv_gib:.2f} GB")
    free = total * (1 - fraction) - 0.1
    log.ranks(f"Memory pool end. avail mem={free:.2f} GB")
    free = _capture(args, switches, log, free, sleep)
    log.scheduler(
        f"max_total_num_tokens={tokens}, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        f"max_running_requests={setting.max_running_requests}, "
        f"context_len={args.context_tokens}, available_gpu_mem={free:.2f} GB"
    )


def _draft_model(args: ServerArgs) -> str:
    block = args.setting.algorithm in (Algorithm.DDTREE, Algorithm.DFLASH)
    return "DFlashDraftModel" if block else "DeepseekV3ForCausalLMNextN"


def _draft_runner_lines(args: ServerArgs, log: ServerLog) -> None:
    setting = args.setting
    if setting.algorithm not in (Algorithm.DDTREE, Algorithm.DFLASH):
        return
    log.scheduler(
        f"Initialized DFLASH draft runner. attention_backend={setting.attention_backend}, "
        f"model=DFlashDraftModel, block_size={args.block_size}, "
        f"draft_window_size={setting.window}, compact_cache={setting.window is not None}"
    )
    log.scheduler(
        "DFLASH draft runner ready. mask_token=<|MASK|>, mask_token_id=163838, "
        "mask_token_id_override=None"
    )
    log.scheduler(
        "DFLASH fused KV materialization enabled. n_layers=6, num_kv_heads=8, head_dim=128"
    )
    if setting.algorithm == Algorithm.DDTREE:
        log.scheduler(
            f"Initialized DDTree worker. block_size={args.block_size}, "
            f"tree_budget={setting.budget}, topk_cap={args.topk_cap}, "
            f"max_tree_nodes={setting.budget + 1}"
        )


def _capture(
    args: ServerArgs,
    switches: Switches,
    log: ServerLog,
    free: float,
    sleep: Callable[[float], None],
) -> float:
    """Capture the graphs of the target and of the draft; returns the free memory, GiB."""
    surface, setting = switches.surface, args.setting
    names = ["target verify" if args.speculates else "decode"]
    if setting.algorithm in (Algorithm.DDTREE, Algorithm.DFLASH, Algorithm.EAGLE):
        names.append("draft verify")
    top = min(setting.cuda_graph_max_bs, setting.max_running_requests)
    sizes = captured_batch_sizes(top)
    used = {names[0]: surface.tree_gib(setting)}
    seconds = switches.load_s * _CAPTURE_SHARE / len(names)
    old = switches.log_style is LogStyle.OLD
    for name in names:
        words = "cuda graph" if old else f"{name} CUDA graph"
        if old:
            log.ranks(
                f"Capture {words} begin. This can take up to several minutes. "
                f"avail mem={free:.2f} GB"
            )
            log.scheduler(f"Capture {words} bs {sizes}")
        else:
            log.ranks(
                f"Capture {words} begin. backend=full, num_tokens_per_req={setting.budget + 1}, "
                f"bs={sizes}, avail mem={free:.2f} GB"
            )
        sleep(seconds)
        need = used.get(name, 0.05)
        if need > free or (Fault.OOM_LOAD in switches.faults and name == names[0]):
            die_out_of_memory(log, need_gib=need, free_gib=free, serving=False, capturing=True)
        free -= need
        if old:
            log.ranks(
                f"Capture {words} end. Time elapsed: {seconds:.2f} s. mem usage={need:.2f} GB. "
                f"avail mem={free:.2f} GB."
            )
        else:
            log.ranks(
                f"Capture {words} end. elapsed={seconds:.2f} s, mem usage={need:.2f} GB, "
                f"avail mem={free:.2f} GB."
            )
    return free


def _shards(
    log: ServerLog,
    *,
    seconds: float,
    count: int,
    sleep: Callable[[float], None],
    until: int | None = None,
) -> None:
    """A progress bar, redrawn with carriage returns."""
    begun = time.monotonic()
    log.raw("\n")
    for done in range(count + 1):
        spent = time.monotonic() - begun
        left = spent / done * (count - done) if done else 0.0
        rate = f"{spent / done:.2f}s/it" if done else "?it/s"
        times = f"{_clock(spent)}<{_clock(left) if done else '?'}, {rate}"
        log.raw(
            f"\rLoading safetensors checkpoint shards: {100 * done // count:3d}% Completed "
            f"| {done}/{count} [{times}]"
        )
        if done == until:
            return
        if done < count:
            sleep(seconds / count)
    log.raw("\n\n")


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def _no_room_for_cache(args: ServerArgs, log: ServerLog, fraction: float) -> NoReturn:
    log.ranks(
        "Scheduler hit an exception: Traceback (most recent call last):\n"
        f'  File "{_SITE}/managers/scheduler.py", line 3130, in run_scheduler_process\n'
        "    scheduler = Scheduler(server_args, port_args)\n"
        f'  File "{_SITE}/model_executor/model_runner.py", line 1890, in init_memory_pool\n'
        "    raise RuntimeError(\n"
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
        f"Current value: mem_fraction_static={fraction}\n"
    )
    kill_self(log, serving=False)


def die_out_of_memory(
    log: ServerLog, *, need_gib: float, free_gib: float, serving: bool, capturing: bool = False
) -> NoReturn:
    """Print what a scheduler prints when CUDA has no memory left, and die by signal 9."""
    where = "capture_one_batch_size" if capturing else "forward_batch_generation"
    message = (
        f"CUDA out of memory. Tried to allocate {need_gib:.2f} GiB. GPU 0 has a total capacity of "
        f"94.97 GiB of which {max(0.02, free_gib):.2f} GiB is free."
    )
    lines = [
        "Scheduler hit an exception: Traceback (most recent call last):",
        f'  File "{_SITE}/managers/scheduler.py", line 3130, in run_scheduler_process',
        f'  File "{_SITE}/model_executor/cuda_graph_runner.py", line 512, in {where}',
        f"torch.OutOfMemoryError: {message}",
        "",
    ]
    if capturing:
        lines += [
            "During handling of the above exception, another exception occurred:",
            "",
            "Traceback (most recent call last):",
            f'  File "{_SITE}/model_executor/cuda_graph_runner.py", line 394, in __init__',
            f"Exception: Capture cuda graph failed: {message}",
            "Possible solutions:",
            "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)",
            "2. set --cuda-graph-max-bs to a smaller value (e.g., 16)",
            "3. disable torch compile by not using --enable-torch-compile",
            "4. disable CUDA graph by --disable-cuda-graph. (Not recommended.)",
            "",
        ]
    log.scheduler("\n".join(lines))
    kill_self(log, serving=serving)


def kill_self(log: ServerLog, *, serving: bool, silent: bool = False) -> NoReturn:
    """Die by signal 9, as the real main process kills its own tree."""
    pid = os.getpid()
    if not silent:
        log.main(
            "SIGQUIT received. signum=None, frame=None. It usually means one child failed."
            if serving
            else "Received sigquit from a child process. It usually means the child failed."
        )
        log.main(f"kill_process_tree called: parent_pid={pid}, include_parent=True, pid={pid}")
    sys.stdout.flush()
    sys.stderr.flush()
    os.kill(pid, signal.SIGKILL)
    raise SystemExit(137)  # not reached: SIGKILL cannot be held back
