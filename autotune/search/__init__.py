"""The search: what to measure next."""

from autotune.search.making import SAMPLERS, make_sampler, sampler_of
from autotune.search.sampler import GridGaussianProcessSampler
from autotune.search.surrogate import Aggregate

__all__ = ["SAMPLERS", "Aggregate", "GridGaussianProcessSampler", "make_sampler", "sampler_of"]
