"""What is made from the models: JSON schemas of files and of `--json`, the page about our tables.

`python -m autotune.schemas` writes them; a test checks that the committed ones are current.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from autotune.definition_files import StudyFile
from autotune.json_outputs import SHAPES
from autotune.objective_file import ObjectiveFile
from autotune.records import Base

__all__ = ["SCHEMAS", "output_schema_text", "schema_text", "tables_text", "write_schemas"]

TABLES_HEAD = """\
# Tables

Made from `autotune/records.py` by `python -m autotune.schemas`. They live beside Optuna's tables in
one database; `autotune_alembic_version` is the version table of the migrations in `migrations/`.
Columns that end in `_at_s` are Unix seconds, those that end in `_s` are seconds.
"""

SCHEMAS: dict[str, type[BaseModel]] = {"search_spaces": StudyFile, "objectives": ObjectiveFile}


def schema_text(folder: str) -> str:
    """The schema of the files of a folder, as it is committed."""
    return json.dumps(SCHEMAS[folder].model_json_schema(), indent=2) + "\n"


def output_schema_text(name: str) -> str:
    """The schema of what a command prints with `--json`, as it is committed."""
    return json.dumps(SHAPES[name].model_json_schema(), indent=2) + "\n"


def tables_text() -> str:
    """`storage/schema.md`: every table with its columns."""
    lines = [TABLES_HEAD]
    for table in Base.metadata.sorted_tables:
        lines += [f"## {table.name}", "", "| column | type | |", "|---|---|---|"]
        for column in table.columns:
            notes = ["primary key"] if column.primary_key else []
            notes += [
                f"-> {key.column.table.name}.{key.column.name}" for key in column.foreign_keys
            ]
            notes += ["may be null"] if column.nullable else []
            lines.append(f"| {column.name} | {column.type} | {', '.join(notes)} |")
        lines.append("")
    return "\n".join(lines)


def write_schemas(root: Path) -> None:
    """Write every schema and the page about our tables below `root`."""
    for folder in SCHEMAS:
        (root / folder / "schema.json").write_text(schema_text(folder), encoding="utf-8")
    (root / "docs" / "schemas").mkdir(exist_ok=True)
    for name in SHAPES:
        path = root / "docs" / "schemas" / f"{name}.json"
        path.write_text(output_schema_text(name), encoding="utf-8")
    (root / "storage" / "schema.md").write_text(tables_text(), encoding="utf-8")


if __name__ == "__main__":
    write_schemas(Path(__file__).resolve().parent.parent)
