"""The command line of the simulated server: the flags of the real one, resolved the same way.

Every server argument named in `fields.json` has a flag.  Prefixes of a flag are accepted, a wrong
flag ends with usage and status 2, and a wrong combination is a `ValueError` (a traceback and status
1), all as in the real server.
"""

from __future__ import annotations

import argparse
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from autotune.testing.sglang_server.faults import Fault
from autotune.testing.sglang_server.surface import Algorithm, Setting
from autotune.testing.sglang_server.switches import LogStyle, Switches

__all__ = ["MODEL_CONTEXT_TOKENS", "ServerArgs", "build_parser", "captured_batch_sizes", "parse"]

MODEL_CONTEXT_TOKENS = 262_144
DEFAULT_SPECULATIVE_REQUESTS = 48
DEFAULT_REQUESTS = 256
DEFAULT_NGRAM_TOKENS = 12
DEFAULT_EAGLE_TOKENS = 4
_WINDOW = "speculative_draft_window_size"
_OLD_WINDOW = "speculative_dflash_draft_window_size"

_TYPED: tuple[tuple[tuple[str, ...], str, type], ...] = (
    (("--model-path", "--model"), "model_path", str),
    (("--served-model-name",), "served_model_name", str),
    (("--tp-size", "--tensor-parallel-size", "--tp"), "tp_size", int),
    (("--mem-fraction-static",), "mem_fraction_static", float),
    (("--max-running-requests",), "max_running_requests", int),
    (("--max-total-tokens",), "max_total_tokens", int),
    (("--cuda-graph-max-bs",), "cuda_graph_max_bs", int),
    (("--context-length",), "context_length", int),
    (("--random-seed",), "random_seed", int),
    (("--page-size",), "page_size", int),
    (("--speculative-algorithm", "--speculative-algo"), "speculative_algorithm", str),
    (
        ("--speculative-draft-model-path", "--speculative-draft-model"),
        "speculative_draft_model_path",
        str,
    ),
    (("--speculative-num-steps",), "speculative_num_steps", int),
    (("--speculative-eagle-topk",), "speculative_eagle_topk", int),
    (("--speculative-num-draft-tokens",), "speculative_num_draft_tokens", int),
    (("--speculative-dflash-block-size",), "speculative_dflash_block_size", int),
    (("--speculative-draft-window-size",), _WINDOW, int),
    (("--speculative-dflash-draft-window-size",), _WINDOW, int),
    (("--speculative-ddtree-budget",), "speculative_ddtree_budget", int),
    (("--speculative-ddtree-topk-cap",), "speculative_ddtree_topk_cap", int),
)


@dataclass(frozen=True, slots=True)
class ServerArgs:
    """Resolved arguments of one start.

    Attributes:
        fields: Every server argument as the log and /server_info show it, in order.
        setting: What the surface depends on, with the ignored flags left out.
        block_size: Tokens of the drafter's block.
        topk_cap: The cap as given; None when not given.
        warnings: Log lines that the resolution causes.
        argv: The arguments as given.
    """

    fields: dict[str, Any]
    setting: Setting
    block_size: int
    topk_cap: int | None
    warnings: tuple[str, ...]
    argv: tuple[str, ...]

    @property
    def model(self) -> str:
        return str(self.fields["served_model_name"])

    @property
    def weight_version(self) -> str:
        return str(self.fields["weight_version"])

    @property
    def context_tokens(self) -> int:
        """Longest prompt and answer together, tokens."""
        return int(self.fields["context_length"] or MODEL_CONTEXT_TOKENS)

    @property
    def tp_size(self) -> int:
        return int(self.fields["tp_size"])

    @property
    def speculates(self) -> bool:
        return self.setting.algorithm != Algorithm.NONE


def build_parser(style: LogStyle) -> argparse.ArgumentParser:
    """The parser with a flag for every server argument."""
    parser = argparse.ArgumentParser(prog="sglang serve")
    done: set[str] = set()
    for flags, name, kind in _TYPED:
        choices = None
        if name == "speculative_algorithm" and style is LogStyle.OLD:
            choices = ["DDTREE", "DFLASH", "EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"]
            choices += ["none"]
        parser.add_argument(
            *flags, dest=name, type=kind, choices=choices, required=name == "model_path"
        )
        done.add(name)
    for name, default in _defaults().items():
        if name in done:
            continue
        flag = "--" + name.replace("_", "-")
        if isinstance(default, bool):
            parser.add_argument(flag, dest=name, action="store_true", default=default)
        elif isinstance(default, int | float):
            parser.add_argument(flag, dest=name, type=type(default), default=default)
        else:
            parser.add_argument(flag, dest=name, type=str, default=default)
    return parser


