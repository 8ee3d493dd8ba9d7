"""The base class of every section of a recipe, and how sections are changed and dumped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, model_validator
from pydantic_core import PydanticCustomError

Positive = Annotated[int, Field(ge=1)]
NUMBER = "a number, which true and false are not"
Share = Annotated[float, Field(gt=0.0, le=1.0)]
# What a setting takes, in place of pydantic's message, by the type of its error.
PLAIN_TYPES = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(("dict_type", "model_type"), "a mapping"),
    "string_type": "a text",
}


@dataclass(frozen=True)
class Given:
    """A setting that the user gave, as its condition sees it.

    path        such as team.policies.a.learner.compile
    value       what the user gave
    section     the section that holds it, merged with what it changes: the learner of policy a
    policy      whose section that is; "" for a section of the experiment
    experiment  the `cadre.config.experiment.Experiment`, whose module imports this one
    """

    path: str
    value: Any
    section: Any
    policy: str
    experiment: Any

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True)
class ReadIf:
    """A condition of a setting, in its annotation: `Annotated[float, ReadIf("loss.kl is above 0", lambda given: ...)]`.

    `words` end the sentence "it is read if ..." of the message about a setting without effect.
    """

    words: str
    is_read: Callable[[Given], bool]


class Section(BaseModel):
    """A frozen section that rejects unknown keys, numbers that are not finite, and booleans in place of numbers.

    `alternatives` are keys that say one thing in several ways, of which changes to a section replace all. `conditions`
    are those of all settings of the section.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    alternatives: ClassVar[Sequence[Sequence[str]]] = ()
    conditions: ClassVar[Sequence[ReadIf]] = ()

    @model_validator(mode="before")
    @classmethod
    def _reject_bool_for_number(cls, raw: Any) -> Any:
        for name, value in raw.items() if isinstance(raw, Mapping) else ():
            if name in cls.model_fields and is_bool_for_number(cls.model_fields[name].annotation, value):
                raise setting_error(name, f"got {value!r}; expected {NUMBER}. Write a number.")
        return raw


SectionT = TypeVar("SectionT", bound=Section)


def setting_error(key: str, reason: str) -> PydanticCustomError:
    """Return the error that a validator raises about `key` ("" for the whole section). `reason` says what the value is,
    what is expected, and what to do."""
    return PydanticCustomError("refused", "{reason}", {"reason": reason, "key": key})


def is_bool_for_number(annotation: Any, value: object) -> bool:
    """Return True if `value` holds a boolean where the type allows numbers only; pydantic would read it as 0 or 1."""
    types = set(_plain_types(annotation))
    return bool(types & {int, float}) and bool not in types and any(isinstance(leaf, bool) for leaf in _leaves(value))


def _plain_types(annotation: Any) -> Iterator[Any]:
    """Yield the plain types in an annotation such as `dict[str, int] | None`."""
    arguments = get_args(annotation)
    yield from chain.from_iterable(map(_plain_types, arguments)) if arguments else (annotation,)


def _leaves(value: object) -> Iterator[object]:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else None
    yield from (value,) if inner is None else chain.from_iterable(map(_leaves, inner))


def quoting_advice(value: object, expected: str) -> str:
    """Return the advice of an error message: put quotes around a number or boolean where a text is expected."""
    if "string" in expected and isinstance(value, bool | int | float):
        return 'Put quotes around what the YAML says there, which make it a text: "1.10", say.'
    return "Fix the value."


def apply_changes(base: SectionT, changes: SectionT) -> SectionT:
    """Return the section `base` with the keys of `changes` that were set; its `alternatives` to these are unset."""
    set_keys = changes.model_fields_set
    update = {name: getattr(changes, name) for name in set_keys}
    for names in base.alternatives:
        if any(update.get(name) is not None for name in names):
            fields = type(base).model_fields
            update |= {name: fields[name].get_default() for name in names if name not in set_keys}
    return base.model_copy(update=update)


# Marks a section that holds changes to another one of its kind, of which only the keys count that were set.
SetKeysOnly = PlainSerializer(lambda section: section.model_dump(mode="json", exclude_unset=True))
