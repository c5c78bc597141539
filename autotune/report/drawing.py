"""What all figures share: style, error bars, series, foreign text.  Pure."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from autotune.report.words import plain

__all__ = ["SERIES", "bars", "styled", "text"]

SERIES = (
    ("circle", "var(--series-1)"),
    ("square", "var(--series-2)"),
    ("diamond", "var(--series-3)"),
    ("triangle-up", "var(--series-4)"),
    ("cross", "var(--series-1)"),
    ("star", "var(--series-2)"),
)


def text(foreign: object) -> str:
    """Foreign text for plotly, which reads tags and entities."""
    return plain(str(foreign)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def styled(figure: go.Figure, *, height: int, legend: bool = True) -> go.Figure:
    """Set fonts, axes and colours, and take every gesture away: a page scrolls over its figures."""
    figure.update_layout(
        template=go.layout.Template(),
        height=height,
        margin={"l": 8, "r": 12, "t": 12 if not legend else 40, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13, "color": "var(--ink-2)"},
        showlegend=legend,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "itemclick": False,
                "itemdoubleclick": False},
        hoverlabel={
            "bgcolor": "var(--raised)",
            "bordercolor": "var(--line)",
            "font": {"color": "var(--ink)"},
        },
        dragmode=False,
    )  # fmt: skip
    axis = {
        "gridcolor": "var(--grid)",
        "linecolor": "var(--line)",
        "zeroline": False,
        "automargin": True,
        "fixedrange": True,
        "title_font": {"size": 13},
        "title_standoff": 8,
    }
    figure.update_xaxes(showline=True, ticks="outside", tickcolor="var(--line)", **axis)
    figure.update_yaxes(**axis)
    return figure


def bars(low: pd.Series[float], middle: pd.Series[float], high: pd.Series[float]) -> dict[str, Any]:
    """Error bars from the ends of intervals."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [float(v) for v in high - middle],
        "arrayminus": [float(v) for v in middle - low],
        "thickness": 1.2,
        "width": 3,
    }
