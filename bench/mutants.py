"""Mutants: changes of one line that a test must notice. Does one?

Every mutant of the table names a line of the package, what stands in its place, and the tests that must notice, no more
than those. The unmutated tests of the whole table run first, in one process. Then the change is made in a copy of the
checkout, one mutant at a time, and its own tests run there until the first that fails. Verdicts are kept in --home and
are reused as long as neither the changed file nor the files of the mutant's tests have changed; --anew judges all
again. `python bench/mutants.py --write` appends `mutants.killed`, how many of the table a test noticed, to
results/correctness.jsonl; `--check` only looks whether every line and test is still there, `--only NAME` runs one
mutant anew. It ends with 1 where a mutant survives or a line to change is no longer in its file.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from common import MEASURED_CODE, ROOT, commit, record

COMMAND = "python bench/mutants.py --write"
COPIED = (*MEASURED_CODE, "tests", "examples", "docs", "pyproject.toml", "README.md")
TIMEOUT = 900
# What pytest ends with where a test failed, and where a file could not be imported, which is noticed too.
FAILED, BROKEN = 1, 2

ADVANTAGES = "cadre/advantages/"
OF_GROUPS = "tests/cadre/advantages/test_groups.py::"
OF_RETURNS = "tests/cadre/advantages/test_returns.py::"
OF_TREES = "tests/cadre/advantages/test_batch_filters.py::"
OF_SEQUENCES = "tests/cadre/advantages/test_batch_sequences.py::"
OF_GAE = "tests/cadre/advantages/test_critic.py::"
OF_PREFERENCES = "tests/cadre/advantages/test_preferences.py::"
OF_SCHEMES = "tests/cadre/algorithms/test_algorithms_credit_schemes.py::"
OF_DECLARATIONS = "tests/cadre/test_declare.py::test_a_bundled_function_under_another_name_gives_the_same"
OF_ROUNDING = "tests/cadre/test_statistics_rounding.py::"
OF_GROWTH = "tests/cadre/rollout/test_grow.py::"
OF_LOSS = "tests/cadre/learn/test_loss.py::"
OF_AGGREGATION = "tests/cadre/learn/test_loss_functions.py::"
OF_OPTIMISERS = "tests/cadre/learn/test_optimiser.py::"
OF_LEARNING = "tests/cadre/engines/torch/test_trainer.py::"
OF_GRADIENTS = "tests/cadre/engines/torch/test_learner_gradients.py::"
OF_PREFIX_FORWARDS = "tests/cadre/engines/torch/test_prefix_tree.py::"
OF_LOGPROBS = "tests/cadre/engines/torch/test_logprobs.py::"
OF_LORA = "tests/cadre/engines/torch/test_lora.py::"
OF_TOOL_USE = "tests/cadre/engines/text/test_tools.py::"
OF_FAMILIES = "tests/cadre/engines/torch/test_families.py::"
OF_REPORTS = "tests/cadre/evaluation/test_evaluate_report.py::"


@dataclass(frozen=True)
class Mutant:
    """A line of `file`, without its indentation, what stands in its place, and the tests that must notice, by their
    ids in pytest."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]


