"""The report: one HTML file that opens offline.

Nothing is loaded from outside, and the page's own policy forbids it: scripts are known by their
hashes, so that a log line which slipped through the escaping would still not run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from autotune.bulk import bulk
from autotune.errors import ConfigError
from autotune.report import host_panels, panels, story, words
from autotune.report.caveats import caveats
from autotune.report.frames import (
    buckets_frame,
    coding_frame,
    parameter_names,
    proof_frame,
    starts_frame,
)
from autotune.report.method import Method, describe
from autotune.report.panels import Panel
from autotune.report.proofs import ProofShown, shown_proof
from autotune.report.tables import coding_table, trials_table
from autotune.report.thinning import Detail
from autotune.repository import StoredStudy

__all__ = ["MOST_BYTES", "render", "write_report"]

MOST_BYTES = 6_000_000
"""Of one page, five sixths of them plotly's: what is mailed, and opened on a phone."""
_HALVINGS = 6


def write_report(stored: StoredStudy, path: Path) -> None:
    """Write the report of a stored study; an older file stays until the new one is whole.

    Raises:
        ConfigError: The file cannot be written there.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(render(stored), encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ConfigError(
            f"the report cannot be written to {path}: {error.strerror or error}",
            hint="name another file with --output",
        ) from error


@bulk()
def render(stored: StoredStudy) -> str:
    """The whole page; the same study gives the same text.

    A page that would be larger than `MOST_BYTES` shows half as much, as often as it takes.
    """
    detail = Detail()
    page = _rendered(stored, detail)
    for _ in range(_HALVINGS):
        if len(page.encode()) < MOST_BYTES:
            break
        detail = detail.halved()
        page = _rendered(stored, detail)
    return page


def _rendered(stored: StoredStudy, detail: Detail) -> str:
    starts = starts_frame(stored)
    buckets = buckets_frame(stored)
    names = parameter_names(stored)
    trial = story.shown_trial(stored)
    sections: dict[str, Any] = {
        "progress": panels.progress_panel(starts, names, detail),
        "heat": panels.heat_panels(buckets, trial),
        "accept": panels.accept_panels(buckets, detail),
        "slices": panels.slice_panels(stored, starts, detail),
        "finalists": panels.finalists_panel(stored, starts),
        "timeline": host_panels.timeline_panel(starts, detail),
        "drift": host_panels.drift_panel(starts, detail),
    }
    proof: ProofShown | None = shown_proof(trial, proof_frame(stored))
    method: Method = describe(stored)
    scripts = {
        "plotly": _inline(get_plotlyjs()) if any(sections.values()) else "",
        "report": _inline(_asset("report.js")),
    }
    return _environment().get_template("report.html.j2").render(
        study=stored,
        name=words.plain(stored.name),
        created=words.clock(stored.created_at_s),
        headline=story.headline(stored),
        configuration=story.configuration(stored),
        brief=story.brief(stored),
        failures=story.failure_classes(stored, log_chars=detail.log_chars),
        caveats=caveats(stored),
        trials=trials_table(starts, names, most=4 * detail.rows) if len(starts) else None,
        coding=coding_table(coding_frame(stored), detail),
        coding_words=story.coding_words(stored),
        proof=proof,
        method=method,
        policy=_policy(scripts.values()),
        scripts={key: Markup(text) for key, text in scripts.items()},
        style=Markup(_asset("style.css")),
        figures=_figures(_flat(sections)),
        **sections,
    )  # fmt: skip


def _figures(panels: Iterable[Panel]) -> Markup:
    """One JSON object of all figures as it may stand in a page; plotly's own text is not read."""
    whole = ", ".join(f"{json.dumps(p.key)}: {p.figure.to_json()}" for p in panels)
    for sign in "<>&'":
        whole = whole.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(f"{{{whole}}}")


def _flat(sections: dict[str, Any]) -> Iterable[Panel]:
    for value in sections.values():
        if isinstance(value, Panel):
            yield value
        elif value:
            yield from value


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("autotune.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["clock"] = words.clock
    return environment


def _asset(name: str) -> str:
    return (files("autotune.report") / "assets" / name).read_text(encoding="utf-8")


def _inline(script: str) -> str:
    """A script as it may stand in a page: nothing in it ends its element."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _policy(scripts: Iterable[str]) -> str:
    """Content security policy: no request at all, only our own scripts."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
        if script
    )
    # plotly writes style attributes and makes images of canvases
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
