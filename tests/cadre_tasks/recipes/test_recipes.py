"""Recipes by name: every task of real size with every model at every level is sound, and fits the card it names."""

from collections.abc import Iterator

import pytest
import yaml

from cadre.config.estimate import estimate_resources, format_estimate
from cadre.config.experiment import load, parse
from cadre.config.recipes import LEVELS, compose_recipe, read_recipe, real_tasks, recipes, task_variants
from cadre.config.resolve import resolve
from cadre.engines.torch import sizes
from cadre.engines.torch.memory import SequenceMemory
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError
from cadre.plugins import environments
from cadre.settings import PolicyConfig
from cadre.settings.models import KNOWN_MODELS
from tests.cadre.cli.calling import call
from tests.helpers.playing import source

# A dry run of each kind of task; the others differ in their prompts and data.
QUICK = ("maths", "pairs-humaneval")
TASKS = [
    pytest.param(form, marks=[pytest.mark.slow] * (form not in QUICK))
    for task in real_tasks()
    for form in task_variants(task)
]
FEWER = {"pairs-humaneval": 1, "pairs-coophumaneval": 1}


def changes(task: str) -> Iterator[str]:
    """Yield the settings that let a task read the invented data, two items per set."""
    if "source" not in EnvSpec(forms_of(task), {}).all_settings:
        return
    yield f"settings.source={source()}"
    if any(task.startswith(name) for name in FEWER):
        yield from ("settings.data=humaneval", "settings.held_out=1")


def forms_of(task: str) -> str:
    return next(env for name in real_tasks() for form, env in task_variants(name).items() if form == task)


@pytest.mark.parametrize("all_items", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("task", TASKS)
def test_every_task_with_every_model_at_every_level(task: str, all_items: bool) -> None:
    """The first model at every level and the others at one each, or every pair."""
    arguments = list(changes(task))
    for position, model in enumerate(KNOWN_MODELS):
        for level in LEVELS if all_items or not position else [list(LEVELS)[position % len(LEVELS)]]:
            chosen = load(f"{task}-{model}-{level}", arguments)
            named = {policy.model for policy in chosen.team.policies.values()}
            assert named == {KNOWN_MODELS[model].hub}
            assert len(chosen.team.policies) == (1 if level == "L0" else len(chosen.team.roles))
            assert all((policy.lora is not None) == (level == "L1") for policy in chosen.team.policies.values())
            if position == 0:  # what the others come to differs by the names of their models alone
                resolve(chosen)


@pytest.mark.parametrize("task", TASKS)
def test_a_dry_run_of_every_task(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its models' sizes are looked at below."""
    small = sizes.Sizes(1, 1, 1, 1, SequenceMemory(1, 1), 1, 1, 1, 1)
    monkeypatch.setattr(sizes, "measure", lambda model, policy: small)
    chosen = load(f"{task}-qwen3-0.6b", list(changes(task)))
    result = estimate_resources(chosen)
    assert set(result.samples) == set(chosen.team.roles)
    assert len(list(format_estimate(result))) > 4


def test_published_numbers_of_weights() -> None:
    for model, weights in (("qwen3-1.7b", 1_720_574_976), ("qwen2.5-coder-7b", 7_615_616_512)):
        hub = KNOWN_MODELS[model].hub
        assert sizes.measure(hub, PolicyConfig(model=hub)).parameters == weights


def test_what_is_listed_reads_back_as_what_is_trained() -> None:
    result = call("list", "plan-path-single-agent-qwen3-8b-L1")
    assert result.code == 0
    assert parse(yaml.safe_load(result.out)) == load("plan-path-single-agent-qwen3-8b-L1")
    assert "env: plan-path-single-agent" in result.out
    assert result.out.count("\n") < 20


def test_the_papers_settings() -> None:
    chosen = load("sokoban-qwen3-8b")
    assert (chosen.algorithm.name, chosen.algorithm.k, chosen.algorithm.alpha) == ("at_grpo", 4, 1.0)
    assert chosen.train.tasks_per_step // chosen.learner.minibatches == 64
    assert (chosen.learner.learning_rate, chosen.sampling.max_tokens) == (1e-6, 4096)
    assert load("sokoban-qwen3-8b-L1").learner.learning_rate == 1e-5


def test_a_file_comes_before_a_composition_of_the_same_name() -> None:
    name = "plan-path-qwen2.5-coder-0.5b"
    assert name in recipes()
    assert load(name).sampling.max_tokens == 512
    assert load(f"{name}-L2").sampling.max_tokens == 4096


def test_every_form_is_an_environment() -> None:
    played = {name for name in environments() if name.startswith("plan-path")}
    assert set(task_variants("plan-path").values()) == played - {
        "plan-path-picture"
    }  # which a model of text cannot see
    assert task_variants("pairs-mbpp")["pairs-mbpp"] == "pairs"


@pytest.mark.parametrize(
    ("wrong", "intended"),
    [
        ("plan-path-qwen3-9b", "plan-path-qwen3-8b"),
        ("plan-path-qwen3-8b-L3", r"plan-path-qwen3-8b-L\d"),
        ("plan-path-single-agent-qwen3-1.6b-L1", "plan-path-single-agent-qwen3-1.7b-L1"),
        ("plan-path-mappoo", "plan-path-mappo"),
    ],
)
def test_a_name_that_is_nearly_a_composition_is_refused_with_the_nearest(wrong: str, intended: str) -> None:
    with pytest.raises(ConfigError, match=rf"Did you mean {intended}\?"):
        read_recipe(wrong)


def test_a_task_that_there_is_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'plan-pth' is no task .* Did you mean plan-path\?"):
        load("plan-pth-qwen3-8b-L1")
    with pytest.raises(ConfigError, match="neither a bundled recipe nor a file"):
        load("plan-path-qwen3-80b")
    assert compose_recipe("plan-path") is None
