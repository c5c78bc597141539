"""Each figure of the report with the words beside it and its numbers as a table.  Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from autotune.report import figures
from autotune.report.finals import coding_cell
from autotune.report.frames import parameter_names
from autotune.report.tables import Table, bounds, last_of, or_none, table, trials_table
from autotune.report.thinning import ALL_OF_THEM, Detail, thinned, thinned_words, value_kinds
from autotune.report.words import (
    count,
    gpu_time,
    listed,
    number,
    percent,
    plain,
    point,
)
from autotune.repository import Role, StoredStudy, StoredTrial

__all__ = [
    "Panel",
    "accept_panels",
    "finalists_panel",
    "heat_panels",
    "progress_panel",
    "slice_panels",
]

_LEAST_FOR_CORRELATION = 5


@dataclass(frozen=True, slots=True)
class Panel:
    """One figure.

    Attributes:
        key: Id in the page, a word of letters and dashes.
        words: What the figure shows, in sentences; also its text for those who do not see it.
    """

    key: str
    title: str
    words: str
    figure: go.Figure
    table: Table


_ACCEPT = ["trial", "context_tokens", "accept_length", "output_tok_per_s", "low", "high"]


def progress_panel(starts: pd.DataFrame, names: Sequence[str], detail: Detail) -> Panel | None:
    """Best so far; None where nothing has a score."""
    search = starts[(starts["role"] != Role.FINAL) & (starts["state"] != "running")]
    if not search["score_ratio"].notna().any():
        return None
    tried = search[~search["reference"].astype(bool)]
    complete = tried[(tried["state"] == "complete") & tried["score_ratio"].notna()]
    without = tried[tried["state"].isin(["failed", "infeasible", "pruned"])]
    words = [
        "Each point is one start: its score over the score of its host's last reference. The "
        "dashed line is the deployed configuration, bars are 95 % intervals."
    ]
    if len(complete):
        best = complete.iloc[int(complete["score_ratio"].astype(float).argmax())]
        words.append(
            f"The highest observed is trial {best['trial']} at {number(best['score_ratio'], 3)}, "
            f"known after {gpu_time(best['spent_gpu_hours'])}. The best of many noisy "
            "numbers overstates, so it is not the result: the final rounds are."
        )
    else:
        words.append("No trial beside the reference gave a score.")
    if len(without):
        states = without["state"].value_counts()
        words.append(
            "Without a full score: "
            + listed(f"{n} {state}" for state, n in states.items())
            + ", told apart by their shapes."
        )
    drawn = thinned(search, detail.points, value="score_ratio", by=["reference", "state"])
    return Panel(
        "progress",
        "Best so far over GPU time",
        " ".join(words) + thinned_words(len(drawn), len(search)),
        figures.progress_figure(search, drawn),
        trials_table(search, names, most=detail.rows),
    )


def heat_panels(buckets: pd.DataFrame, trial: StoredTrial | None) -> list[Panel]:
    """Throughput by bucket: the shown trial, the reference on the same hosts, their ratio."""
    valid = buckets[buckets["valid"].astype(bool)]
    reference = valid[valid["reference"].astype(bool)]
    panels: list[Panel] = []
    own = valid.iloc[:0]
    if trial is not None and not trial.reference:
        own = _settled(valid[valid["trial"] == trial.number])
        reference = reference[reference["host"].isin(own["host"].unique())]
    reference = _settled(reference)
    grids = {"best": _grid(own), "reference": _grid(reference)}
    name = f"Trial {trial.number}" if trial is not None else "Trial"
    if len(own) and len(reference):
        grids["ratio"] = grids["best"] / grids["reference"].reindex_like(grids["best"])
    for key, title in (
        ("best", name),
        ("reference", "Reference"),
        ("ratio", f"{name} over the reference"),
    ):
        grid = grids.get(key)
        if grid is None or grid.empty:
            continue
        ratio = key == "ratio"
        unit = "throughput ratio" if ratio else "output tok/s of all streams"
        cells = [
            (str(context), str(concurrency), float(value))
            for context, values in zip(grid.index, grid.to_numpy(dtype=float), strict=True)
            for concurrency, value in zip(grid.columns, values, strict=True)
        ]
        known = [cell for cell in cells if not math.isnan(cell[2])]
        shown = percent if ratio else number
        least = min(known, key=itemgetter(2))
        most = max(known, key=itemgetter(2))
        panels.append(
            Panel(
                f"heat-{key}",
                title,
                f"{unit[0].upper()}{unit[1:]}: from {shown(least[2])} at {least[0]} tokens "
                f"and concurrency {least[1]} to {shown(most[2])} at {most[0]} tokens and "
                f"concurrency {most[1]}.",
                figures.heat_figure(grid, ratio=ratio),
                table(
                    f"{title}: {unit}",
                    ("Context tokens", "Concurrency", "Ratio" if ratio else "tok/s"),
                    [(c, n, number(v, 3 if ratio else 1)) for c, n, v in cells],
                    *range(3),
                ),
            )
        )
    return panels


def _settled(buckets: pd.DataFrame) -> pd.DataFrame:
    """Those of the final rounds where there are any: they are the fresh ones."""
    final = buckets[buckets["role"] == Role.FINAL]
    return final if len(final) else buckets


def _grid(buckets: pd.DataFrame) -> pd.DataFrame:
    return buckets.pivot_table(
        index="context_tokens", columns="concurrency", values="output_tok_per_s", aggfunc="mean"
    )


def accept_panels(buckets: pd.DataFrame, detail: Detail) -> list[Panel]:
    """Accept length against throughput, one figure for each concurrency."""
    valid = buckets[buckets["valid"].astype(bool)]
    known = valid[valid["accept_length"].astype(float).notna()]
    panels = []
    for concurrency, group in known.groupby("concurrency"):
        low, high = float(group["accept_length"].min()), float(group["accept_length"].max())
        words = (
            f"{count(len(group), 'measurement')} at concurrency {concurrency}: accept length from "
            f"{number(low, 2)} to {number(high, 2)} tokens a verify step."
        )
        said = [
            f"{number(rank, 2)} at {context} tokens"
            for context, one in group.groupby("context_tokens")
            if (rank := _rank_correlation(one)) is not None
        ]
        if said:
            words += f" Rank correlation of accept length and throughput: {listed(said)}."
        drawn = thinned(group, detail.points, value="output_tok_per_s", by=["context_tokens"])
        rows, caption = last_of(
            group, detail.rows, f"Accept length and throughput at concurrency {concurrency}"
        )
        panels.append(
            Panel(
                f"accept-{concurrency}",
                f"Concurrency {concurrency}",
                words + thinned_words(len(drawn), len(group)),
                figures.accept_figure(drawn),
                table(
                    caption,
                    ("Trial", "Context tokens", "Accept length", "tok/s", "95 % interval"),
                    [
                        (
                            str(one["trial"]),
                            str(one["context_tokens"]),
                            number(one["accept_length"], 2),
                            number(one["output_tok_per_s"]),
                            bounds(one["low"], one["high"], 1),
                        )
                        for one in rows[_ACCEPT].to_dict("records")
                    ],
                    *range(5),
                ),
            )
        )
    return panels


def _rank_correlation(group: pd.DataFrame) -> float | None:
    """Spearman's; None for too few or equal values."""
    pair = group[["accept_length", "output_tok_per_s"]].astype(float)
    if len(pair) < _LEAST_FOR_CORRELATION or (pair.nunique() < 2).any():
        return None
    ranks = pair.rank()
    return float(ranks["accept_length"].corr(ranks["output_tok_per_s"]))


