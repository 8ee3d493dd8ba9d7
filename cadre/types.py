"""The frozen records that flow from the environment to the loss. They have no behaviour of their own,
but for how a notebook shows a tree.

Env.observe -> Observation -> Request -> Sample -> Branch, Node (a tree) -> TrainingSequence
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cadre.notebook_html import shorten, tree_html

Finish = Literal["stop", "length"]
# How a prompt continues the role's previous turn (`Sample.history`).
History = Literal["first", "clean", "realigned", "new"]
# Position of a sample among the trees of its update: (tree, indices of the branches above it, role, index).
SamplePosition = tuple[int, tuple[int, ...], str, int]
# A drawing of a state as plain JSON, made by `cadre.envs.drawings`, or None.
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
    """A call of a tool, with its arguments as JSON text: `ToolCall("call_1", "add", '{"a": 1}')`.

    A mapping is taken too, and is written as JSON: `ToolCall("call_1", "add", {"a": 1})`.
    """

    id: str
    name: str
    arguments: str

    def __post_init__(self) -> None:
        if not isinstance(self.arguments, str):
            object.__setattr__(self, "arguments", json.dumps(self.arguments, default=dict))


@dataclass(frozen=True, slots=True, order=True)
class Image:
    """An image of `width` by `height` pixels, made by `cadre.image` from a file, bytes or an array.

    `digest` is the SHA-256 of its size and pixels in hexadecimal, by which images are compared; `png` has the pixels,
    RGB, without loss; it is empty in a tree that was read without them.
    """

    digest: str
    width: int
    height: int
    png: bytes = field(default=b"", repr=False, compare=False)


@dataclass(frozen=True, slots=True, order=True)
class Sound:
    """A mono sound of `length` samples at `rate` a second, made by `cadre.sound` from a file, bytes or an array.

    `digest` is the SHA-256 of its rate and samples in hexadecimal, by which sounds are compared; `wav` has the samples,
    of 16 bits; it is empty in a tree that was read without them.
    """

    digest: str
    rate: int
    length: int
    wav: bytes = field(default=b"", repr=False, compare=False)


Media = Image | Sound


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message: `Message("user", "Plan the moves.")`.

    An assistant's message may have `tool_calls`, and `thinking`, which is no part of its content; a tool's result has
    the role "tool" and the id of its call. `images` and then `sounds` come before the text, in order; only a
    vision-language or audio-language model reads them.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    images: tuple[Image, ...] = ()
    sounds: tuple[Sound, ...] = ()
    thinking: str = ""

    def __repr__(self) -> str:
        fields: dict[str, object] = {"tool_calls": self.tool_calls, "tool_call_id": self.tool_call_id}
        fields |= {"images": self.images, "sounds": self.sounds, "thinking": self.thinking}
        rest = "".join(f", {name}={value!r}" for name, value in fields.items() if value)
        return f"Message(role={self.role!r}, content={self.content!r}{rest})"


def media_of(messages: Iterable[Message]) -> tuple[Media, ...]:
    """Return the images and sounds of a conversation, in order."""
    media: list[Media] = []
    for message in messages:
        media += [*message.images, *message.sounds]
    return tuple(media)


def join_media(role: Literal["system", "user"], text: str, messages: Sequence[Message]) -> Message:
    """Return a message of a text with the images and sounds of some messages."""
    images = tuple(image for message in messages for image in message.images)
    return Message(role, text, images=images, sounds=tuple(sound for message in messages for sound in message.sounds))


@dataclass(frozen=True, slots=True)
class Task:
    """One problem of an environment: `Task("test-17", {"grid": ("S.#", "..G")})`. `data` is plain JSON values."""

    id: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Observation:
    """The input of one role before it acts: its whole conversation so far, as chat messages.

    A later prompt of a conversation repeats the earlier messages unchanged; otherwise it is rendered anew, and calls of
    tools in it are lost.

    tools             functions that the role may call
    stop, max_tokens  narrow the role's sampling for this turn
    conversation      name of one of several that a role has side by side: a prompt extends the role's last turn in the
                      same one
    answers           the completions, where nothing is to be sampled; of one completion, the most probable of them
    """

    role: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    conversation: str = ""
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision with all meaningful answers: `Choice(observation, ("Pass", "Bet"))`."""

    observation: Observation
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reward:
    """The reward of one step: `Reward(team=1.0, local={"planner": -0.1}, parts={"goal": 1.0, "moves": -0.08})`.

    A role's scalar is `alpha * team + local[role]`, computed in `cadre.advantages`. A role that the step rewards is in
    `local`, if only with 0.0; `Reward()` rewards nobody yet, and a search then looks at what follows. `parts` explain
    the reward in the logs; an algorithm trains on those that its settings name alone. `success` is for a team's
    function, which returns with its reward whether the task is solved.
    """

    team: float = 0.0
    local: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, float] = field(default_factory=dict)
    success: bool | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters of a role. `temperature` 0 is greedy; `top_p` 1 and `top_k` 0 are off.

    `max_tokens` bounds the completion, its end-of-turn token included. A completion ends at the first of the strings
    `stop`, which its ids contain and its text does not.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 512
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BranchFailure:
    """The reason why an episode ended in the middle.

    Example: `BranchFailure("prompt", "role 'solver': the prompt has 5,000 tokens ...")`.

    `reason` is one of `cadre.rollout.failures.REASONS`. A failure is `rewarded` if the samples may have caused it.
    Infrastructure failures are not caused by the samples; their branch is dropped. A failure with `kept=True` counts
    as an unsuccessful episode: it is not retried, and a tree whose episodes all failed in this way is kept. `margin`
    lowers its reward below the lowest of its siblings.
    """

    reason: str
    error: str
    rewarded: bool = True
    kept: bool = False
    margin: float = 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion by one role.

    prompt_ids  the ids that the sampler really used
    token_ids   likewise; they end with the end-of-turn token if `finish` is "stop"
    logprobs    natural log-probability of each of `token_ids` under the distribution it was drawn from (temperature,
                top-p and top-k applied)
    version     number of the policy's updates when sampling began
    text        the whole completion, with its thinking
    message     the completion as a chat message if tools were offered or it has thinking or channels: text, thinking,
                and the calls parsed from it
    history     how the prompt continues the role's previous turn: "clean" keeps its sampled ids, which the chat
                template would render equally, "realigned" keeps them although it would not, "new" is rendered anew
    changes     (token, version) from which later weights sampled: `((17, 4),)`
    images      images and sounds of the placeholders in `prompt_ids`, in order
    failure     why there is no completion, if the sampler got others of the same request
    call_error  error message for the model if an attempted tool call could not be parsed or names no offered tool;
                empty otherwise
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
    images: tuple[Media, ...] = ()
    failure: BranchFailure | None = None
    call_error: str = ""