LOSS_VALUE = "value = value + config.entropy * tokens.entropy"
KL_VALUE = "value = value - config.kl * on_policy * divergence"
MASK = "mask=(False,) * prompt + (True,) * completion,"
CLAMP = "bounded = ratio.clamp(1.0 - clip.low, 1.0 + clip.high) * advantages"
SEQUENCE_RATIO = "return mean.where(~is_clipped, bounded(mean)).exp() * (log_ratio - log_ratio.detach()).exp()"
BY_TURN = 'return f"{sample.role}/{sample.node.turn}" if grouping.scope in ("decision", "turn") else sample.role'
ROLE_REWARD = "return alpha * branch.reward.team + branch.reward.local.get(role, 0.0)"
WEIGHED = "return [replace(scored, weight=share(scored) * scales[block(scored)]) for scored in samples]"
STD = "return largest * math.sqrt(squares / sum(weight for _, weight in self.weighted))"
LEFT_OUT = "means.append((total - sum(by_episode[episode][1] for episode in episodes)) / rest)"
DISTANCES = "diffs = {scored.tree_sample.position: beta * sum(scored.logprob_diffs) for scored in samples}"
WHITENED = (
    "advantages = whitened(trained, estimates) if critic.whiten else [estimate.advantages for estimate in estimates]"
)
OF_POLICY = "loss = self._compute_loss(policy, batch, scores, denominators[policy], metrics[policy])"
ONE_MICRO_BATCH = (
    "loss = self._compute_loss(policy, batch, scores, type(denominators[policy]).of("
    "[one for one in micro.data if one.policy == policy], self._loss.divisor), metrics[policy])"
)
LORA = "hidden = nn.functional.linear(inputs, self.down.to(inputs.dtype)) * self.scale"
SEGMENTS = "return [(policy, len(list(rows))) for policy, rows in groupby(policies)]"
GAE = "advantage = reward + value_after - value + gae_lambda * advantage_after"
AT_THE_END = "next_value, next_advantage = 0.0, 0.0"
BOOTSTRAPPED = "next_value, next_advantage = (0.0 if any(after for _, after in spans) else fmean(value)), 0.0"
MOMENTS = "mean, std = moments[scored.sample.policy, scored.sample.role]"
ONE_ROLE = "mean, std = moments[min(part for part in moments if part[0] == scored.sample.policy)]"

