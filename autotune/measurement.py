"""What was measured, as values: one bucket, one proof link, one coding result, one server start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from autotune.coding.lossless import Comparison

__all__ = [
    "BucketMeasurement",
    "BucketQuality",
    "CodingResult",
    "Drift",
    "Ending",
    "Evidence",
    "FailureRecord",
    "Interval",
    "StartRecord",
]


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided 95 % confidence interval, in the unit of the value it belongs to."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"interval [{self.low}, {self.high}] is upside down")

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


class BucketQuality(StrEnum):
    """Marks on a bucket; those in `INVALIDATING` take it out of the score."""

    CLIENT_BOTTLENECK = "client-bottleneck"
    NOT_STEADY = "not-steady"
    WIDE_INTERVAL = "wide-interval"
    QUEUED = "queued"
    BEYOND_GRAPHS = "beyond-graphs"
    CACHE_HITS = "cache-hits"
    TOKEN_MISMATCH = "token-mismatch"
    ERRORS = "errors"
    TOO_FEW_REQUESTS = "too-few-requests"
    THERMAL = "thermal"
    CLIENT_LATE = "client-late"
    TTFT_AT_LEAST = "ttft-at-least"
    TPOT_AT_LEAST = "tpot-at-least"


@dataclass(frozen=True, slots=True)
class BucketMeasurement:
    """One bucket measured on one server start.

    Attributes:
        output_tok_per_s: Output throughput of all streams together: tokens that arrived within the
            windows divided by the windows, tok/s.
        interval: Its 95 % interval, tok/s.
        accept_length: Output tokens per verify step, from the deltas of server counters; None when
            the server has no such counter.
        ttft_ms: Median time to first token, ms; `ttft_p99_ms` the 99th percentile.  Requests that
            had none yet when they were closed count with their wait; where that leaves only a
            lower bound, the bucket is marked.
        tpot_ms: Median over requests of (end - first token) / (output tokens - 1), ms;
            `tpot_p99_ms` the 99th percentile.  Streams that had not ended when they were closed
            count with what they had taken; where that leaves only a lower bound, the bucket is
            marked.
        chunk_gap_ms: Median gap between chunks, ms; `chunk_tokens` mean tokens a chunk.
        prompt_tokens: Mean prompt length by the server's count.
        cached_tokens: Prompt tokens served from the prefix cache, sum; None when not reported.
        server_tokens: Output tokens by the server's own counter over the same span; None without.
        max_running_requests, largest_graph: What the server admitted at once, and its largest
            batch with a captured CUDA graph (0 without graphs); None where it does not say.
        client_cpu: Share of one core that the client's busiest process used, 0..1;
            `client_processes` how many there were.
        loop_lag_ms: 99th percentile of the lateness of the client's latest event loop, ms.
        warm_up_s, windows_s: Time spent, seconds; `windows` their number.
        requests, errors: Finished requests and failed ones.
        valid: Whether the bucket may enter a score.
        marks: Marks, see BucketQuality.
        reason: Why it is not valid; empty otherwise.
        started_at_s: Wall clock, Unix seconds.
    """

    context_tokens: int
    concurrency: int
    output_tokens: int
    weight: float
    output_tok_per_s: float
    interval: Interval
    accept_length: float | None
    ttft_ms: float
    ttft_p99_ms: float
    tpot_ms: float
    tpot_p99_ms: float
    chunk_gap_ms: float
    chunk_tokens: float
    prompt_tokens: float
    cached_tokens: int | None
    server_tokens: int | None
    client_cpu: float
    loop_lag_ms: float
    warm_up_s: float
    windows_s: float
    windows: int
    requests: int
    errors: int
    valid: bool
    marks: tuple[BucketQuality, ...] = ()
    reason: str = ""
    started_at_s: float = 0.0
    max_running_requests: int | None = None
    largest_graph: int | None = None
    client_processes: int = 1

    @property
    def key(self) -> str:
        return f"{self.context_tokens}x{self.concurrency}"


@dataclass(frozen=True, slots=True)
class Drift:
    """How one bucket changed between the begin and the end of a start; see `autotune.drift`.

    Attributes:
        bucket: Its key.
        change: last / first - 1.
        half_width: Of the 95 % interval of `change`.
    """

    bucket: str
    first_tok_per_s: float
    last_tok_per_s: float
    change: float
    half_width: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """One link of the proof chain with its raw text.

    Attributes:
        link: Name of the link, see `autotune.proof`.
        wanted, seen: Text for people; secrets are masked.
        raw: The raw text that was read, secrets masked, at most a few kB.
        at_s: Wall clock, Unix seconds.
    """

    link: str
    wanted: str
    seen: str
    ok: bool
    at_s: float
    raw: str = ""


@dataclass(frozen=True, slots=True)
class CodingResult:
    """The coding answers of one start.

    Attributes:
        samples: Outcome of each task-sample by its key `task/variant`.
        passed, failed: Counts; their sum is the number of samples.
        wall_s: Server time spent on the answers, seconds.
        rules: By which rule the code of each sample was found, see `autotune.coding.extract`.
        sandbox: Where the answers ran: "bubblewrap" or "weak".
    """

    samples: Mapping[str, str]
    passed: int
    failed: int
    outcomes: Mapping[str, int]
    wall_s: float = 0.0
    rules: Mapping[str, str] = field(default_factory=dict)
    sandbox: str = ""


class Ending(StrEnum):
    """How one start ended; also the state of its trial."""

    COMPLETE = "complete"
    INFEASIBLE = "infeasible"
    FAILED = "failed"
    PRUNED = "pruned"


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """Why a start gave no score.

    Attributes:
        kind: Name of the error class, `SettingsNotApplied` for example.
        message: One sentence.
        link: Broken proof link, "" for other failures.
        log_tail: The deciding log lines, oldest first.
    """

    kind: str
    message: str
    link: str = ""
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StartRecord:
    """Everything one server start gave; the value that is stored and sent between processes.

    Attributes:
        texts: Greedy answers to the fixed losslessness prompts, by prompt key.
        drift: The first bucket measured again after the last; None where that was not done.
        lossless: The judgement on them; None where the start did not come so far.
        fingerprint: What the server said of itself that must be equal to compare two starts, such
            as model and engine version; see `autotune.fingerprint`.
        stop_s, load_s, measure_s: Seconds spent stopping the old server, loading, measuring.
    """

    ending: Ending
    proof: tuple[Evidence, ...] = ()
    buckets: tuple[BucketMeasurement, ...] = ()
    coding: CodingResult | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    lossless: Comparison | None = None
    failure: FailureRecord | None = None
    invocation_id: str = ""
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    stop_s: float = 0.0
    load_s: float = 0.0
    measure_s: float = 0.0
    started_at_s: float = 0.0
    ended_at_s: float = 0.0
    drift: Drift | None = None
