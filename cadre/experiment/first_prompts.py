"""The first prompts of an environment as a model would read them, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cadre.errors import ConfigError, EngineError
from cadre.experiment.resolve import find_model
from cadre.settings import PolicyConfig
from cadre.types import Message, Tool


@dataclass(frozen=True)
class FirstPrompt:
    """What `role` sees first, in the model's own template: its text and its length in tokens."""

    role: str
    text: str
    tokens: int


def tokenizer_of(model: str) -> str:
    """The folder or the hub name of the model whose tokenizer writes the prompts. Raises ConfigError or EngineError
    where there is none, before torch is imported."""
    source = find_model("--model", PolicyConfig(model=model))
    folder = Path(source)
    if not folder.is_dir():
        from cadre.engines import hub

        return hub.available(source)
    if not any(folder.glob("*token*")) and not any(folder.glob("vocab*")):
        raise ConfigError(
            f"--model: got {model!r}, but {folder} holds no tokenizer; expected tokenizer.json beside config.json. "
            "Save the model's tokenizer there, or name another model."
        )
    return source


def render(
    prompts: Mapping[str, Sequence[Message]], source: str, name: str, tools: Mapping[str, Sequence[Tool]] | None = None
) -> tuple[list[FirstPrompt], list[str]]:
    """The first prompt of every role, with the tools that it is offered, and a paragraph for every fault. `source` is
    the folder or the hub name of the model that is called `name`. Loads a tokenizer, no weights."""
    from cadre.engines.prompt_preview import Previewer

    previewer, shown, faults = Previewer(source), [], []
    for role, messages in prompts.items():
        try:
            preview = previewer.preview(messages, (tools or {}).get(role, ()))
        except EngineError as error:
            faults.append(f"{role}: {error}")
            continue
        shown.append(FirstPrompt(role, preview.text, preview.tokens))
        faults += [_left_out(role, messages[place], name) for place in preview.left_out]
        if previewer.context is not None and preview.tokens >= previewer.context:
            faults.append(
                f"{role}: the first prompt has {preview.tokens:,} tokens; expected fewer than the "
                f"{previewer.context:,} that {name} reads, with room for an answer. Show less, or take a model that "
                "reads more."
            )
    return shown, faults


def _left_out(role: str, message: Message, name: str) -> str:
    return (
        f"{role}: the template of {name} leaves out the message by {message.role} that begins "
        f"{message.content[:40]!r}; expected every message in the prompt. Give it to another speaker, such as user."
    )
