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
    "rollout/success": "share of the sampled episodes that were solved; siblings to choose from lift it above `eval`",
    "rollout/episodes": "episodes that were played to their end",
    "rollout/failures": "tasks whose episodes failed and were dropped",
    "rollout/failed": "share of the tasks that were dropped so; see faults.md",
    "rollout/failed/raised": "of the tasks, those whose environment raised an error",
    "rollout/failed/contract": "those whose environment handed over what it may not",
    "rollout/failed/deadline": "those whose environment took too long",
    "rollout/failed/prompt": "those whose prompt the model could not be asked",
    "rollout/failed/answer": "those whose remote model answered with nothing to read",
    "rollout/failed/sandbox": "those whose programs could not be run",
    "rollout/failed/diverged": "those whose program, started again with the same answers, asked for something else",
    "rollout/failed_branches": "branches that failed in the trees that were kept; see faults.md",
    "rollout/failed_branches/REASON": "of them, those that failed for one of the reasons of `rollout/failed`, if any",
    "rollout/divergence_rate": "share of the trees begun, those that were tried again included, that ended so",
    "rollout/retried": "episodes that failed and were tried again",
    "rollout/decisions": "decisions an episode, mean",
    "rollout/zero_variance_groups": "fraction of the groups of trained roles in which all advantages are zero",
    "rollout/replaced": "trees without a useful group, and failures, that fresh tasks replaced (train.replacements)",
    "rollout/tokens": "tokens sampled",
    "rollout/env_steps": "joint actions that were tried",
    "rollout/ablated_steps": "different joint actions without some roles, stepped for the credit",
    "rollout/history_clean": "prompts that go on from a turn before with its sampled ids, rendered alike",
    "rollout/history_realigned": "prompts that keep them although the template would write them in another way",
    "rollout/history_new": "later prompts that are rendered afresh, as new training sequences",
    "rollout/dropped": "samples left out of the update (credit.without_std, credit.truncated, rules of algorithms)",
    "rollout/overlong": "penalty of the samples near max_tokens, mean (credit.overlong_buffer)",
    "preference/loss": "-log sigmoid of the team's margin, mean over pairs (ma_dpo)",
    "preference/accuracy": "share of the pairs of which the team prefers the better",
    "preference/pairs": "pairs of joint actions that earned differently",
    "reward_model/score": "score of the reward model, mean (algorithm.reward_model)",
    "parts/PART": "a part of the reward, as the environment names it: mean over the steps of the roles that are told "
    "it, those that name no part left out; trained on with algorithm.parts alone",
    "ROLE/reward": "what the role was paid a sample, alpha * team + local, local while absent too; mean",
    "ROLE/tokens": "tokens of a completion, mean",
    "ROLE/tokens_max": "tokens of the longest completion",
    "ROLE/truncated": "share of the completions that were cut at max_tokens",
    "ROLE/zero_variance_groups": "fraction of the role's groups in which all advantages are zero",
    "ROLE/zero_variance_groups/N": "the same of the role's decision N of an episode, counted from 0",
    "ROLE/gradient_fraction": "the role's part of its policy's gradient mass, |advantage| by weight in the loss",
    "ROLE/effective_samples": "so many of its samples, were all to move it alike: (sum of masses)^2 / sum of squares",
    "ROLE/kl_penalty": "log pi - log reference of the sampled tokens, which algorithm.kl charges for, mean a token",
    "ROLE/value": "what the critic said before the update, mean",
    "ROLE/return": "what it should have said, mean",
    "ROLE/advantage_std": "standard deviation of the advantages before whitening",
    "ROLE/explained_variance": "share of the returns' variance that the critic explains: 1 is all, 0 or less nothing",
    "POLICY/loss": "policy loss an optimiser step, mean",
    "POLICY/value_loss": "loss of the value heads an optimiser step, mean",
    "POLICY/grad_norm": "norm of the gradient before clipping, mean over optimiser steps",
    "POLICY/entropy": "entropy of the policy a token, nats; such means are over sequences that have an advantage",
    "POLICY/ratio": "probability now over probability when sampled, mean a token",
    "POLICY/clip_fraction": "share of the tokens whose ratio was clipped",
    "POLICY/loss/NAME": "a metric of a loss of your own (loss.function), mean over trained tokens",
    "POLICY/correction_fraction": "share of the tokens that loss.correction changed",
    "POLICY/kl_to_sampler": "divergence from the policy that sampled, a token, estimator k3, nats",
    "POLICY/kl_to_sampler_k1": "the same by estimator k1",
    "POLICY/kl_to_reference": "divergence from the reference, a token, nats; where loss.kl has one",
    "POLICY/logprob_diff_max": "largest difference between the learner's and the sampler's log-probability of a token",
    "ROLE/logprob_diff": "|learner's - sampler's log-probability| of a token of the role before the update, mean",
    "POLICY/learning_rate": "rate of the step's last update",
    "POLICY/learned": "1 if it learned at this step, 0 if train.schedule froze it; with a schedule alone",
    "POLICY/kl_checked": "KL(sampler || policy) a token (k3) before the last optimiser step, with loss.kl_bound",
    "POLICY/kl_stopped": "1 if that was above the bound, so that the step was not made",
    "POLICY/updates": "optimiser steps made in this step",
    "POLICY/skipped": "optimiser steps left out because the loss or the gradient was not finite",
    "POLICY/sequences": "training sequences",
    "POLICY/trained_tokens": "tokens trained on",
    "POLICY/tokens_per_s": "of them a second",
    "ROLE/staleness": "updates of its policy since its samples were drawn, mean",
    "rollout/staleness_max": "the most of all samples",
    "time/sample_s": "seconds to sample",
    "time/wait_s": "seconds that learning waited for that; fewer where sampling runs ahead",
    "time/learn_s": "seconds to update",
    "time/sync_s": "of them, seconds to hand vLLM the new weights",
    "time/sleep_s": "of them, seconds in which a colocated vLLM frees memory of the GPU",
    "time/wake_s": "of them, seconds in which it takes the memory back",
    "time/update_s": "of `time/learn_s`, seconds of the update alone; this and what follows in runs on GPUs only",
    "gpu/busy_fraction": "part of the step in which the first GPU ran a kernel of any process, by readings of NVIDIA's "
    "driver; missing without the package nvidia-ml-py",
    "gpu/learning_mfu": "arithmetic of training on the distinct tokens (6 operations a weight and token, 4 with "
    "adapters) over what the GPUs can compute in `time/update_s`; missing for GPUs that are not in training/metrics.py",
    "gpu/learning_tokens_per_s": "distinct tokens that are trained on, a second",
    "gpu/learning_peak_gb": "most memory of this process's tensors while learning, GB",
    "gpu/sampling_bandwidth_fraction": "least time to read the weights, keys and values of decoding at the GPUs' "
    "bandwidth, over `time/sample_s`; missing for GPUs that are not in training/metrics.py",
    "gpu/sampling_tokens_per_s": "tokens sampled a second",
    "gpu/sampling_peak_gb": "most memory of this process's tensors while sampling, GB; vLLM's is not in it",
}
EVALUATION = {
    "step": "updates made before it",
    "tasks": "held-out tasks that were played, each once, at temperature 0 and without siblings to choose from",
    "failures": "of them, those whose episodes failed, for any of the reasons of `rollout/failed`; not solved",
    "success": "share of the tasks that were solved",
    "low": "lower end of its 95% interval (Wilson)",
    "high": "upper end",
    "reward": "team and local rewards of an episode, mean",
    "decisions": "decisions an episode, mean",
    "tokens": "tokens sampled an episode, mean",
    "parts": "parts of the reward by name: mean over episodes of the mean over their steps, as `parts/PART`",
    "outcomes": "by task, its success and its reward, which is null if the episode failed; `cadre compare` pairs them",
    "tasks_sha256": "of the tasks' names and contents",
    "exact": "figures of a game whose decisions can be listed, by name (games_of_theory.md); missing for others",
}
SECTIONS = (
    "team",
    "credit",
    "loss",
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
        "# Settings and metrics",
        "",
        "Made by `python bench/reference.py` from the code; change the descriptions there.",
        "",
        "## Settings",
        "",
        "Each is a key of the YAML, or `key=value` behind a recipe on the command line. `*` stands for every name:",
        "`team.policies.*.dtype=bfloat16`. A mapping (`'train={steps: 20, seed: 1}'`) leaves the other settings of its",
        "section, but for an algorithm, or policies with roles, that are named anew; the environment's settings, and",
        "a map of roles or of siblings (`'team.roles={tool: a}'`), stand whole.",
        "",
        "A recipe may name another one, bundled or a file beside it, as `base: plan-path`. It then has what that has,",
        "and what it says itself is laid over it by the same rules.",
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
        "`settings.NAME`, each with its kind and its default. Data, source and the like: [tasks.md](tasks.md#data).",
        "What they do: [games.md](games.md), [tasks.md](tasks.md), [worlds.md](worlds.md), [vision.md](vision.md),",
        "[programs.md](programs.md).",
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
        "`cadre COMMAND --help` has the options of each.",
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
        "One line a step in `metrics.jsonl`, and the same in trackers. ROLE, POLICY and PART are names of your own.",
        "",
        "| metric | what it is |",
        "|---|---|",
    )
    yield from (f"| `{name}` | {words} |" for name, words in METRICS.items())
    yield from ("", "## Evaluations", "", "One line an evaluation in `evaluations.jsonl`.", "")
    yield from ("| field | what it is |", "|---|---|")
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
