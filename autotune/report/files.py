"""Every table of the report as a file, with all digits: CSV for sheets, Parquet with types.

The tables of the page are these, rounded; its grids, slices and timelines are groups of their rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from autotune.errors import ConfigError
from autotune.report.formats import TableFormat
from autotune.report.frames import (
    buckets_frame,
    coding_frame,
    failures_frame,
    finalists_frame,
    parameter_names,
    proof_frame,
    settings_frame,
    starts_frame,
)
from autotune.stored import StoredStudy

__all__ = ["study_tables", "write_tables"]


def study_tables(study: StoredStudy) -> Mapping[str, pd.DataFrame]:
    """The tables by name; parameters and outcomes are columns of their own, times Unix seconds.

    A parameter that a trial leaves out is empty.
    """
    names = parameter_names(study)
    coding = coding_frame(study)
    outcomes = sorted({outcome for counts in coding["outcomes"] for outcome in counts})
    tables = {
        "starts": _spread(starts_frame(study), "parameters", names),
        "buckets": buckets_frame(study),
        "proof": proof_frame(study),
        "coding": _spread(coding, "outcomes", outcomes, absent=0),
        "failures": failures_frame(study),
        "finalists": _spread(finalists_frame(study), "parameters", names),
        "settings": settings_frame(study),
    }
    return {name: _typed(frame) for name, frame in tables.items()}


def write_tables(study: StoredStudy, folder: Path, form: TableFormat) -> list[Path]:
    """Write one file for each table; an older one stays until the new one is whole.

    Raises:
        ConfigError: A file cannot be written there.
    """
    write: Callable[[pd.DataFrame, Path], None] = _csv if form is TableFormat.CSV else _parquet
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, frame in study_tables(study).items():
            path = folder / f"{name}.{form}"
            part = path.with_name(f".{path.name}.part")
            try:
                write(frame, part)
                os.replace(part, path)
            finally:
                part.unlink(missing_ok=True)
            written.append(path)
    except OSError as error:
        raise ConfigError(
            f"the tables cannot be written to {folder}: {error.strerror or error}",
            hint="name another folder with --tables",
        ) from error
    return written


def _spread(
    frame: pd.DataFrame, column: str, keys: Sequence[str], *, absent: Any = None
) -> pd.DataFrame:
    """A column of mappings as one column for each key, in its place."""
    spread = frame.drop(columns=column)
    at = list(frame.columns).index(column)
    for offset, key in enumerate(keys):
        values = pd.Series([one.get(key, absent) for one in frame[column]], dtype=object)
        spread.insert(at + offset, f"{column.removesuffix('s')}_{key}", values)
    return spread


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """One type a column, empty where there is no value; values of several kinds become text."""
    typed = frame.copy()
    for name in typed.columns:
        if not pd.api.types.is_object_dtype(typed[name]):
            continue
        kinds = {type(value) for value in typed[name].dropna()}
        whole = _KINDS.get(frozenset(kinds))
        if whole is None:
            typed[name] = typed[name].map(str, na_action="ignore")
        typed[name] = typed[name].astype(whole or "string")
    return typed


_KINDS: Mapping[frozenset[type], Any] = {
    frozenset({bool}): "boolean",
    frozenset({int}): "Int64",
    frozenset({float}): "Float64",
    frozenset({int, float}): "Float64",
}


def _csv(frame: pd.DataFrame, path: Path) -> None:
    frame.to_csv(path, index=False)


def _parquet(frame: pd.DataFrame, path: Path) -> None:
    frame.to_parquet(path, index=False)
