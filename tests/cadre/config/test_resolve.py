"""An experiment is resolved once, and holds all that later stages need."""

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from cadre.cli import train as command
from cadre.cli.app import app
from cadre.config import resolve as resolve_module
from cadre.config.experiment import dump, parse
from cadre.config.resolve import find_target, resolve, resolve_for_evaluation
from cadre.errors import ConfigError
from cadre.plugins import embedded_models
from cadre.settings import LoraConfig, PolicyConfig
from cadre.types import Sampling
from tests.helpers.training import configured


@pytest.mark.parametrize(
    ("size", "instructions", "gpus", "dtypes"),
    [
        (0, True, 0, {"whole": "float32", "adapter": "bfloat16", "fixed": "bfloat16", "named": "float32"}),
        (0, False, 0, dict.fromkeys(("whole", "adapter", "fixed", "named"), "float32")),
        (0, False, 1, {"whole": "bfloat16", "adapter": "bfloat16", "fixed": "bfloat16", "named": "float32"}),
        (1 << 30, True, 1, dict.fromkeys(("whole", "adapter", "fixed", "named"), "float32")),
    ],
    ids=["processor", "old processor", "gpu", "small models"],
)
def test_auto_is_the_faster_data_type(
    monkeypatch: pytest.MonkeyPatch, size: int, instructions: bool, gpus: int, dtypes: dict[str, str]
) -> None:
    monkeypatch.setattr(resolve_module, "SMALL_MODEL", size)
    monkeypatch.setattr(resolve_module, "count_gpus", lambda: gpus)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": instructions})
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **options: True)
    policies = {
        "whole": PolicyConfig(model="seed"),
        "adapter": PolicyConfig(model="seed", lora=LoraConfig()),
        "fixed": PolicyConfig(model="seed", frozen=True),
        "named": PolicyConfig(model="seed", lora=LoraConfig(), dtype="float32"),
    }
    chosen = resolve_module.choose_dtypes(policies, resolve_module._find_models(policies))
    assert {name: policy.dtype for name, policy in chosen.items()} == dtypes


def test_what_an_experiment_comes_to() -> None:
    team = {
        "policies": {
            "small": {"model": "seed", "lora": {"rank": 2}, "learner": {"learning_rate": 0.5}},
            "fixed": {"model": "Qwen/Qwen3-1.7B", "frozen": True, "sampling": {"top_k": 5}},
        },
        "roles": {"tool": "small", "planner": "fixed"},
    }
    raw = {"env": "plan-path", "team": team, "algorithm": {"name": "ippo", "critic": {"policy": "seed"}}}
    experiment = resolve(parse(raw | {"sampling": {"max_tokens": 9}, "learner": {"epochs": 2}}))
    assert experiment.trained_roles == {"tool": "small"}
    assert list(experiment.policies) == ["small", "fixed", "critic of tool"]
    assert experiment.models["fixed"] == "Qwen/Qwen3-1.7B"
    assert experiment.models["small"] == experiment.models["critic of tool"] == str(embedded_models()["seed"])
    assert experiment.heads == {"critic of tool": ("tool",)}
    rates = {name: (learner.learning_rate, learner.epochs) for name, learner in experiment.learners.items()}
    assert rates == {"small": (0.5, 2), "critic of tool": (1e-6, 2)}
    assert experiment.sampling == {"tool": Sampling(1.0, 1.0, 0, 9), "planner": Sampling(1.0, 1.0, 5, 9)}


def test_held_out_tasks_have_settings_of_their_own() -> None:
    raw = {"env": "plan-path", "team": "seed", "algorithm": "at_grpo", "settings": {"turns": 2, "size": 6}}
    experiment = resolve(parse({**raw, "evaluate": {"settings": {"turns": 3}}}))
    assert experiment.env_spec.settings == {"turns": 2, "size": 6}
    assert experiment.held_out.settings == {"turns": 3, "size": 6}
    with pytest.raises(ConfigError, match=r"^evaluate.settings.turn: .*turns\?"):
        resolve(parse({**raw, "evaluate": {"settings": {"turn": 3}}}))


def test_what_is_held_out_is_kept_from_training_whatever_set_it_is(tmp_path: Path) -> None:
    """The set that held-out tasks are taken from is the one that leaks are looked for in."""
    rows = [{"question": f"What is the sum of {n} and {n} and also one more?", "answer": str(2 * n)} for n in range(4)]
    for name, chosen in {"all": rows, "few": rows[:1], "other": rows[2:]}.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chosen))
    sets = {"train": str(tmp_path / "all.jsonl"), "test": str(tmp_path / "few.jsonl")}
    raw = {"env": "maths-vote", "team": "seed", "algorithm": "grpo", "settings": sets}
    second = {"settings": {"test": str(tmp_path / "other.jsonl")}}
    assert len(resolve(parse(raw)).env_spec.tasks("train")) == 3
    experiment = resolve(parse({**raw, "evaluate": second}))
    assert len(experiment.env_spec.tasks("train")) == len(experiment.held_out.tasks("test")) == 2
    with pytest.raises(ConfigError, match=r"^evaluate.settings.train: .* change what is trained on"):
        resolve(parse({**raw, "evaluate": {"settings": {"train": "gsm8k"}}}))


def test_a_start_of_training_plans_and_resolves_once(
    speaker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: Console
) -> None:
    called: list[str] = []

    def counting(name: str):
        original = getattr(resolve_module, name)
        return lambda *arguments: called.append(name) or original(*arguments)

    for name in ("plan_of", "_resolve_players"):
        monkeypatch.setattr(resolve_module, name, counting(name))
    chosen = configured(speaker, train={"steps": 1, "tasks_per_step": 1}, evaluate={"tasks": 1})
    (tmp_path / "digit.yaml").write_text(dump(chosen))
    monkeypatch.setattr(command, "console", quiet)
    result = CliRunner().invoke(app, ["train", str(tmp_path / "digit.yaml"), "--run", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    assert sorted(called) == ["_resolve_players", "plan_of"]


def test_evaluation_never_looks_at_the_training_split(speaker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = configured(speaker)
    requests: list[str] = []
    env_class = resolve_module.EnvSpec(chosen.env, {}).env_class
    monkeypatch.setattr(
        resolve_module.EnvSpec, "tasks", lambda self, split: requests.append(split) or env_class.tasks(split)
    )
    resolve_for_evaluation(chosen)
    assert requests == []
    resolve(chosen)
    assert "train" in requests


def test_a_setting_without_a_default_has_to_be_given(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from tests.helpers.games import Digit\n"
        "class Mine(Digit):\n"
        "    def __init__(self, task, size):\n"
        "        super().__init__(task)\n"
    )
    raw = {"env": f"{tmp_path}/mine.py:Mine", "algorithm": "at_grpo"}
    team = {"policies": {"shared": "seed"}, "roles": {"speaker": "shared"}}
    for how in (resolve, resolve_for_evaluation):
        with pytest.raises(ConfigError, match=r"settings\.size: missing"):
            how(parse(raw | {"team": team}))
    assert resolve(parse(raw | {"team": team, "settings": {"size": 2}})).env_spec.settings == {"size": 2}


@pytest.mark.parametrize("name", ["$MODELS/qwen", "my models/qwen", "C:\\models/qwen"])
def test_what_cannot_be_a_hub_name_is_a_missing_folder(name: str) -> None:
    """A variable that no shell had replaced was looked for on the hub, which was said not to answer."""
    with pytest.raises(ConfigError, match=r"the model of policy shared: got .* holds no config\.json"):
        resolve(find_target("plan-path", [f"team.policies.shared.model='{name}'"]).config)
