"""The workload: buckets with weights.  Frozen values; the prompts are in `autotune.prompts`."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass

from autotune.errors import WorkloadError

__all__ = ["Bucket", "Workload"]


_WEIGHTS = "weights say how much each bucket counts"


@dataclass(frozen=True, slots=True)
class Bucket:
    """One cell of the workload.

    Attributes:
        context_tokens: Prompt length by the server's own count, tokens.
        concurrency: Requests in flight, kept constant (closed loop).
        output_tokens: Tokens asked for in each request.
        weight: Share in the score; the weights of a workload sum to 1.
    """

    context_tokens: int
    concurrency: int
    output_tokens: int
    weight: float

    def __post_init__(self) -> None:
        for name in ("context_tokens", "concurrency", "output_tokens"):
            if getattr(self, name) < 1:
                raise WorkloadError(
                    f"bucket {self.key}: {name} is {getattr(self, name)}, must be >= 1",
                    hint="for example 1024x8x256",
                )
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise WorkloadError(
                f"bucket {self.key}: weight is {self.weight}, must be >= 0", hint=_WEIGHTS
            )

    @property
    def key(self) -> str:
        """`1024x8`: context tokens x concurrency; unique in a workload."""
        return f"{self.context_tokens}x{self.concurrency}"


@dataclass(frozen=True, slots=True)
class Workload:
    """All buckets of a study, in the order of the definition file."""

    buckets: tuple[Bucket, ...]

    def __post_init__(self) -> None:
        if not self.buckets:
            raise WorkloadError("the workload has no bucket", hint="for example [[buckets]]")
        keys = [bucket.key for bucket in self.buckets]
        if len(set(keys)) < len(keys):
            raise WorkloadError(
                f"two buckets are the same cell: {max(keys, key=keys.count)}",
                hint="context tokens x concurrency names a bucket: keep one of them",
            )
        if not math.isclose(sum(b.weight for b in self.buckets), 1.0, abs_tol=1e-9):
            raise WorkloadError(
                f"the weights sum to {sum(b.weight for b in self.buckets):g}, must sum to 1",
                hint=_WEIGHTS,
            )

    @property
    def largest_concurrency(self) -> int:
        return max(bucket.concurrency for bucket in self.buckets)

    def fingerprint(self) -> str:
        """SHA-256 over the buckets: two measurements compare only when it is equal."""
        text = json.dumps([asdict(bucket) for bucket in self.buckets], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
