"""What of a unit that runs SGLang can be tuned."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.engine_units import Algorithm, LiveUnit, UnitFacts, UnitReader
from autotune.errors import UnitRefused
from autotune.sglang.algorithms import (
    ALGORITHM_ALIASES,
    ALGORITHM_FLAG,
    ALGORITHMS,
    SPECULATIVE_LIMIT,
    fitted,
)
from autotune.sglang.flags import first_argument, get_flag, has_flag
from autotune.sglang.server import setting
from autotune.supervisors.base import Word

__all__ = ["SGLANG_UNITS"]

TREE_BACKENDS = frozenset({"flashinfer", "fa3"})
"""Attention backends that verify trees with a page size above 1 (srt/server_args.py)."""


def _recognises(argv: Sequence[Word]) -> bool:
    """SGLang in what is started (a module, a program, an image), or its own flag."""
    program = argv[: first_argument(argv)]
    if any("sglang" in word.text for word in program):
        return True
    return get_flag(argv, ALGORITHM_FLAG, ALGORITHM_ALIASES) is not None


def _read(live: LiveUnit) -> UnitFacts:
    requests = live.number("--max-running-requests")
    return UnitFacts(
        _algorithm(live),
        model=live.flag("--model-path", "--model") or live.told("model_path") or "a model",
        gpus=_gpus(live),
        requests=SPECULATIVE_LIMIT if requests is None else requests,
        context_tokens=_context_tokens(live),
    )


def _algorithm(live: LiveUnit) -> Algorithm:
    where = f"{live.host}: {live.unit}"
    name = live.flag(ALGORITHM_FLAG, *ALGORITHM_ALIASES)
    if name is None and live.info is not None:
        told = setting(live.info, ALGORITHM_FLAG, ALGORITHM_ALIASES)
        name = told if isinstance(told, str) else None
    if name is None:
        raise UnitRefused(
            f"{where} runs without speculative decoding, so there is nothing to tune",
            hint=f"add {ALGORITHM_FLAG} and its draft model to the unit first",
        )
    known = ALGORITHMS.get(name.upper())
    if known is None:
        raise UnitRefused(
            f"{where} runs {ALGORITHM_FLAG} {name}, whose flags are not known",
            hint=f"known: {', '.join(ALGORITHMS)}; for another, write the definition by hand",
        )
    page = live.number("--page-size") or 1
    backend = live.flag("--attention-backend") or live.told("attention_backend")
    return fitted(
        known,
        block_tokens=live.number("--speculative-num-draft-tokens"),
        context_tokens=_context_tokens(live),
        trees=page == 1 or backend in TREE_BACKENDS,
    )


def _context_tokens(live: LiveUnit) -> int | None:
    """Longest context: what the unit asks for, else what the engine took from the model."""
    known = [live.number("--context-length")]
    if live.info is not None:
        # Of one request; the whole key-value pool bounds it too.
        told = (live.info.merged.get(k) for k in ("max_req_input_len", "max_total_num_tokens"))
        known += [one for one in told if isinstance(one, int)]
    return min((one for one in known if one is not None), default=None)


def _gpus(live: LiveUnit) -> int:
    """GPUs of one host: tensor times pipeline parallel, times data-parallel replicas."""
    tensor = live.number("--tp-size", "--tensor-parallel-size", "--tp") or 1
    pipeline = live.number("--pp-size", "--pipeline-parallel-size") or 1
    replicas = live.number("--dp-size", "--data-parallel-size") or 1
    inside = has_flag(live.argv, "--enable-dp-attention")
    nodes = live.number("--nnodes") or 1
    return max(1, tensor * pipeline * (1 if inside else replicas) // nodes)


SGLANG_UNITS = UnitReader(_recognises, _read, default_port=30000)
