"""The frozen records that flow from the environment to the loss. No behaviour here: functions elsewhere act on them.

Env.observe -> Observation -> Request -> Sample -> Branch, Node (a tree) -> TrainingSequence (a training sequence)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Finish = Literal["stop", "length"]
# How a prompt goes on from what its role saw and said before (`Sample.history`).
History = Literal["first", "clean", "realigned", "new"]
# Where a sample stands among the trees of its update: (tree, numbers of the branches above it, role, sibling).
SamplePosition = tuple[int, tuple[int, ...], str, int]
# A picture of a state as plain JSON; `cadre.envs.drawings` makes them. None where there is none.
Drawing = Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a role may call: `Tool("add", "Adds.", {"type": "object", "properties": {...}})`.

    `parameters` is the JSON schema of its arguments, plain JSON values.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a role makes, with its arguments as JSON text: `ToolCall("call_1", "add", '{"a": 1}')`."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, order=True)
class Image:
    """A picture of `width` by `height` pixels, which `cadre.image` makes of a file, bytes or an array.

    `digest` is the SHA-256 of its size and pixels in hexadecimal, by which pictures are compared; `png` holds the
    pixels, RGB, without loss.
    """

    digest: str
    width: int
    height: int
    png: bytes = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message, as the field writes them: `Message("user", "Plan the moves.")`.

    An assistant's message may hold `tool_calls`; what a tool returned is by "tool" and names its call. `images` stand
    before the text, in order; only a vision-language model reads them.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    images: tuple[Image, ...] = ()

    def __repr__(self) -> str:
        fields = {"tool_calls": self.tool_calls, "tool_call_id": self.tool_call_id, "images": self.images}
        rest = "".join(f", {name}={value!r}" for name, value in fields.items() if value)
        return f"Message(role={self.role!r}, content={self.content!r}{rest})"


def images_of(messages: Iterable[Message]) -> tuple[Image, ...]:
    """The pictures of a conversation, in order."""
    return tuple(image for message in messages for image in message.images)


@dataclass(frozen=True, slots=True)
class Task:
    """One problem of an environment: `Task("test-17", {"grid": ("S.#", "..G")})`. `data` is plain JSON values."""

    id: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Observation:
    """What one team role sees before it acts: its whole conversation so far, as chat messages.

    `tools` are the functions that it may call. `stop` and `max_tokens` narrow the role's sampling, where what it talks
    to asks for that. `conversation` tells apart several that a role has side by side: a prompt goes on from the role's
    last turn in the same one.
    """

    role: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    conversation: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision with all answers that mean something: `Choice(observation, ("Pass", "Bet"))`."""

    observation: Observation
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reward:
    """What one step paid: `Reward(team=1.0, local={"planner": -0.1}, parts={"goal": 1.0, "moves": -0.08})`.

    A role's scalar is `alpha * team + local[role]`, formed in `cadre.advantages`. A role that the step judged is in
    `local`, be it with 0.0; `Reward()` judges nobody yet, and a search then looks at what follows. `parts` explain the
    reward in the logs and are never trained on.
    """

    team: float = 0.0
    local: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sampling:
    """The distribution that a role samples from. `temperature` 0 is greedy; `top_p` 1 and `top_k` 0 are off.

    `max_tokens` bounds the completion, its end-of-turn token included. A completion ends where its text has one of the
    strings `stop`; the text is without it, the ids are not.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 512
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BranchFailure:
    """Why an episode ended in the middle: `BranchFailure("prompt", "role 'solver': the prompt has 5,000 tokens ...")`.

    `reason` is one of `cadre.rollout.failed_branches.REASONS`. A failure is `rewarded` where what was sampled may have
    caused it. One of the machine's says nothing about the samples, and its branch is left out of the tree.
    """

    reason: str
    error: str
    rewarded: bool = True


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion by one role, K of which are siblings.

    `prompt_ids` and `token_ids` are the ids that the sampler really used; `token_ids` ends with the end-of-turn token
    when `finish` is "stop". `logprobs[j]` is the sampler's natural log-probability of `token_ids[j]` under the
    distribution it drew from (temperature, top-p and top-k applied). `version` counts the updates that the policy had
    had when sampling began; `changes` are the tokens from which later weights drew: `((17, 4),)`.

    `message` is the completion as a chat message where tools were offered: what was said, and the calls read out of it.
    `history` tells how the prompt goes on from the role's turn before: "clean" keeps its sampled ids, which the chat
    template would write alike, "realigned" keeps them although it would not, "new" is rendered afresh. `images` are
    those that the placeholders in `prompt_ids` stand for, in order. `failure` says why there is no completion, where
    the sampler got others of the same request.
    """

    role: str
    policy: str
    text: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    version: int
    message: Message | None = None
    history: History = "first"
    changes: tuple[tuple[int, int], ...] = ()
    images: tuple[Image, ...] = ()
    failure: BranchFailure | None = None


