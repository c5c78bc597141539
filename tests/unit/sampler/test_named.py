"""Samplers that a study may name."""

from __future__ import annotations

import pytest

from autotune.errors import ConfigError
from autotune.search import SAMPLERS, make_sampler
from tests.unit.sampler.hills import SPACE, new_study, noisy_hill, step


@pytest.mark.parametrize("name", ["auto", "tpe", "qmc", "random", "grid"])
def test_named_samplers_ask_points_of_the_space(name: str) -> None:
    study = new_study(make_sampler(name, space=SPACE, seed=1))
    for _ in range(4):
        step(study, SPACE, noisy_hill)
    assert len(study.trials) == 4


def test_an_unknown_sampler_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="known: auto, tpe, gp, cmaes, qmc, random, grid"):
        make_sampler("magic", space=SPACE, seed=1)
    assert SAMPLERS == ("auto", "tpe", "gp", "cmaes", "qmc", "random", "grid")
