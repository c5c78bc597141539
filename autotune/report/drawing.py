"""What all figures share: style, error bars, series, foreign text.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from autotune.parameter import FloatArray
from autotune.report.words import plain

__all__ = ["SERIES", "bars", "numbers", "styled", "text", "words"]

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


def numbers(values: pd.Series[Any]) -> FloatArray:
    """Numbers of a series for plotly, which looks at every item of a list and at none of these."""
    return values.to_numpy(dtype=float)


def words(values: Iterable[str]) -> NDArray[np.str_]:
    """Texts for plotly, as `numbers`."""
    return np.array(list(values), dtype=np.str_)


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
        "array": numbers(high - middle),
        "arrayminus": numbers(middle - low),
        "thickness": 1.2,
        "width": 3,
    }
