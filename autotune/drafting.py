"""A live unit -> the two definition files of a study, with reasons.  Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.engine_units import Algorithm, Knob, LiveUnit, UnitFacts
from autotune.engines import Engine, require_units
from autotune.errors import UnitRefused
from autotune.sglang.server import setting
from autotune.space import ParameterValue, value_to_file

__all__ = ["Drafted", "draft"]

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
class Drafted:
    """Two files that have not been written yet.

    Attributes:
        present: What runs today, by parameter.
        left_out: Sentences about what a user may miss, for the terminal.
    """

    name: str
    engine: Engine
    algorithm: Algorithm
    present: dict[str, ParameterValue]
    study: str
    objective: str
    left_out: tuple[str, ...]


def draft(live: LiveUnit, name: str, engine: Engine) -> Drafted:
    """The definition files for a unit that runs an engine.

    Raises:
        UnitRefused: The unit cannot be tuned, with the way out.
        ConfigError: The engine does not say how its units are read.
    """
    facts = require_units(engine).read(live)
    algorithm = facts.algorithm
    present = {knob.name: _present(live, knob) for knob in algorithm.knobs}
    unknown = [k for k in algorithm.knobs if present[k.name] is None and not k.choices]
    if unknown and algorithm.constraints and live.info is None:
        raise UnitRefused(
            f"{live.host}: {live.unit} does not give {unknown[0].flag}, and the server at "
            f"{live.base_url} does not answer, so its value is not known",
            hint="start the service, or write the flag into ExecStart",
        )
    limit = facts.requests
    contexts = _fitting_contexts(facts.context_tokens)
    concurrencies = [n for n in _CONCURRENCIES if limit is None or n <= limit]
    left_out = []
    if len(concurrencies) < len(_CONCURRENCIES):
        missing = ", ".join(str(n) for n in _CONCURRENCIES if n not in concurrencies)
        left_out.append(
            f"the server admits {limit} requests at once, so concurrency {missing} is left out"
        )
    if len(contexts) < len(_CONTEXTS):
        missing = ", ".join(str(n) for n in _CONTEXTS if n not in contexts)
        left_out.append(
            f"contexts of {missing} tokens with {OUTPUT_TOKENS} tokens of output do not fit into "
            f"the server's {facts.context_tokens} tokens"
        )
    if algorithm.leaves_alone:
        left_out.append(algorithm.leaves_alone)
    return Drafted(
        name,
        engine,
        algorithm,
        present,
        _study_text(live, name, engine, facts, present),
        _objective_text(live, contexts, concurrencies or [1], left_out),
        tuple(left_out),
    )


def _fitting_contexts(limit: int | None) -> list[int]:
    most = math.inf if limit is None else limit
    return [c for c in _CONTEXTS if c + OUTPUT_TOKENS <= most] or [min(_CONTEXTS)]


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


def _quoted(text: str) -> str:
    """A TOML basic string: JSON's escapes are among TOML's."""
    return json.dumps(text, ensure_ascii=False)


def _study_text(
    live: LiveUnit,
    name: str,
    engine: Engine,
    facts: UnitFacts,
    present: dict[str, ParameterValue],
) -> str:
    algorithm = facts.algorithm
    version = f" {live.info.version}" if live.info is not None and live.info.version else ""
    silent = "" if live.info is not None else " It did not answer when this was written."
    lines = [
        f"# {live.unit} on {live.host}: {facts.model} behind {engine.shown}{version} with "
        f"{algorithm.name},",
        f"# {algorithm.title}. Read from the live unit by `autotune init`.{silent}",
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
        f"engine = {_quoted(engine.name)}",
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
        f"gpus_per_host = {facts.gpus}",
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
