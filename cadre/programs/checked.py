"""What a call demands of its answer: a JSON schema, a tool that has to be called.

A model is told in words, and its answer is checked, not constrained: what it was sampled as stays what it is trained
on. An answer that does not keep to it is handed over as it is, and counted.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from cadre.programs.calls import Call, canonical
from cadre.programs.refusal import Refused
from cadre.types import Message


def told(call: Call) -> Call:
    """The call with its demands in words, at the end of the system message."""
    demands = []
    if call.schema is not None:
        demands.append("Answer with one JSON object and nothing else.")
    if call.schema:
        schema = json.dumps(call.schema, ensure_ascii=False).encode(errors="replace").decode()
        demands.append(f"It must match this JSON schema: {schema}")
    named = tuple(tool for tool in call.tools if tool.name == call.choice)
    if call.tools and (named or call.choice == "required"):
        demands.append(f"Call the tool {call.choice} now." if named else "Call one of the tools now.")
    if not demands:
        return call
    words, first = " ".join(demands), call.messages[0]
    if first.role == "system":
        messages = (Message("system", f"{first.content}\n\n{words}"), *call.messages[1:])
    else:
        messages = (Message("system", words), *call.messages)
    return replace(call, messages=messages, tools=named or call.tools)


def check_demands(call: Call) -> None:
    """Raises Refused where no answer could keep to what the call demands."""
    if call.choice not in ("auto", "none", "required", *(tool.name for tool in call.tools)):
        raise Refused(400, f"tool_choice: got {call.choice[:80]!r}, which is none of the tools.", "tool_choice")
    if call.choice == "required" and not call.tools:
        raise Refused(400, "tool_choice: got required, and no tools; expected some to call.", "tool_choice")
    if call.schema:
        _validator(canonical(call.schema))


def keeps(call: Call, message: Message) -> bool:
    """Whether the answer is what the call demands."""
    named = [called.name for called in message.tool_calls]
    if call.choice == "required" and not named:
        return False
    if call.choice not in ("auto", "none", "required") and call.choice not in named:
        return False
    return call.schema is None or bool(named) or _matches(message.content, call.schema)


def _matches(text: str, schema: Mapping[str, Any]) -> bool:
    from referencing.exceptions import Unresolvable

    try:
        value = json.loads(text)
        return isinstance(value, dict) if not schema else bool(_validator(canonical(schema)).is_valid(value))
    except (ValueError, OverflowError, RecursionError, Unresolvable):
        return False
    except re.error:  # of the names that `patternProperties` is for
        return True


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    """Looks nothing up outside of the schema. Raises Refused for what is no schema. Patterns are written for other
    languages too (`\\p{L}`): one that Python does not read demands nothing."""
    import jsonschema
    from referencing import Registry

    kind = jsonschema.Draft202012Validator
    plain = kind.VALIDATORS["pattern"]

    def pattern(*told: Any) -> Any:
        with contextlib.suppress(re.error):
            yield from plain(*told)

    try:
        kind.check_schema(json.loads(schema), format_checker=jsonschema.FormatChecker(()))
    except (jsonschema.SchemaError, RecursionError):
        raise Refused(400, "The JSON schema of the answer is none; expected one of draft 2020-12.") from None
    return jsonschema.validators.extend(kind, {"pattern": pattern})(json.loads(schema), registry=Registry())
