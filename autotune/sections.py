"""What the tables of a definition file share: strictness, kinds of numbers, names of parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from autotune.plugins import Group, require_known

__all__ = [
    "AggregateName",
    "EngineName",
    "Positive",
    "PositiveInt",
    "Reason",
    "SamplerName",
    "Section",
    "Share",
    "SupervisorName",
    "mistake",
]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Reason = Annotated[str, Field(min_length=3)]


def mistake(what: str, *, hint: str) -> PydanticCustomError:
    """What a validator raises: `what` is wrong, and `hint` would be right or is to be done."""
    return PydanticCustomError("mistake", "{what}", {"what": what, "hint": hint})


@dataclass(frozen=True, slots=True)
class _Named:
    """Marks a name: a shipped part's, or a plug-in's of the group."""

    group: Group
    shipped: tuple[str, ...]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._known, handler(source))

    def __get_pydantic_json_schema__(
        self, _schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [{"enum": list(self.shipped)}, {"type": "string"}]}

    def _known(self, name: str) -> str:
        return require_known(name, self.group, self.shipped)


SamplerName = Annotated[
    str, _Named(Group.SAMPLERS, ("auto", "tpe", "gp", "cmaes", "qmc", "random", "grid"))
]
SupervisorName = Annotated[str, _Named(Group.SUPERVISORS, ("systemd", "process"))]
EngineName = Annotated[str, _Named(Group.ENGINES, ("sglang",))]
AggregateName = Annotated[str, _Named(Group.OBJECTIVES, ("arithmetic", "geometric"))]


class Section(BaseModel):
    """A table of a definition file: unknown keys are errors, values never change.

    The text below a key describes it in the JSON schemas and in docs/reference.md.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