def parse(argv: Sequence[str], switches: Switches) -> ServerArgs:
    """Parse and resolve.

    Raises:
        SystemExit: Usage error, status 2, after the message.
        ValueError: A combination that the server refuses.
    """
    options = vars(build_parser(switches.log_style).parse_args(list(argv)))
    fields = _defaults() | {k: v for k, v in options.items() if v is not None}
    warnings: list[str] = []
    algorithm = _algorithm(fields)
    fields["tokenizer_path"] = fields["tokenizer_path"] or fields["model_path"]
    fields["served_model_name"] = fields["served_model_name"] or fields["model_path"]
    if switches.inherited is not None:
        fields["random_seed"] = switches.inherited.random_seed
    elif fields["random_seed"] is None:
        fields["random_seed"] = secrets.randbelow(2**30)
    for name in ("max_running_requests", "cuda_graph_max_bs", "context_length", "tp_size"):
        _positive(fields, name)
    if fields["mem_fraction_static"] is None:
        fields["mem_fraction_static"] = switches.surface.mem_fraction
    if not 0 < fields["mem_fraction_static"] < 1:
        raise ValueError(
            f"mem_fraction_static must be between 0 and 1, got {fields['mem_fraction_static']}."
        )
    fields["attention_backend"] = fields["attention_backend"] or "triton"
    if algorithm != Algorithm.NONE and fields["max_running_requests"] is None:
        fields["max_running_requests"] = DEFAULT_SPECULATIVE_REQUESTS
        warnings.append(
            f"Max running requests is reset to {DEFAULT_SPECULATIVE_REQUESTS} for speculative "
            "decoding. You can override this by explicitly setting --max-running-requests."
        )
    graph_max_bs = fields["cuda_graph_max_bs"] or (512 if fields["tp_size"] >= 4 else 256)
    fields["cuda_graph_max_bs"] = fields["cuda_graph_max_bs_decode"] = graph_max_bs
    running = fields["max_running_requests"] or DEFAULT_REQUESTS
    fields["cuda_graph_config"] = _graph_config(min(graph_max_bs, running))
    block_size, budget, topk = _draft(fields, algorithm, warnings, switches.surface.block_size)
    if Fault.IGNORE_WINDOW in switches.faults:
        fields[_WINDOW] = None
    window = fields[_WINDOW]
    if Fault.IGNORE_BUDGET in switches.faults and algorithm == Algorithm.DDTREE:
        fields["speculative_ddtree_budget"] = None
        budget = block_size - 1
    setting = Setting(
        budget=budget,
        topk=topk,
        window=window if algorithm in (Algorithm.DDTREE, Algorithm.DFLASH) else None,
        algorithm=algorithm,
        max_running_requests=running,
        cuda_graph_max_bs=graph_max_bs,
        mem_fraction_static=fields["mem_fraction_static"],
        attention_backend=fields["attention_backend"],
        block_size=block_size,
    )
    if switches.log_style is LogStyle.OLD:
        fields = {(_OLD_WINDOW if k == _WINDOW else k): v for k, v in fields.items()}
    return ServerArgs(
        fields=fields,
        setting=setting,
        block_size=block_size,
        topk_cap=fields["speculative_ddtree_topk_cap"],
        warnings=tuple(warnings),
        argv=tuple(argv),
    )


def _algorithm(fields: dict[str, Any]) -> Algorithm:
    name = fields["speculative_algorithm"]
    if name is None or name.upper() == Algorithm.NONE:
        fields["speculative_algorithm"] = None
        return Algorithm.NONE
    upper = name.upper()
    aliases = {"NEXTN": "EAGLE", "EAGLE3": "EAGLE", "STANDALONE": "EAGLE"}
    try:
        algorithm = Algorithm(aliases.get(upper, upper))
    except ValueError:
        raise ValueError(f"Unknown speculative algorithm name: {name}") from None
    fields["speculative_algorithm"] = upper
    return algorithm