def slice_panels(study: StoredStudy, starts: pd.DataFrame, detail: Detail) -> list[Panel]:
    """Observed ratios over each parameter."""
    observed = starts[(starts["role"] != Role.FINAL) & starts["score_ratio"].notna()]
    panels: list[Panel] = []
    if not len(observed):
        return panels
    for position, name in enumerate(parameter_names(study)):
        parameter = study.definition["parameters"][name]
        values = [or_none(parameters.get(name)) for parameters in observed["parameters"]]
        levels = [plain(str(choice)) for choice in parameter.get("choices") or ()]
        seen = [str(value) for value in values]
        by_value = observed["score_ratio"].astype(float).groupby(seen, sort=False)
        ratios = by_value.agg(["size", "mean", "max"])
        best = ratios["max"].idxmax()
        tried = len(ratios)
        caption = f"Observed score ratios by {plain(name)}"
        if tried > detail.rows:
            ratios = ratios[ratios["max"].rank(ascending=False, method="first") <= detail.rows]
            caption += f": the best {detail.rows} of {tried} values; {ALL_OF_THEM}"
        order = levels or [str(v) for v in sorted({v for v in values if not isinstance(v, str)})]
        place = {value: position for position, value in enumerate(order)}
        rows = [
            (plain(str(value)), str(size), number(float(mean), 3), number(float(most), 3))
            for value, size, mean, most in sorted(
                ratios.itertuples(name=None), key=lambda row: place.get(row[0], len(place))
            )
        ]
        kinds = observed.assign(kind=value_kinds(values, levels))
        drawn = thinned(kinds, detail.points, value="score_ratio", by=["reference", "kind"])
        panels.append(
            Panel(
                f"slice-{position}",
                plain(name),
                f"{count(tried, 'value')} tried of {plain(name)}, deployed is "
                f"{plain(str(parameter.get('deployed')))}; the highest observed ratio, "
                f"{number(float(observed['score_ratio'].max()), 3)}, is at {plain(str(best))}. The "
                "other parameters vary too, so height at one value is not the effect of that value "
                "alone." + thinned_words(len(drawn), len(observed)),
                figures.slice_figure(drawn, name, parameter=parameter, levels=levels),
                table(
                    caption,
                    (plain(name), "Starts", "Mean ratio", "Highest ratio"),
                    rows,
                    1,
                    2,
                    3,
                ),
            )
        )
    return panels


