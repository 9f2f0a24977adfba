"""What every section of the configuration is: a frozen set of keys in which an unknown one is an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from coachrl.storage.files import at_home, usable_path

Value = TypeVar("Value")

MAX_COUNT = 1_000_000
"""Of tasks, of steps and of what each of them has. More is a slip of the keyboard, and would be counted for hours."""

MAX_SECONDS = 1_000_000_000
"""Of a program: 31 years. The kernel counts the time of a program's limit in 64 bits, for all processors together."""

Resumable = Annotated[Value, Field(json_schema_extra={"resumable": True})]
"""The type of a setting that a resumed run may change: how the coach is called, and where servers are."""


class Section(BaseModel):
    """A part of the configuration. Each key has a type, a default and a sentence of help."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_are_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Python counts True as 1."""
        if _holds_bool(value) and _asks_number(cls.model_fields[info.field_name or ""].annotation):
            raise ValueError("it must be a number: neither true nor false is one, nor are yes, no, on and off")
        return value

    @field_validator("*")
    @classmethod
    def _paths_are_usable(cls, value: Any) -> Any:
        return usable_path(at_home(value)) if isinstance(value, Path) else value


def _holds_bool(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = list(value.values())
    return any(map(_holds_bool, value)) if isinstance(value, list | tuple) else isinstance(value, bool)


def _asks_number(annotation: Any) -> bool:
    """Whether the type of a setting has a number in it, and no place for a bool."""
    parts = get_args(annotation) or (annotation,)
    leaves = [part for part in parts if not get_args(part)]
    if any(part in (bool, Any) or (isinstance(part, type) and issubclass(part, BaseModel)) for part in leaves):
        return False
    return any(part in (int, float) for part in leaves) or any(map(_asks_number, filter(get_args, parts)))


def is_resumable(field: FieldInfo) -> bool:
    """Whether a resumed run may change the setting."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and extra.get("resumable") is True


def sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections that stand in the type of a setting: itself, the members of a union, the values of a dictionary."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from sections_in(part)


def flat_settings(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of a tree of settings by their dotted keys, as they are written on the command line."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flat_settings(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
