"""What every section of an experiment's file has in common."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer
from pydantic_core import PydanticCustomError

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]


class Section(BaseModel):
    """Frozen, and closed to keys that it does not know and to numbers that are not finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


SectionT = TypeVar("SectionT", bound=Section)


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
