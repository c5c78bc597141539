"""Frames -> plotly figures.  Pure.

Colours are names of the page's CSS variables, `var(--accent)`: the page replaces them when it
draws, so one figure serves light, dark and paper.  Foreign text goes through `text`: plotly reads
tags.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from autotune.report.drawing import SERIES, bars, numbers, styled, text, words
from autotune.report.words import gpu_unit, number, percent, point

__all__ = [
    "accept_figure",
    "drift_figure",
    "finalists_figure",
    "heat_figure",
    "progress_figure",
    "slice_figure",
    "time_unit",
    "timeline_figure",
]

_HOURS_FROM_S = 2 * 3600.0
_UNSCORED = {
    "pruned": ("diamond-open", "var(--ink-2)"),
    "failed": ("triangle-down", "var(--bad)"),
    "infeasible": ("x", "var(--bad)"),
}


def time_unit(span_s: float) -> tuple[float, str]:
    """Seconds of the unit in which a span of time is drawn, and its name."""
    return (3600.0, "hours") if span_s >= 2 * 3600 else (60.0, "minutes")


def progress_figure(starts: pd.DataFrame, drawn: pd.DataFrame) -> go.Figure:
    """Observed score ratios over GPU-hours, the best so far as a step line, what gave none below.

    Args:
        starts: `starts_frame`, without final rounds.
        drawn: Those of them that get a point; the line knows all.
    """
    unit, unit_name = gpu_unit(float(starts["spent_gpu_hours"].max()))
    best = _rises(starts)
    drawn = drawn.assign(spent=drawn["spent_gpu_hours"] / unit)
    unscored = drawn[drawn["score_ratio"].isna() & drawn["state"].isin(list(_UNSCORED))]
    rows = 2 if len(unscored) else 1
    figure = make_subplots(
        rows=rows,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.06,
        row_heights=[0.76, 0.24] if rows == 2 else None,
    )
    scored = drawn[drawn["score_ratio"].notna()]
    search = scored[~scored["reference"].astype(bool)]
    complete = search[search["state"] == "complete"]
    if len(best):
        figure.add_trace(
            go.Scatter(
                x=numbers(best["spent_gpu_hours"] / unit),
                y=numbers(best["score_ratio"]),
                mode="lines",
                line={"shape": "hv", "color": "var(--accent)", "width": 2},
                name="best observed so far",
                hoverinfo="skip",
            ),
            row=1,
            col=1,
        )
    groups: tuple[tuple[str, pd.DataFrame, str, str], ...] = (
        ("complete", complete, "circle", "var(--accent)"),
        ("reference", scored[scored["reference"].astype(bool)], "square", "var(--ink)"),
        ("infeasible", search[search["state"] == "infeasible"], *_UNSCORED["infeasible"]),
        ("pruned", search[search["state"] == "pruned"], *_UNSCORED["pruned"]),
    )
    for name, group, symbol, colour in groups:
        if len(group):
            figure.add_trace(_observed(name, group, symbol, colour, unit_name), row=1, col=1)
    for state, (symbol, colour) in _UNSCORED.items():
        group = unscored[unscored["state"] == state]
        if len(group):
            figure.add_trace(
                go.Scatter(
                    x=numbers(group["spent"]),
                    y=[state] * len(group),
                    mode="markers",
                    marker={"symbol": symbol, "size": 10, "color": colour},
                    name=f"{state}, no score",
                    text=[
                        f"trial {t}: {text(p)}"
                        for t, p in zip(
                            group["trial"], map(point, group["parameters"]), strict=True
                        )
                    ],
                    hovertemplate="%{text}<br>after %{x:.2f} " + unit_name + "<extra></extra>",
                ),
                row=2,
                col=1,
            )
    dashes = {"color": "var(--ink)", "width": 1, "dash": "dash"}
    # Plotly's own annotation says str where its text says int.
    figure.add_hline(y=1, line=dashes, row=1, col=1)  # pyright: ignore[reportArgumentType]
    styled(figure, height=420 if rows == 2 else 360)
    figure.update_yaxes(title_text="score / reference", tickformat=".2f", row=1, col=1)
    figure.update_xaxes(title_text=f"{unit_name} spent", row=rows, col=1, rangemode="tozero")
    if rows == 2:
        figure.update_yaxes(type="category", row=2, col=1)
    return figure


def _rises(starts: pd.DataFrame) -> pd.DataFrame:
    """Where the best so far rose, and the last complete start: the corners of its line."""
    complete = starts[
        (starts["state"] == "complete")
        & starts["score_ratio"].notna()
        & ~starts["reference"].astype(bool)
    ].sort_values("spent_gpu_hours")
    best = complete["score_ratio"].astype(float).cummax()
    corners = best.diff().ne(0)
    corners.iloc[-1:] = True
    return complete.assign(score_ratio=best)[corners]


def _observed(
    name: str, group: pd.DataFrame, symbol: str, colour: str, unit_name: str
) -> go.Scatter:
    return go.Scatter(
        x=numbers(group["spent"]),
        y=numbers(group["score_ratio"]),
        error_y={**bars(group["ratio_low"], group["score_ratio"], group["ratio_high"]),
                 "color": colour},
        mode="markers",
        marker={"symbol": symbol, "size": 9, "color": colour},
        name=name,
        text=_hover(group),
        hovertemplate="%{text}<br>%{y:.3f} after %{x:.2f} " + unit_name + "<extra></extra>",
    )  # fmt: skip


def _hover(group: pd.DataFrame) -> NDArray[np.str_]:
    return words(
        f"trial {trial}: {text(point(parameters))}"
        for trial, parameters in zip(group["trial"], group["parameters"], strict=True)
    )


def heat_figure(values: pd.DataFrame, *, ratio: bool) -> go.Figure:
    """One bucket heat map.

    Args:
        values: Index context tokens, columns concurrency; tok/s, or ratios when `ratio`.
    """
    z = [[float(v) for v in row] for row in values.to_numpy()]
    shown = [[(percent(v) if ratio else number(v, 0)) for v in row] for row in z]
    finite = [v for row in z for v in row if math.isfinite(v)]
    far = max((abs(v - 1) for v in finite), default=0.0) or 0.05
    scale: dict[str, Any] = (
        {
            "colorscale": [[0, "var(--bad-soft)"], [0.5, "var(--page)"], [1, "var(--good-soft)"]],
            "zmin": 1 - far,
            "zmax": 1 + far,
        }
        if ratio
        else {"colorscale": [[0, "var(--page)"], [1, "var(--good-soft)"]]}
    )
    figure = go.Figure(
        go.Heatmap(
            z=[[v if math.isfinite(v) else None for v in row] for row in z],
            x=[str(c) for c in values.columns],
            y=[str(c) for c in values.index],
            text=shown,
            texttemplate="%{text}",
            textfont={"color": "var(--ink)", "size": 13},
            showscale=False,
            xgap=2,
            ygap=2,
            hovertemplate="context %{y}, concurrency %{x}: %{text}<extra></extra>",
            **scale,
        )
    )
    styled(figure, height=110 + 44 * max(1, len(values.index)), legend=False)
    figure.update_xaxes(type="category", title_text="concurrency", showgrid=False)
    figure.update_yaxes(
        type="category", title_text="context tokens", showgrid=False, autorange="reversed"
    )
    return figure


def accept_figure(buckets: pd.DataFrame) -> go.Figure:
    """Accept length against output throughput of the buckets of one concurrency."""
    figure = go.Figure()
    for position, (context, group) in enumerate(buckets.groupby("context_tokens")):
        symbol, colour = SERIES[position % len(SERIES)]
        figure.add_trace(
            go.Scatter(
                x=numbers(group["accept_length"]),
                y=numbers(group["output_tok_per_s"]),
                mode="markers",
                marker={"symbol": symbol, "size": 8, "color": colour},
                name=f"{context} tokens",
                text=words(f"trial {trial}" for trial in group["trial"]),
                hovertemplate="%{text}: accept length %{x:.2f}, %{y:.0f} tok/s<extra></extra>",
            )
        )
    styled(figure, height=300)
    figure.update_xaxes(title_text="accept length, tokens")
    figure.update_yaxes(title_text="output tok/s", rangemode="tozero")
    return figure


def slice_figure(
    starts: pd.DataFrame, name: str, *, parameter: Mapping[str, Any], levels: Sequence[str]
) -> go.Figure:
    """Observed score ratios over one parameter; the deployed value is marked.

    Args:
        levels: Values of a categorical in their order; empty for a number.
    """
    figure = go.Figure()
    for label, group, symbol, colour in (
        ("trials", starts[~starts["reference"].astype(bool)], "circle", "var(--accent)"),
        ("reference", starts[starts["reference"].astype(bool)], "square", "var(--ink)"),
    ):
        if not len(group):
            continue
        values = [parameters.get(name) for parameters in group["parameters"]]
        values = [text(v) if isinstance(v, str) else v for v in values]
        figure.add_trace(
            go.Scatter(
                x=words("none" if v is None else str(v) for v in values)
                if levels
                else np.array(values),
                y=numbers(group["score_ratio"]),
                error_y={**bars(group["ratio_low"], group["score_ratio"], group["ratio_high"]),
                         "color": colour},
                mode="markers",
                marker={"symbol": symbol, "size": 8, "color": colour},
                name=label,
                text=_hover(group),
                hovertemplate="%{text}<br>%{y:.3f}<extra></extra>",
            )
        )  # fmt: skip
    figure.add_hline(y=1, line={"color": "var(--ink)", "width": 1, "dash": "dash"})
    styled(figure, height=300)
    figure.update_yaxes(title_text="score / reference", tickformat=".2f")
    figure.update_xaxes(title_text=text(name))
    if levels:
        figure.update_xaxes(
            type="category", categoryorder="array", categoryarray=[*map(text, levels)]
        )
    elif parameter.get("log"):
        ticks = _doublings(float(parameter["low"]), float(parameter["high"]))
        figure.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    return figure


def _doublings(low: float, high: float) -> list[float]:
    """Round ticks of a log axis: the range halved or doubled, at most nine."""
    steps = max(1, math.ceil(math.log2(high / low) / 8)) if high > low else 1
    ticks, tick = [], low
    while tick <= high * (1 + 1e-9):
        ticks.append(tick)
        tick *= 2**steps
    return ticks


def finalists_figure(finalists: Sequence[Mapping[str, Any]], rounds: pd.DataFrame) -> go.Figure:
    """Each finalist's ratio to the reference with its interval, and each round as a small ring.

    Args:
        rounds: Columns trial, ratio: score over the reference's of the same host and round.
    """
    figure = go.Figure()
    names = {one["trial"]: f"trial {one['trial']}" for one in finalists}
    known = rounds[rounds["trial"].isin(list(names))]
    if len(known):
        figure.add_trace(
            go.Scatter(
                x=known["ratio"].tolist(),
                y=[names[trial] for trial in known["trial"]],
                mode="markers",
                marker={"symbol": "circle-open", "size": 8, "color": "var(--ink-2)"},
                name="one round",
                hovertemplate="one round: %{x:.3f}<extra></extra>",
            )
        )
    ratios = pd.Series([float(one["ratio"]) for one in finalists])
    low = pd.Series([float(one["interval"]["low"]) for one in finalists])
    high = pd.Series([float(one["interval"]["high"]) for one in finalists])
    figure.add_trace(
        go.Scatter(
            x=ratios.tolist(),
            y=list(names.values()),
            error_x={**bars(low, ratios, high), "color": "var(--accent)", "thickness": 2,
                     "width": 7},
            mode="markers",
            marker={"symbol": "diamond", "size": 11, "color": "var(--accent)"},
            name="mean with 95 % interval",
            hovertemplate="%{y}: %{x:.3f}<extra></extra>",
        )
    )  # fmt: skip
    figure.add_vline(x=1, line={"color": "var(--ink)", "width": 1, "dash": "dash"})
    styled(figure, height=150 + 48 * len(names))
    figure.update_xaxes(title_text="score / reference", tickformat=".2f")
    ends = (*low, *high, *known["ratio"], 1.0)
    margin = (max(ends) - min(ends)) * 0.05 or 0.01
    figure.update_xaxes(range=[min(ends) - margin, max(ends) + margin])
    figure.update_yaxes(type="category", range=[len(names) - 0.4, -0.6])
    return figure


def timeline_figure(
    starts: pd.DataFrame, names: Sequence[str], *, origin_s: float, until_s: float
) -> go.Figure:
    """Stop, load and measurement of each start, one line a host, time since `origin_s`.

    Args:
        starts: Starts, or what was spent in stretches of time (`per_stretch`).
        names: What each row is.
    """
    figure = go.Figure()
    unit_s, unit = time_unit(until_s - origin_s)
    begun = (starts["started_at_s"].astype(float) - origin_s) / unit_s
    for name, column, colour, shape in (
        ("stop", "stop_s", "var(--ink-2)", ""),
        ("load", "load_s", "var(--load)", "/"),
        ("measure", "measure_s", "var(--accent)", ""),
    ):
        length = starts[column].astype(float).fillna(0.0) / unit_s
        figure.add_trace(
            go.Bar(
                orientation="h",
                y=words(map(text, starts["host"])),
                x=numbers(length),
                base=numbers(begun),
                name=name,
                width=0.5,
                marker={
                    "color": colour,
                    "line": {"color": "var(--page)", "width": 0.5},
                    "pattern": {"shape": shape, "fillmode": "overlay", "fgcolor": "var(--page)",
                                "solidity": 0.2, "size": 6},
                },
                text=words(names),
                textposition="none",
                customdata=numbers(length * unit_s / 60),
                hovertemplate="%{text}, " + name + ": %{customdata:.1f} min<extra></extra>",
            )
        )  # fmt: skip
        begun = begun + length
    styled(figure, height=130 + 44 * starts["host"].nunique())
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(title_text=f"{unit} since the first start")
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return figure


def drift_figure(references: pd.DataFrame, *, origin_s: float) -> go.Figure:
    """Each host's reference score over time, as the ratio to its first in column `moved`."""
    figure = go.Figure()
    span_s = float(references["started_at_s"].astype(float).max()) - origin_s
    unit_s, unit = time_unit(span_s)
    for position, (host, group) in enumerate(references.groupby("host", sort=True)):
        symbol, colour = SERIES[position % len(SERIES)]
        ordered = group.sort_values("started_at_s")
        figure.add_trace(
            go.Scatter(
                x=numbers((ordered["started_at_s"].astype(float) - origin_s) / unit_s),
                y=numbers(ordered["moved"]),
                mode="lines+markers",
                line={"color": colour, "width": 1.5},
                marker={"symbol": symbol, "size": 8, "color": colour},
                name=text(host),
                hovertemplate="%{y:.3f} after %{x:.2f} " + unit + "<extra></extra>",
            )
        )
    figure.add_hline(y=1, line={"color": "var(--ink)", "width": 1, "dash": "dash"})
    styled(figure, height=280)
    figure.update_xaxes(title_text=f"{unit} since the first start")
    figure.update_yaxes(title_text="reference / its first", tickformat=".3f")
    return figure
