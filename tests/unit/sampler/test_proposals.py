"""What the sampler proposes, from what it has seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import optuna
import pytest

from autotune.parameter import ParameterValue, Values
from autotune.search import GridGaussianProcessSampler, make_sampler
from autotune.search.candidates import Candidates
from autotune.search.history import BUCKETS_ATTRIBUTE, History, Outcome
from autotune.search.start import axis_design
from autotune.space import SearchSpace
from autotune.testing.surfaces import Observation, Surface, ddtree_space
from tests.unit.sampler.hills import SPACE, Measure, auto, hill, new_study, noisy_hill, step


def walk(
    sampler: optuna.samplers.BaseSampler, trials: int, measure: Measure = noisy_hill
) -> list[dict[str, ParameterValue]]:
    study = new_study(sampler)
    return [step(study, SPACE, measure) for _ in range(trials)]


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
