"""Any mapping of roles to policies: shared, per role, adapters, frozen, remote, and other assignments at evaluation."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from statistics import fmean

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cadre import assemble, checkpoint, config
from cadre.cli import app
from cadre.engines.openai import OpenAISampler
from cadre.errors import ConfigError, EngineError
from cadre.types import Message, Request, Sampling
from tests.engines import tiny
from tests.test_train import HERE, configured, play, weights


def three_roles(first: Path, second: Path, steps: int) -> config.Config:
    """Two adapters of different rank on one base, and a frozen judge on another base with another tokenizer."""
    return config.parse(
        {
            "env": f"{HERE}/games.py:Trio",
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


def test_three_roles_on_two_bases_with_a_frozen_judge(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    other = tiny.build(tmp_path / "other")
    chosen = three_roles(speaker, other, 10)
    game, plan = assemble.check(chosen)
    assert game.roles == ("writer", "editor", "judge")
    team = assemble.build_team(chosen, plan)
    assert team.samplers["small"] is team.samplers["large"]
    assert team.samplers["judge"] is not team.samplers["small"]
    trained, run = play(chosen, tmp_path / "run", quiet)
    figures = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert len(figures) == 10
    assert {name.split("/")[0] for name in figures[0] if name.endswith("/grad_norm")} == {"small", "large"}
    assert any(line.get("small/grad_norm", 0.0) > 0 for line in figures)
    assert any(line.get("large/grad_norm", 0.0) > 0 for line in figures)
    for tree in map(json.loads, (run.folder / "trees.jsonl").read_text().splitlines()):
        assert_played_by(tree["root"], chosen.team.roles)
    assert frozen_weights(trained.samplers["judge"]) == frozen_weights(team.samplers["judge"])
    saved = checkpoint.latest(run.folder / "checkpoints")
    assert sorted(path.name for path in saved.iterdir()) == ["large", "small", "state.json"]
    assert (saved / "small" / "adapter_model.safetensors").exists()


def assert_played_by(node: dict, roles: dict[str, str]) -> None:
    """Every sample was drawn by the policy of its role, with the token ids of that policy's tokenizer."""
    for role, siblings in node["samples"].items():
        for sample in siblings:
            assert sample["policy"] == roles[role]
            assert (max(sample["prompt_ids"]) < 12) == (role != "judge")
    for branch in node["branches"]:
        if branch["child"]:
            assert_played_by(branch["child"], roles)


def frozen_weights(engine) -> list[bytes]:
    return [weight.detach().numpy().tobytes() for weight in engine._loaded.model.parameters()]


def test_evaluation_with_other_assignments(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    chosen = configured(speaker, "Relay", ("one", "two"))
    assert assemble.assignment(chosen, "scout=runner,runner=scout") == {"scout": "two", "runner": "one"}
    assert assemble.assignment(chosen, "scout=two") == {"scout": "two"}
    for bad, wanted in (("scuot=two", "scuot"), ("scout=tow", "Did you mean two"), ("scout", "ROLE=POLICY")):
        with pytest.raises(ConfigError, match=wanted):
            assemble.assignment(chosen, bad)
    team = assemble.build_team(chosen, assemble.check(chosen)[1]).assigned({"scout": "two"})
    assert team.assignment == {"scout": "two", "runner": "two"}


def test_a_role_evaluated_beside_the_untrained_partner(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    play(configured(speaker, "Pair", ("one", "two")), tmp_path / "run", quiet)
    done = CliRunner().invoke(app, ["eval", str(tmp_path / "run"), "--tasks", "4", "--untrained", "right", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    assert 0.0 <= report["success"] <= 1.0
    assert (report["temperature"], report["max_tokens"]) == (0.0, dict.fromkeys(("left", "right"), 2))
    often = ["eval", str(tmp_path / "run"), "--all", "--samples", "4", "--temperature", "0.6", "--k", "2", "--json"]
    kept = tmp_path / "new folder" / "episodes.jsonl"
    sampled = json.loads(CliRunner().invoke(app, [*often, "--episodes", str(kept)]).output)
    trees = [json.loads(line) for line in kept.read_text().splitlines()]
    rewards = [branch["reward"] for tree in trees for branch in tree["root"]["branches"]]
    assert (len(trees), len(rewards)) == (4, 16)
    mixed = [reward["team"] + sum(reward["local"].values()) for reward in rewards]
    assert fmean(mixed) == pytest.approx(sampled["reward"])
    assert "overwritten" in str(CliRunner().invoke(app, [*often, "--episodes", str(kept)]).exception)
    assert (sampled["tasks"], sampled["samples"], sampled["temperature"]) == (4, 4, 0.6)
    assert list(sampled["passing"]) == ["2"]
    assert "--temperature 0.6" in str(CliRunner().invoke(app, [*often[:5], "--json"]).exception)


def test_export_writes_a_folder_and_overwrites_nothing(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    play(configured(speaker), tmp_path / "run", quiet)
    command = ["export", str(tmp_path / "run"), "shared", str(tmp_path / "out")]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == weights(tmp_path / "run", "shared")
    assert {"config.json", "tokenizer.json", "chat_template.jinja"} <= {p.name for p in (tmp_path / "out").iterdir()}
    assert "exists" in str(CliRunner().invoke(app, command).exception)
    wrong = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "shard", str(tmp_path / "out2")])
    assert "Did you mean shared?" in str(wrong.exception)


class Endpoint(BaseHTTPRequestHandler):
    """Answers every chat completion with the last message, and remembers what it was asked."""

    asked: list[dict] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        message = {"role": "assistant", "content": body["messages"][-1]["content"]}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        reply = json.dumps({"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]})
        self.send_response(200 if body["model"] == "echo" else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(reply.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()


def test_a_remote_team_mate(endpoint: str) -> None:
    request = Request("guess", "far", (Message("user", "river"),), 2, Sampling(0.5, max_tokens=7), key=3)
    samples = asyncio.run(OpenAISampler("echo", endpoint, "NO_SUCH_KEY").sample(request))
    assert [sample.text for sample in samples] == ["river", "river"]
    assert samples[0].token_ids == ()
    first, second = Endpoint.asked[-2:]
    assert first["temperature"] == 0.5
    assert first["max_tokens"] == 7
    assert first["seed"] != second["seed"]
    with pytest.raises(EngineError, match="Check the url"):
        asyncio.run(OpenAISampler("other", endpoint, "NO_SUCH_KEY").sample(request))


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
