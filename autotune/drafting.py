"""A live unit -> the two definition files of a study, with reasons.  Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.errors import UnitRefused
from autotune.sglang.algorithms import (
    ALGORITHM_ALIASES,
    ALGORITHM_FLAG,
    ALGORITHMS,
    SPECULATIVE_LIMIT,
    Algorithm,
    Knob,
    fitted,
)
from autotune.sglang.flags import get_flag, has_flag
from autotune.sglang.server import ServerInfo, setting
from autotune.space import ParameterValue, value_to_file
from autotune.supervisors.base import Word

__all__ = ["Drafted", "LiveUnit", "draft", "port_of", "recognised"]

DEFAULT_PORT = 30000
"""SGLang's, when `--port` is left out."""
TREE_BACKENDS = frozenset({"flashinfer", "fa3"})
"""Attention backends that verify trees with a page size above 1 (srt/server_args.py)."""

OUTPUT_TOKENS = 256
# Context tokens, weight of each concurrency below; from many small requests to few long ones.
_CONTEXTS = {
    60: ("a short question", (10, 8, 5, 2)),
    1024: ("one file in the prompt", (12, 9, 6, 3)),
    4096: ("an agent's working context", (12, 9, 5, 2)),
    8192: ("a long session", (8, 5, 3, 1)),
}
_CONCURRENCIES = {1: "one person", 8: "a small team", 32: "a peak", 64: "a full house"}


@dataclass(frozen=True, slots=True)
class LiveUnit:
    """What was read of one unit.

    Attributes:
        argv: Words of the running process; of the unit when it does not run.
        info: What the server says of itself; None when it does not answer.
    """

    host: str
    unit: str
    base_url: str
    argv: tuple[Word, ...]
    info: ServerInfo | None
    ssh_config: str = ""
    api_key_env: str = ""

    def flag(self, *names: str) -> str | None:
        return get_flag(self.argv, names[0], names[1:])

    def number(self, *names: str) -> int | None:
        """A whole number: by the engine's answer, else by the command line."""
        if self.info is not None:
            told = setting(self.info, names[0], names[1:])
            if isinstance(told, int) and not isinstance(told, bool):
                return told
        text = self.flag(*names)
        return int(text) if text is not None and text.isdecimal() else None


@dataclass(frozen=True, slots=True)
class Drafted:
    """Two files that have not been written yet.

    Attributes:
        present: What runs today, by parameter.
        left_out: Sentences about what a user may miss, for the terminal.
    """

    name: str
    algorithm: Algorithm
    present: dict[str, ParameterValue]
    study: str
    objective: str
    left_out: tuple[str, ...]


def port_of(argv: Sequence[Word]) -> int:
    """The port that a command line serves on."""
    text = get_flag(argv, "--port")
    return int(text) if text is not None and text.isdecimal() else DEFAULT_PORT


def recognised(live: LiveUnit) -> Algorithm:
    """The speculative algorithm of a unit.

    Raises:
        UnitRefused: It is no SGLang server, or it runs without one that is known.
    """
    where = f"{live.host}: {live.unit}"
    texts = [word.text for word in live.argv]
    name = live.flag(ALGORITHM_FLAG, *ALGORITHM_ALIASES)
    if name is None and live.info is not None:
        told = setting(live.info, ALGORITHM_FLAG, ALGORITHM_ALIASES)
        name = told if isinstance(told, str) else None
    if name is None:
        if not any("sglang" in text for text in texts) and live.info is None:
            shown = " ".join(texts[:3]) or "nothing"
            raise UnitRefused(
                f"{where} does not look like SGLang: it runs {shown}",
                hint="name the unit whose ExecStart runs SGLang; for another engine the "
                "definition is written by hand, see docs/how-to.md",
            )
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
    backend = live.flag("--attention-backend") or _told(live, "attention_backend")
    return fitted(
        known,
        block_tokens=live.number("--speculative-num-draft-tokens"),
        context_tokens=_context_tokens(live),
        trees=page == 1 or backend in TREE_BACKENDS,
    )


