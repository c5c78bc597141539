"""JSON schemas of the definition files, made from the models.

`python -m autotune.schemas` writes them; a test checks that the committed ones are current.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from autotune.definition_files import ObjectiveFile, StudyFile

__all__ = ["SCHEMAS", "schema_text", "write_schemas"]

SCHEMAS: dict[str, type[BaseModel]] = {"search_spaces": StudyFile, "objectives": ObjectiveFile}


def schema_text(folder: str) -> str:
    """The schema of the files of a folder, as it is committed."""
    return json.dumps(SCHEMAS[folder].model_json_schema(), indent=2) + "\n"


def write_schemas(root: Path) -> None:
    """Write `schema.json` into both folders below `root`."""
    for folder in SCHEMAS:
        (root / folder / "schema.json").write_text(schema_text(folder), encoding="utf-8")


if __name__ == "__main__":
    write_schemas(Path(__file__).resolve().parent.parent)