def finalists_panel(study: StoredStudy, starts: pd.DataFrame) -> Panel | None:
    """The final rounds; None where they gave no interval."""
    judged: Any = (study.verdict or {}).get("finalists") or ()
    if not judged:
        return None
    better = sum(one["interval"]["low"] > 1 for one in judged)
    return Panel(
        "finalists",
        "Finalists against the deployed configuration",
        f"{count(len(judged), 'finalist')} and the reference were measured again in turns on fresh "
        f"starts; {better} of them {'is' if better == 1 else 'are'} better beyond the noise: the "
        "whole interval lies right of the dashed line. The intervals hold for all finalists "
        "together with 95 %. The coding answers of all rounds are judged together: who fails more "
        "of them than chance explains is refused, however fast it is.",
        figures.finalists_figure(judged, _rounds(starts)),
        table(
            "Finalists",
            (
                *("Trial", "Configuration", "Changes", "Repeats", "Ratio", "95 % interval"),
                "New coding failures",
            ),
            [
                (
                    str(one["trial"]),
                    point(one["parameters"]),
                    str(one["changes"]),
                    str(one["repeats"]),
                    number(one["ratio"], 3),
                    bounds(one["interval"]["low"], one["interval"]["high"], 3),
                    coding_cell(one),
                )
                for one in judged
            ],
            *(0, 2, 3, 4, 5),
        ),
    )


def _rounds(starts: pd.DataFrame) -> pd.DataFrame:
    """Columns trial, ratio: each final score over the reference's of the same host and round."""
    final = starts[(starts["role"] == Role.FINAL) & starts["score"].notna()]
    own = final[~final["reference"].astype(bool)][["trial", "host", "round", "score"]]
    base = final[final["reference"].astype(bool)][["host", "round", "score"]]
    pairs = own.merge(base, on=["host", "round"], suffixes=("", "_reference"))
    pairs["ratio"] = pairs["score"].astype(float) / pairs["score_reference"].astype(float)
    return pairs[["trial", "ratio"]]
