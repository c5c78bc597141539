"""The final rounds: every contender once in every round, in turns, whatever happens on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.rounds import (
    ATTEMPTS,
    REFERENCE,
    FinalStart,
    next_final,
    plan_rounds,
    round_order,
)

FINALISTS = (5, 9)


def play(
    contenders: Sequence[int],
    rounds: int,
    hosts: Sequence[str],
    *,
    scored: Callable[[int, int, str, int], bool] = lambda round_, contender, host, attempt: True,
    begun: Sequence[FinalStart] = (),
) -> list[FinalStart]:
    """Every host asks in turn and ends what it was given before it asks again."""
    done = list(begun)
    idle = 0
    turn = 0
    while idle < len(hosts):
        host = hosts[turn % len(hosts)]
        turn += 1
        step = next_final(contenders, range(rounds), done, host=host, usable_hosts=hosts)
        if step is None:
            idle += 1
            continue
        idle = 0
        round_, contender = step
        tries = sum(s.round == round_ and s.contender == contender for s in done)
        done.append(FinalStart(round_, contender, host, scored(round_, contender, host, tries)))
        assert len(done) < 500, "the rounds do not end"
    return done


def test_the_order_alternates_so_that_drift_cancels() -> None:
    assert round_order(FINALISTS, 0) == (REFERENCE, 5, 9)
    assert round_order(FINALISTS, 1) == (9, 5, REFERENCE)
    assert round_order(FINALISTS, 2) == round_order(FINALISTS, 0)


def test_one_host_plays_every_round_in_order() -> None:
    played = play(FINALISTS, 2, ["a"])
    assert [(s.round, s.contender) for s in played] == [
        *((0, REFERENCE), (0, 5), (0, 9)),
        *((1, 9), (1, 5), (1, REFERENCE)),
    ]


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=4, unique=True),
    st.integers(0, 5),
    st.integers(1, 4),
)
def test_every_contender_once_in_every_round_on_one_host(
    contenders: list[int], rounds: int, hosts: int
) -> None:
    played = play(contenders, rounds, [f"h{n}" for n in range(hosts)])
    counts = Counter((s.round, s.contender) for s in played)
    assert set(counts.values()) <= {1}
    assert len(counts) == rounds * (len(contenders) + 1)
    for round_ in range(rounds):
        assert len({s.host for s in played if s.round == round_}) == 1


def test_no_rounds_no_starts() -> None:
    assert play(FINALISTS, 0, ["a"]) == []


def test_a_host_waits_for_its_own_start() -> None:
    running = [FinalStart(0, REFERENCE, "a", None)]
    assert next_final(FINALISTS, range(1), running, host="a", usable_hosts=["a"]) is None


def test_two_hosts_take_different_rounds() -> None:
    first = [FinalStart(0, REFERENCE, "a", None)]
    step = next_final(FINALISTS, range(2), first, host="b", usable_hosts=["a", "b"])
    assert step == (1, 9)
    assert next_final(FINALISTS, range(1), first, host="b", usable_hosts=["a", "b"]) is None


def test_a_lost_hosts_round_begins_again_on_another() -> None:
    left = [FinalStart(0, REFERENCE, "a", True), FinalStart(0, 5, "a", False)]
    step = next_final(FINALISTS, range(1), left, host="b", usable_hosts=["b"])
    assert step == (0, REFERENCE)
    played = play(FINALISTS, 1, ["b"], begun=left)
    assert [s.contender for s in played if s.host == "b"] == [REFERENCE, 5, 9]


def test_what_a_lost_host_did_in_another_round_completes_nothing() -> None:
    left = [FinalStart(0, REFERENCE, "a", True), FinalStart(0, 5, "a", True),
            FinalStart(1, 9, "a", True), FinalStart(0, 9, "c", True)]  # fmt: skip
    step = next_final(FINALISTS, range(2), left, host="b", usable_hosts=["b"])
    assert step == (0, REFERENCE)


def test_a_round_that_was_complete_on_the_lost_host_stays() -> None:
    whole = [FinalStart(0, c, "a", True) for c in round_order(FINALISTS, 0)]
    assert next_final(FINALISTS, range(1), whole, host="b", usable_hosts=["b"]) is None


def test_a_round_goes_on_where_it_was_left() -> None:
    begun = [FinalStart(0, c, "a", True) for c in round_order(FINALISTS, 0)]
    begun.append(FinalStart(1, 9, "a", True))
    played = play(FINALISTS, 2, ["a"], begun=begun)[len(begun) :]
    assert [(s.round, s.contender) for s in played] == [(1, 5), (1, REFERENCE)]


def test_a_failed_start_is_tried_again_at_once() -> None:
    played = play(FINALISTS, 1, ["a"], scored=lambda r, c, h, attempt: c != 5 or attempt > 0)
    assert [s.contender for s in played] == [REFERENCE, 5, 5, 9]


def test_after_some_attempts_the_round_goes_on_without_it() -> None:
    played = play(FINALISTS, 2, ["a"], scored=lambda r, c, h, attempt: c != 5)
    assert Counter(s.contender for s in played) == {5: 2 * ATTEMPTS, REFERENCE: 2, 9: 2}


@given(st.data())
def test_the_rounds_end_whatever_fails(data: st.DataObject) -> None:
    played = play(
        FINALISTS,
        3,
        ["a", "b"],
        scored=lambda r, c, h, attempt: data.draw(st.booleans()),
    )
    counts = Counter((s.round, s.contender) for s in played)
    assert max(counts.values()) <= ATTEMPTS
    for round_ in range(3):
        for contender in round_order(FINALISTS, round_):
            tries = [s for s in played if (s.round, s.contender) == (round_, contender)]
            assert tries
            assert tries[-1].scored or len(tries) == ATTEMPTS


@given(st.integers(0, 12), st.integers(1, 2))
def test_a_kill_anywhere_repeats_no_scored_start(at: int, hosts: int) -> None:
    names = ["a", "b"][:hosts]
    whole = play(FINALISTS, 3, names)
    resumed = play(FINALISTS, 3, names, begun=whole[: min(at, len(whole))])
    assert Counter((s.round, s.contender) for s in resumed) == Counter(
        (s.round, s.contender) for s in whole
    )


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_answer_does_not_depend_on_the_order_of_the_records(order: tuple[int, int]) -> None:
    starts = [FinalStart(0, REFERENCE, "a", True), FinalStart(0, 5, "a", None)]
    shuffled = [starts[index] for index in order]
    assert next_final(FINALISTS, range(1), shuffled, host="a", usable_hosts=["a"]) is None


def a_round(
    number: int, *, host: str = "a", owner: str = "me", of: Sequence[int] = FINALISTS
) -> list[FinalStart]:
    """A complete round."""
    return [FinalStart(number, one, host, True, owner) for one in (REFERENCE, *of)]


def test_rounds_are_numbered_from_zero_and_none_is_needed_without_finalists() -> None:
    assert plan_rounds(FINALISTS, 3, []) == range(3)
    assert plan_rounds(FINALISTS, 0, []) == range(0)
    assert plan_rounds((), 3, []) == range(0)
    assert plan_rounds((), 3, a_round(0)) == range(0)


def test_complete_rounds_count_and_their_numbers_are_not_used_again() -> None:
    assert plan_rounds(FINALISTS, 3, a_round(0)) == range(1, 3)
    assert plan_rounds(FINALISTS, 3, a_round(4)) == range(5, 7)
    assert plan_rounds(FINALISTS, 2, [*a_round(0), *a_round(1, host="b")]) == range(2, 2)
    assert plan_rounds(FINALISTS, 1, [*a_round(0), *a_round(1)]) == range(2, 2)


@pytest.mark.parametrize(
    "starts",
    [
        pytest.param(a_round(0)[:-1], id="one finalist is missing"),
        pytest.param(a_round(0)[1:], id="the reference is missing"),
        pytest.param(a_round(0, of=(5, 8)), id="of other finalists"),
        pytest.param(a_round(0, of=(5, 9, 12)), id="of one finalist more"),
        pytest.param(a_round(0)[:2] + a_round(0, host="b")[2:], id="on two hosts"),
        pytest.param(a_round(0)[:2] + a_round(0, owner="you")[2:], id="of two runs"),
        pytest.param([*a_round(0)[:2], FinalStart(0, 9, "a", False, "me")], id="one has no score"),
        pytest.param([*a_round(0)[:2], FinalStart(0, 9, "a", None, "me")], id="one still runs"),
    ],
)
def test_what_is_no_round_does_not_count(starts: list[FinalStart]) -> None:
    assert plan_rounds(FINALISTS, 2, starts) == range(1, 3)


def test_a_round_in_which_a_start_was_tried_again_counts() -> None:
    again = [FinalStart(0, 9, "a", False, "me"), *a_round(0)]
    assert plan_rounds(FINALISTS, 1, again) == range(1, 1)


def test_the_two_halves_of_two_rounds_are_none() -> None:
    assert plan_rounds(FINALISTS, 1, [*a_round(0)[:2], *a_round(1)[2:]]) == range(2, 3)
