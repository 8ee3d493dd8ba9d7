"""CoMLRL's MAGRPO, its family and the distance from a reference, for `make parity`; the rest is in the files beside.

Returns are multiples of 1/64, and groups have sizes that divide them exactly, as returns and advantages are float32
there wherever a loss is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from comlrl.trainers.preference.collaboration import joint_policy_gradient_loss
from comlrl.trainers.reinforce.magrpo import MAGRPOTrainer
from comlrl.utils.reference_kl import reference_kl_for_sequence
from torch import Tensor

from bench.parity import comlrl_critics, comlrl_preferences, comlrl_trees
from bench.parity.comlrl_models import (
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
from bench.parity.shared import Compared, on, ours_among, with_gradient
from bench.parity.trees import leaf, node
from cadre.advantages.returns import samples_of
from cadre.types import Task, Tree


@dataclass(frozen=True)
class Answers:
    """The siblings of one decision: K completions of one prompt with a return each, and the model's weights."""

    weights: Tensor
    prompt: Tensor
    completions: list[Tensor]
    returns: list[float]

    def said(self, weights: Tensor, dropped: int = 0) -> list[Tensor]:
        """The completions' log-probabilities without those of the last tokens."""
        return [
            logprobs(weights, self.prompt, completion)[: len(completion) - dropped] for completion in self.completions
        ]


def answers(sizes: Sequence[int]) -> Callable[[torch.Generator], Answers]:
    """K is one of the sizes."""

    def draw(generator: torch.Generator) -> Answers:
        count = sizes[int(torch.randint(len(sizes), (), generator=generator))]
        prompt, *completions = words([3, *lengths_by(count, generator)], generator)
        return Answers(weights_by(generator), prompt, completions, pays_by(count, generator))

    return draw


def advantages(mode: str, baseline: str) -> Callable[[Answers], Compared]:
    trainer = trainer_of(MAGRPOTrainer, {}, advantage_mode=mode)

    def compared(case: Answers) -> Compared:
        cadre_value = ours_among(case.returns, baseline, "none")
        return cadre_value, trainer._compute_advantages(torch.tensor(case.returns)), cadre_value

    return compared


def loss(mode: str, baseline: str, normalised: bool) -> Callable[[Answers], Compared]:
    """Theirs divides by the deviation where `normalised`, its default, and leaves out the last token."""
    trainer = trainer_of(MAGRPOTrainer, {"advantage_normalization": normalised}, advantage_mode=mode)

    def compared(case: Answers) -> Compared:
        plain = ours_among(case.returns, baseline, "none")
        changed = plain.float()
        if normalised:
            changed = (changed - changed.mean()) / changed.std(unbiased=False).clamp(min=1e-6)
        batch = {"prompt_input_ids": case.prompt.unsqueeze(0), "completion_input_ids": [case.completions]}
        counted = max(1, sum(len(completion) > 1 for completion in case.completions))
        return (
            with_gradient(lambda at: reinforce(case.said(at), plain, len(plain)), case.weights),
            with_gradient(
                lambda at: trainer._compute_loss_with_gradients(Model(at), batch, case.returns), case.weights
            ),
            with_gradient(lambda at: reinforce(case.said(at, 1), changed.double(), counted), case.weights),
        )

    return compared


def centralised_loss(case: Answers) -> Compared:
    """One model for all roles. The log-probabilities that it makes itself are float32, so it is passed others."""
    trainer = trainer_of(MAGRPOTrainer, {"advantage_normalization": False}, advantage_mode="mean")
    batch = {"prompt_input_ids": case.prompt.unsqueeze(0), "completion_input_ids": [case.completions]}

    def theirs(at: Tensor) -> Tensor:
        return joint_policy_gradient_loss(
            trainer,
            Model(at),
            batch,
            case.returns,
            sequence_log_prob=lambda prompt, completion: logprobs(at, prompt, completion).sum(),
        )

    plain = ours_among(case.returns, "mean", "none")
    cadre_value = with_gradient(lambda at: reinforce(case.said(at), plain, len(plain)), case.weights)
    return cadre_value, with_gradient(theirs, case.weights), cadre_value


def distance(generator: torch.Generator) -> Compared:
    """Compare the KL penalty of one completion, which is taken from its reward: k1 here, k3 in CoMLRL."""
    case, reference = answers((1,))(generator), weights_by(generator)
    (then,) = case.said(reference)
    root = told(node(0, {"a": 1}, [leaf({"a": 0})]), {"a": case.said(case.weights)})
    (scored,) = samples_of([Tree(Task("t", {}), root)])
    diffs = torch.tensor(replace(scored, reference=tuple(then.tolist())).logprob_diffs)
    ids = torch.cat([case.prompt, *case.completions]).unsqueeze(0)
    models = Model(case.weights), Model(reference)
    library_value = reference_kl_for_sequence(*models, ids, torch.ones_like(ids), len(case.prompt), len(diffs))
    return diffs.sum(), library_value[0], ((-diffs).exp() - 1.0 + diffs).sum()


# Their mode and our baseline.
MODES = {"magrpo": ("mean", "mean"), "mareinforce": ("raw", "none"), "maremax": ("max", "max")}
MARLOO = ("rloo", "leave_one_out")
FUNCTIONS = (
    on(
        answers(range(2, 7)),
        {name: advantages(*mode) for name, mode in (MODES | {"marloo": MARLOO}).items()},
    )
    | on(answers((2, 4)), {f"{name} loss": loss(*mode, normalised=False) for name, mode in MODES.items()})
    | on(answers((2, 4)), {f"{name} loss, its default": loss(*mode, normalised=True) for name, mode in MODES.items()})
    | on(answers((2, 5)), {"marloo loss": loss(*MARLOO, False), "marloo loss, its default": loss(*MARLOO, True)})
    | on(answers((2, 4)), {"centralised magrpo loss": centralised_loss})
    | {"distance from the reference": distance}
    | comlrl_trees.FUNCTIONS
    | comlrl_critics.FUNCTIONS
    | comlrl_preferences.FUNCTIONS
)
