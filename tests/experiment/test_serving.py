"""A team behind the endpoint: a program that runs on it outside of Cadre does as it does in an evaluation."""

import json

import openai
import pytest

import cadre
from cadre.experiment.serving import models_of, serve
from cadre.rollout import walk
from tests.engines import tiny
from tests.envs.adapters import agents
from tests.envs.adapters.test_program import AGENTS


@pytest.fixture
def loaded(tmp_path):
    rows = [{"id": str(number), "word": "abcdefgh"[number], "turns": 2} for number in range(8)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"run": f"{AGENTS}:likeness", "roles": ["planner", "coder"], "models": {"gpt": "coder"}}
    settings |= {"tasks": str(tmp_path / "tasks.jsonl"), "held_out": 0.0, "test": str(tmp_path / "tasks.jsonl")}
    team = str(tiny.build(tmp_path / "model"))
    team = cadre.load(
        {"env": "program", "settings": settings, "team": team, "algorithm": "at_grpo"}, sampling={"max_tokens": 12}
    )
    yield team
    team.close()


def test_a_program_does_outside_as_in_an_evaluation(loaded):
    evaluated = {tree.task.id: tree for tree in (loaded.play(number) for number in range(4))}
    server, session = serve(loaded.team.greedy(), models_of(loaded.experiment))
    try:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=session.key)
        for tree in evaluated.values():
            (path,) = walk.episodes(tree.root)
            paid = sum(branch.reward.team for _, branch in path)
            assert agents.likeness(tree.task.data, client) == paid
        assert [model.id for model in client.models.list()] == ["planner", "coder", "gpt"]
        assert client.chat.completions.create(
            model="gpt", messages=[{"role": "user", "content": "x"}]
        ).usage.prompt_tokens
        with pytest.raises(openai.BadRequestError, match="context"):
            client.responses.create(model="gpt", input="x" * 10_000)
    finally:
        server.close()