def draft(live: LiveUnit, name: str) -> Drafted:
    """The definition files for a unit.

    Raises:
        UnitRefused: The unit cannot be tuned, with the way out.
    """
    algorithm = recognised(live)
    present = {knob.name: _present(live, knob) for knob in algorithm.knobs}
    unknown = [k for k in algorithm.knobs if present[k.name] is None and not k.choices]
    if unknown and algorithm.constraints and live.info is None:
        raise UnitRefused(
            f"{live.host}: {live.unit} does not give {unknown[0].flag}, and the server at "
            f"{live.base_url} does not answer, so its value is not known",
            hint="start the service, or write the flag into ExecStart",
        )
    limit = _admitted(live)
    contexts = _fitting_contexts(live)
    concurrencies = [n for n in _CONCURRENCIES if limit is None or n <= limit]
    left_out = []
    if len(concurrencies) < len(_CONCURRENCIES):
        missing = ", ".join(str(n) for n in _CONCURRENCIES if n not in concurrencies)
        left_out.append(
            f"the server admits {limit} requests at once, so concurrency {missing} is left out"
        )
    if len(contexts) < len(_CONTEXTS):
        left_out.append(
            f"contexts above {max(contexts)} tokens do not fit into the server's context of "
            f"{_context_tokens(live)} tokens"
        )
    if algorithm.leaves_alone:
        left_out.append(algorithm.leaves_alone)
    return Drafted(
        name,
        algorithm,
        present,
        _study_text(live, name, algorithm, present),
        _objective_text(live, contexts, concurrencies or [1], limit, left_out),
        tuple(left_out),
    )


def _told(live: LiveUnit, key: str) -> str | None:
    told = live.info.merged.get(key) if live.info is not None else None
    return told if isinstance(told, str) else None


def _context_tokens(live: LiveUnit) -> int | None:
    """Longest context: what the unit asks for, else what the engine took from the model."""
    known = [live.number("--context-length")]
    if live.info is not None:
        # Of one request; the whole key-value pool bounds it too.
        told = (live.info.merged.get(k) for k in ("max_req_input_len", "max_total_num_tokens"))
        known += [one for one in told if isinstance(one, int)]
    return min((one for one in known if one is not None), default=None)


def _admitted(live: LiveUnit) -> int:
    told = live.number("--max-running-requests")
    return told if told is not None else SPECULATIVE_LIMIT


def _fitting_contexts(live: LiveUnit) -> list[int]:
    limit = _context_tokens(live) or math.inf
    return [c for c in _CONTEXTS if c + OUTPUT_TOKENS <= limit] or [min(_CONTEXTS)]


def _present(live: LiveUnit, knob: Knob) -> ParameterValue:
    """What the unit runs: the flag it gives, else what the engine has chosen; None: left out."""
    given = live.flag(knob.flag, *knob.aliases)
    if given is not None:
        return _typed(given)
    if live.info is not None and not knob.choices:
        told = setting(live.info, knob.flag, knob.aliases)
        if isinstance(told, int) and not isinstance(told, bool):
            return told
    return None


def _typed(text: str) -> ParameterValue:
    try:
        return int(text)
    except ValueError:
        return text


