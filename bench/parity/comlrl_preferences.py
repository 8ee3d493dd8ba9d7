"""CoMLRL's multi-agent DPO for `make parity`: joint actions of two agents, with the gradient of each agent's loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from comlrl.trainers.preference.madpo import AgentPreferenceTensors, MADPOTrainer, PreferencePair
from torch import Tensor

from bench.parity.comlrl_models import (
    ROLES,
    Model,
    lengths_by,
    logprobs,
    pays_by,
    reinforce,
    told,
    trainer_of,
    weights_by,
    words,
)
from bench.parity.shared import Compared, on, with_gradient
from bench.parity.trees import leaf, node
from cadre.advantages.groups import comparison_of
from cadre.advantages.preferences import preference_advantages
from cadre.advantages.returns import samples_of
from cadre.types import Task, Tree

SIBLINGS, BETA = 3, 0.1
CREDIT = comparison_of("reward_to_go", "node", "mean", "none")


@dataclass(frozen=True)
class Decided:
    """A decision of two agents: `completions` by agent, sibling g of both together paid `pays[g]`."""

    weights: Tensor
    references: Tensor
    prompt: Tensor
    completions: list[list[Tensor]]
    pays: list[float]

    def said(self, weights: Tensor, dropped: int) -> dict[str, list[Tensor]]:
        """The completions' log-probabilities by role, without those of the last tokens."""
        return {
            role: [logprobs(of_agent, self.prompt, completion)[: len(completion) - dropped] for completion in siblings]
            for role, of_agent, siblings in zip(ROLES, weights, self.completions, strict=True)
        }


def decided(generator: torch.Generator) -> Decided:
    prompt, *completions = words([3, *lengths_by(2 * SIBLINGS, generator)], generator)
    weights, references = (torch.stack([weights_by(generator) for _ in ROLES]) for _ in range(2))
    by_agent = [completions[:SIBLINGS], completions[SIBLINGS:]]
    return Decided(weights, references, prompt, by_agent, pays_by(SIBLINGS, generator))


def ours(case: Decided, dropped: int = 0, with_reference: bool = True) -> Tensor:
    """The sum of both agents' losses, and the gradient that our advantages make."""
    branches = [leaf({"a": i, "b": i}, pay) for i, pay in enumerate(case.pays)]
    root = told(node(0, dict.fromkeys(ROLES, SIBLINGS), branches), case.said(case.weights, dropped))
    then = chain(*case.said(case.references, dropped).values())
    samples = [
        replace(scored, reference=tuple((values * with_reference).tolist()))
        for scored, values in zip(samples_of([Tree(Task("t", {}), root)]), then, strict=True)
    ]
    judged, metrics = preference_advantages(samples, CREDIT, BETA)
    pushes = torch.tensor([scored.advantages[0] for scored in judged])

    def surrogate(at: Tensor) -> Tensor:
        return reinforce(list(chain(*case.said(at, dropped).values())), pushes, 1)

    value = torch.tensor([2.0 * metrics.get("preference/loss", 0.0)])
    return torch.cat([value, with_gradient(surrogate, case.weights)[1:]])


def theirs(case: Decided) -> Tensor:
    """The same of theirs: an agent's loss holds the others' parts fixed."""
    settings = {"dpo_beta": BETA, "pair_selection": "all", "preference_pairs_per_sample": None}
    trainer = trainer_of(MADPOTrainer, settings)
    chosen = trainer._select_preference_pair_indices(case.pays)
    pairs = [pair_of(case, winner, loser) for winner, loser in chosen]

    def both(at: Tensor) -> Tensor:
        trainer.agents = [Model(of_agent) for of_agent in at]
        deltas: Any = trainer._detached_agent_deltas(pairs)
        return sum((trainer._agent_preference_loss(agent, pairs, deltas) for agent in range(2)), torch.zeros(()))

    return with_gradient(both, case.weights)


def pair_of(case: Decided, winner: int, loser: int) -> PreferencePair:
    tensors = [
        AgentPreferenceTensors(case.prompt, completions[winner], completions[loser]) for completions in case.completions
    ]
    return PreferencePair([], [], [], tensors, case.pays[winner], case.pays[loser], 0.0)


def preference(case: Decided) -> Compared:
    """Theirs has no reference model, and leaves out the last token of every completion."""
    return ours(case), theirs(case), ours(case, dropped=1, with_reference=False)


FUNCTIONS = on(decided, {"multi-agent dpo": preference})
