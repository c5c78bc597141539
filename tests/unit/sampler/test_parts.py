"""The parts of the model: the process, feasibility, what a trial is worth, the round, the gate."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import optimize, stats

from autotune.parameter import FloatArray
from autotune.search.acquisition import knowledge_gradient
from autotune.search.breakage import BreakageModel
from autotune.search.memory import MemoryModel
from autotune.search.model import FeasibilityModel, GaussianProcess
from autotune.search.physics import DraftVerifyModel, RoundData, round_shape
from autotune.testing.surfaces import Surface


def test_a_process_recovers_a_smooth_function_and_its_noise() -> None:
    rng = np.random.default_rng(1)
    x = rng.random((80, 2))

    def truth(at: FloatArray) -> FloatArray:
        return np.asarray(0.2 * np.sin(4 * at[:, 0]) - 0.1 * at[:, 1] ** 2)

    process = GaussianProcess.fit(x, truth(x) + rng.normal(0, 0.02, 80))
    new = rng.random((200, 2))
    mean, deviation = process.predict(new)
    assert float(np.sqrt(np.mean((mean - truth(new)) ** 2))) < 0.015
    assert 0.6 < float(np.std((mean - truth(new)) / deviation)) < 1.5
    assert process.noise == pytest.approx(0.02, rel=0.3)


def test_repeats_at_one_point_narrow_it() -> None:
    x = np.array([[0.2], [0.8]])
    y = np.array([0.0, 0.1])
    one, many = (
        GaussianProcess.fit(x, y),
        GaussianProcess.fit(x[[0, 1, 1, 1, 1]], y[[0, 1, 1, 1, 1]]),
    )
    assert many.predict(x)[1][1] < one.predict(x)[1][1]


def test_left_out_errors_are_those_of_refits_without_the_point() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.random((7, 1)), rng.normal(0, 0.1, 7)
    process = GaussianProcess.fit(x, y)
    gram = np.array(
        [[process.constant**2 + process.signal**2 * _matern(a, b, process) for b in x] for a in x]
    )
    gram_noise = gram + process.noise**2 * np.eye(7)
    rest = np.delete(np.arange(7), 3)
    weights = np.linalg.solve(gram_noise[np.ix_(rest, rest)], process.centred[rest])
    expected = process.centred[3] - gram[3, rest] @ weights
    assert process.leave_one_out()[3] == pytest.approx(expected, rel=1e-4)


def _matern(a: FloatArray, b: FloatArray, process: GaussianProcess) -> float:
    root = math.sqrt(5) * float(np.abs((a - b) / process.lengthscales).sum())
    return (1 + root + root * root / 3) * math.exp(-root)


def test_believing_keeps_the_mean_and_narrows() -> None:
    rng = np.random.default_rng(3)
    x = rng.random((12, 2))
    process = GaussianProcess.fit(x, np.sin(3 * x[:, 0]) * 0.2)
    at = np.array([[0.5, 0.5]])
    (mean,), (deviation,) = process.predict(at)
    (after,), (narrower,) = process.believing(at).predict(at)
    assert after == pytest.approx(mean, abs=1e-6)
    assert narrower < deviation


def test_feasibility_follows_the_crashes() -> None:
    x = np.linspace(0, 1, 11)[:, None]
    model = FeasibilityModel.fit(x, x[:, 0] < 0.65)
    probability = np.exp(model.log_probability(np.array([[0.1], [0.4], [0.95]])))
    assert probability[0] > 0.85
    assert probability[1] > 0.7
    assert probability[2] < 0.3


def gains(
    mean: list[float], covariance: FloatArray, noise: float, tested: list[bool]
) -> FloatArray:
    return knowledge_gradient(
        np.array(mean), [(covariance, noise)], tested=np.array(tested), seed=1
    )


def test_a_trial_at_a_new_point_is_worth_the_expected_improvement() -> None:
    """Without correlation and noise the gradient is the textbook's expected improvement."""
    covariance = np.diag([1e-12, 0.04])
    gain = gains([0.0, 0.1], covariance, 0.0, [True, False])
    z = 0.1 / 0.2
    assert gain[1] == pytest.approx(0.2 * (z * stats.norm.cdf(z) + stats.norm.pdf(z)), rel=0.1)


