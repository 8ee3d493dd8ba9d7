"""Any mapping of roles to policies: shared, per role, adapters, frozen, remote, and other assignments at evaluation."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoTokenizer
from typer.testing import CliRunner

from cadre.cli.app import app
from cadre.config.engines import build_team, parse_assignment
from cadre.config.experiment import Config, parse
from cadre.config.resolve import resolve
from cadre.engines.torch import TorchEngine
from cadre.errors import ConfigError, EngineError
from cadre.learn.optimiser import Optimiser
from cadre.runs.export import export_policy
from cadre.training.checkpoint import latest_checkpoint
from tests.cadre.engines import tiny
from tests.helpers.endpoint import serving
from tests.helpers.training import HERE, configured, play, weights


def three_roles(first: Path, second: Path, steps: int) -> Config:
    """Two adapters of different rank on one base, and a frozen judge on another base with another tokenizer."""
    return parse(
        {
            "env": f"{HERE}/helpers/games.py:Trio",
            "team": {
                "policies": {
                    "small": {"model": str(first), "lora": {"rank": 2, "alpha": 4}},
                    "large": {"model": str(first), "lora": {"rank": 4, "alpha": 8}, "learner": {"learning_rate": 2e-2}},
                    "judge": {"model": str(second), "frozen": True},
                },
                "roles": {"writer": "small", "editor": "large", "judge": "judge"},
            },
            "algorithm": {"name": "at_grpo", "k": 4},
            "sampling": {"max_tokens": 3},
            "learner": {"learning_rate": 1e-2},
            "train": {"steps": steps, "tasks_per_step": 2},
            "evaluate": {"tasks": 2},
        }
    )


def test_a_model_that_cannot_be_loaded_leaves_none_open(
    speaker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_torch_build = tiny.build(tmp_path / "other")
    (other_torch_build / "model.safetensors").write_bytes(b"half a file")
    opened, closed = list[TorchEngine](), list[TorchEngine]()
    init, close = TorchEngine.__init__, TorchEngine.close
    monkeypatch.setattr(TorchEngine, "__init__", lambda self, *rest: (init(self, *rest), opened.append(self))[0])
    monkeypatch.setattr(TorchEngine, "close", lambda self: (close(self), closed.append(self))[0])
    with pytest.raises(EngineError, match="cannot be loaded"):
        build_team(resolve(three_roles(speaker, other_torch_build, 1)), train=True)
    assert len(opened) == 1
    assert set(closed) == set(opened)


def test_three_roles_on_two_bases_with_a_frozen_judge(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    other_torch_build = tiny.build(tmp_path / "other")
    chosen = three_roles(speaker, other_torch_build, 10)
    experiment = resolve(chosen)
    assert experiment.env_spec.roles == ("writer", "editor", "judge")
    team = build_team(experiment, train=True)
    assert team.samplers["small"] is team.samplers["large"]
    assert team.samplers["judge"] is not team.samplers["small"]
    trained, run = play(chosen, tmp_path / "run", quiet)
    figures = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert len(figures) == 10
    assert {name.split("/")[0] for name in figures[0] if name.endswith("/grad_norm")} == {"small", "large"}
    assert any(line.get("small/grad_norm", 0.0) > 0 for line in figures)
    assert any(line.get("large/grad_norm", 0.0) > 0 for line in figures)
    for tree in map(json.loads, (run.folder / "trees.jsonl").read_text().splitlines()):
        assert_played_by(tree["nodes"], chosen.team.roles)
    assert frozen_weights(trained.samplers["judge"]) == frozen_weights(team.samplers["judge"])
    saved = latest_checkpoint(run.folder / "checkpoints")
    files = ["config.yaml", "large", "manifest.json", "small", "state.json"]
    assert sorted(path.name for path in saved.iterdir()) == files
    assert (saved / "small" / "adapter_model.safetensors").exists()


def assert_played_by(nodes: list[dict], roles: dict[str, str]) -> None:
    """Every sample was drawn by the policy of its role, with the token ids of that policy's tokenizer."""
    for node in nodes:
        for role, siblings in node["samples"].items():
            assert {sample["policy"] for sample in siblings} == {roles[role]}
            assert (max(node["prompts"][role]) < 12) == (role != "judge")


