"""What the decode loop is asked for, what it answers, and whom it tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cadre.engines.model_text import Completion
from cadre.types import Image, Sampling


@dataclass(frozen=True, eq=False)
class GenerationRequest:
    """`count` siblings of one prompt, of at most `limit` tokens each; `key` names their noise.

    `ends` tells of the ids of a completion so far whether its text ends it; None where no text does. `images` are those
    that the placeholders of the prompt stand for.
    """

    policy: str
    prompt_ids: tuple[int, ...]
    count: int
    limit: int
    sampling: Sampling
    key: int
    ends: Callable[[Sequence[int]], bool] | None = None
    images: tuple[Image, ...] = ()


class Listener(Protocol):
    """Who waits for the completions of a batch. Called by the thread that decodes."""

    def finished(self, request: GenerationRequest, completions: list[Completion]) -> None:
        """All siblings of a request have ended; said once a request."""
        ...

    def gone(self) -> bool:
        """Whether nobody waits any more."""
        ...


@dataclass(frozen=True)
class Stamped:
    """A `Listener` that hands on completions with the version of their policy, by policy, as the batch began."""

    listener: Listener
    versions: Mapping[str, int]

    def finished(self, request: GenerationRequest, completions: list[Completion]) -> None:
        """Stamp the siblings of a request."""
        version = self.versions[request.policy]
        self.listener.finished(request, [replace(completion, version=version) for completion in completions])

    def gone(self) -> bool:
        """Whether nobody waits any more."""
        return self.listener.gone()
