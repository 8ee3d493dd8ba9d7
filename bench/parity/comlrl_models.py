"""Models that are tables of logits, and CoMLRL's trainers made without `__init__` around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from bench.parity.trees import inner, leaf
from cadre.learn.loss import Tokens, policy_loss
from cadre.settings import LossConfig
from cadre.types import Branch, Node

WORDS = 5
ROLES = ("a", "b")
REINFORCE = LossConfig(ratio="none", aggregate="sequence_sum")


class Model(nn.Module):
    """A model by its weights [W, W + 1]: what follows a word, and last its value. They carry the gradient."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = weights
        self.device = nn.Parameter(torch.zeros(()))  # a trainer asks the first parameter where it lives

    def forward(self, input_ids: Tensor, **_: Any) -> Any:
        outputs = self.weights[input_ids]
        return SimpleNamespace(logits=outputs[..., :-1], values=outputs[..., -1])


def weights_by(generator: torch.Generator) -> Tensor:
    return torch.randn(WORDS, WORDS + 1, generator=generator)


def words(lengths: Sequence[int], generator: torch.Generator) -> list[Tensor]:
    return [torch.randint(WORDS, (length,), generator=generator) for length in lengths]


def lengths_by(count: int, generator: torch.Generator) -> list[int]:
    """Return random lengths of completions, at least one token each."""
    return torch.randint(1, 6, (count,), generator=generator).tolist()


def pays_by(count: int, generator: torch.Generator) -> list[float]:
    """Multiples of 1/64 from -2 to 4, which float32 holds; one time in ten all are equal."""
    pays = (torch.randint(-128, 256, (count,), generator=generator) / 64).tolist()
    return pays[:1] * count if torch.rand((), generator=generator) < 0.1 else pays


def logprobs(weights: Tensor, prompt: Tensor, completion: Tensor) -> Tensor:
    """[T] of the completion's tokens."""
    previous = torch.cat([prompt[-1:], completion[:-1]])
    return weights[previous, :-1].log_softmax(1).gather(1, completion.unsqueeze(1)).squeeze(1)


def reinforce(completion_logprobs: Sequence[Tensor], advantages: Tensor, counted: int) -> Tensor:
    """Our loss `-sum_i A_i sum_t log pi / counted` of completions by their log-probabilities."""
    lengths = torch.tensor([len(logprobs_of) for logprobs_of in completion_logprobs])
    now = pad_sequence(
        [torch.cat([logprobs_of, logprobs_of.new_zeros(1)]) for logprobs_of in completion_logprobs], batch_first=True
    )
    mask, zeros = torch.arange(now.shape[1]) < lengths.unsqueeze(1), torch.zeros_like(now)
    tokens = Tokens(now, zeros, zeros, advantages.unsqueeze(1).expand_as(now), mask, zeros, zeros)
    return policy_loss(tokens, torch.full((len(completion_logprobs),), 1.0 / counted), REINFORCE)[0]


def branch_of(choice: dict[str, int], pay: float, child: Node | None) -> Branch:
    return leaf(choice, pay) if child is None else inner(choice, child, pay)


def told(root: Node, logprobs_by_role: Mapping[str, Sequence[Tensor]]) -> Node:
    """The node with these log-probabilities for its samples, by role."""
    samples = {
        role: tuple(
            replace(sample, token_ids=(7,) * len(values), logprobs=tuple(values.tolist()))
            for sample, values in zip(root.samples[role], siblings, strict=True)
        )
        for role, siblings in logprobs_by_role.items()
    }
    return replace(root, samples=samples)


def trainer_of(kind: type, arguments: Mapping[str, Any], **attributes: Any) -> Any:
    """A trainer of two agents with these settings, no tokenizer that pads, and no distance from a reference."""
    trainer: Any = object.__new__(kind)
    settings = {"num_agents": 2, "reference_kl_enabled": False, "early_termination_threshold": None}
    tokenizer = SimpleNamespace(
        pad_token="pad", pad_token_id=-1, eos_token_id=-1, decode=lambda *arguments, **named: ""
    )
    vars(trainer).update(
        {"num_agents": 2, "tokenizers": [tokenizer] * 2, "centralized_collaboration": None, "reward_processor": float}
    )
    vars(trainer).update(attributes, args=SimpleNamespace(**settings | dict(arguments)))
    return trainer
