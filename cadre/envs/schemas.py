"""Validators of JSON schemas in which no pattern is matched for long: some take ages for a text that a model writes."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

PATTERN_S = 0.5


def make_validator(schema: Mapping[str, Any]) -> Any:
    """Return a validator of draft 2020-12, which raises TimeoutError where a pattern takes longer than `PATTERN_S`.

    The empty registry keeps it from fetching what a `$ref` points to. Patterns are written for other languages too
    (`\\p{L}`): one that Python cannot compile is ignored, and so is `unevaluatedProperties` beside patterns of names.
    """
    import jsonschema
    from referencing import Registry

    draft = jsonschema.Draft202012Validator
    check_additional = draft.VALIDATORS["additionalProperties"]

    def pattern(validator: Any, pattern: str, instance: Any, _: Any) -> Any:
        if validator.is_type(instance, "string") and _search(pattern, instance) is False:
            yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")

    def pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: Any, _: Any) -> Any:
        if validator.is_type(instance, "object"):
            for pattern, subschema in patterns.items():
                for name, value in instance.items():
                    if _search(pattern, name):
                        yield from validator.descend(value, subschema, path=name, schema_path=pattern)

    def additional_properties(validator: Any, additional: Any, instance: Any, schema: Mapping[str, Any]) -> Any:
        patterns = schema.get("patternProperties", {})
        if validator.is_type(instance, "object"):
            rest = {name: value for name, value in instance.items() if not any(_search(p, name) for p in patterns)}
            reduced = {key: value for key, value in schema.items() if key != "patternProperties"}
            yield from check_additional(validator, additional, rest, reduced)

    keywords: dict[str, Any] = {"pattern": pattern, "patternProperties": pattern_properties}
    keywords["additionalProperties"] = additional_properties
    if "patternProperties" in json.dumps(schema):
        keywords["unevaluatedProperties"] = lambda *_: ()
    return jsonschema.validators.extend(draft, keywords)(schema, registry=Registry())


def _search(pattern: str, text: str) -> bool | None:
    """Return whether the pattern is found in the text; None if it is no pattern of Python's."""
    import regex

    if not _compiles(pattern):
        return None
    try:
        return regex.search(pattern, text, timeout=PATTERN_S) is not None
    except regex.error:
        return None


@lru_cache(maxsize=1_000)  # each change of the filters of warnings shows again what was shown once
def _compiles(pattern: str) -> bool:
    """Return whether `re` compiles the pattern. Its warnings of what later versions may read otherwise (`[[`) are for
    authors of programs, not for who is given a schema."""
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        try:
            re.compile(pattern)
        except re.error:
            return False
    return True
