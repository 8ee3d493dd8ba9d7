"""A team behind the endpoint: a program that runs on it outside of Cadre does as it does in an evaluation."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

import cadre
from cadre.errors import ConfigError, DivergedError, EngineError
from cadre.rollout import walk
from cadre.types import Message
from cadre_programs.calls import ModelCall
from cadre_programs.serving import serve, served_rules
from tests.cadre.engines import tiny
from tests.cadre_programs import agents
from tests.helpers.programs import AGENTS

MODELS = {"gpt": "coder", "gpt-4o*": "coder", "agent:plan*": "planner", "system:You * trips": "planner"}


@pytest.fixture
def loaded(tmp_path):
    rows = [{"id": str(number), "word": "abcdefgh"[number], "turns": 2} for number in range(8)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"run": f"{AGENTS}:likeness", "roles": ["planner", "coder"], "models": MODELS}
    settings |= {"tasks": str(tmp_path / "tasks.jsonl"), "held_out": 0.0, "test": str(tmp_path / "tasks.jsonl")}
    team = str(tiny.build(tmp_path / "model"))
    team = cadre.load(
        {"env": "program", "settings": settings, "team": team, "algorithm": "at_grpo"}, sampling={"max_tokens": 12}
    )
    yield team
    team.close()


def test_a_program_does_outside_as_in_an_evaluation(loaded):
    evaluated = {tree.task.id: tree for tree in (loaded.play(number) for number in range(4))}
    server, session = serve(loaded.team.tempered(0.0), served_rules(loaded.experiment))
    try:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=session.key)
        for tree in evaluated.values():
            (path,) = walk.episodes(tree.root)
            reward = sum(branch.reward.team for _, branch in path)
            assert agents.likeness(tree.task.data, client) == reward
        assert [model.id for model in client.models.list()] == ["planner", "coder", "gpt"]
        assert client.chat.completions.create(
            model="gpt", messages=[{"role": "user", "content": "x"}]
        ).usage.prompt_tokens
        with pytest.raises(openai.BadRequestError, match="context"):
            client.responses.create(model="gpt", input="x" * 10_000)
    finally:
        server.close()


@pytest.mark.parametrize(
    ("model", "system", "metadata", "role"),
    [
        ("gpt-4o-mini", "Help.", {}, "coder"),
        ("gpt-5", "Hello. You plan trips.", {}, "planner"),
        ("gpt-5", "Help.", {"agent": "planning"}, "planner"),
        ("coder-2", "Help.", {}, "coder"),
    ],
)
def test_the_rules_of_the_program_hold_when_it_is_served(loaded, monkeypatch, model, system, metadata, role):
    """Mistake: each rule is a name of a model, so that the unchanged program gets 404."""
    requests = []
    sample = type(loaded.team).sample

    def sampling(self, observation, *arguments):
        requests.append(observation.role)
        return sample(self, observation, *arguments)

    monkeypatch.setattr(type(loaded.team), "sample", sampling)
    server, session = serve(loaded.team.tempered(0.0), served_rules(loaded.experiment))
    try:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=session.key)
        messages = [{"role": "system", "content": system}, {"role": "user", "content": "x"}]
        client.chat.completions.create(model=model, messages=messages, metadata=metadata)
        assert requests == [role]
        assert client.models.retrieve("gpt-4o-mini").id == "gpt-4o-mini"  # by a pattern
        with pytest.raises(openai.NotFoundError, match=r"there is no 'gpt-5'.* --role 'gpt-5=coder'"):
            client.chat.completions.create(model="gpt-5", messages=messages[1:])
    finally:
        server.close()


def test_options_give_roles_to_calls_of_a_program_that_was_not_trained_on(loaded):
    """A team that was trained in another form, as a function say, has no rules for the models of a program."""
    rules = served_rules(loaded.experiment, ["system:a = b=coder", "gpt=planner"])
    system = Message("system", "Write a = b + 1.")
    assert rules.find(ModelCall("gpt-5", (system, Message("user", "x")))) == "coder"
    assert rules.find(ModelCall("gpt", (Message("user", "x"),))) == "planner"  # before the rule of the recipe
    assert rules.find(ModelCall("gpt-4o-mini", (Message("user", "x"),))) == "coder"
    for option in ("gpt", "=coder", "gpt=codr"):
        with pytest.raises(ConfigError, match=f"--role: got '{option}'; expected RULE=ROLE.*planner, coder"):
            served_rules(loaded.experiment, [option])


@pytest.mark.parametrize("raised", [EngineError("busy"), DivergedError("once")])
def test_a_call_that_failed_once_may_be_answered_when_it_is_made_again(loaded, monkeypatch, raised):
    """Mistake: the error held as the answer, for ever; an engine that is busy said to be a prompt too long."""
    team, sample = loaded.team.tempered(0.0), type(loaded.team).sample
    errors = [raised]

    async def once(self, recorded, *arguments):
        if errors:
            raise errors.pop()
        return await sample(self, recorded, *arguments)

    monkeypatch.setattr(type(team), "sample", once)
    server, session = serve(team, served_rules(loaded.experiment))
    try:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=session.key, max_retries=0, timeout=20)
        with pytest.raises(openai.InternalServerError) as refused:
            client.responses.create(model="gpt", input="x")
        assert refused.value.status_code == (503 if isinstance(raised, EngineError) else 500)
        assert client.responses.create(model="gpt", input="x").object == "response"
    finally:
        server.close()


def test_one_call_that_fails_leaves_no_other_waiting(loaded, monkeypatch):
    """Every call of a batch and every later one is answered, whatever the others' outcome."""
    team, sample = loaded.team.tempered(0.0), type(loaded.team).sample
    requests, failing = threading.Event(), threading.Event()

    async def failed(self, recorded, *arguments):
        if recorded.messages[-1].content == "bad":
            requests.set()
            await asyncio.to_thread(failing.wait, 10)
            raise DivergedError("not finite")
        return await sample(self, recorded, *arguments)

    monkeypatch.setattr(type(team), "sample", failed)
    server, session = serve(team, served_rules(loaded.experiment))
    try:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=session.key, max_retries=0, timeout=20)

        def ask(text):
            try:
                return client.responses.create(model="gpt", input=text).object
            except openai.APIStatusError as error:
                return error.status_code

        with ThreadPoolExecutor() as pool:
            first = pool.submit(ask, "bad")
            assert requests.wait(10)
            rest = [pool.submit(ask, text) for text in ("good", "better")]
            failing.set()
            assert first.result() == 500
            assert [second.result() for second in rest] == ["response"] * 2
    finally:
        server.close()
