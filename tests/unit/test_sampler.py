"""The search through plain Optuna ask and tell, and its parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import optuna
import pytest
from scipy import stats

from autotune.ddtree import CONSTRAINTS
from autotune.errors import ConfigError
from autotune.parameter import FloatArray, Parameter, ParameterKind, ParameterValue, Values
from autotune.search import SAMPLERS, GridGaussianProcessSampler, make_sampler
from autotune.search.acquisition import knowledge_gradient
from autotune.search.breakage import BreakageModel
from autotune.search.candidates import Candidates
from autotune.search.history import BUCKETS_ATTRIBUTE, History, Outcome
from autotune.search.memory import MemoryModel
from autotune.search.model import FeasibilityModel, GaussianProcess
from autotune.search.physics import DraftVerifyModel, RoundData, round_shape
from autotune.search.start import axis_design
from autotune.space import SearchSpace
from autotune.testing.surfaces import Observation, Surface, ddtree_space

optuna.logging.set_verbosity(optuna.logging.ERROR)

Measure = Callable[[Values, int], Observation]

SPACE = SearchSpace(
    (
        Parameter("budget", ParameterKind.INT, low=1, high=32, log=True, deployed=4, flag="--b"),
        Parameter("topk", ParameterKind.INT, low=1, high=8, log=True, deployed=2, flag="--k"),
        Parameter(
            "window", ParameterKind.CATEGORICAL, choices=(512, 2048, None), deployed=512, flag="--w"
        ),
    ),
    (CONSTRAINTS["topk-within-budget"],),
)


def hill(values: Values, _: int = 0) -> Observation:
    """A smooth score with its top at 14/5/2048; seeded noise of one percent."""
    budget, topk, window = (values[name] for name in SPACE.names)
    assert isinstance(budget, int)
    assert isinstance(topk, int)
    loss = 0.3 * math.log2(budget / 14) ** 2 / 4 + 0.2 * math.log2(topk / 5) ** 2 / 4
    loss += {512: 0.08, 2048: 0.0, None: 0.05}[window]  # type: ignore[index]
    return Observation(1.5 * math.exp(-loss))


def noisy_hill(values: Values, number: int) -> Observation:
    score = hill(values).score_ratio
    assert score is not None
    return Observation(score * math.exp(np.random.default_rng([11, number]).normal(0, 0.01)))


def new_study(sampler: optuna.samplers.BaseSampler) -> optuna.Study:
    return optuna.create_study(direction="maximize", sampler=sampler)


def step(study: optuna.Study, space: SearchSpace, measure: Measure) -> dict[str, ParameterValue]:
    """One trial, told as a study tells it."""
    trial = study.ask(space.distributions())
    observed = measure(space.effective(trial.params), trial.number)
    trial.set_constraint("infeasible", 1.0 if observed.infeasible else -1.0)
    trial.set_user_attr(BUCKETS_ATTRIBUTE, dict(observed.buckets))
    told = [t.value for t in study.get_trials(deepcopy=False) if t.value is not None]
    worst = min(told, default=0.0)
    study.tell(trial, worst if observed.score_ratio is None else observed.score_ratio)
    return dict(trial.params)


def walk(
    sampler: optuna.samplers.BaseSampler, trials: int, measure: Measure = noisy_hill
) -> list[dict[str, ParameterValue]]:
    study = new_study(sampler)
    return [step(study, SPACE, measure) for _ in range(trials)]


def auto(seed: int = 1) -> GridGaussianProcessSampler:
    return GridGaussianProcessSampler(SPACE, seed=seed)


# -- proposals ------------------------------------------------------------------------------------
def test_every_proposal_is_a_valid_effective_point() -> None:
    for point in walk(auto(), 25):
        SPACE.validate(point)
        assert SPACE.effective(point) == point


def test_the_first_proposal_is_the_deployed_point_and_then_its_surroundings() -> None:
    points = walk(auto(), 6)
    assert points == axis_design(SPACE)[:6]
    assert points[0] == SPACE.deployed()


def test_the_axis_design_is_valid_and_has_no_twins() -> None:
    for space in (SPACE, ddtree_space()):
        design = axis_design(space)
        assert len({space.key(point) for point in design}) == len(design) >= 6
        for point in design:
            space.validate(point)


def test_candidates_with_others_at_the_end_are_as_if_listed_at_once() -> None:
    points = SPACE.enumerate(40, seed=1)
    more = [*points[30:], *points[5:8]]
    once = Candidates.of(SPACE, [*points[:30], *more])
    grown = Candidates.of(SPACE, points[:30]).joined(SPACE, {SPACE.key(p): p for p in more})
    assert (grown.points, grown.rows) == (once.points, once.rows)
    assert np.array_equal(grown.encoded, once.encoded)
    assert grown.shape is not None
    assert once.shape is not None
    assert np.array_equal(grown.shape.window, once.shape.window)
    assert grown.joined(SPACE, {SPACE.key(point): point for point in points}) is grown


def test_equal_seeds_go_the_same_way() -> None:
    assert walk(auto(3), 14) == walk(auto(3), 14)


def test_a_resumed_study_goes_on_as_if_uninterrupted() -> None:
    whole = walk(auto(5), 16)
    storage = optuna.storages.InMemoryStorage()
    halves = []
    for _ in range(4):  # four processes, each with a sampler of its own
        study = optuna.create_study(
            study_name="s", storage=storage, direction="maximize", sampler=auto(5),
            load_if_exists=True,
        )  # fmt: skip
        halves += [step(study, SPACE, noisy_hill) for _ in range(4)]
    assert halves == whole


@pytest.mark.parametrize("seed", range(4))
def test_it_finds_the_top_of_a_hill(seed: int) -> None:
    points = walk(auto(seed), 25, lambda values, n: noisy_hill(values, n + 1000 * seed))
    found = max(hill(point).score_ratio or 0 for point in points)
    assert found >= 0.95 * 1.5


@pytest.mark.parametrize("surface", [100, 101])
def test_it_comes_near_the_best_of_a_surface_with_buckets(surface: int) -> None:
    problem = Surface.random(surface)
    sampler = make_sampler("auto", space=problem.space, seed=surface, workload=problem.workload)
    study = new_study(sampler)
    for _ in range(18):
        step(
            study,
            problem.space,
            lambda values, n: problem.measure(values, np.random.default_rng([surface, n])),
        )
    assert isinstance(sampler, GridGaussianProcessSampler)
    history = History.of(study.get_trials(), problem.space)
    belief = sampler.belief(history)
    assert belief is not None
    assert belief.physics
    named = sampler.named(history)
    assert named is not None
    assert problem.truth(named) >= 0.95 * problem.best()[1]


def test_a_direction_of_minimize_is_respected() -> None:
    study = optuna.create_study(direction="minimize", sampler=auto())
    for _ in range(20):
        trial = study.ask(SPACE.distributions())
        study.tell(trial, 2.0 - (hill(trial.params).score_ratio or 0))
    assert 2.0 - study.best_value >= 0.95 * 1.5


def beyond(limit: int) -> Measure:
    """The hill with a wall: a larger budget than `limit` does not run."""

    def measure(values: Values, number: int) -> Observation:
        budget = values["budget"]
        assert isinstance(budget, int)
        return Observation(None) if budget > limit else noisy_hill(values, number)

    return measure


@pytest.mark.parametrize("limit", [5, 7, 11])
def test_the_neighbourhood_of_crashes_is_left(limit: int) -> None:
    """The top lies behind the wall, so every model of the score alone leads there."""
    points = walk(auto(), 26, beyond(limit))
    crashed = [index for index, point in enumerate(points) if beyond(limit)(point, 0).infeasible]
    assert 1 <= len(crashed) <= 9
    assert sum(index >= 18 for index in crashed) <= 3
    assert len({SPACE.key(points[index]) for index in crashed}) == len(crashed)


def test_points_under_way_are_not_proposed_again() -> None:
    study = new_study(auto())
    for _ in range(8):
        step(study, SPACE, noisy_hill)
    running = [study.ask(SPACE.distributions()) for _ in range(6)]
    keys = {SPACE.key(trial.params) for trial in running}
    assert len(keys) == 6


def test_points_that_wait_are_not_proposed_again() -> None:
    study = new_study(auto())
    for _ in range(8):
        step(study, SPACE, noisy_hill)
    history = History.of(study.get_trials(), SPACE)
    wanted = auto().propose(history, number=8)
    study.enqueue_trial(dict(wanted))
    later = History.of(study.get_trials(), SPACE)
    assert auto().propose(later, number=9) != wanted


def an_outcome(n: int, score: float | None, *, key: str = "", host: str = "a") -> Outcome:
    return Outcome(key or f"point-{n}", {"budget": n}, score, score is not None, {}, host)


def test_a_long_history_is_cut_to_the_newest_and_the_best() -> None:
    outcomes = [
        an_outcome(0, 1.0, key="reference", host="a"),
        an_outcome(1, 1.0, key="reference", host="b"),
        an_outcome(2, 1.9, key="best"),
        an_outcome(3, None),
        an_outcome(4, 3.0, key="once lucky"),
        an_outcome(5, 0.1, key="once lucky"),
        an_outcome(6, 1.7, key="best"),
        an_outcome(7, None),
        *(an_outcome(8 + n, 0.5) for n in range(8)),
    ]
    history = History(tuple(outcomes), {"waits": {}}, {"broke": 2})
    kept = history.within(8, reference="reference")
    numbers = [outcome.values["budget"] for outcome in kept.outcomes]
    # The newest reference of host a, both of the best point, the newest that crashed, the newest
    # four, and the newest of the next best point by its mean.
    assert numbers == [0, 2, 5, 6, 7, 12, 13, 14, 15]
    assert (kept.pending, kept.failures) == (history.pending, history.failures)


def test_a_short_history_is_not_cut() -> None:
    history = History(tuple(an_outcome(n, 1.0) for n in range(8)), {}, {})
    assert history.within(8, reference="") is history


def test_what_has_ended_is_read_once() -> None:
    study = new_study(auto())
    for _ in range(4):
        step(study, SPACE, noisy_hill)
    known: dict[int, Outcome] = {}
    first = History.of(study.get_trials(), SPACE, known=known)
    step(study, SPACE, noisy_hill)
    again = History.of(study.get_trials(), SPACE, known=known)
    assert again == History.of(study.get_trials(), SPACE)
    assert all(a is b for a, b in zip(first.outcomes, again.outcomes, strict=False))
    assert len(again.outcomes) == 5


def test_a_point_that_was_pruned_is_not_proposed_again() -> None:
    study = new_study(auto())
    for _ in range(8):
        step(study, SPACE, noisy_hill)
    asked = []
    for _ in range(4):
        trial = study.ask(SPACE.distributions())
        asked.append(SPACE.key(trial.params))
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    assert len(set(asked)) == 4


def test_an_enqueued_trial_runs_what_was_enqueued() -> None:
    study = new_study(auto())
    study.enqueue_trial({"budget": 9, "topk": 3, "window": None})
    study.enqueue_trial({"budget": 11})
    assert step(study, SPACE, noisy_hill) == {"budget": 9, "topk": 3, "window": None}
    partial = step(study, SPACE, noisy_hill)
    assert partial["budget"] == 11
    SPACE.validate(partial)


def test_a_failure_says_nothing_but_the_second_ends_it() -> None:
    study = new_study(auto())
    first = study.ask(SPACE.distributions())
    study.tell(first, state=optuna.trial.TrialState.FAIL)
    second = study.ask(SPACE.distributions())
    assert second.params == first.params == SPACE.deployed()
    study.tell(second, state=optuna.trial.TrialState.FAIL)
    assert study.ask(SPACE.distributions()).params != SPACE.deployed()


def test_when_everything_is_known_points_are_repeated() -> None:
    small = SearchSpace((replace(SPACE.parameters[2]),))
    study = new_study(GridGaussianProcessSampler(small, seed=1))
    for _ in range(6):
        step(study, small, lambda values, n: Observation(1.0 + 0.1 * (values["window"] == 2048)))
    assert {str(t.params["window"]) for t in study.get_trials()} == {"512", "2048", "None"}


def test_a_parameter_outside_the_space_is_drawn_by_seed() -> None:
    drawn = []
    for _ in range(2):
        trial = new_study(auto()).ask(SPACE.distributions())
        drawn.append(trial.suggest_float("other", 0.0, 1.0))
    assert drawn[0] == drawn[1]


def test_pruned_trials_teach_by_their_buckets_and_have_no_score() -> None:
    trial = optuna.trial.create_trial(
        state=optuna.trial.TrialState.PRUNED,
        params=SPACE.deployed(),
        distributions=SPACE.distributions(),
        user_attrs={BUCKETS_ATTRIBUTE: {"60x1": {"output_tok_per_s": 90.0, "accept_length": None}}},
    )
    (outcome,) = History.of([trial], SPACE).outcomes
    assert outcome.score is None
    assert outcome.feasible
    assert outcome.buckets["60x1"].output_tok_per_s == 90.0


def test_buckets_of_noise_do_not_mislead() -> None:
    """With figures that have nothing to do with the score, the search still gets there."""
    problem = Surface.random(7)

    def junk(values: Values, number: int) -> Observation:
        rng = np.random.default_rng([number, 77])
        observed = noisy_hill(values, number)
        figures: dict[str, Mapping[str, float]] = {
            bucket.key: {
                "output_tok_per_s": float(np.exp(rng.normal(5, 1))),
                "accept_length": float(1 + rng.exponential(2)),
            }
            for bucket in problem.workload.buckets
        }
        return replace(observed, buckets=figures)

    sampler = GridGaussianProcessSampler(SPACE, seed=2, workload=problem.workload)
    points = walk(sampler, 18, junk)
    assert max(hill(point).score_ratio or 0 for point in points) >= 0.95 * 1.5


# -- the named samplers ---------------------------------------------------------------------------
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


# -- the parts ------------------------------------------------------------------------------------
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
    assert np.all(model.round_ms >= 0)


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


def test_without_a_step_the_gate_is_level() -> None:
    shape = round_shape([{"budget": b, "topk": 2} for b in (4, 8, 16, 32)])
    assert shape is not None
    level = BreakageModel.fit(shape, np.full(4, 0.03)).log_gate(shape)
    assert float(np.ptp(level)) < 0.02
