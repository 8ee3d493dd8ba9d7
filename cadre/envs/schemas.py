"""Validators of JSON schemas in which no pattern is matched for long: some take ages for a text that a model writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PATTERN_S = 0.5


def make_validator(schema: Mapping[str, Any]) -> Any:
    """Return a validator of draft 2020-12, which raises TimeoutError where a `pattern` takes longer than `PATTERN_S`.

    The empty registry keeps it from fetching what a `$ref` points to. Patterns are written for other languages too: one
    that cannot be compiled is ignored, and as a pattern of names (`patternProperties`) raises `re.error`.
    """
    import jsonschema
    import regex
    from referencing import Registry

    def check_pattern(validator: Any, pattern: str, instance: Any, _: Any) -> Any:
        try:
            is_found = regex.search(pattern, instance, timeout=PATTERN_S) if isinstance(instance, str) else True
        except regex.error:
            return
        if not is_found:
            yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")

    draft = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": check_pattern})
    return draft(schema, registry=Registry())
