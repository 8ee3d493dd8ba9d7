"""Analyses of Python source that a model wrote, run in the sandbox by `source`, `codebleu`, `argument_recorder`."""

import json
from pathlib import Path
from typing import Any

from cadre_tasks.sandbox import Limits, default

LIMITS = Limits(cpu_s=5.0, memory_mb=512, output_bytes=1 << 20)
SOURCE = (Path(__file__).parent / "source.py").read_text(encoding="utf-8")
ARGUMENT_RECORDER = (Path(__file__).parent / "argument_recorder.py").read_text(encoding="utf-8")
CODEBLEU = (Path(__file__).parent / "codebleu.py").read_text(encoding="utf-8")


async def ask(question: str, **request: Any) -> Any:
    """Return the answer to a question of `source.QUESTIONS`, or None if the source does not parse."""
    return await answer(SOURCE, {"question": question, **request})


async def respelt(right: str, entry: str, shown: str, lines: list[str]) -> list[int]:
    """Return the indices of those asserts that make a call of `entry` which a text shows, in any spelling, found by
    running them on a right program. Returns all indices if that fails, as for asserts that take longer than tests may.
    """
    calls = await ask("calls", shown=shown, entry=entry)
    request = {"right": right, "entry": entry, "shown": calls, "lines": lines, "text": shown}
    copied: list[int] | None = await answer(ARGUMENT_RECORDER, request)
    return list(range(len(lines))) if copied is None else copied


async def likeness(reference: str, candidate: str) -> dict[str, float]:
    """Return CodeBLEU of a program and its parts; see `cadre_tasks.code.codebleu`. Zero if the program defeats the
    parser, empty if the reference is not Python 3."""
    scores: dict[str, float] | None = await answer(CODEBLEU, {"reference": reference, "candidate": candidate})
    return {"codebleu": 0.0} if scores is None else scores


async def answer(program: str, request: dict[str, Any]) -> Any:
    """Return the JSON answer of one of our programs to a request, or None if it fails. Raises SandboxUnavailable."""
    result = await default().run(program, json.dumps(request), LIMITS)
    try:
        return json.loads(result.stdout) if result.status == "ok" else None
    except ValueError:
        return None
