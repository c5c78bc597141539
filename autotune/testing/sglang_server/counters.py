"""Running totals of one server, for /metrics, /server_info and the decode lines."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

__all__ = ["Counters", "Histogram"]

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 60.0)


class Histogram:
    """Counts of observations up to each bound, in seconds."""

    def __init__(self, bounds: tuple[float, ...] = _SECONDS) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value `count` times."""
        self._counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> list[tuple[str, int]]:
        """Bound as text and the number of observations up to it; the last is `+Inf`."""
        running, rows = 0, []
        for label, count in zip((*map(str, self.bounds), "+Inf"), self._counts, strict=True):
            running += count
            rows.append((label, running))
        return rows


def _by_streaming() -> dict[bool, int]:
    return {False: 0, True: 0}


@dataclass(slots=True)
class Counters:
    """Totals since the start.

    Attributes:
        rounds: Verify rounds; `verify_steps` their requests, since the last reset.
        accepted_tokens: Tokens of these steps, the bonus tokens included.
        verify_calls: Verify steps of finished requests, never reset.
        generated_requests: Finished requests that were no probes.
        requests, prompt_tokens, generation_tokens: Of finished requests, by streaming or not.
        gen_throughput: Tokens a second of real time between the last two decode lines.
        accept_length: Mean since the start or the last reset, as of the last decode line.
    """

    rounds: int = 0
    verify_steps: int = 0
    accepted_tokens: int = 0
    verify_calls: int = 0
    generated_requests: int = 0
    aborted_requests: int = 0
    requests: dict[bool, int] = field(default_factory=_by_streaming)
    prompt_tokens: dict[bool, int] = field(default_factory=_by_streaming)
    generation_tokens: dict[bool, int] = field(default_factory=_by_streaming)
    cached_tokens: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    gen_throughput: float = 0.0
    accept_length: float | None = None
    time_to_first_token_s: Histogram = field(default_factory=Histogram)
    inter_token_s: Histogram = field(default_factory=Histogram)
    e2e_s: Histogram = field(default_factory=Histogram)
    queue_s: Histogram = field(default_factory=Histogram)