def test_a_well_known_point_is_not_worth_a_repeat() -> None:
    gain = gains([0.0, -0.02], np.diag([1e-6, 0.04]), 0.03, [True, False])
    assert gain[0] < gain[1] / 100


def test_a_trial_that_tells_of_a_rival_is_worth_more() -> None:
    """Two tested points close together: what moves only one of them can change the choice."""
    apart = np.array([[0.01, 0.0], [0.0, 0.01]])
    together = np.array([[0.01, 0.0099], [0.0099, 0.01]])
    alone = gains([0.0, 0.0], apart, 0.03, [True, True])
    bound = gains([0.0, 0.0], together, 0.03, [True, True])
    assert alone[0] > 5 * bound[0]


def test_free_memory_tells_of_the_wall_before_a_crash() -> None:
    shape = round_shape([{"budget": b, "topk": 4, "window": 2048} for b in (8, 16, 24, 64)])
    assert shape is not None
    model = MemoryModel(shape[np.arange(3)], [20.0, 16.0, 12.0], longest_tokens=8192.0)
    far, near = np.exp(model.log_probability(shape))[[3, 0]]
    assert near > 0.99
    assert far < 0.05


def test_features_leave_in_doubt_what_no_observation_has_moved() -> None:
    x, features = np.zeros((3, 1)), np.array([[0.0], [0.0], [1.0]])
    process = GaussianProcess.fit(x[:2], np.array([0.1, 0.1]), features=features[:2])
    _, deviation = process.predict(x, features)
    assert deviation[2] > deviation[0] + 0.5
    assert process.covariance(x, features)[2, 2] == pytest.approx(deviation[2] ** 2, rel=1e-6)


def test_the_round_model_predicts_points_it_has_not_seen() -> None:
    surface = Surface.random(200)
    points = [surface.space.effective(p) for p in surface.space.enumerate(60, seed=4)]
    shape = round_shape(points)
    assert shape is not None
    index = [surface._index(point) for point in points]
    throughput = np.array([surface.throughput[i] for i in index])
    accept = np.array([surface.accept[i] for i in index])
    seen = np.arange(20)
    model = DraftVerifyModel.fit(
        surface.workload, RoundData(shape[seen], throughput[seen], accept[seen])
    )
    assert model is not None
    new = np.arange(20, 60)
    wrong = np.log(model.throughput(shape[new])) - np.log(throughput[new])
    assert float(np.median(np.abs(wrong))) < 0.06
    assert all(np.all(form.coefficients >= 0) for form in model.rounds.forms)


def test_a_fit_that_goes_round_in_circles_is_replaced_by_a_plain_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def circling(*given: object, **more: object) -> None:
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr(optimize, "nnls", circling)
    model, missed, _ = rounds_of(Surface.random(7), lambda tokens: np.ones_like(tokens))
    assert float(np.median(np.abs(missed))) < 0.2
    assert all(np.all(form.coefficients >= 0) for form in model.rounds.forms)


def rounds_of(
    surface: Surface, slower: Callable[[FloatArray], FloatArray]
) -> tuple[DraftVerifyModel, FloatArray, FloatArray]:
    """The model of 25 trials whose rounds are longer by a factor of their tokens.

    Also what it misses 55 other points' ln throughput by, and those points' tokens.
    """
    points = [surface.space.effective(p) for p in surface.space.enumerate(80, seed=4)]
    shape = round_shape(points)
    assert shape is not None
    index = [surface._index(point) for point in points]
    streams = np.array([bucket.concurrency for bucket in surface.workload.buckets])
    tokens = (shape.budget + 1) * streams
    throughput = np.array([surface.throughput[i] for i in index]) / slower(tokens)
    accept = np.array([surface.accept[i] for i in index])
    seen, new = np.arange(25), np.arange(25, 80)
    model = DraftVerifyModel.fit(
        surface.workload, RoundData(shape[seen], throughput[seen], accept[seen])
    )
    assert model is not None
    return model, np.log(model.throughput(shape[new])) - np.log(throughput[new]), tokens[new]