# By area: groups and trees, sequences, losses, critics, preferences, models, the optimiser; then deviations of leaves,
# zero variance, critics, penalties and families.
MUTANTS = (
    Mutant(
        "group mean replaced by 0",
        ADVANTAGES + "groups.py",
        "return [group.mean] * len(group.values)",
        "return [0.0] * len(group.values)",
        (OF_GROUPS + "test_baselines_on_one_group",),
    ),
    Mutant(
        "std with ddof 1",
        ADVANTAGES + "groups.py",
        STD,
        STD.replace("/ sum(", "/ (-1 + sum(") + ")",
        (OF_ROUNDING + "test_a_function_of_the_group_gets_a_deviation_without_rounding",),
    ),
    Mutant(
        "scale dropped",
        ADVANTAGES + "groups.py",
        "return [finite_number(baseline, gain / divisor + charge) "
        "for gain, charge in zip(gains, charges, strict=True)]",
        "return [finite_number(baseline, gain + charge) for gain, charge in zip(gains, charges, strict=True)]",
        (OF_ROUNDING + "test_one_better_sample_of_many_is_signal",),
    ),
    Mutant(
        "alpha dropped from the score of a branch",
        "cadre/rollout/grow.py",
        "return alpha * reward.team + sum(reward.local.values())",
        "return reward.team + sum(reward.local.values())",
        (OF_GROWTH + "test_a_branch_is_chosen_by_alpha_times_the_team_and_the_local_reward",),
    ),
    Mutant(
        "alpha dropped from a role's reward",
        ADVANTAGES + "returns.py",
        ROLE_REWARD,
        ROLE_REWARD.replace("alpha * ", ""),
        (OF_RETURNS + "test_alpha_weighs_the_team_against_the_role",),
    ),
    Mutant(
        "local reward of another role",
        ADVANTAGES + "returns.py",
        ROLE_REWARD,
        "return alpha * branch.reward.team + next(iter(branch.reward.local.values()), 0.0)",
        (OF_RETURNS + "test_the_local_reward_of_another_role_is_not_mine",),
    ),
    Mutant(
        "discount a step instead of a turn",
        ADVANTAGES + "returns.py",
        "discount = gamma if child.round > round_number else 1.0",
        "discount = gamma",
        (OF_RETURNS + "test_gamma_counts_turns_not_the_steps_within_one",),
    ),
    Mutant(
        "leave-one-out including itself",
        ADVANTAGES + "groups.py",
        LEFT_OUT,
        "means.append(total / weight)",
        (OF_GROUPS + "test_baselines_on_one_group",),
    ),
    Mutant(
        "greedy picks the lowest",
        "cadre/rollout/shapes.py",
        "best = max(scores)",
        "best = min(scores)",
        (OF_GROWTH + "test_greedy_selects_the_argmax_of_every_decision",),
    ),
    Mutant(
        "ties by index",
        "cadre/rollout/shapes.py",
        "return [generator.choice(ties)]",
        "return [ties[0]]",
        (OF_ROUNDING + "test_ties_are_drawn_among_equals_however_they_were_added_up[1.0]",),
    ),
    Mutant(
        "tree weights all 1",
        ADVANTAGES + "batch.py",
        WEIGHED,
        "return list(samples)",
        (OF_TREES + "test_where_the_loss_averages_over_tokens_trees_have_equal_shares_of_them",),
    ),
    Mutant(
        "share of fanned-out decisions dropped",
        ADVANTAGES + "batch.py",
        "return sample.node.weight / len(sample.node.samples[sample.role])",
        "return 1.0 / len(sample.node.samples[sample.role])",
        (OF_TREES + "test_what_weighs_alike_in_an_update_of_one_policy",),
    ),
    Mutant(
        "end of sequence left out of the mask",
        ADVANTAGES + "returns.py",
        MASK,
        "mask=(False,) * prompt + (True,) * (completion - 1) + (False,),",
        (OF_SEQUENCES + "test_a_datum_trains_the_completion_with_its_end_and_never_the_prompt",),
    ),
    Mutant(
        "prompt tokens in the mask",
        ADVANTAGES + "returns.py",
        MASK,
        "mask=(True,) * prompt + (True,) * completion,",
        (OF_SEQUENCES + "test_a_datum_trains_the_completion_with_its_end_and_never_the_prompt",),
    ),
    Mutant(
        "temperature ignored in log-probabilities",
        "cadre/engines/torch/logprobs.py",
        "scores = scores / to_device(chunk.temperatures, scores.device).unsqueeze(1)",
        "scores = scores * 1.0",
        (OF_LEARNING + "test_log_probabilities_are_those_at_the_temperature_of_the_sample",),
    ),
    Mutant(
        "sums over the vocabulary under autocast",
        "cadre/engines/torch/logprobs.py",
        "with torch.autocast(values.device.type, enabled=False):",
        "with torch.enable_grad():",
        (OF_LOGPROBS + "test_statistics_of_a_bfloat16_forward_are_those_of_its_logits_in_float32",),
    ),
    Mutant(
        "statistics in the precision of the projection",
        "cadre/engines/torch/logprobs.py",
        "scores = project(model, states).float()",
        "scores = project(model, states)",
        (OF_LOGPROBS + "test_statistics_of_a_bfloat16_forward_are_those_of_its_logits_in_float32",),
    ),
    Mutant(
        "a score of minus infinity in the entropy",
        "cadre/engines/torch/logprobs.py",
        "if not bool(expectation.isnan().any()):",
        "if True:",
        (OF_LOGPROBS + "test_a_score_that_is_ruled_out_counts_0",),
    ),
    Mutant(
        "a score of minus infinity in the gradient of the entropy",
        "cadre/engines/torch/logprobs.py",
        "logs = (scores - (log_z - entropy).unsqueeze(1)).clamp_(min=LOWEST)",
        "logs = scores - (log_z - entropy).unsqueeze(1)",
        (OF_LOGPROBS + "test_a_score_that_is_ruled_out_counts_0",),
    ),
    Mutant(
        "temperature ignored in the fused projection",
        "cadre/engines/torch/logprobs.py",
        "inverse = to_device(1.0 / query.temperatures, device)",
        "inverse = to_device(torch.ones_like(query.temperatures), device)",
        ("tests/cadre/engines/torch/test_forward_compiled.py::test_the_fused_projection_equals_the_plain_one",),
    ),
    Mutant(
        "blocks of keys left out where one of their nodes ends early",
        "cadre/learn/tree_attention.py",
        "is_partial = is_after & (ends_of_blocks.amax(1) > start)",
        "is_partial = is_after & (ends_of_blocks.amin(1) > start)",
        ("tests/cadre/engines/torch/test_forward_compiled.py::test_block_masks_hold_every_pair",),
    ),
    Mutant(
        "adapters of all policies for every row of a compiled layer",
        "cadre/engines/torch/lora.py",
        "hidden = nn.functional.linear(inputs.to(down.dtype), down) * scales",
        "hidden = nn.functional.linear(inputs.to(down.dtype), down) * scales.amax(dim=(0, 1))",
        ("tests/cadre/engines/torch/test_forward_compiled.py::test_adapters_of_several_policies_in_compiled_layers",),
    ),
    Mutant(
        "old log-probabilities from the learner instead of the sampler",
        "cadre/learn/loss.py",
        "return self.logprobs - self.old",
        "return self.logprobs - self.logprobs.detach()",
        (OF_LOSS + "test_by_hand",),
    ),
    Mutant(
        "clip bounds swapped",
        "cadre/learn/loss_functions.py",
        CLAMP,
        "bounded = ratio.clamp(1.0 - clip.high, 1.0 + clip.low) * advantages",
        (OF_LOSS + "test_by_hand",),
    ),
    Mutant(
        "dual clip off",
        "cadre/learn/loss_functions.py",
        "if clip.dual is None:",
        "if True:",
        (OF_LOSS + "test_dual_clip_by_hand",),
    ),
    Mutant(
        "CISPO's weight with a gradient",
        "cadre/learn/loss_functions.py",
        "ratio = tokens.log_ratio.detach().exp()",
        "ratio = tokens.log_ratio.exp()",
        (OF_LOSS + "test_cispo_by_hand",),
    ),
    Mutant(
        "GSPO-token's stop-gradient replaced by the plain sequence ratio",
        "cadre/learn/loss_functions.py",
        SEQUENCE_RATIO,
        "return mean.exp().expand_as(log_ratio)",
        (OF_LOSS + "test_in_a_sequence_ratio_every_token_passes_the_gradient_of_its_own_advantage",),
    ),
    Mutant(
        "sequence mean instead of sum",
        "cadre/learn/loss_functions.py",
        "return 1.0 / (totals.sequences * totals.divisor)",
        "return 1.0 / (totals.sequences * max(1, length))",
        (OF_AGGREGATION + "test_weights_of_one_and_three_trained_tokens",),
    ),
    Mutant(
        "denominators of a micro-batch",
        "cadre/engines/torch/trainer.py",
        OF_POLICY,
        ONE_MICRO_BATCH,
        (OF_LEARNING + "test_micro_batches_do_not_change_the_gradient[1]",),
    ),
    Mutant(
        "sign of the KL",
        "cadre/learn/loss.py",
        KL_VALUE,
        KL_VALUE.replace("- config.kl", "+ config.kl"),
        (OF_LOSS + "test_kl_in_the_loss_by_hand",),
    ),
    Mutant(
        "k1 for k2",
        "cadre/learn/loss.py",
        "divergence = 0.5 * (tokens.logprobs - tokens.reference).square()",
        "divergence = tokens.logprobs - tokens.reference",
        (OF_LOSS + "test_kl_in_the_loss_by_hand",),
    ),
    Mutant(
        "sign of the entropy",
        "cadre/learn/loss.py",
        LOSS_VALUE,
        LOSS_VALUE.replace("+ config.entropy", "- config.entropy"),
        (OF_LOSS + "test_entropy_lowers_the_loss_and_its_gradient_passes",),
    ),
    Mutant(
        "gradient of the entropy off",
        "cadre/learn/loss.py",
        LOSS_VALUE,
        LOSS_VALUE.replace("tokens.entropy", "tokens.entropy.detach()"),
        (OF_LOSS + "test_entropy_lowers_the_loss_and_its_gradient_passes",),
    ),
    Mutant(
        "bound of the importance weight off",
        "cadre/learn/loss_functions.py",
        "return rho.clamp(max=high), rho > high",
        "return rho, rho > high",
        (OF_LOSS + "test_importance_weights_by_hand",),
    ),
    Mutant(
        "lambda of GAE 1",
        ADVANTAGES + "critic.py",
        GAE,
        GAE.replace("gae_lambda * ", ""),
        (OF_GAE + "test_gae_over_three_turns",),
    ),
    Mutant(
        "value bootstrapped at the end of an episode",
        ADVANTAGES + "critic.py",
        AT_THE_END,
        BOOTSTRAPPED,
        (OF_GAE + "test_gae_over_three_turns",),
    ),
    Mutant(
        "value clip off",
        "cadre/learn/loss.py",
        "if clip is not None:",
        "if False:",
        (OF_LOSS + "test_value_loss_by_hand",),
    ),
    Mutant(
        "whitening off",
        ADVANTAGES + "critic.py",
        WHITENED,
        WHITENED.replace("critic.whiten", "False"),
        (OF_GAE + "test_whitening_is_over_the_batch_of_a_policy",),
    ),
    Mutant(
        "sign of DPO",
        ADVANTAGES + "preferences.py",
        "push = beta / (1.0 + math.exp(min(margin, 700.0))) / len(pairs)",
        "push = -beta / (1.0 + math.exp(min(margin, 700.0))) / len(pairs)",
        (OF_PREFERENCES + "test_two_joint_actions_by_hand",),
    ),
    Mutant(
        "reference of DPO dropped",
        ADVANTAGES + "preferences.py",
        DISTANCES,
        DISTANCES.replace("scored.logprob_diffs", "scored.sample.logprobs"),
        (OF_PREFERENCES + "test_two_joint_actions_by_hand",),
    ),
    Mutant(
        "scale of LoRA dropped",
        "cadre/engines/torch/lora.py",
        LORA,
        LORA.removesuffix(" * self.scale"),
        (OF_LORA + "test_plain_peft_reads_an_adapter",),
    ),
    Mutant(
        "adapter of another role",
        "cadre/engines/torch/lora.py",
        SEGMENTS,
        SEGMENTS.replace("(policy, len", "(min(policies), len"),
        (OF_LORA + "test_a_mixed_batch_samples_what_each_policy_samples_alone",),
    ),
    Mutant(
        "mask of the prefix tree one position too far",
        "cadre/learn/prefix_tree.py",
        "under = (key <= query) & (query < ends[key])",
        "under = (key <= query) & (query <= ends[key])",
        (OF_PREFIX_FORWARDS + "test_flex_attention[llama]",),
    ),
    Mutant(
        "sliding window off by one",
        "cadre/learn/tree_attention.py",
        "return _additive((distance >= 0) & (distance < window), dtype)",
        "return _additive((distance >= 0) & (distance <= window), dtype)",
        (OF_PREFIX_FORWARDS + "test_gradients_are_those_of_padding[gemma3]",),
    ),
    Mutant(
        "dropout on while learning",
        "cadre/engines/torch/model.py",
        "return model.eval()",
        "return model.train()",
        (OF_LEARNING + "test_nothing_is_dropped_out_while_learning[False]",),
    ),
    Mutant(
        "gradients clipped whatever their norm",
        "cadre/learn/optimiser.py",
        "if norm > self.config.max_grad_norm:",
        "if norm > 0:",
        (OF_OPTIMISERS + "test_a_gradient_within_the_norm_is_left_as_it_is",),
    ),
    # Deviations of leaves.
    Mutant(
        "deviation over the means of shared parts",
        ADVANTAGES + "groups.py",
        "if self.episodes:",
        "if False:",
        (OF_SCHEMES + "test_the_deviation_is_that_of_the_leaves_and_not_of_the_means_of_shared_parts",),
    ),
    Mutant(
        "leaves worth the mean of their shared part",
        ADVANTAGES + "groups.py",
        "if comparison is not None and comparison.returns.whole_episode:",
        "if False:",
        (OF_SCHEMES + "test_the_deviation_is_that_of_the_leaves_and_not_of_the_means_of_shared_parts",),
    ),
    # Names.
    Mutant(
        "episodes counted by the name of the return",
        "cadre/algorithms/custom.py",
        "if comparison.returns.whole_episode:",
        'if comparison.returns.name == "episode":',
        (OF_DECLARATIONS + "[returns-episode]",),
    ),
    Mutant(
        "running means by turn by the name of the group",
        ADVANTAGES + "groups.py",
        BY_TURN,
        BY_TURN.replace("grouping.scope", "grouping.name").replace(
            '("decision", "turn")', '("node", "role_turn_task")'
        ),
        (OF_DECLARATIONS + "[group-role_turn_task]",),
    ),
    # Zero variance.
    Mutant(
        "zero variance absolute",
        "cadre/statistics.py",
        "return abs(difference) <= resolution * size",
        "return abs(difference) <= 1e-9",
        (OF_ROUNDING + "test_the_question_itself",),
    ),
    Mutant(
        "zero variance of returns without the size of their rewards",
        ADVANTAGES + "groups.py",
        "size = size_of_return(scored.tree_sample, comparison)",
        "size = 0.0",
        (OF_ROUNDING + "test_rewards_that_cancel_are_as_large_as_what_they_were_made_of",),
    ),
    # Critics.
    Mutant(
        "whitened by another role's moments",
        ADVANTAGES + "critic.py",
        MOMENTS,
        ONE_ROLE,
        (OF_GAE + "test_roles_of_a_shared_policy_are_whitened_apart",),
    ),
    Mutant(
        "value heads at the policy's rate",
        "cadre/settings/objective.py",
        'return heads.model_copy(update={"learning_rate": max(policy.learning_rate, HEADS_RATE)})',
        "return heads",
        (OF_GRADIENTS + "test_value_heads_have_a_rate_of_their_own",),
    ),
    # Penalties.
    Mutant(
        "k2 without an importance weight",
        "cadre/learn/loss.py",
        "on_policy = correction * tokens.log_ratio.detach().exp()",
        "on_policy = correction",
        (OF_LOSS + "test_kl_is_weighed_for_the_present_policy_without_a_gradient",),
    ),
    Mutant(
        "the ramp ends at the role's length",
        ADVANTAGES + "batch.py",
        "limit = narrowed(sampling[role], scored.tree_sample.node.observations[role]).max_tokens",
        "limit = sampling[role].max_tokens",
        (OF_TREES + "test_the_ramp_ends_where_the_observation_allows_no_more",),
    ),
    # Families.
    Mutant(
        "keys kept of a model of another code",
        "cadre/engines/torch/families.py",
        'return str(model.config.model_type) if is_known else ""',
        "return str(model.config.model_type)",
        ("tests/cadre/engines/torch/test_trials.py::test_a_model_with_code_of_its_own_is_run_by_its_plain_forward",),
    ),
    Mutant(
        "dropout on in recomputed layers",
        "cadre/engines/torch/prefix_tree.py",
        'layer.__dict__["forward"] = _checkpointed(model, layer, layer.forward)',
        'layer.train().__dict__["forward"] = _checkpointed(model, layer, layer.forward)',
        (OF_FAMILIES + "test_sampler_and_learner_are_the_plain_forward[opt]",),
    ),
    Mutant(
        "a step that does not name a part counts as 0",
        "cadre/evaluation/evaluate.py",
        "means_of_part[name].append(fmean(values))",
        "means_of_part[name].append(sum(values) / len(episode))",
        (OF_REPORTS + "test_a_part_is_averaged_over_the_steps_that_name_it",),
    ),
    Mutant(
        "an episode that does not name a part counts as 0",
        "cadre/evaluation/evaluate.py",
        "return {name: fmean(means) for name, means in sorted(means_of_part.items())}",
        "return {name: sum(means) / len(episodes) for name, means in sorted(means_of_part.items())}",
        (OF_REPORTS + "test_a_part_is_averaged_over_the_steps_that_name_it",),
    ),
    Mutant(
        "a turn with calls is cut out of the next prompt without its calls",
        "cadre/engines/text/template.py",
        'turn = replace(turn, content="" if turn.tool_calls else PROBE, thinking=thought)',
        "turn = replace(turn, content=PROBE, thinking=thought, tool_calls=())",
        (OF_TOOL_USE + "test_a_result_is_headed_as_the_template_heads_it_after_words_and_a_call",),
    ),
    Mutant(
        "a turn whose calls have results between them goes on as it was sampled",
        "cadre/engines/text/template.py",
        "if not (written and thought in written and text.startswith(rendered) and rest.startswith(written)):",
        "if not (written and thought in written and text.startswith(rendered)):",
        (OF_TOOL_USE + "test_two_calls_that_the_template_writes_in_two_turns_are_rendered_anew",),
    ),
)


