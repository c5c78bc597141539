"""Kinds of files that a table of the report can be."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["TableFormat"]


class TableFormat(StrEnum):
    """For `report --tables-format`."""

    CSV = "csv"
    PARQUET = "parquet"
