"""This client beside aiperf and guidellm: tokens, throughput, CPU for each token.

Each is installed into an environment of its own and sends the same load to its own truth server, in
one run: so many streams, fixed lengths, four tokens a chunk.  CPU is that of all its processes,
from two runs of different length: the slope leaves out what starting costs.  Then more and more
streams: the highest rate at which this client is unmarked and right, and each peer right, which
has no mark of its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import httpx
from rich.table import Table

from autotune.measurement import BucketQuality
from benchmarks.client_accuracy.serving import truth_server
from tests.truth_server import Behaviour

__all__ = ["compare"]

_STREAMS = 64
_OUTPUT_TOKENS = 160
_SHORT, _LONG = 4, 16
"""Requests of each stream in the two runs."""
_LADDER = (64, 96, 128, 192, 256)
"""Streams, until a client is off by more than `_RIGHT` or marks itself."""
_RIGHT = 0.01
_GAP_S = 0.02
_BEHAVIOUR = Behaviour(ttft_s=0.06, gap_s=_GAP_S, tokens_per_chunk=(4,))
_SLOWEST_S = 150
_PACKAGES = {
    "aiperf": (("aiperf==0.13.0",),),
    # First a torch that brings no second one.
    "guidellm": (("torch==2.13.0",), ("guidellm==0.8.1",)),
}
_TOKENIZER = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
made = Tokenizer(models.BPE())
made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
made.train_from_iterator(
    ["def add(a, b): return a + b"],
    trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<eos>"],
    ),
)
PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>").save_pretrained(sys.argv[1])
"""


Client: TypeAlias = Callable[[str, int, int], tuple[float, float, bool]]
"""URL, streams, requests of each; tokens, tokens per second, whether it marks itself."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of one client.

    Attributes:
        tokens, tok_per_s: As it reports them.
        true_tokens, true_tok_per_s: What the server wrote in all; its rate from a quarter to three
            quarters of the time in which it wrote.
        cpu_s: CPU time of all its processes.
        marked: Whether the client says of itself that it was the bottleneck.
    """

    tokens: float
    tok_per_s: float
    marked: bool
    true_tokens: int
    true_tok_per_s: float
    cpu_s: float


def compare(folder: Path) -> tuple[Table, bool]:
    """The table, and whether our error is not larger and our CPU three times less."""
    folder = folder.resolve()
    tokenizer = folder / "tokenizer"
    for name in _PACKAGES:
        _install(folder, name)
    if not tokenizer.exists():
        _run([folder / "guidellm/bin/python", "-c", _TOKENIZER, tokenizer])
    clients: dict[str, Client] = {
        "autotune": lambda url, c, n: _autotune(folder, url, c, n),
        "aiperf 0.13": lambda url, c, n: (*_aiperf(folder, url, c, n, tokenizer), False),
        "guidellm 0.8.1": lambda url, c, n: (*_guidellm(folder, url, c, n, tokenizer), False),
    }
    outcomes = {
        name: (_outcome(run, _STREAMS, _SHORT), _outcome(run, _STREAMS, _LONG))
        for name, run in clients.items()
    }
    own, *others = (_cpu_us(*pair) for pair in outcomes.values())
    own_off, *other_offs = (abs(_off(pair[1])) for pair in outcomes.values())
    table = Table(title=f"{_STREAMS} streams, {1 / _GAP_S:.0f} chunks a second each, 4 tokens each")
    for column in (
        *("client", "tokens reported", "tokens written", "tok/s reported", "tok/s true", "off"),
        *("CPU us/token", "against ours", "chunks/s at most"),
    ):
        table.add_column(column, justify="right")
    for name, (short, long) in outcomes.items():
        table.add_row(
            *(name, f"{long.tokens:.0f}" if long.tokens else "", f"{long.true_tokens}"),
            *(f"{long.tok_per_s:.0f}", f"{long.true_tok_per_s:.0f}", f"{_off(long):+.2%}"),
            *(f"{_cpu_us(short, long):.1f}", f"{_cpu_us(short, long) / own:.1f}x"),
            _highest(clients[name]),
        )
    less_cpu = all(other >= 3 * own for other in others)
    as_right = all(own_off <= off for off in other_offs)
    table.caption = (
        f"3x less CPU: {'ok' if less_cpu else 'MISSED'};"
        f" error not larger: {'ok' if as_right else 'MISSED'}"
    )
    return table, less_cpu and as_right


def _install(folder: Path, name: str) -> None:
    done = folder / name / "installed"
    if done.exists():
        return
    venv.create(folder / name, with_pip=True)
    for packages in _PACKAGES[name]:
        _run(
            [folder / name / "bin/python", "-m", "pip", "install", "-q", *packages], slowest_s=1800
        )
    done.touch()


