"""CoMLRL's IAC and MAAC for `make parity`: the targets and advantages of an episode, and the gradient of a step.

Two agents act at once in every turn and are paid together. IAC has a critic an agent, MAAC one for both. Rewards and
values are multiples of 1/64 and the discount is 3/4, so that the float32 in which theirs are kept holds them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from comlrl.trainers.actor_critic.iac import IACTrainer, RolloutSample
from comlrl.trainers.actor_critic.maac import MAACTrainer
from torch import Tensor

from bench.parity import critics
from bench.parity.comlrl_models import (
    ROLES,
    Model,
    branch_of,
    lengths_by,
    logprobs,
    pays_by,
    reinforce,
    trainer_of,
    weights_by,
    words,
)
from bench.parity.shared import Compared, on, ours_white
from cadre.advantages.critic import Reads
from cadre.advantages.groups import comparison_of
from cadre.learn.loss import value_loss
from cadre.types import Node, TrainingSequence

GAMMA, CLIP = 0.75, 0.2
CREDIT = comparison_of("reward_to_go", "node", "none", "none", gamma=GAMMA)
IDLE = SimpleNamespace(zero_grad=lambda: None, step=lambda: None)


@dataclass(frozen=True)
class Episode:
    """The team's reward of every turn [T], and the values [T, 2] by agent, alike where one critic judges both."""

    pays: list[float]
    values: list[list[float]]


def episode(joint: bool) -> Callable[[torch.Generator], Episode]:
    """2 to 4 turns."""

    def draw(generator: torch.Generator) -> Episode:
        turns = int(torch.randint(2, 5, (), generator=generator))
        values = [pays_by(2, generator) for _ in range(turns)]
        return Episode(pays_by(turns, generator), [[both[0]] * 2 for both in values] if joint else values)

    return draw


# Targets and advantages.


def ours(case: Episode, reads: Reads) -> Tensor:
    """[2T] advantages of the agents by turn, then [2T] targets: those of one step, lambda 0."""
    below: Node | None = None
    for turn in reversed(range(len(case.pays))):
        branch = branch_of(dict.fromkeys(ROLES, 0), case.pays[turn], below)
        below = critics.node(turn, dict.fromkeys(ROLES, 1), [branch], str(turn))
    assert below is not None
    learner = critics.Learner(says=lambda datum, position: said(case, datum, position, reads))
    judged, _ = critics.judged(below, CREDIT, critics.rule(reads, 0.0), critics.team_of(learner))
    actors = [datum for datum in judged if any(datum.mask)]
    advantages = [datum.advantages[-1] for datum in actors]
    return torch.tensor(
        advantages + [advantage + value for advantage, value in zip(advantages, flat(case), strict=True)]
    )


def flat(case: Episode) -> list[float]:
    return [value for both in case.values for value in both]


def said(case: Episode, datum: TrainingSequence, position: int, reads: Reads) -> float:
    """The value of what a critic reads, which says the turn and who acts: "0 a", or "a acts and sees" above that."""
    text = bytes(datum.token_ids[: position + 1]).decode()
    turn, role = (text.split("\n")[1] if reads == "joint" else text).split()
    return case.values[int(turn)][ROLES.index(role)]


def theirs(case: Episode, kind: type) -> Tensor:
    rollouts = trainer_at(case, kind)._collect_rollouts_multi_turn({}, len(case.pays))
    targets = torch.cat([sample.metadata["value_target"] for sample in rollouts])
    trainer_of(kind, {"advantage_normalization": False})._prepare_advantages(rollouts)
    return torch.cat([torch.cat([sample.normalized_advantage for sample in rollouts]).double(), targets])


def trainer_at(case: Episode, kind: type) -> Any:
    """A trainer whose prompts are the numbers of the turns, and whose rewards and values are those of the episode."""
    pays = iter(case.pays)

    def generated(model: Any, prompt: str, agent: int, **_: Any) -> dict[str, Any]:
        value = torch.tensor([case.values[int(prompt)][agent]])
        ids = torch.ones(1, 2)
        return {
            "prompt": prompt,
            "completions": [""],
            "sequences": ids,
            "attention_mask": ids,
            "prompt_len": 1,
            "response_lens": [1],
            "logprobs": value,
            "values": value.unsqueeze(0),
            "reference_kls": [],
        }

    def judged(text: str) -> dict[str, Any]:
        turn = int(text.split()[2])  # "[Agent 0] TURN"
        value = torch.tensor([case.values[turn][0]])
        return {"input_ids": value, "attention_mask": value, "prompt_len": 1, "value": value}

    return trainer_of(
        kind,
        {"num_generations": 1, "discount": GAMMA, "critic_type": "v"},
        agents=[None, None],
        reward_func=lambda *arguments, **named: [next(pays)],
        _reward_signature=None,
        external_transition=lambda prompt_history_per_agent, **named: [str(len(prompt_history_per_agent[0]))] * 2,
        _resolve_turn_prompt=lambda item, agent, external_prompt="0": external_prompt,
        _generate_rollout=generated,
        _generate=generated,
        _policy_eval=lambda *arguments, **named: (torch.zeros(1), None),
        _critic_value_from_text=judged,
    )