@dataclass(frozen=True, slots=True)
class PreviousTurn:
    """What a role saw and said last: a later prompt that extends `messages` keeps the ids of `sample`."""

    messages: tuple[Message, ...]
    sample: Sample
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """A call for `count` siblings of one prompt. `key` seeds their noise: sibling k draws from `noise.fold(key, k)`."""

    role: str
    policy: str
    messages: tuple[Message, ...]
    count: int
    sampling: Sampling
    key: int
    previous: PreviousTurn | None = None
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """One joint action and what followed: `choice` names the sibling of each acting role, as in `{"planner": 2}`.

    `over` and `success` are the environment's state after the step. `selected` says that the shape continued from here:
    then `child` is the next decision, or None because the episode is over. A branch that was not selected may have a
    child too, where the shape looked at what follows before it chose. `drawing` shows the state after the step.
    `failure` says why the episode ended here in the middle; it is over then, without success.
    """

    choice: Mapping[str, int]
    reward: Reward
    over: bool
    success: bool
    selected: bool = True
    child: Node | None = None
    drawing: Drawing = None
    failure: BranchFailure | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One decision point: who saw what, the K siblings of each acting role, and the branches that were tried.

    `turn` counts, from 0, how often the acting roles had acted before on this path. `privileged` is what the
    environment shows to critics only. `weight` is what the decision counts beside those that its shape played side by
    side: 1/n where it is one of n. `drawing` shows the state in which they act. `round` counts, from 0, the turns of
    the episode: one begins where a role acts that has acted since the last began.
    """

    turn: int
    observations: Mapping[str, Observation]
    samples: Mapping[str, tuple[Sample, ...]]
    branches: tuple[Branch, ...]
    privileged: str = ""
    weight: float = 1.0
    drawing: Drawing = None
    round: int = 0


@dataclass(frozen=True, slots=True)
class Tree:
    """All that was sampled from one task."""

    task: Task
    root: Node


@dataclass(frozen=True, slots=True)
class Targets:
    """What a value head should say of one sequence: `returns[n]` after it has read the tokens up to `at[n]`, included.

    `head` names the head; `values` are what it said before the update, which clipping is about.
    """

    head: str
    at: tuple[int, ...]
    returns: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One training sequence of T tokens for one policy.

    `mask[t]` is True where token t was sampled by the policy and is trained on; `logprobs` and `advantages` have T
    entries, zero where the mask is False. `temperature` is the one it was sampled at. `reference` has T
    log-probabilities under the reference model, or none where no loss asks for them; `old` those of the policy at the
    start of the update, or none where they are taken to be the sampler's. `targets` train a critic's head on the
    sequence; a sequence for a critic alone has nothing in its mask. `place` is where its sample stands, None where it
    is of no one sample. `images` are those that the first placeholders in `token_ids` stand for.
    """

    policy: str
    role: str
    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    version: int
    temperature: float = 1.0
    reference: tuple[float, ...] = ()
    old: tuple[float, ...] = ()
    targets: Targets | None = None
    position: SamplePosition | None = None
    images: tuple[Image, ...] = ()
