"""Writes docs/reference.md, every setting, metric and command: `python bench/reference.py`; `--check` only compares.

Settings come from the sections and the environments themselves, commands from the command line, metrics from the table
below, which a test compares with what runs write.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from inspect import Parameter
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel, JsonValue
from pydantic_core import PydanticUndefined

from cadre.algorithms import ALGORITHMS
from cadre.cli.app import app
from cadre.config.experiment import Config
from cadre.envs.from_data import FromData
from cadre.envs.spec import declared_settings, env_class
from cadre.plugins import environments
from cadre.settings import CriticConfig, LoraConfig, PolicyConfig, Section

PAGE = Path(__file__).parent.parent / "docs" / "reference.md"
# ROLE, POLICY and PART stand for names of the experiment's own, N for a number.
METRICS = {
    "rollout/success": "fraction of sampled episodes that are solved; higher than in evaluation, because branches "
    "are selected",
    "rollout/episodes": "episodes that were played to their end",
    "rollout/failures": "tasks that were dropped because all episodes failed",
    "rollout/failed": "fraction of tasks that were dropped; see faults.md",
    "rollout/failed/raised": "of these, because the environment raised an error",
    "rollout/failed/contract": "because the environment returned something invalid",
    "rollout/failed/deadline": "because the environment took too long",
    "rollout/failed/prompt": "because the prompt was too long, or rejected by the endpoint",
    "rollout/failed/answer": "because the remote model returned nothing readable",
    "rollout/failed/sandbox": "because the sandbox could not run a program",
    "rollout/failed/diverged": "because a restarted program sent another request than before",
    "rollout/failed_branches": "failed branches in the trees that were not dropped; see faults.md",
    "rollout/failed_branches/REASON": "the same by reason, as in `rollout/failed/REASON`, if there are any",
    "rollout/divergence_rate": "fraction of started trees, retries included, that ended with the reason `diverged`",
    "rollout/retried": "episodes that failed and were retried",
    "rollout/decisions": "decisions per episode, mean",
    "rollout/zero_variance_groups": "fraction of the groups of trained roles in which all advantages are zero",
    "rollout/replaced": "trees without a gradient, and failures, that fresh tasks replaced (train.replacements)",
    "rollout/tokens": "sampled tokens",
    "rollout/env_steps": "joint actions that were tried",
    "rollout/ablated_steps": "distinct joint actions without some of the roles, stepped to compute the credit",
    "rollout/history_clean": "prompts that extend the token ids of an earlier turn, where the template gives the "
    "same ids",
    "rollout/history_realigned": "prompts that extend these ids although the template would give others",
    "rollout/history_new": "later prompts that are tokenised anew, and so start a new training sequence",
    "rollout/dropped": "samples left out of the update (credit.without_std, credit.truncated, rules of algorithms)",
    "rollout/overlong": "length penalty of the samples near max_tokens, mean (credit.overlong_buffer)",
    "preference/loss": "-log sigmoid of the team's margin, mean over pairs (ma_dpo)",
    "preference/accuracy": "fraction of pairs in which the team prefers the better joint action",
    "preference/pairs": "pairs of joint actions with different returns",
    "reward_model/score": "score of the reward model, mean (algorithm.reward_model)",
    "parts/PART": "a part of the reward, named by the environment: mean over the steps of the roles that receive it, "
    "steps without it left out; trained on with algorithm.parts only",
    "ROLE/reward": "alpha * team + local per sample, mean; includes local rewards of steps in which the role did not "
    "act",
    "ROLE/tokens": "tokens per completion, mean",
    "ROLE/tokens_max": "tokens of the longest completion",
    "ROLE/truncated": "fraction of completions cut at max_tokens",
    "ROLE/zero_variance_groups": "fraction of the role's groups in which all advantages are zero",
    "ROLE/zero_variance_groups/N": "the same for decision N of an episode, counted from 0",
    "ROLE/gradient_fraction": "the role's fraction of its policy's gradient mass, the sum of abs(advantage) * weight",
    "ROLE/effective_samples": "effective sample size of the role's gradient masses: (sum of masses)^2 / sum of squares",
    "ROLE/kl_penalty": "log pi - log reference of the sampled tokens, the cost of algorithm.kl; mean per token",
    "ROLE/influence": "causal influence of its answers on the next one (dr_mamr), nats an answer",
    "ROLE/kl_to_teacher": "log pi - log teacher of the sampled tokens, mean: reverse KL per token, with a teacher",
    "ROLE/value": "value of the critic before the update, mean",
    "ROLE/return": "the return that is its target, mean",
    "ROLE/advantage_std": "standard deviation of the advantages before whitening",
    "ROLE/explained_variance": "fraction of the returns' variance that the critic explains; 1 is perfect, 0 or less "
    "useless",
    "POLICY/loss": "policy loss per optimiser step, mean",
    "POLICY/value_loss": "loss of the value heads per optimiser step, mean",
    "POLICY/grad_norm": "norm of the gradient before clipping, mean over optimiser steps",
    "POLICY/entropy": "entropy of the policy per token, nats; like other token means, over sequences with an advantage",
    "POLICY/ratio": "probability of a token now over that when sampled, mean",
    "POLICY/clip_fraction": "fraction of tokens whose ratio was clipped",
    "POLICY/loss/NAME": "a metric of a loss of your own (loss.function), mean over trained tokens",
    "POLICY/correction_fraction": "fraction of tokens whose weight loss.correction changed",
    "POLICY/kl_to_sampler": "KL to the policy that sampled, per token, estimator k3, nats",
    "POLICY/kl_to_sampler_k1": "the same with estimator k1",
    "POLICY/kl_to_reference": "KL to the reference per token, nats; with loss.kl",
    "POLICY/logprob_diff_max": "largest difference between the learner's and the sampler's log-probability of a token",
    "ROLE/logprob_diff": "absolute difference of learner's and sampler's log-probability per token before the update",
    "POLICY/learning_rate": "learning rate of the last optimiser step",
    "POLICY/learned": "1 if the policy was trained at this step, 0 if train.schedule froze it; only with a schedule",
    "POLICY/kl_checked": "KL(sampler, policy) per token (k3) before the last optimiser step, with loss.kl_bound",
    "POLICY/kl_stopped": "1 if it exceeded the bound, so that the optimiser step was skipped",
    "POLICY/updates": "optimiser steps",
    "POLICY/skipped": "optimiser steps skipped because the loss or the gradient was not finite",
    "POLICY/sequences": "training sequences",
    "POLICY/trained_tokens": "trained tokens",
    "POLICY/tokens_per_s": "trained tokens per second",
    "ROLE/staleness": "updates of the policy since the samples were drawn, mean",
    "rollout/staleness_max": "maximum over all samples",
    "time/sample_s": "seconds of sampling",
    "time/wait_s": "seconds that learning waited for samples; less with train.max_staleness",
    "time/learn_s": "seconds of the update and weight sync",
    "time/sync_s": "of `time/learn_s`, seconds of vLLM's weight sync",
    "time/sleep_s": "of `time/learn_s`, seconds in which a colocated vLLM frees GPU memory",
    "time/wake_s": "of `time/learn_s`, seconds in which it allocates the memory again",
    "time/update_s": "of `time/learn_s`, seconds of the update alone; this and the following on GPUs only",
    "gpu/busy_fraction": "fraction of the step in which the first GPU ran a kernel of any process, by NVIDIA's "
    "driver; missing without the package nvidia-ml-py",
    "gpu/learning_mfu": "model FLOP utilisation: 6 operations per weight and distinct token (4 with adapters) over "
    "the GPUs' peak in `time/update_s`; missing for GPUs that are not in training/metrics.py",
    "gpu/learning_tokens_per_s": "distinct trained tokens per second",
    "gpu/learning_peak_gb": "peak memory of this process's tensors while learning, GB",
    "gpu/sampling_bandwidth_fraction": "least time to read weights and KV cache at the GPUs' bandwidth, over "
    "`time/sample_s`; missing for GPUs that are not in training/metrics.py",
    "gpu/sampling_tokens_per_s": "sampled tokens per second",
    "gpu/sampling_peak_gb": "peak memory of this process's tensors while sampling, GB, without vLLM's",
}
EVALUATION = {
    "step": "updates before the evaluation",
    "tasks": "held-out tasks, each played once at temperature 0 with one completion per decision",
    "failures": "tasks whose episode failed, for any reason of `rollout/failed`; they count as not solved",
    "success": "fraction of tasks that were solved",
    "low": "lower end of its 95% Wilson interval",
    "high": "upper end",
    "reward": "sum of team and local rewards per episode, mean",
    "decisions": "decisions per episode, mean",
    "tokens": "sampled tokens per episode, mean",
    "parts": "parts of the reward by name: mean over episodes of the mean over their steps, as `parts/PART`",
    "outcomes": "success and reward of each task; the reward is null if the episode failed. `cadre compare` pairs them",
    "tasks_sha256": "hash of the tasks' names and contents",
    "exact": "exact figures of a game whose decisions can be listed (games_of_theory.md)",
}
SECTIONS = (
    "team",
    "credit",
    "loss",
    "teacher",
    "kl",
    "sampling",
    "vllm",
    "learner",
    "train",
    "episodes",
    "evaluate",
    "trackers",
    "cluster",
    "sandbox",
)


def page() -> str:
    """The whole page, as Markdown."""
    return "\n".join([*_settings(), *_environments(), *_metrics(), *_commands()]) + "\n"


def _settings() -> Iterator[str]:
    yield from (
        "# Settings, metrics, commands",
        "",
        "This page is generated by `python bench/reference.py`. To change a description, change it in the code.",
        "",
        "## Settings",
        "",
        "A setting is a key of the YAML file, or `key=value` after the recipe on the command line. `*` stands for any",
        "name: `team.policies.*.dtype=bfloat16`.",
        "",
        "A mapping on the command line (`'train={steps: 20, seed: 1}'`) changes the keys that it names, and keeps the",
        "other settings of the section. It replaces the whole section for an algorithm with another name, for new",
        "policies given with roles, for the environment's settings, and for mappings by role",
        "(`'team.roles={tool: a}'`, `algorithm.k`).",
        "",
        "A recipe may extend another one, bundled or a file beside it, with `base: plan-path`. It inherits its",
        "settings, and changes them by the same rules.",
        "",
    )
    yield from _table("", Config, ("env", "settings", "algorithm"))
    for name in SECTIONS:
        section = _section(Config.model_fields[name].annotation)
        yield from (f"### {name}", "", _about(section), "")
        yield from _table(f"{name}.", section, section.model_fields)
    yield from ("### A policy: team.policies.NAME", "", _about(PolicyConfig), "")
    yield from _table("", PolicyConfig, PolicyConfig.model_fields)
    yield from ("### An adapter: team.policies.NAME.lora", "", _about(LoraConfig), "")
    yield from _table("", LoraConfig, LoraConfig.model_fields)
    yield from _algorithms()


def _algorithms() -> Iterator[str]:
    yield from ("### algorithm", "", "`algorithm: NAME`, or `algorithm: {name: NAME, ...}` with these settings.", "")
    for name, kind in ALGORITHMS.items():
        yield from (f"#### {name}", "", _about(kind), "")
        yield from _table("algorithm.", kind, [field for field in kind.model_fields if field != "name"])
    yield from ("### A critic: algorithm.critic of ippo, mappo and rlhf", "", _about(CriticConfig), "")
    yield from _table("", CriticConfig, CriticConfig.model_fields)


def _environments() -> Iterator[str]:
    """The settings of the bundled environments, those with the same ones in one row."""
    shared = declared_settings(FromData)
    rows: dict[str, list[str]] = defaultdict(list)
    for name in environments():
        declared = declared_settings(env_class(name))
        data = "data, source and the like; " if "fields" in declared else ""
        own = (_of_environment(*item) for item in declared.items() if not data or item[0] not in shared)
        rows[f"{data}{'; '.join(own)}"].append(f"`{name}`")
    yield from (
        "### Settings of the bundled environments",
        "",
        "`settings.NAME`, with kind and default. Data, source and the like: [tasks.md](tasks.md#data). Descriptions:",
        "[games.md](games.md), [tasks.md](tasks.md), [worlds.md](worlds.md), [vision.md](vision.md),",
        "[audio.md](audio.md), [programs.md](programs.md).",
        "",
        "| environments | settings |",
        "|---|---|",
    )
    yield from (f"| {', '.join(names)} | {settings} |" for settings, names in rows.items())


def _of_environment(name: str, declared: Parameter) -> str:
    kind = _kind(declared.annotation)
    if declared.default is declared.empty:
        return f"`{name}` {kind} (needed)"
    default = "unset" if declared.default is None else f"`{_plain(declared.default)}`"
    return f"`{name}` {kind} ({default})"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(dict(value)) if isinstance(value, Mapping) else value if value != "" else "''"


def _commands() -> Iterator[str]:
    """Every command with the first line of its help."""
    yield from (
        "",
        "## Commands",
        "",
        "`cadre COMMAND --help` lists the options.",
        "",
        "| command | what it does |",
    )
    yield "|---|---|"
    for name, command in sorted(typer.main.get_group(app).commands.items()):
        yield f"| `cadre {name}` | {(command.help or '').splitlines()[0]} |"
    yield "| `cadre --install-completion` | complete commands and options in this shell |"


def _metrics() -> Iterator[str]:
    yield from (
        "",
        "## Metrics",
        "",
        "`metrics.jsonl` has one line per step; trackers receive the same. ROLE, POLICY and PART stand for your names.",
        "",
        "| metric | meaning |",
        "|---|---|",
    )
    yield from (f"| `{name}` | {words} |" for name, words in METRICS.items())
    yield from ("", "## Evaluations", "", "`evaluations.jsonl` has one line per evaluation.", "")
    yield from ("| field | meaning |", "|---|---|")
    yield from (f"| `{name}` | {words} |" for name, words in EVALUATION.items())


def _about(section: type[BaseModel]) -> str:
    """The first paragraph of a section's docstring."""
    return " ".join((section.__doc__ or "").split("\n\n")[0].split())


