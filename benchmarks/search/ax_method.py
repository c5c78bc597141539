"""Ax through its own client, with the same start as the others."""

from __future__ import annotations

import logging
import math
from typing import Any

from autotune.parameter import ParameterKind, Values
from autotune.testing.surfaces import Observation
from benchmarks.search.problem import Problem

__all__ = ["AxMethod"]


class AxMethod:
    """Numbers as ranges, choices as their rank; a crash is told the worst score seen."""

    def __init__(self, problem: Problem, seed: int) -> None:
        from ax.api.client import Client  # type: ignore[import-not-found]
        from ax.api.configs import (  # type: ignore[import-not-found]
            RangeParameterConfig,
        )

        logging.disable(logging.CRITICAL)
        self._space = problem.space
        self._client: Any = Client(random_seed=seed)
        ranges = []
        for p in self._space.parameters:
            numbers = p.kind is not ParameterKind.CATEGORICAL
            low, high = (p.low, p.high) if numbers else (0, len(p.levels()) - 1)
            scaling = "log" if p.log else None
            ranges.append(
                RangeParameterConfig(
                    name=p.name, parameter_type="int", bounds=(low, high), scaling=scaling
                )
            )
        self._client.configure_experiment(parameters=ranges)
        self._client.configure_optimization(objective="score")
        self._client.configure_generation_strategy(
            method="fast", initialization_budget=7, initialize_with_center=False,
            initialization_random_seed=seed,
        )  # fmt: skip
        self._trial: int | None = None
        self._worst = math.inf

    def propose(self) -> Values:
        ((self._trial, chosen),) = self._client.get_next_trials(max_trials=1).items()
        point = {
            p.name: chosen[p.name]
            if p.kind is not ParameterKind.CATEGORICAL
            else p.levels()[chosen[p.name]]
            for p in self._space.parameters
        }
        return self._space.effective(point)

    def observe(self, values: Values, observed: Observation) -> None:
        if self._trial is None:  # the deployed point
            coded = {
                p.name: values[p.name]
                if p.kind is not ParameterKind.CATEGORICAL
                else p.levels().index(values[p.name])
                for p in self._space.parameters
            }
            self._trial = self._client.attach_trial(coded)
        if observed.score_ratio is not None:
            self._worst = min(self._worst, observed.score_ratio)
        score = self._worst if observed.score_ratio is None else observed.score_ratio
        self._client.complete_trial(
            trial_index=self._trial, raw_data={"score": math.log(max(score, 1e-3))}
        )

    def named(self) -> Values | None:
        return None
