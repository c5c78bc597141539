"""The final rounds: finalists and reference measured again in turns, on fresh starts.  Pure.

A round is one start of each contender on one host, so that whatever host and hour share cancels
in the ratios of a round.  The order alternates between rounds: reference first, then last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "ATTEMPTS",
    "FinalStart",
    "next_final",
    "plan_rounds",
    "round_order",
]

ATTEMPTS = 2
"""Starts of one contender in one round before the round goes on without it."""


@dataclass(frozen=True, slots=True)
class FinalStart:
    """A final start that was made or runs.

    Attributes:
        owner: Run that made it, as text: a round of two runs is no round, hours lie between.
        contender: Trial number whose parameters it runs; the reference's is `REFERENCE`.
        scored: Whether it gave a score; None while it runs.
    """

    round: int
    contender: int
    host: str
    scored: bool | None
    owner: str = ""


REFERENCE = -1


def round_order(contenders: Sequence[int], round_: int) -> tuple[int, ...]:
    """Contenders of one round in the order of their starts: the reference first, then last."""
    order = (REFERENCE, *contenders)
    return order if round_ % 2 == 0 else tuple(reversed(order))


def plan_rounds(contenders: Sequence[int], wanted: int, starts: Sequence[FinalStart]) -> range:
    """Numbers of the rounds that are still to be played by this run.

    Complete rounds of the same contenders count; unfinished ones and those of other contenders do
    not, and their numbers are not used again.

    Args:
        wanted: Complete rounds in all.
        starts: Of every run of the study.
    """
    if not contenders:
        return range(0)
    played: dict[tuple[int, str, str], set[int]] = defaultdict(set)
    for start in starts:
        if start.scored:
            played[start.round, start.host, start.owner].add(start.contender)
    complete = sum(members == {REFERENCE, *contenders} for members in played.values())
    first = 1 + max((start.round for start in starts), default=-1)
    return range(first, first + max(0, wanted - complete))


def next_final(
    contenders: Sequence[int],
    rounds: Sequence[int],
    starts: Sequence[FinalStart],
    *,
    host: str,
    usable_hosts: Sequence[str],
) -> tuple[int, int] | None:
    """The next (round, contender) that this host should start; None when nothing is left for it.

    Args:
        rounds: Numbers of the rounds to play.
        starts: Of this run.

    A round stays on its host.  A round whose host is gone begins again on another one.
    """
    by_round: dict[int, dict[int, list[FinalStart]]] = defaultdict(lambda: defaultdict(list))
    for start in starts:
        if start.host in usable_hosts or _complete(start, starts, contenders):
            by_round[start.round][start.contender].append(start)
    for round_ in rounds:
        done = by_round[round_]
        owner = next((s.host for members in done.values() for s in members), host)
        if owner != host:
            continue
        if (member := _next_member(contenders, round_, done)) is not None:
            return round_, member
    return None


def _next_member(
    contenders: Sequence[int], round_: int, done: Mapping[int, Sequence[FinalStart]]
) -> int | None:
    for contender in round_order(contenders, round_):
        tries = done.get(contender, ())
        if any(start.scored is None for start in tries):
            return None
        if not any(start.scored for start in tries) and len(tries) < ATTEMPTS:
            return contender
    return None


def _complete(start: FinalStart, starts: Sequence[FinalStart], contenders: Sequence[int]) -> bool:
    """Whether the round of this start was finished on the start's host before it was lost."""
    own = [s for s in starts if s.round == start.round and s.host == start.host]
    return all(
        any(s.scored for s in own if s.contender == c) for c in round_order(contenders, start.round)
    )
