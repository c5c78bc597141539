"""Noise of the simulated rounds."""

from __future__ import annotations

import math
import random

from autotune.testing.sglang_server.args import ServerArgs

__all__ = ["Noise", "noise_seed"]


class Noise:
    """Factor on the duration of a round: one draw for the start, one that drifts slowly.

    The drift is a first-order autoregression with a correlation time of 1 / (1 - 0.995) rounds.

    Args:
        shared_sd: Standard deviation of the start's logarithm.
        bucket_sd: Standard deviation of the drift's logarithm.
        seed: Seed of both; None draws one.
    """

    _RHO = 0.995

    def __init__(self, *, shared_sd: float, bucket_sd: float, seed: int | None) -> None:
        self._rng = random.Random(seed)
        self.shared = math.exp(self._rng.gauss(0, shared_sd)) if shared_sd else 1.0
        self._sd = bucket_sd
        self._drift = self._rng.gauss(0, 1)

    def factor(self) -> float:
        """The factor of the next round."""
        if not self._sd:
            return self.shared
        rho = self._RHO
        self._drift = rho * self._drift + math.sqrt(1 - rho * rho) * self._rng.gauss(0, 1)
        return self.shared * math.exp(self._sd * self._drift)


def noise_seed(args: ServerArgs, seed: int | None) -> int | None:
    """One seed a start: repeatable for a fixed seed, different for each trial and each setting."""
    if seed is None:
        return None
    setting = args.setting
    parts = (seed, args.weight_version, setting.budget, setting.topk, setting.window)
    return random.Random(repr(parts)).getrandbits(64)
