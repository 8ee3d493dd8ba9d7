"""Values that a JSON schema accepts: whatever a model could be asked for, judged by jsonschema."""

import random
import shutil
from typing import Annotated, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field

from cadre_programs.examples import WORDS, make_example


class Step(BaseModel):
    tool: Literal["look", "go"]
    times: Annotated[int, Field(ge=1, lt=4, multiple_of=2)]
    then: "Step | None" = None


class Plan(BaseModel):
    name: Annotated[str, Field(pattern=r"^[A-Z]{2}-\d{3}(?:-[^a-z\s]+)?$")]
    share: Annotated[float, Field(gt=0.0, lt=0.5)]
    counts: dict[str, int]
    steps: Annotated[list[Step], Field(min_length=2, max_length=3)]
    note: str | None = None


SCHEMAS = [
    Plan.model_json_schema(),
    {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 2},
    {"type": "number", "minimum": 0.5, "maximum": 0.5},
    {"type": "number", "minimum": -3, "multipleOf": 0.5},
    {"type": "string", "pattern": "(a|bc)+[xyz]{2}"},
    {"type": "string", "minLength": 7, "maxLength": 9},
    {"type": "string", "format": "date"},
    {"type": "object", "minProperties": 2, "additionalProperties": {"type": "boolean"}},
    {"allOf": [{"type": "object", "required": ["a"]}, {"properties": {"a": {"type": "null"}}}]},
    {"$ref": "#/$defs/Tree", "$defs": {"Tree": {"type": "array", "items": {"$ref": "#/$defs/Tree"}, "minItems": 0}}},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_an_example_is_accepted_by_its_schema(schema):
    generator = random.Random(0)
    for _ in range(100):
        jsonschema.validate(make_example(schema, generator), schema, jsonschema.Draft202012Validator)


def test_a_value_for_other_properties_is_drawn_where_a_schema_names_them():
    assert make_example({"type": "object", "additionalProperties": {"const": 7}}, random.Random(0)) == {"key_0": 7}
    assert make_example({"type": "object"}, random.Random(0)) == {}


def test_no_word_is_a_command_of_a_shell():
    assert [word for word in WORDS if shutil.which(word.split()[0])] == []