def frozen_weights(engine) -> list[bytes]:
    return [weight.detach().numpy().tobytes() for weight in engine.loaded.model.parameters()]


def test_evaluation_with_other_assignments(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    chosen = resolve(configured(speaker, "Relay", ("one", "two")))
    assert parse_assignment(chosen, "scout=runner,runner=scout") == {"scout": "two", "runner": "one"}
    assert parse_assignment(chosen, "scout=two") == {"scout": "two"}
    for bad, expected in (
        ("scuot=two", "scuot"),
        ("scout=tow", "Did you mean two"),
        ("scout", "ROLE=POLICY"),
        ("scout=two,scout=one", "scout twice"),
    ):
        with pytest.raises(ConfigError, match=expected):
            parse_assignment(chosen, bad)
    team = build_team(chosen).assigned({"scout": "two"})
    assert team.assignment == {"scout": "two", "runner": "two"}


def test_a_role_evaluated_beside_the_untrained_partner(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    play(configured(speaker, "Pair", ("one", "two")), tmp_path / "run", quiet)
    result = CliRunner().invoke(app, ["eval", str(tmp_path / "run"), "--tasks", "4", "--untrained", "right", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert 0.0 <= report["success"] <= 1.0
    assert (report["temperature"], report["max_tokens"]) == (0.0, dict.fromkeys(("left", "right"), 2))
    often = ["eval", str(tmp_path / "run"), "--all", "--samples", "4", "--temperature", "0.6", "--k", "2", "--json"]
    stored = tmp_path / "new folder" / "episodes.jsonl"
    sampled = json.loads(CliRunner().invoke(app, [*often, "--episodes", str(stored)]).stdout)
    trees = [json.loads(line) for line in stored.read_text().splitlines()]
    rewards = [branch.get("reward", {}) for tree in trees for branch in tree["nodes"][0]["branches"]]
    assert (len(trees), len(rewards)) == (16, 16)
    mixed = [reward.get("team", 0.0) + sum(reward.get("local", {}).values()) for reward in rewards]
    assert fmean(mixed) == pytest.approx(sampled["reward"])
    assert "overwritten" in str(CliRunner().invoke(app, [*often, "--episodes", str(stored)]).exception)
    assert (sampled["tasks"], sampled["samples"], sampled["temperature"]) == (4, 4, 0.6)
    assert list(sampled["passing"]) == ["2"]
    assert "--temperature 0.6" in str(CliRunner().invoke(app, [*often[:5], "--json"]).exception)


def test_export_writes_a_folder_and_overwrites_nothing(
    speaker: Path, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(configured(speaker), tmp_path / "run", quiet)
    monkeypatch.setattr(Optimiser, "__init__", lambda *_: pytest.fail("an optimiser was made"))
    command = ["export", str(tmp_path / "run"), "shared", str(tmp_path / "out")]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == weights(tmp_path / "run", "shared")
    assert {"config.json", "tokenizer.json", "chat_template.jinja"} <= {p.name for p in (tmp_path / "out").iterdir()}
    assert "exists" in str(CliRunner().invoke(app, command).exception)
    wrong = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "shard", str(tmp_path / "out2")])
    assert "Did you mean shared?" in str(wrong.exception)


def test_export_has_the_templates_that_were_trained_with(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    """The named ones too, and not those that the model's folder has by then."""
    model, messages = shutil.copytree(speaker, tmp_path / "model"), [{"role": "user", "content": "Go."}]
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = {
        "default": "{% for m in messages %}{{ m.content }}{{ enable_thinking }}{% endfor %}",
        "tool_use": "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}",
    }
    tokenizer.save_pretrained(model)
    _, run = play(configured(model), tmp_path / "run", quiet)
    (model / "chat_template.jinja").write_text("Another.")
    shutil.rmtree(model / "additional_chat_templates")
    export_policy(run, "shared", tmp_path / "out", merge=False)
    exported = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert exported.apply_chat_template(messages, tokenize=False) == "Go.False"
    assert exported.apply_chat_template(messages, tokenize=False, enable_thinking=True) == "Go.True"
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    assert '"add"' in exported.apply_chat_template(messages, tools=[tool], tokenize=False)
    assert {path.name for path in (tmp_path / "out" / "additional_chat_templates").iterdir()} == {"tool_use.jinja"}


def test_export_of_an_adapter_needs_no_critic_and_nothing_to_train_on(
    speaker: Path, tmp_path: Path, quiet: Console
) -> None:
    """Alone as a PEFT folder, and added to its base; the critic's model is gone by then."""
    critic = shutil.copytree(speaker, tmp_path / "critic")
    policies = {name: {"model": str(speaker), "lora": {"rank": 2}} for name in ("one", "two")}
    team = {"policies": policies, "roles": {"left": "one", "right": "two"}}
    algorithm = {"name": "mappo", "k": 2, "critic": {"policy": {"model": str(critic)}}}
    _, run = play(configured(speaker, "Pair", team=team, algorithm=algorithm), tmp_path / "run", quiet)
    shutil.rmtree(critic)
    saved = latest_checkpoint(run.folder / "checkpoints") / "two" / "adapter_model.safetensors"
    export_policy(run, "two", tmp_path / "adapter", merge=False)
    assert (tmp_path / "adapter" / "adapter_model.safetensors").read_bytes() == saved.read_bytes()
    export_policy(run, "two", tmp_path / "merged", merge=True)
    exported, base = (load_file(folder / "model.safetensors") for folder in (tmp_path / "merged", speaker))
    assert exported.keys() == base.keys()
    assert any(not exported[name].equal(base[name]) for name in base)


@pytest.fixture
def endpoint() -> Iterator[str]:
    with serving() as url:
        yield url


def test_a_remote_policy_plays_and_is_never_trained(
    endpoint: str, speaker: Path, tmp_path: Path, quiet: Console
) -> None:
    team = {
        "policies": {"near": str(speaker), "far": {"model": "echo", "url": endpoint, "frozen": True}},
        "roles": {"left": "near", "right": "far"},
    }
    _, run = play(configured(speaker, "Pair", team=team), tmp_path / "run", quiet)
    figures = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[0])
    assert "near/loss" in figures
    assert "far/loss" not in figures
    with pytest.raises(ConfigError, match="cannot be trained"):
        configured(speaker, "Pair", team={**team, "policies": {**team["policies"], "far": {"model": "e", "url": "u"}}})


def test_playing_a_run_makes_no_optimiser(
    speaker: Path, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a critic's model; and what is played are the weights that were trained."""
    critic = {"policy": {"model": str(speaker)}}
    chosen = configured(speaker, "Pair", ("one", "two"), algorithm={"name": "mappo", "k": 2, "critic": critic})
    _, run = play(chosen, tmp_path / "run", quiet)
    created: list[str] = []
    engine = TorchEngine.__init__
    monkeypatch.setattr(Optimiser, "__init__", lambda self, *arguments: created.append("optimiser"))
    monkeypatch.setattr(
        TorchEngine, "__init__", lambda self, *arguments: created.append("engine") or engine(self, *arguments)
    )
    requests = ["eval", str(tmp_path / "run"), "--tasks", "8", "--json"]
    result = CliRunner().invoke(app, requests)
    assert result.exit_code == 0, result.output
    assert created == ["engine", "engine"]
    first, last = run.evaluations()
    base = CliRunner().invoke(app, [*requests, "--base"])
    assert json.loads(base.stdout)["reward"] == first["reward"] != last["reward"]
    assert json.loads(result.stdout)["reward"] == last["reward"]
