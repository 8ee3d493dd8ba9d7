"""What every section of an experiment's file has in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, model_validator
from pydantic_core import PydanticCustomError

Positive = Annotated[int, Field(ge=1)]
NUMBER = "a number, which true and false are not"
Share = Annotated[float, Field(gt=0.0, le=1.0)]


class Section(BaseModel):
    """Frozen, and closed to keys that it does not know and to numbers that are not finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _numbers_are_numbers(cls, given: Any) -> Any:
        for name, value in given.items() if isinstance(given, Mapping) else ():
            if name in cls.model_fields and truth_for_number(cls.model_fields[name].annotation, value):
                raise refused(name, f"got {value!r}; expected {NUMBER}. Write a number.")
        return given


SectionT = TypeVar("SectionT", bound=Section)


def truth_for_number(annotation: Any, value: object) -> bool:
    """Whether a truth value stands where the type asks for numbers alone; pydantic would take it for 0 or 1."""
    kinds = set(_kinds(annotation))
    return bool(kinds & {int, float}) and bool not in kinds and any(isinstance(part, bool) for part in _parts(value))


def quoting(value: object, expected: str) -> str:
    """Return how a number or a truth value is written where a text is expected."""
    if "string" in expected and isinstance(value, bool | int | float):
        return 'Put quotes around what the YAML says there, which make it a text: "1.10", say.'
    return "Fix the value."


def _kinds(annotation: Any) -> Iterator[Any]:
    """The plain types in an annotation such as `dict[str, int] | None`."""
    inner = get_args(annotation)
    yield from chain.from_iterable(map(_kinds, inner)) if inner else (annotation,)


def _parts(value: object, depth: int = 4) -> Iterator[object]:
    """What a value holds, as deep as numbers are asked for; a YAML can hold itself."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else None
    if inner is None or depth == 0:
        yield value
        return
    for part in inner:
        yield from _parts(part, depth - 1)


def as_written(section: Section) -> dict[str, Any]:
    """The keys that were set, and no defaults."""
    return section.model_dump(mode="json", exclude_unset=True)


# A section of which only the keys count that were set: changes to another section of the same kind.
AsWritten = PlainSerializer(as_written)


def merged(base: SectionT, changes: SectionT) -> SectionT:
    """The section `base` with those keys of `changes` that were set."""
    return base.model_copy(update={name: getattr(changes, name) for name in changes.model_fields_set})


def refused(key: str, reason: str) -> PydanticCustomError:
    """What a section's validator raises about its `key` (none: all of it): `reason` says got, expected, what to do."""
    return PydanticCustomError("refused", "{reason}", {"reason": reason, "key": key})
