"""The figures about hosts: what they did when, and how steady the reference was.  Pure."""

from __future__ import annotations

import pandas as pd

from autotune.report import figures
from autotune.report.panels import Panel
from autotune.report.tables import last_of, table
from autotune.report.thinning import ALL_OF_THEM, Detail, per_stretch, thinned, thinned_words
from autotune.report.words import clock, count, duration, number, percent, plain

__all__ = ["drift_panel", "timeline_panel"]

_TIMES = ["host", "trial", "role", "started_at_s", "stop_s", "load_s", "measure_s", "state"]


def timeline_panel(starts: pd.DataFrame, detail: Detail) -> Panel | None:
    """What each host did when."""
    ended = starts[starts["ended_at_s"].notna()].sort_values("started_at_s")
    if not len(ended):
        return None
    spent = {c: float(ended[c].astype(float).sum()) for c in ("stop_s", "load_s", "measure_s")}
    total = sum(spent.values()) or 1.0
    bars, stretch_s = per_stretch(ended, detail.points)
    if stretch_s:
        names = [f"stretch of {duration(stretch_s)}"] * len(bars)
        gaps = (
            f"A bar is no single start: for {len(ended)} starts it sums what a host did in each "
            f"stretch of {duration(stretch_s)}, in the order stop, load, measure, and the rest of "
            f"a stretch is idle time; {ALL_OF_THEM}."
        )
    else:
        names = [f"trial {trial}" for trial in bars["trial"]]
        gaps = "Gaps are idle time."
    rows, caption = last_of(ended, detail.rows, "Starts by time (UTC)")
    return Panel(
        "timeline",
        "What the hosts did",
        f"Over {count(ended['host'].nunique(), 'host')}, {100 * spent['measure_s'] / total:.0f} % "
        f"of the busy time was measurement ({duration(spent['measure_s'])}), "
        f"{100 * spent['load_s'] / total:.0f} % loading ({duration(spent['load_s'])}) and "
        f"{100 * spent['stop_s'] / total:.0f} % stopping ({duration(spent['stop_s'])}). {gaps}",
        figures.timeline_figure(
            bars,
            names,
            origin_s=float(ended["started_at_s"].min()),
            until_s=float(ended["ended_at_s"].astype(float).max()),
        ),
        table(
            caption,
            ("Host", "Trial", "Start for", "Begun", "Stop", "Load", "Measure", "State"),
            [
                (
                    plain(str(one["host"])),
                    str(one["trial"]),
                    str(one["role"]),
                    clock(one["started_at_s"]),
                    duration(one["stop_s"]),
                    duration(one["load_s"]),
                    duration(one["measure_s"]),
                    str(one["state"]),
                )
                for one in rows[_TIMES].to_dict("records")
            ],
            *(1, 4, 5, 6),
        ),
    )


def drift_panel(starts: pd.DataFrame, detail: Detail) -> Panel | None:
    """How steady the reference was on each host; None with fewer than two on every host."""
    references = starts[starts["reference"].astype(bool) & starts["score"].notna()]
    if not len(references) or references.groupby("host").size().max() < 2:
        return None
    origin = float(starts["started_at_s"].min())
    ordered = references.sort_values(["host", "started_at_s"])
    first = ordered.groupby("host")["score"].transform("first").astype(float)
    ratio = ordered["score"].astype(float) / first
    ordered = ordered.assign(moved=ratio)
    drawn = thinned(ordered, detail.points, value="moved", by=["host"])
    rows, caption = last_of(ordered, detail.rows, "Reference scores by host (UTC)")
    furthest = float(ratio.iloc[int((ratio - 1).abs().argmax())])
    return Panel(
        "drift",
        "Drift of the reference",
        f"The deployed configuration was measured {len(ordered)} times. Its score moved at most "
        f"{percent(furthest)} from the first one on the same host; ratios use the host's last "
        "reference, which takes slow drift out." + thinned_words(len(drawn), len(ordered)),
        figures.drift_figure(drawn, origin_s=origin),
        table(
            caption,
            ("Host", "Begun", "Score", "Over its first"),
            [
                (
                    plain(str(one["host"])),
                    clock(one["started_at_s"]),
                    number(one["score"]),
                    number(one["moved"], 3),
                )
                for one in rows.to_dict("records")
            ],
            2,
            3,
        ),
    )