def answer_text(sample: Sample) -> str:
    """Return what a completion says to others: its text without thinking. Tool calls are part of it as sampled."""
    message = sample.message
    return sample.text if message is None or (message.tool_calls and not message.thinking) else message.content


@dataclass(frozen=True, slots=True)
class PreviousTurn:
    """A role's last prompt and completion: a later prompt that extends `messages` keeps the ids of `sample`."""

    messages: tuple[Message, ...]
    sample: Sample
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """A request for `count` completions of one prompt. Completion k is drawn with `random_keys.fold(key, k)`, unless
    the completions are given as `answers`."""

    role: str
    policy: str
    messages: tuple[Message, ...]
    count: int
    sampling: Sampling
    key: int
    previous: PreviousTurn | None = None
    tools: tuple[Tool, ...] = ()
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """One joint action and what followed.

    choice         index of the completion of each acting role, as in `{"planner": 2}`
    over, success  the environment's state after the step
    selected       True if the tree continues from here
    child          the next decision, or None if the episode is over; branches that were not selected have one if the
                   shape looked ahead
    drawing        the state after the step
    failure        why the episode ended here in the middle; it is over then, without success
    ablated        reward of the step without some roles, whose actions were the environment's default, by the names of
                   these roles (`cadre.rollout.grow.absent_key`); only if the credit needs it, and never trained on
    """

    choice: Mapping[str, int]
    reward: Reward
    over: bool
    success: bool
    selected: bool = True
    child: Node | None = None
    drawing: Drawing = None
    failure: BranchFailure | None = None
    ablated: Mapping[str, Reward] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Node:
    """One decision: the observations and completions of each acting role, and the branches that were tried.

    turn        how often the acting roles had acted before on this path
    privileged  the environment's text for critics
    weight      1/n for a decision that is one of n side by side
    drawing     the state in which the roles act
    round       number of the episode's round; a new one begins when a role acts that has acted in the present one
    signature   the environment's name of the state, "" if it has none or the groups do not need it
    """

    turn: int
    observations: Mapping[str, Observation]
    samples: Mapping[str, tuple[Sample, ...]]
    branches: tuple[Branch, ...]
    privileged: str = ""
    weight: float = 1.0
    drawing: Drawing = None
    round: int = 0
    signature: str = ""


@dataclass(frozen=True, slots=True)
class Tree:
    """All samples of one task."""

    task: Task
    root: Node

    def __repr__(self) -> str:
        return shorten(f"Tree(task {self.task.id!r}, {len(self.root.branches)} branches at the root)")

    def _repr_html_(self) -> str:
        return tree_html(self, f"tree of task {self.task.id}")


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of a value head on one sequence: `returns[n]` after the tokens up to `at[n]`, included.

    `head` is the head's name; `values` are its predictions before the update, for clipping.
    """

    head: str
    at: tuple[int, ...]
    returns: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One training sequence of T tokens for one policy.

    mask         [T], True where the token was sampled by the policy and is trained on
    logprobs     [T], the sampler's, zero outside the mask
    advantages   [T], zero outside the mask
    temperature  at which it was sampled
    reference    [T] log-probabilities under the reference model, empty if no loss needs them
    old          [T] log-probabilities at the start of the update, empty if they are taken to be the sampler's
    targets      train a critic's head on the sequence; the mask of a sequence for a critic alone is empty
    position     that of its sample, None if it is not of a single sample
    images       images and sounds of the first placeholders in `token_ids`
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
    images: tuple[Media, ...] = ()
