"""Kinds of files that a table of the report can be."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["TableFormat"]


class TableFormat(StrEnum):
    CSV = "csv"
    PARQUET = "parquet"
