"""How much of a very large study one page shows, and what stands for the rest.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from autotune.parameter import FloatArray
from autotune.report.drawing import numbers

__all__ = [
    "ALL_OF_THEM",
    "PARTS",
    "Detail",
    "per_stretch",
    "thinned",
    "thinned_words",
    "value_kinds",
]

ALL_OF_THEM = "autotune report --tables FOLDER writes all of them"
PARTS = ("stop_s", "load_s", "measure_s")
_STRETCHES = 60  # more, and a stretch is too narrow on a screen to tell its parts apart


@dataclass(frozen=True, slots=True)
class Detail:
    """How much a page shows at most: ten thousand points lie on each other and weigh megabytes.

    Attributes:
        points: Of one figure.
        rows: Of the table beside a figure; the table of all starts has four times as many.
        log_chars: Of all log lines of the page together.
    """

    points: int = 600
    rows: int = 250
    log_chars: int = 200_000

    def halved(self) -> Detail:
        """Half as much of everything."""
        return Detail(self.points // 2, self.rows // 2, self.log_chars // 2)


def thinned(frame: pd.DataFrame, most: int, *, value: str, by: Sequence[str]) -> pd.DataFrame:
    """At most about `most` rows, in their order: a random sample of each kind.

    The first, the last, the highest and the lowest row of a kind are always in it, so that the
    outline of the cloud and the ends of a line are the true ones.  The same rows give the same
    sample.

    Args:
        value: Column of the height; NaN is no height.
        by: Columns whose values make a kind.
    """
    if len(frame) <= most:
        return frame
    kinds = [group for _, group in frame.groupby(list(by), sort=False, dropna=False)]
    chance = np.random.default_rng(len(frame))
    kept: list[int] = []
    for after, kind in enumerate(sorted(kinds, key=len), start=1 - len(kinds)):
        each = max(4, (most - len(kept)) // (1 - after))  # what a small kind leaves, others take
        kept += _sample(kind, each, value, chance)
    return frame[frame.index.isin(kept)]


def _sample(kind: pd.DataFrame, most: int, value: str, chance: np.random.Generator) -> list[int]:
    """Labels of the rows that are kept of one kind."""
    if len(kind) <= most:
        return list(kind.index)
    heights = kind[value].astype(float).to_numpy()
    known = np.flatnonzero(~np.isnan(heights))
    marked = {0, len(kind) - 1}
    if len(known):
        marked |= {int(known[heights[known].argmax()]), int(known[heights[known].argmin()])}
    rest = np.setdiff1d(np.arange(len(kind)), [*marked])
    chosen = chance.choice(rest, most - len(marked), replace=False)
    return [kind.index[at] for at in sorted({*marked, *map(int, chosen)})]


def value_kinds(values: Sequence[Any], levels: Sequence[str]) -> list[str]:
    """What a value is thinned with: itself where it is one of a list, else its twentieth."""
    known = [float(v) for v in values if not (levels or v is None or isinstance(v, str))]
    low, high = min(known, default=0.0), max(known, default=0.0)
    return [
        str(v)
        if levels or v is None or isinstance(v, str) or low == high
        else f"{min(19, int(20 * (float(v) - low) / (high - low)))}/20"
        for v in values
    ]


def thinned_words(drawn: int, total: int) -> str:
    """The sentence beside a figure that does not draw every point; "" where it does."""
    if drawn == total:
        return ""
    return (
        f" Of {total} points {drawn} are drawn: a random sample of each kind, its first, last, "
        f"highest and lowest always among them, rare kinds more than their share; {ALL_OF_THEM}."
    )


def per_stretch(ended: pd.DataFrame, most: int) -> tuple[pd.DataFrame, float]:
    """What each host spent in equal stretches of time, where there are more than `most` starts.

    Args:
        ended: Rows of `starts_frame` that have ended.

    Returns:
        Columns host, started_at_s, stop_s, load_s, measure_s, one row for each host and stretch in
        which it did anything, the seconds of each kind that lie in the stretch; and the length of a
        stretch, s.  The rows as they are and 0 where there are few enough.
    """
    if len(ended) <= most:
        return ended, 0.0
    begun, until = float(ended["started_at_s"].min()), float(ended["ended_at_s"].max())
    stretches = max(2, min(_STRETCHES, most // ended["host"].nunique()))
    edges: FloatArray = np.linspace(begun, until, stretches + 1)
    rows = []
    for host, own in ended.groupby("host", sort=False):
        at = numbers(own["started_at_s"])
        spent = {}
        for part in PARTS:
            length = numbers(own[part].astype(float).fillna(0.0))
            spent[part] = _within(edges, at, length)
            at = at + length
        rows.append(pd.DataFrame({"host": host, "started_at_s": edges[:-1], **spent}))
    whole = pd.concat(rows, ignore_index=True)
    return whole[whole[list(PARTS)].sum(axis=1) > 0], float(edges[1] - edges[0])


def _within(edges: FloatArray, at: FloatArray, length: FloatArray) -> FloatArray:
    """Seconds of the intervals that lie between each edge and the next."""
    before = np.array([np.clip(edge - at, 0.0, length).sum() for edge in edges])
    return np.diff(before)
