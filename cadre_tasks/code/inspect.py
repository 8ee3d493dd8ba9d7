"""Questions about Python that a model wrote, answered in the sandbox by `source`, `codebleu`, `argument_recorder`."""

import json
from pathlib import Path
from typing import Any

from cadre_tasks.sandbox import Limits, default

LIMITS = Limits(cpu_s=5.0, memory_mb=512, output_bytes=1 << 20)
SOURCE = (Path(__file__).parent / "source.py").read_text(encoding="utf-8")
ARGUMENT_RECORDER = (Path(__file__).parent / "argument_recorder.py").read_text(encoding="utf-8")
CODEBLEU = (Path(__file__).parent / "codebleu.py").read_text(encoding="utf-8")


async def ask(question: str, **request: Any) -> Any:
    """The answer to a question of `source.QUESTIONS`; None where the source does not parse."""
    return await answer(SOURCE, {"question": question, **request})


async def respelt(right: str, entry: str, shown: str, lines: list[str]) -> list[int]:
    """The places of those asserts that make a call of `entry` which a text shows, however it is spelt, found by running
    them on a right program; all where that cannot be told, as of one that takes longer than tests may."""
    calls = await ask("calls", shown=shown, entry=entry)
    request = {"right": right, "entry": entry, "shown": calls, "lines": lines, "text": shown}
    found: list[int] | None = await answer(ARGUMENT_RECORDER, request)
    return list(range(len(lines))) if found is None else found


async def likeness(reference: str, candidate: str) -> dict[str, float]:
    """CodeBLEU of a program and its parts; see `cadre_tasks.code.codebleu`. Zero where the program defeats the parser,
    and nothing where the reference is no Python 3."""
    found: dict[str, float] | None = await answer(CODEBLEU, {"reference": reference, "candidate": candidate})
    return {"codebleu": 0.0} if found is None else found


async def answer(program: str, request: dict[str, Any]) -> Any:
    """What a program of ours says to a request; None where it fails or says no JSON. Raises SandboxUnavailable."""
    result = await default().run(program, json.dumps(request), LIMITS)
    try:
        return json.loads(result.stdout) if result.status == "ok" else None
    except ValueError:
        return None