@dataclass(frozen=True)
class Verdict:
    """The outcome of a mutant: whether a test noticed, which one, and the seconds that it took."""

    name: str
    killed: bool
    by: str
    seconds: float


def place_of(mutant: Mutant, root: Path) -> int:
    """Return the number of the line that the mutant changes. Raises SystemExit where it is not there exactly once."""
    lines = (root / mutant.file).read_text(encoding="utf-8").splitlines()
    numbers = [number for number, line in enumerate(lines) if line.strip() == mutant.before]
    if len(numbers) != 1:
        raise SystemExit(
            f"Mutant {mutant.name!r}: {mutant.file} has {len(numbers)} lines `{mutant.before}`; expected one. The code "
            "has changed: name the line that does this now in MUTANTS."
        )
    return numbers[0]


def check(mutants: Sequence[Mutant], root: Path) -> None:
    """Raise SystemExit where a line to change or a test file is not there, or two mutants have one name."""
    names = [mutant.name for mutant in mutants]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SystemExit(f"Mutants of one name: {', '.join(twice)}. Rename one.")
    for mutant in mutants:
        place_of(mutant, root)
        for test in mutant.tests:
            file, _, name = test.partition("::")
            function = name.partition("[")[0]
            if not (root / file).is_file() or f"def {function}(" not in (root / file).read_text(encoding="utf-8"):
                raise SystemExit(f"Mutant {mutant.name!r}: no test {test}. Name the one that must notice.")