def _run(words: list[str | Path], *, slowest_s: float = _SLOWEST_S, invalid: int = 0) -> str:
    """What a command prints; `invalid` is its exit status for a result that it does not trust."""
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=slowest_s, check=False
    )
    if done.returncode not in (0, invalid):
        raise SystemExit(f"{words[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def _highest(run: Client) -> str:
    """Chunks per second of the last rung at which the client is right and unmarked."""
    best = "none"
    for streams in _LADDER:
        one = _outcome(run, streams, _LONG)
        if one.marked or abs(_off(one)) > _RIGHT:
            break
        best = f"{one.true_tok_per_s / 4:.0f}"
    return best


def _outcome(run: Client, streams: int, requests: int) -> Outcome:
    with truth_server(_BEHAVIOUR) as served:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        tokens, tok_per_s, marked = run(served.url, streams, requests)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seen = httpx.get(f"{served.url}/truth", trust_env=False, timeout=60).json()["written"]
    first_s, last_s = seen[0][0], seen[-1][0]
    quarter_s = (last_s - first_s) / 4
    middle = sum(n for at_s, n in seen if first_s + quarter_s <= at_s < last_s - quarter_s)
    return Outcome(
        tokens=tokens,
        tok_per_s=tok_per_s,
        marked=marked,
        true_tokens=sum(n for _, n in seen),
        true_tok_per_s=middle / (2 * quarter_s),
        cpu_s=(after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime),
    )


def _cpu_us(short: Outcome, long: Outcome) -> float:
    """CPU for each token beyond the start, microseconds."""
    return (long.cpu_s - short.cpu_s) / (long.true_tokens - short.true_tokens) * 1e6


def _off(one: Outcome) -> float:
    return one.tok_per_s / one.true_tok_per_s - 1


def _autotune(folder: Path, url: str, streams: int, requests: int) -> tuple[float, float, bool]:
    request_s = _BEHAVIOUR.ttft_s + _OUTPUT_TOKENS / 4 * _GAP_S
    windows = max(4, round(requests * request_s / 0.5) - 8)
    objective = folder / "objective.toml"
    objective.write_text(
        f"[[buckets]]\ncontext_tokens = 64\nconcurrency = {streams}\n"
        f"output_tokens = {_OUTPUT_TOKENS}\nweight = 1\n[measure]\nwindow_s = 0.5\n"
        f"least_windows = {windows}\nmost_windows = {windows}\n"
    )
    words = ["-m", "autotune", "bench", "--url", url, "--objective", str(objective), "--json"]
    (bucket,) = json.loads(_run([sys.executable, *words], invalid=1))["buckets"]
    marked = BucketQuality.CLIENT_BOTTLENECK in bucket["marks"]
    return float(bucket["server_tokens"] or 0), float(bucket["output_tok_per_s"]), marked


def _aiperf(
    folder: Path, url: str, streams: int, requests: int, tokenizer: Path
) -> tuple[float, float]:
    results = folder / f"aiperf-{streams}-{requests}"
    _run(
        [
            *(folder / "aiperf/bin/aiperf", "profile", "--model", "truth", "--url", url),
            *("--endpoint-type", "chat", "--streaming", "--concurrency", str(streams)),
            *("--request-count", str(requests * streams), "--isl", "64"),
            *("--osl", str(_OUTPUT_TOKENS), "--tokenizer", tokenizer, "--use-server-token-count"),
            *("--extra-inputs", "ignore_eos:true", "--ui-type", "none", "--artifact-dir", results),
        ]
    )
    found: dict[str, Any] = json.loads((results / "profile_export_aiperf.json").read_text())
    return (
        float(found["total_output_tokens"]["avg"]),
        float(found["output_token_throughput"]["avg"]),
    )


def _guidellm(
    folder: Path, url: str, streams: int, requests: int, tokenizer: Path
) -> tuple[float, float]:
    results = folder / f"guidellm-{streams}-{requests}.json"
    _run(
        [
            *(folder / "guidellm/bin/guidellm", "run"),
            *("--backend", f"kind=openai_http,target={url},model=truth,validate_backend=false"),
            *("--profile", f"kind=concurrent,streams={streams}"),
            *("--constraint", f"kind=max_requests,count={requests * streams}"),
            "--data",
            f"kind=synthetic_text,prompt_tokens=64,output_tokens={_OUTPUT_TOKENS}",
            *("--tokenizer", f"kind=huggingface_auto,model={tokenizer}"),
            *("--output", f"kind=json,path={results}", "--disable-console"),
        ]
    )
    metrics: dict[str, Any] = json.loads(results.read_text())["benchmarks"][0]["metrics"]
    return (
        float(metrics["output_token_count"]["successful"]["total_sum"]),
        float(metrics["output_tokens_per_second"]["successful"]["mean"]),
    )
