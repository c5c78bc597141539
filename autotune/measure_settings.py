"""How long a bucket is measured and when it is not believed: the one home of these defaults."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MeasureSettings"]


@dataclass(frozen=True, slots=True)
class MeasureSettings:
    """How long a bucket is measured.

    Attributes:
        target_half_width: Half-width of the 95 % interval at which to stop, share of the mean.
        least_windows, most_windows: Windows at least and at most.
        window_s: Length of a window, seconds.
        warm_up_most_s: Longest warm-up, seconds.
        error_rate_most: Share of failed requests above which the bucket is invalid.
        request_timeout_s: Longest request, seconds.
        stall_timeout_s: Longest time in which nothing arrives on a stream, seconds.
        client_cpu_most: Share of a core above which the client counts as the bottleneck.
        drift_most: Change of the first bucket, measured again after the last, above which a start
            is not steady; share.
        loop_lag_most_ms: 99th percentile of the event loop's lateness above which it does, ms; a
            tenth of the median TTFT is allowed in any case.
        ttft_p99_most_ms: The score's limit of TTFT, ms; a bucket above it whose first tokens our
            own client read late is not believed.
    """

    target_half_width: float = 0.02
    least_windows: int = 8
    most_windows: int = 40
    window_s: float = 1.0
    warm_up_most_s: float = 60.0
    error_rate_most: float = 0.01
    request_timeout_s: float = 600.0
    stall_timeout_s: float = 60.0
    client_cpu_most: float = 0.85
    loop_lag_most_ms: float = 20.0
    drift_most: float = 0.05
    ttft_p99_most_ms: float | None = None