def fingerprint(root: Path, mutant: Mutant) -> str:
    """Return what a verdict is kept for: the mutant, the file that it changes and those of its tests."""
    digest = hashlib.sha256(repr(mutant).encode())
    for file in sorted({mutant.file, *(test.partition("::")[0] for test in mutant.tests)}):
        digest.update(file.encode() + (root / file).read_bytes())
    return digest.hexdigest()[:16]


def judge(mutant: Mutant, copy: Path) -> Verdict:
    """Change the line in the copy, run the tests that must notice, and put the line back."""
    path, number = copy / mutant.file, place_of(mutant, copy)
    original = path.read_text(encoding="utf-8")
    lines = original.splitlines(keepends=True)
    lines[number] = lines[number].replace(mutant.before, mutant.after)
    path.write_text("".join(lines), encoding="utf-8")
    started = time.perf_counter()
    try:
        code, output = run_tests(copy, mutant.tests)
    finally:
        path.write_text(original, encoding="utf-8")
    if code not in (0, FAILED, BROKEN):
        raise SystemExit(f"Mutant {mutant.name!r}: pytest ended with {code}.\n{output[-2000:]}")
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    by = failed[0].split(" - ")[0].partition(" ")[2] if failed else ""
    return Verdict(mutant.name, code != 0, by, time.perf_counter() - started)