def _draft(
    fields: dict[str, Any], algorithm: Algorithm, warnings: list[str], default_block: int
) -> tuple[int, int, int]:
    """Block size, budget and top-k of an algorithm; the checks are those of the real server."""
    for name in (
        "speculative_num_draft_tokens",
        "speculative_dflash_block_size",
        "speculative_ddtree_budget",
        "speculative_ddtree_topk_cap",
        "speculative_ngram_max_bfs_breadth",
        _WINDOW,
    ):
        _positive(fields, name)
    drafted = fields["speculative_num_draft_tokens"]
    if algorithm in (Algorithm.DDTREE, Algorithm.DFLASH):
        return _block_draft(fields, algorithm, warnings, default_block)
    if fields[_WINDOW] is not None and algorithm != Algorithm.NONE:
        warnings.append(f"--speculative-draft-window-size has no effect with {algorithm}.")
    if algorithm == Algorithm.NGRAM:
        tokens = fields["speculative_num_draft_tokens"] = drafted or DEFAULT_NGRAM_TOKENS
        return tokens, tokens, int(fields["speculative_ngram_max_bfs_breadth"])
    if algorithm == Algorithm.EAGLE:
        if fields["speculative_draft_model_path"] is None:
            fields["speculative_draft_model_path"] = fields["model_path"]
        tokens = fields["speculative_num_draft_tokens"] = drafted or DEFAULT_EAGLE_TOKENS
        return tokens, max(1, tokens - 1), 1
    return 1, 0, 0


def _block_draft(
    fields: dict[str, Any], algorithm: Algorithm, warnings: list[str], default_block: int
) -> tuple[int, int, int]:
    if fields["speculative_draft_model_path"] is None:
        raise ValueError(
            f"{algorithm} speculative decoding requires setting --speculative-draft-model-path."
        )
    drafted, block = fields["speculative_num_draft_tokens"], fields["speculative_dflash_block_size"]
    if drafted is not None and block is not None and drafted != block:
        raise ValueError(
            "Both --speculative-num-draft-tokens and --speculative-dflash-block-size are set but "
            "they differ. For DFLASH they must match. "
            f"speculative_num_draft_tokens={drafted}, speculative_dflash_block_size={block}."
        )
    block_size = int(drafted or block or default_block)
    if block_size != default_block:
        warnings.append(
            "DFLASH block size mismatch: using speculative_num_draft_tokens="
            f"{block_size} but draft config block_size={default_block}."
        )
    window = fields[_WINDOW]
    if window is not None and window < block_size:
        raise ValueError(
            "--speculative-draft-window-size must be >= the block size (speculative_num_draft_"
            f"tokens). speculative_draft_window_size={window}, block_size={block_size}."
        )
    for name in ("speculative_num_steps", "speculative_eagle_topk"):
        if fields[name] not in (None, 1):
            warnings.append(f"{algorithm} sets {name} to 1, the given value is ignored.")
        fields[name] = 1
    fields["speculative_num_draft_tokens"] = block_size
    fields["disable_overlap_schedule"] = True
    if algorithm == Algorithm.DFLASH:
        return block_size, block_size - 1, 1
    if fields["page_size"] != 1:
        raise ValueError(f"DDTREE requires page_size == 1, got {fields['page_size']}.")
    budget = int(fields["speculative_ddtree_budget"] or block_size - 1)
    return block_size, budget, int(fields["speculative_ddtree_topk_cap"] or budget)


def _graph_config(max_bs: int) -> dict[str, Any]:
    prefill = [*range(4, 33, 4), 48, 64, *range(80, 257, 16), *range(288, 513, 32)]
    prefill += [*range(576, 1025, 64), *range(1280, 4097, 256), *range(4608, 8193, 512)]
    common = {"tc_compiler": "eager", "full_prefill_max_req": None}
    decode = {"backend": "full", "max_bs": max_bs, "bs": captured_batch_sizes(max_bs)}
    return {
        "decode": {**decode, **common},
        "prefill": {"backend": "breakable", "max_bs": 8192, "bs": prefill, **common},
    }


def captured_batch_sizes(max_bs: int) -> list[int]:
    """Batch sizes that get a graph: every one up to 8, every second up to 32, then coarser."""
    sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 513, 8)]
    return [size for size in sizes if size <= max_bs]


def _positive(fields: dict[str, Any], name: str) -> None:
    value = fields[name]
    if value is not None and value <= 0:
        raise ValueError(f"{name} must be greater than 0, got {value}.")


def _defaults() -> dict[str, Any]:
    text = files("autotune.testing.sglang_server").joinpath("fields.json").read_text("utf-8")
    defaults: dict[str, Any] = json.loads(text)
    return defaults