def _table(prefix: str, section: type[BaseModel], names: Any) -> Iterator[str]:
    yield "| setting | kind | default | what it does |"
    yield "|---|---|---|---|"
    for name in names:
        field = section.model_fields[name]
        default = _default(field)
        kind = "an algorithm" if name == "algorithm" else _kind(field.annotation, field.metadata)
        yield f"| `{prefix}{name}` | {kind} | {default} | {(field.description or '').replace('|', '/')} |"
    yield ""


def _default(field: Any) -> str:
    if field.is_required():
        return "needed"
    value = field.default if field.default is not PydanticUndefined else field.default_factory()
    if value is None:
        return "unset"
    if isinstance(value, BaseModel) or value == {}:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _kind(annotation: Any, metadata: Any = ()) -> str:
    """A type in words: `integer, at least 1`."""
    words = _words(annotation)
    bounds = [text for constraint in metadata for text in _bounds(constraint)]
    return ", ".join([words, *bounds])


def _bounds(constraint: Any) -> Iterator[str]:
    for inner in getattr(constraint, "metadata", ()):  # of a Field
        yield from _bounds(inner)
    for name, words in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below")):
        value = getattr(constraint, name, None)
        if value is not None:
            yield f"{words} {value:g}"


def _words(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(arguments[0], arguments[1:])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_words(kind) for kind in arguments if kind is not type(None)))
    if origin in (tuple, list):
        return f"a list of {_words(arguments[0])}"
    if origin in (dict, Mapping):
        return f"names to {_words(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a section"
    kinds = {
        Any: "anything",
        int: "integer",
        float: "number",
        str: "text",
        bool: "`true` or `false`",
        JsonValue: "anything",
    }
    return kinds.get(annotation, "a section" if isinstance(annotation, type) else "anything")


def _section(annotation: Any) -> type[Section]:
    """The section behind an annotation."""
    if isinstance(annotation, type):
        return annotation
    return next(_section(kind) for kind in get_args(annotation))


def described(metric: str, roles: Mapping[str, str]) -> bool:
    """Whether the table has the metric, where `roles` says which policy plays each role."""
    names = {"ROLE": roles, "POLICY": roles.values()}
    metric = unnumbered(metric)
    for pattern in METRICS:
        head, _, tail = pattern.partition("/")
        if tail == "PART" and metric.startswith(f"{head}/"):
            return True
        if metric in {f"{name}/{tail}" for name in names.get(head, (head,))}:
            return True
    return False


def unnumbered(metric: str) -> str:
    """The metric with N for the number that it ends with, if it does."""
    return re.sub(r"/\d+$", "/N", metric)


def main() -> None:
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text() == page() else "docs/reference.md is out of date: python bench/reference.py")
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