def _gpus(live: LiveUnit) -> int:
    """GPUs of one host: tensor times pipeline parallel, times data-parallel replicas."""
    tensor = live.number("--tp-size", "--tensor-parallel-size", "--tp") or 1
    pipeline = live.number("--pp-size", "--pipeline-parallel-size") or 1
    replicas = live.number("--dp-size", "--data-parallel-size") or 1
    inside = has_flag(live.argv, "--enable-dp-attention")
    nodes = live.number("--nnodes") or 1
    return max(1, tensor * pipeline * (1 if inside else replicas) // nodes)


def _quoted(text: str) -> str:
    """A TOML basic string: JSON's escapes are among TOML's."""
    return json.dumps(text, ensure_ascii=False)


def _study_text(
    live: LiveUnit, name: str, algorithm: Algorithm, present: dict[str, ParameterValue]
) -> str:
    model = live.flag("--model-path", "--model") or _told(live, "model_path") or "a model"
    version = f" {live.info.version}" if live.info is not None and live.info.version else ""
    engine = "" if live.info is not None else " It did not answer when this was written."
    lines = [
        f"# {live.unit} on {live.host}: {model} behind SGLang{version} with {algorithm.name},",
        f"# {algorithm.title}. Read from the live unit by `autotune init`.{engine}",
        f"# Look it over with `autotune check --study {name}`; tune with `autotune run`.",
        "",
        "[study]",
        f"objective = {_quoted(name)}",
        "trials = 30            # or hours = ..., or gpu_hours = ...",
        'sampler = "auto"',
        "seed = 1",
        f"constraints = [{', '.join(map(_quoted, algorithm.constraints))}]",
        "# Points to measure first, values in the order of the parameters below.",
        "# enqueue = [[" + ", ".join(_toml(present[k.name]) for k in algorithm.knobs) + "]]",
        "reference_every = 8    # what runs today is measured again after so many starts",
        "finalists = 2          # measured again, in turns with what runs today,",
        "final_rounds = 3       # so often, before anything is called better",
        "",
        "[service]",
        'engine = "sglang"',
        'supervisor = "systemd"',
        f"unit = {_quoted(live.unit)}",
        f"hosts = [{_quoted(live.host)}]",
        f"base_url = {_quoted(live.base_url)}",
    ]
    if live.ssh_config:
        lines.append(f"ssh_config = {_quoted(live.ssh_config)}")
    if live.api_key_env:
        lines.append(f"api_key_env = {_quoted(live.api_key_env)}")
    lines += [
        f"gpus_per_host = {_gpus(live)}",
        "load_timeout_s = 1800     # a start that takes longer has failed",
        "stop_timeout_s = 300",
        "restore_after_s = 300     # the host restores itself when the tuner is silent so long",
    ]
    for knob in algorithm.knobs:
        lines += ["", *_parameter_lines(knob, present[knob.name])]
    if algorithm.leaves_alone:
        lines += ["", f"# Left alone: {algorithm.leaves_alone}."]
    return "\n".join(lines) + "\n"


def _parameter_lines(knob: Knob, present: ParameterValue) -> list[str]:
    knob = _widened(knob, present)
    lines = [f"[parameters.{knob.name}]"]
    if knob.choices:
        lines += [
            'kind = "categorical"',
            f"choices = [{', '.join(_toml(choice) for choice in knob.choices)}]",
        ]
    else:
        lines += ['kind = "int"', f"low = {knob.low}", f"high = {knob.high}", "log = true"]
    lines.append(f"flag = {_quoted(knob.flag)}")
    if knob.aliases:
        lines.append(f"aliases = [{', '.join(map(_quoted, knob.aliases))}]")
    lines += [
        f"deployed = {_toml(present)}",
        f"why = {_quoted(knob.why)}",
        f"source = {_quoted(knob.source)}",
    ]
    return lines


def _widened(knob: Knob, present: ParameterValue) -> Knob:
    """The knob with what runs today inside its range."""
    if knob.choices:
        numbers = {c for c in (*knob.choices, present) if isinstance(c, int)}
        others = [c for c in dict.fromkeys((*knob.choices, present)) if not isinstance(c, int)]
        return replace(knob, choices=(*sorted(numbers), *others))
    if isinstance(present, int) and present >= 1:
        return replace(knob, low=min(knob.low, present), high=max(knob.high, present))
    # Not given and not told: powers of two, and leaving it out as today.
    steps = [2**n for n in range(knob.high.bit_length()) if knob.low <= 2**n <= knob.high]
    return replace(knob, choices=(*steps, present))


def _toml(value: ParameterValue) -> str:
    plain = value_to_file(value)
    return _quoted(plain) if isinstance(plain, str) else str(plain)


def _objective_text(
    live: LiveUnit,
    contexts: Sequence[int],
    concurrencies: Sequence[int],
    limit: int | None,
    left_out: Sequence[str],
) -> str:
    lines = [
        f"# What counts for {live.unit}: every bucket is a context length and a number of",
        "# requests at once; its weight says how much of the real traffic looks like it. Weights",
        "# are divided by their sum, so any numbers do.",
        *(f"# Note: {sentence}." for sentence in left_out[:2]),
        "",
    ]
    for context in contexts:
        what, weights = _CONTEXTS[context]
        for weight, (concurrency, who) in zip(weights, _CONCURRENCIES.items(), strict=True):
            if concurrency not in concurrencies:
                continue
            lines += [
                "[[buckets]]",
                f"context_tokens = {context}",
                f"concurrency = {concurrency}",
                f"output_tokens = {OUTPUT_TOKENS}",
                f"weight = {weight}",
                f"why = {_quoted(f'{what}, {who}')}",
            ]
    lines += [
        "",
        "[score]",
        'aggregate = "arithmetic"   # tok/s, weighted; "geometric" weighs ratios instead',
        "penalty = 1.5              # what failed coding tasks cost beyond the reference's",
        "floor = 0.85               # no bucket may fall below this share of the reference's",
        "# ttft_p99_ms = 2000        # limits that a winner must keep",
        "# tpot_p99_ms = 50",
        "",
        "[coding]",
        "samples = 200",
        f"concurrency = {min(32, max(concurrencies))}",
        "",
        "[lossless]",
        "prompts = 8",
        "",
        "[measure]",
        "target_half_width = 0.02   # a bucket is measured until its 95 % interval is so narrow,",
        "most_windows = 40          # or so many windows are spent",
        "window_s = 2.0",
    ]
    return "\n".join(lines) + "\n"
