"""The server's limits against the buckets.  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.checking.findings import CheckState, Finding
from autotune.engines import SGLANG, Engine
from autotune.sglang.algorithms import ALGORITHM_ALIASES, ALGORITHM_FLAG, SPECULATIVE_LIMIT
from autotune.sglang.flags import get_flag
from autotune.sglang.limits import limits_of
from autotune.sglang.server import ServerInfo
from autotune.supervisors.base import Word
from autotune.workload import Workload

__all__ = ["limit_findings", "room_finding"]

_SPECULATIVE = f"; under speculation SGLang admits {SPECULATIVE_LIMIT} when it is left out"


def limit_findings(
    host: str, workload: Workload, argv: Sequence[Word], info: ServerInfo | None, engine: Engine
) -> Iterator[Finding]:
    """The buckets against every limit of which the engine has a flag."""
    if engine.limits.requests:
        yield _concurrency(host, workload, argv, info, engine)
    if engine.limits.context:
        yield _context(host, workload, argv, info, engine)


def _concurrency(
    host: str, workload: Workload, argv: Sequence[Word], info: ServerInfo | None, engine: Engine
) -> Finding:
    """Whether the largest bucket fits into what the reference admits at once."""
    what, most, flag = "concurrency", workload.largest_concurrency, engine.limits.requests
    ours = engine.name == SGLANG.name
    given = get_flag(argv, flag)
    told = limits_of(info).max_running_requests if info is not None and ours else None
    limit = int(given) if given is not None and given.isdecimal() else told
    if not isinstance(limit, int) and ours and get_flag(argv, ALGORITHM_FLAG, ALGORITHM_ALIASES):
        limit = SPECULATIVE_LIMIT
    if not isinstance(limit, int):
        return Finding(
            host,
            what,
            CheckState.NOTE,
            f"buckets ask for up to {most} requests at once; what the server admits is not known",
            f"{flag} says it{_SPECULATIVE if ours else ''}",
        )
    if most > limit:
        return Finding(
            host,
            what,
            CheckState.BAD,
            f"a bucket asks for {most} requests at once, but the server on {host} admits {limit}",
            f'add fixed_flags = [{{ flag = "{flag}", value = "{most}", why = "..." }}] to '
            "[service], or drop the bucket",
        )
    return Finding(
        host, what, CheckState.OK, f"buckets ask for up to {most} requests, {limit} are admitted"
    )


def _context(
    host: str, workload: Workload, argv: Sequence[Word], info: ServerInfo | None, engine: Engine
) -> Finding:
    """Whether the longest bucket fits into the server's context."""
    what, flag = "context", engine.limits.context
    longest = max(workload.buckets, key=lambda b: b.context_tokens + b.output_tokens)
    needed = longest.context_tokens + longest.output_tokens
    given = get_flag(argv, flag)
    told = info.merged.get("context_length") if info is not None else None
    limit = int(given) if given is not None and given.isdecimal() else told
    if not isinstance(limit, int) and info is not None:
        limit = info.merged.get("max_req_input_len")
    if not isinstance(limit, int):
        return Finding(
            host,
            what,
            CheckState.NOTE,
            f"a bucket needs {needed} tokens of context; what the server takes is not known",
            f"{flag} says it, else the model does",
        )
    if needed > limit:
        return Finding(
            host,
            what,
            CheckState.BAD,
            f"bucket {longest.key} needs {longest.context_tokens} + {longest.output_tokens} tokens "
            f"of context, the server takes {limit}",
            f"drop the bucket, or raise {flag} in the unit",
        )
    return Finding(
        host, what, CheckState.OK, f"buckets need up to {needed} tokens, the server takes {limit}"
    )


def room_finding(host: str, workload: Workload, info: ServerInfo) -> Finding:
    """Whether the largest bucket's tokens fit into the key-value pool at once."""
    what = "key-value pool"
    largest = max(
        workload.buckets, key=lambda b: (b.context_tokens + b.output_tokens) * b.concurrency
    )
    needed = (largest.context_tokens + largest.output_tokens) * largest.concurrency
    pool = info.merged.get("max_total_num_tokens")
    if not isinstance(pool, int):
        return Finding(host, what, CheckState.OK, "the server does not say its size")
    if needed > pool:
        return Finding(
            host,
            what,
            CheckState.NOTE,
            f"bucket {largest.key} needs {needed} tokens at once, the pool holds {pool}: some of "
            "its requests will wait, and the bucket is marked `queued`",
            "nothing, if that is how the service is used; else drop the bucket",
        )
    return Finding(host, what, CheckState.OK, f"{needed} of {pool} tokens at most")
