"""What pydantic found wrong in a configuration, in one paragraph: what, got, expected, what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from cadre.errors import nearest
from cadre.settings.section import Section, quoting

# What is known about an error: pydantic's own record of it.
Details = Mapping[str, Any]


class Explainer:
    """Knows the sections of an experiment, and those that `tagged` names by what stands in their `name`."""

    def __init__(self, model: type[BaseModel], tagged: Mapping[str, type[Section]]) -> None:
        self.model, self.tagged = model, tagged

    def paragraph(self, error: ValidationError) -> str:
        """The first thing that is wrong, and how many more there are."""
        first = error.errors()[0]
        more = f" ({error.error_count() - 1} more after it.)" if error.error_count() > 1 else ""
        explain = EXPLANATIONS.get(first["type"], Explainer._wrong_value)
        return explain(self, first, [str(part) for part in first["loc"]]) + more

    def _unknown(self, error: Details, location: Sequence[str]) -> str:
        known = self._fields_at(location[:-1])
        return (
            f"{self._key(location)}: unknown option; expected one of {', '.join(known)}. Remove or rename it."
            f"{nearest(location[-1], known)}"
        )

    def _missing(self, error: Details, location: Sequence[str]) -> str:
        return f"{self._key(location)}: missing; expected {self._describe(location)}. Add it to the YAML."

    def _unknown_tag(self, error: Details, location: Sequence[str]) -> str:
        got = error["input"].get("name") if isinstance(error["input"], dict) else error["input"]
        hint = nearest(str(got), self.tagged)
        return f"{self._key(location)}: got {got!r}; expected one of {', '.join(self.tagged)}.{hint}"

    def _refused(self, error: Details, location: Sequence[str]) -> str:
        parts = [self._key(location), error["ctx"]["key"]]
        return f"{'.'.join(filter(None, parts))}: {error['msg']}"

    def _wrong_value(self, error: Details, location: Sequence[str]) -> str:
        expected = error["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        advice = quoting(error["input"], expected)
        mended = "" if advice == "Fix the value." else f" {advice}"
        if location[-1] == "[key]":  # a name that the user gave
            key = self._key(location[:-2])
            return f"{key}: got the name {error['input']!r}, which is no text; expected {expected}.{mended}"
        about = self._describe(location)
        return f"{self._key(location)}: got {error['input']!r}; expected {expected}. It is: {about}.{mended}"

    def _key(self, location: Sequence[str]) -> str:
        """The dotted key as the user writes it, without the tag that says which algorithm it is."""
        return ".".join(part for index, part in enumerate(location) if not self._is_tag(location, index))

    def _is_tag(self, location: Sequence[str], index: int) -> bool:
        return index == 1 and location[0] == "algorithm" and location[1] in self.tagged

    def _fields_at(self, location: Sequence[str]) -> list[str]:
        """The names that the section at `location` knows."""
        section = self._section_at(location)
        return list(section.model_fields) if section is not None else []

    def _describe(self, location: Sequence[str]) -> str:
        section = self._section_at(location[:-1])
        field = section.model_fields.get(location[-1]) if section is not None else None
        return (field.description if field is not None else None) or f"a value for {location[-1]}"

    def _section_at(self, location: Sequence[str]) -> type[BaseModel] | None:
        section: type[BaseModel] | None = self.model
        parts = iter(enumerate(location))
        for index, part in parts:
            if self._is_tag(location, index):
                section = self.tagged[part]
                continue
            if section is None or part not in section.model_fields:
                return None
            annotation = section.model_fields[part].annotation
            section = _section_in(annotation)
            if get_origin(annotation) is dict:
                next(parts, None)  # a name that the user gave, such as that of a policy
        return section


def _section_in(annotation: Any) -> type[Section] | None:
    """The first section in an annotation such as `LoraConfig | None` or `dict[str, PolicyConfig]`."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)


EXPLANATIONS = {
    "extra_forbidden": Explainer._unknown,
    "missing": Explainer._missing,
    "union_tag_invalid": Explainer._unknown_tag,
    "union_tag_not_found": Explainer._unknown_tag,
    "refused": Explainer._refused,
}