@pytest.mark.parametrize("edge", [220, 300, 512, 700, 900])
def test_a_cliff_in_the_number_of_tokens_is_found(edge: int) -> None:
    """A round takes 30 % longer beyond some number of tokens; where, nobody has said."""
    model, wrong, tokens = rounds_of(
        Surface.random(200), lambda tokens: np.where(tokens > edge, 1.3, 1.0)
    )
    near = (tokens > edge / 2) & (tokens < 2 * edge)
    assert float(np.abs(wrong[near]).mean()) < 0.07  # 0.064 to 0.101 without steps
    weight = sum(
        form.weight for form in model.rounds.forms if edge / 1.2 <= form.edge <= edge * 1.2
    )
    assert weight > 0.9


@pytest.mark.parametrize("number", [200, 202, 206])
def test_where_nothing_has_a_cliff_no_large_one_is_believed(number: int) -> None:
    """What is left of steps on a smooth surface is a few percent of its rounds."""
    model, _, _ = rounds_of(Surface.random(number), np.ones_like)
    steps = [form.weight * form.step_ms for form in model.rounds.forms]
    assert sum(steps) < 3.0  # of rounds of 40 ms and more; a cliff of 30 % is 9 ms


def test_the_round_model_needs_an_accept_length() -> None:
    surface = Surface.random(200)
    shape = round_shape([surface.space.deployed()])
    assert shape is not None
    nothing = np.full((1, 16), math.nan)
    assert DraftVerifyModel.fit(surface.workload, RoundData(shape, nothing + 100, nothing)) is None
    assert round_shape([{"backend": "fa3"}]) is None


def test_a_step_in_the_gate_is_found() -> None:
    points = [{"budget": b, "topk": k} for b in (4, 8, 16, 24, 32, 48) for k in (2, 4, 8)]
    shape = round_shape(points)
    assert shape is not None
    size = np.array([p["budget"] * p["topk"] for p in points])
    model = BreakageModel.fit(shape, np.where(size > 100, -0.3, 0.0))
    predicted = model.log_gate(shape)
    clear = (size < 60) | (size > 170)
    assert np.abs(predicted - np.where(size > 100, -0.3, 0.0))[clear].max() < 0.08


def test_between_right_and_wrong_answers_the_gate_is_in_doubt() -> None:
    """Trees of 128 nodes times breadth were right, of 512 wrong: 300 may be either."""
    seen = [{"budget": b, "topk": k} for b, k in ((8, 4), (16, 4), (16, 8), (32, 16))]
    asked = [{"budget": b, "topk": k} for b, k in ((8, 4), (30, 10), (32, 16))]
    shape, there = round_shape(seen), round_shape(asked)
    assert shape is not None
    assert there is not None
    model = BreakageModel.fit(shape, np.array([0.0, 0.0, 0.0, -0.5]))
    small, between, broken = model.log_gate(there)
    assert small > between > broken
    doubt = np.sqrt((model.doubts(there) ** 2).sum(1))
    assert doubt[1] > 5 * doubt[0]
    assert small - between < 2 * doubt[1]  # it may well be right


def test_without_a_step_the_gate_is_level() -> None:
    shape = round_shape([{"budget": b, "topk": 2} for b in (4, 8, 16, 32)])
    assert shape is not None
    level = BreakageModel.fit(shape, np.full(4, 0.03)).log_gate(shape)
    assert float(np.ptp(level)) < 0.02