def run_tests(copy: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Return pytest's exit code and output in the copy, up to the first failure, from a process of their own.

    The process is a fork of this one, which has imported what takes longest to import, and nothing of the package.
    """
    preload()
    with tempfile.TemporaryFile() as output:
        if not (child := os.fork()):
            os._exit(_run_pytest(copy, tests, output.fileno()))
        try:
            code = os.waitstatus_to_exitcode(wait(child, TIMEOUT))
        except subprocess.TimeoutExpired:
            return FAILED, f"FAILED after {TIMEOUT} seconds"
        output.seek(0)
        return code, output.read().decode(errors="replace")


def preload() -> None:
    """Import the packages of others that most tests need."""
    os.environ["OMP_NUM_THREADS"] = "1"  # a fork has no threads of its parent
    for name in ("pytest", "torch", "transformers"):
        importlib.import_module(name)


def _run_pytest(copy: Path, tests: Sequence[str], output: int) -> int:
    """Run in the child. No byte code is kept: a line that changes within a second would not be seen."""
    for stream in (1, 2):
        os.dup2(output, stream)
    sys.stdout = sys.stderr = os.fdopen(os.dup(output), "w")
    os.chdir(copy)
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(copy)}
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(copy))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("cadre", "tests")]:
        del sys.modules[name]
    code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests]))
    sys.stdout.flush()
    return code


def wait(child: int, seconds: float) -> int:
    """Return the status of a child process once it ends. Raises TimeoutExpired, and kills it, where it takes longer."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise subprocess.TimeoutExpired("pytest", seconds)


def copied(folder: Path) -> Path:
    """Return a copy of what the tests need below the folder."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    return folder


def judged(mutants: Sequence[Mutant], home: Path, anew: bool) -> Iterator[Verdict]:
    """Yield the verdict of every mutant, those that are known from `home` without running its tests."""
    home.mkdir(parents=True, exist_ok=True)
    verdicts = {} if anew else read_verdicts(home)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        marks = {mutant: fingerprint(ROOT, mutant) for mutant in mutants}
        if any(mark not in verdicts for mark in marks.values()):
            run_unmutated(mutants, copied(Path(folder)))
        for mutant, mark in marks.items():
            if mark not in verdicts:
                verdicts[mark] = judge(mutant, Path(folder))
                with (home / "verdicts.jsonl").open("a", encoding="utf-8") as out:
                    out.write(json.dumps({"mark": mark, **vars(verdicts[mark])}) + "\n")
            yield verdicts[mark]


def run_unmutated(mutants: Sequence[Mutant], copy: Path) -> None:
    """Raise SystemExit where the tests fail without any mutant, which would count as noticing all of them."""
    started = time.perf_counter()
    code, output = run_tests(copy, sorted({test for mutant in mutants for test in mutant.tests}))
    if code:
        raise SystemExit(f"The tests fail without any mutant (pytest ended with {code}). Mend them.\n{output[-3000:]}")
    print(f"the tests pass without any mutant ({time.perf_counter() - started:.0f} s)", flush=True)


def read_verdicts(home: Path) -> dict[str, Verdict]:
    """Return the verdicts of earlier runs by what they depend on."""
    path = home / "verdicts.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
    return {line["mark"]: Verdict(line["name"], line["killed"], line["by"], line["seconds"]) for line in lines}


def report(verdicts: Sequence[Verdict]) -> Mapping[str, int]:
    """Print the survivors and the sum."""
    survivors = [verdict.name for verdict in verdicts if not verdict.killed]
    for name in survivors:
        print(f"SURVIVED: {name}")
    counts = {"killed": len(verdicts) - len(survivors), "all": len(verdicts)}
    seconds = sum(verdict.seconds for verdict in verdicts)
    print(f"{counts['killed']} of {counts['all']} mutants killed, {seconds:.0f} s of tests")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="append mutants.killed to results/correctness.jsonl")
    parser.add_argument(
        "--check", action="store_true", help="only look whether every line to change, and every test, is there"
    )
    parser.add_argument("--anew", action="store_true", help="judge every mutant again, whatever is known of it")
    parser.add_argument("--only", help="a part of the names of the mutants to run anew")
    parser.add_argument("--home", type=Path, default=ROOT / "runs" / "mutants", help="where verdicts are kept")
    options = parser.parse_args()
    check(MUTANTS, ROOT)
    mutants = [mutant for mutant in MUTANTS if options.only is None or options.only in mutant.name]
    if options.check:
        print(f"{len(mutants)} mutants, every line and test is there")
        return
    if not mutants or (options.write and options.only):
        raise SystemExit(
            "--only: no mutant has such a name, or --write asks for all of them. Leave one of the two out."
        )
    verdicts = []
    for number, verdict in enumerate(judged(mutants, options.home, options.anew or bool(options.only)), 1):
        verdicts.append(verdict)
        outcome = f"killed by {verdict.by}" if verdict.killed else "SURVIVED"
        print(f"{number}/{len(mutants)} {verdict.name}: {outcome} ({verdict.seconds:.0f} s)", flush=True)
    counts = report(verdicts)
    if options.write:
        record("correctness", "mutants.killed", [counts["killed"]], "mutants", COMMAND, counts["all"], (), commit())
    if counts["killed"] < counts["all"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
