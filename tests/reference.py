"""`python -m tests.reference` prints docs/reference.md: commands and keys, from the code."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from autotune.definition_files import StudyFile
from autotune.json_outputs import OUTPUTS
from autotune.objective_file import ObjectiveFile
from autotune.sections import Section
from tests.command_line import command_tree

__all__ = ["page"]

HEAD = """\
# Reference

Every command with its options, and every key of the definition files: made from the code by
`python -m tests.reference > docs/reference.md`, and a test keeps it current. `autotune COMMAND
--help` says the same in the terminal. Exit codes: 0 done, 1 a host, storage, port or study failed,
2 your file or arguments (nothing was contacted), 130 interrupted after the restore.
"""
KINDS = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
}
PYTHON_KINDS: Mapping[Any, str] = {
    str: "text",
    list[str]: "text",
    int: "whole number",
    float: "number",
    Path: "path",
}
BOUNDS = {
    "minimum": ">= {}",
    "exclusiveMinimum": "> {}",
    "maximum": "<= {}",
    "exclusiveMaximum": "< {}",
}


def page() -> str:
    """docs/reference.md."""
    lines = [HEAD, "## Commands", ""]
    for name, command in sorted(command_tree().items()):
        lines += [*_command(name, command), ""]
    lines += [
        "## Search spaces",
        "",
        "A file in `search_spaces/`, [TOML](https://toml.io), named by `--study`. Unknown keys are",
        "errors; editors read [search_spaces/schema.json](../search_spaces/schema.json).",
        "",
        *_tables(StudyFile),
        "## Objectives",
        "",
        "A file in `objectives/`, named by `objective` of a study;",
        "editors read [objectives/schema.json](../objectives/schema.json).",
        "",
        *_tables(ObjectiveFile),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    yield f"### `autotune {name}`"
    yield ""
    for paragraph in inspect.cleandoc(command.help).split("\n\n"):
        if example := re.fullmatch("Example: (.*)", paragraph):
            yield f"    {example[1]}"
        else:
            yield paragraph
        yield ""
    shown = [one for one in command.params if one.name != "help"]
    yield "| option | value | default | |"
    yield "|---|---|---|---|"
    for one in shown:
        yield f"| {_names(one)} | {_value(one)} | {_default(one)} | {_cell(one.help)} |"
    if printed := OUTPUTS.get(name):
        links = ", ".join(f"[{shape}](schemas/{shape}.json)" for shape in printed)
        yield ""
        yield f"JSON: {links}."


def _names(option: Any) -> str:
    if option.param_type_name == "argument":
        return f"`{option.name.upper()}`"
    return ", ".join(f"`{name}`" for name in option.opts)


def _value(option: Any) -> str:
    kind = option.type_descriptor.annotation
    if kind is bool:
        return ""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{one.value}`" for one in kind)
    limits = [f"{sign} {bound:g}" for sign, bound in ((">=", option.min), ("<=", option.max))
              if bound is not None]  # fmt: skip
    words = " ".join([PYTHON_KINDS[kind], *limits])
    return f"{words}, repeatable" if option.multiple else words


def _default(option: Any) -> str:
    if option.required:
        return "required"
    value = option.default
    if value is None or value == "" or value is False:
        return ""
    return f"`{_text(value)}`"


def _text(value: Any) -> str:
    return str(value.value if isinstance(value, Enum) else value)


def _tables(model: type[Section]) -> Iterator[str]:
    """A table of keys for each section of a file, in the order of the file."""
    whole = model.model_json_schema()
    for key, schema in whole["properties"].items():
        many = schema.get("type") == "array"
        by_name = "additionalProperties" in schema
        inner = schema["items"] if many else schema.get("additionalProperties", schema)
        title = f"[[{key}]]" if many else f"[{key}.NAME]" if by_name else f"[{key}]"
        yield from _section(title, inner, whole["$defs"])


def _section(title: str, schema: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[str]:
    section = known[_reference(schema)]
    yield f"### `{title}`"
    yield ""
    yield section["description"]
    yield ""
    yield "| key | value | default | |"
    yield "|---|---|---|---|"
    inner = []
    for key, one in section["properties"].items():
        default = "required" if key in section.get("required", ()) else _written(one.get("default"))
        yield f"| `{key}` | {_kind(one, known)} | {default} | {_cell(one['description'])} |"
        if one.get("type") == "array" and _reference(one["items"]):
            inner.append((f"[[{title.strip('[]')}.{key}]]", one["items"]))
    yield ""
    for name, below in inner:
        yield from _section(name, below, known)


def _reference(schema: Mapping[str, Any]) -> str:
    """The name of the model that a schema refers to; "" for none."""
    found: str = schema.get("$ref", "")
    return found.rpartition("/")[2]


def _kind(schema: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """What may stand there, in words."""
    if name := _reference(schema):
        return "tables" if "properties" in known[name] else _kind(known[name], known)
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if "anyOf" in schema:
        kinds = (_kind(one, known) for one in schema["anyOf"] if one.get("type") != "null")
        return " or ".join(dict.fromkeys(kinds))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}), known) or 'values'}"
    if schema.get("type") == "object":
        return f"table of {_kind(schema['additionalProperties'], known)}"
    limits = [form.format(f"{schema[key]:g}") for key, form in BOUNDS.items() if key in schema]
    return " ".join([KINDS.get(schema.get("type", ""), ""), *limits])


def _written(value: Any) -> str:
    """A default as the file would have it; "" for none."""
    if value is None or value in ("", [], {}):
        return ""
    return f"`{json.dumps(value).strip('{}')}`"


def _cell(text: str) -> str:
    """Text in one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
