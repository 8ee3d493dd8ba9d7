"""CoMLRL's returns on MAGRPO's tree for `make parity`: two agents, two turns, all joint actions gone on from.

Their method builds the tree itself. It is asked for the one that was drawn: what an agent says names the state that it
was in, so that rewards and what follows can be looked up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from comlrl.trainers.reinforce.magrpo import MAGRPOTrainer

from bench.parity.comlrl_models import ROLES, branch_of, pays_by, trainer_of
from bench.parity.shared import Compared, on
from bench.parity.trees import node
from cadre.advantages.groups import comparison_of, compute_returns
from cadre.advantages.preferences import team_return
from cadre.advantages.returns import samples_of
from cadre.rollout import walk
from cadre.types import Node, Task, Tree

TURNS, GAMMA = 2, 0.9


@dataclass(frozen=True)
class Played:
    """A tree, its siblings a decision, and the reward of every joint action by what was said."""

    tree: Tree
    siblings: int
    rewards: dict[tuple[str, ...], float]


def played(crossed: bool) -> Callable[[torch.Generator], Played]:
    """Trees of 2 or 3 siblings, aligned or crossed."""

    def draw(generator: torch.Generator) -> Played:
        count = int(torch.randint(2, 4, (), generator=generator))
        rewards: dict[tuple[str, ...], float] = {}
        choices = list(itertools.product(range(count), repeat=2)) if crossed else [(i, i) for i in range(count)]

        def grow(turn: int, state: str) -> Node:
            actions = [(f"{state}a{i}", f"{state}b{j}") for i, j in choices]
            pays = pays_by(len(choices), generator)
            rewards.update(zip(actions, pays, strict=True))
            branches = [
                branch_of(
                    dict(zip(ROLES, choice, strict=True)),
                    pay,
                    grow(turn + 1, after(words)) if turn + 1 < TURNS else None,
                )
                for choice, words, pay in zip(choices, actions, pays, strict=True)
            ]
            return node(turn, dict.fromkeys(ROLES, count), branches, tag=state)

        return Played(Tree(Task("t", {}), grow(0, "")), count, rewards)

    return draw


def after(actions: tuple[str, ...]) -> str:
    """The state that a joint action leads to."""
    return "+".join(actions) + ">"


def theirs(case: Played, mode: str) -> dict[str, float]:
    """The return that a completion is trained with, by its text."""
    texts: list[str] = []

    def answered(agent: Any, items: Any, agent_idx: int, external_prompts: str | None, **_: Any) -> dict[str, Any]:
        completions = [f"{external_prompts or ''}{ROLES[agent_idx]}{i}" for i in range(case.siblings)]
        numbers = torch.arange(len(texts), len(texts) + len(completions))
        texts.extend(completions)
        return {
            "completions": [completions],
            "prompts": [""],
            "prompt_input_ids": torch.zeros(1, 1),
            "completion_input_ids": [list(numbers)],
        }

    trainer = trainer_of(
        MAGRPOTrainer,
        {
            "num_turns": TURNS,
            "num_generations": case.siblings,
            "joint_mode": mode,
            "discount": GAMMA,
            "max_new_tokens": 1,
            "rollout_buffer_size": 1000,
        },
        agents=[None, None],
        env_step=0,
        rollout_buffers=[[], []],
        reward_func=lambda *actions, **named: [case.rewards[tuple(action for (action,) in actions)]],
        external_transition=lambda agent_completions, **named: [after(tuple(agent_completions))] * 2,
        _generate_completions_with_external_prompts=answered,
    )
    trainer._train_step_returns({})
    return {
        texts[int(number)]: worth
        for sample in itertools.chain(*trainer.rollout_buffers)
        for number, worth in zip(sample.completions_data["completion_input_ids"][0], sample.returns, strict=False)
    }


def ours(case: Played, gamma: float) -> dict[str, float]:
    credit = comparison_of("reward_to_go", "node", "mean", "none", gamma=gamma)
    return {scored.sample.text: scored.returns for scored in compute_returns(samples_of([case.tree]), credit)}


def in_order(case: Played) -> dict[str, float]:
    """Sibling g of either agent with the return of the g-th joint action, whoever took part in it."""
    credit = comparison_of("reward_to_go", "node", "mean", "none")
    return {
        sample.text: team_return(branch, visited.turn, credit)
        for visited in walk.nodes(case.tree.root)
        for siblings in visited.samples.values()
        for sample, branch in zip(siblings, visited.branches, strict=False)
    }


def returns(mode: str, gamma: float, by_theirs: Callable[[Played], dict[str, float]]) -> Callable[[Played], Compared]:
    def compared(case: Played) -> Compared:
        cadre_values, library_values, changed = ours(case, gamma), theirs(case, mode), by_theirs(case)
        first, second, third = (
            torch.tensor([values[text] for text in cadre_values]) for values in (cadre_values, library_values, changed)
        )
        return first, second, third

    return compared


def undiscounted(case: Played) -> dict[str, float]:
    return ours(case, 1.0)


def summed(case: Played) -> dict[str, float]:
    """The sum over the joint actions that hold a completion, of which there are as many as siblings."""
    return {text: worth * case.siblings for text, worth in ours(case, 1.0).items()}


FUNCTIONS = on(
    played(crossed=False),
    {
        "returns, aligned": returns("aligned", 1.0, undiscounted),
        "returns, aligned, discounted": returns("aligned", GAMMA, undiscounted),
    },
) | on(
    played(crossed=True),
    {
        'returns, joint mode "cross"': returns("cross", 1.0, summed),
        'returns, joint mode "crossed"': returns("crossed", 1.0, in_order),
    },
)