def targets(kind: type, reads: Reads) -> Callable[[Episode], Compared]:
    def compared(case: Episode) -> Compared:
        cadre_value = ours(case, reads)
        return cadre_value, theirs(case, kind), cadre_value

    return compared


def whitening(generator: torch.Generator) -> Compared:
    """Over the samples of one policy; theirs in float32."""
    count = int(torch.randint(2, 7, (), generator=generator))
    returns, values = (torch.tensor(pays_by(count, generator)) for _ in range(2))
    rollouts = [
        SimpleNamespace(metadata={}, returns=value_return.view(1), old_value=value.view(1))
        for value_return, value in zip(returns, values, strict=True)
    ]
    trainer_of(IACTrainer, {"advantage_normalization": True})._prepare_advantages(rollouts)
    single = (returns - values).float()
    changed = (single - single.mean()) / single.std(unbiased=False).clamp(min=1e-6)
    library_value = torch.cat([sample.normalized_advantage for sample in rollouts])
    return ours_white(returns - values), library_value, changed


# A step, by the gradient of the policy's and the value head's weights together.


@dataclass(frozen=True)
class Batch:
    """Samples of one agent: its weights, and by sample a completion, the value before, the advantage and the target."""

    weights: Tensor
    prompt: Tensor
    completions: list[Tensor]
    old: Tensor
    advantages: Tensor
    targets: Tensor


def batch(generator: torch.Generator) -> Batch:
    count = int(torch.randint(1, 5, (), generator=generator))
    prompt, *completions = words([3, *lengths_by(count, generator)], generator)
    weights, numbers = weights_by(generator), torch.randn(3, count, generator=generator)
    old = weights[prompt[-1], -1] + 0.3 * numbers[0]
    return Batch(weights, prompt, completions, old, numbers[1], numbers[2])


def step(kind: type, clip: float | None) -> Callable[[Batch], Compared]:
    """Theirs does not halve the squared error, so its coefficient is a half here."""

    def compared(case: Batch) -> Compared:
        count, cadre_weights, library_weights = (
            len(case.completions),
            case.weights.clone().requires_grad_(),
            case.weights.clone(),
        )
        completion_logprobs = [logprobs(cadre_weights, case.prompt, completion) for completion in case.completions]
        values = cadre_weights[case.prompt[-1], -1].expand(count)
        alike = torch.full((count,), 1.0 / count)
        total = reinforce(completion_logprobs, case.advantages, count) + value_loss(
            values, case.old, case.targets, alike, clip
        )
        (gradient,) = torch.autograd.grad(total, cadre_weights)
        model = Model(library_weights.requires_grad_())
        stepping(kind, model, clip)._ac_step(0, [sample_of(case, number) for number in range(count)])
        assert library_weights.grad is not None
        return gradient, library_weights.grad, gradient

    return compared


def stepping(kind: type, model: Model, clip: float | None) -> Any:
    return trainer_of(
        kind,
        {"use_separate_critic": False, "value_clip_range": clip, "value_loss_coef": 0.5},
        agents=[model],
        critics=[model],
        agent_optimizers=[IDLE],
        critic_optimizer=IDLE,
        agent_devices=["cpu"],
        critic_device="cpu",
        critic_type="v",
        _critic_device=lambda agent: "cpu",
    )


def sample_of(case: Batch, number: int) -> RolloutSample:
    ids = torch.cat([case.prompt, case.completions[number]])
    at = slice(number, number + 1)
    prompt = case.prompt.unsqueeze(0)
    return RolloutSample(
        agent_idx=0,
        prompt="",
        completion="",
        full_input_ids=ids,
        attention_mask=torch.ones_like(ids),
        prompt_len=len(case.prompt),
        response_len=len(case.completions[number]),
        old_logprob=case.old[at],
        old_value=case.old[at],
        reward=case.targets[at],
        returns=case.targets[at],
        advantage=case.advantages[at],
        normalized_advantage=case.advantages[at],
        metadata={
            "value_target": case.targets[at],
            "joint_input_ids": prompt,
            "joint_attention_mask": torch.ones_like(prompt),
            "joint_prompt_len": prompt.shape[1],
        },
    )


FUNCTIONS = (
    on(episode(joint=False), {"iac targets and advantages": targets(IACTrainer, "own")})
    | on(episode(joint=True), {"maac targets and advantages": targets(MAACTrainer, "joint")})
    | {"whitening of a critic's advantages": whitening}
    | on(batch, {"iac step": step(IACTrainer, CLIP), "maac step": step(MAACTrainer, None)})
)
