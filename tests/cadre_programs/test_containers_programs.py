"""Programs in containers of a fake runtime: calls through a socket, limits, folders, and what is refused before."""

from __future__ import annotations

import asyncio
import os

import pytest

from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, ProgramFailed
from cadre.types import Reward, Task
from cadre_programs.containers import ContainerConfig
from cadre_programs.processes import ProcessTable, ProgramContainer, make_result
from cadre_programs.program import Program
from cadre_programs.settings import InstanceLimits, make_launch
from tests.helpers.containers import fake_runtime, forget

AGENT = """
import json, os, urllib.request

def ask(model, text, **fields):
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}], **fields}).encode()
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    choices = json.load(urllib.request.urlopen(request))["choices"]
    return " ".join(choice["message"]["content"] for choice in choices)

def main(task):
    if task["word"] == "memo":
        import cadre_program
        cadre_program.memo(len, "word")
    if task["word"] == "both":
        return float(ask("scout", "Go.", n=2) == "a b")
    with open("note", "w") as file:
        file.write(task["word"])
    secret = os.environ.get("SECRET_OF_THE_HOST", "none")
    return {"team": float(ask("scout", ask("scout", f"{task['word']} {secret}") + " again") == "yes")}
"""
ROLES = ["scout"]


@pytest.fixture
def agent(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_HOST", "1")
    (tmp_path / "agent.py").write_text(AGENT)
    with fake_runtime(tmp_path, "docker"):
        yield f"{tmp_path}/agent.py:main"


def containers(tmp_path):
    return [name for name in os.listdir(tmp_path / "bin" / "state") if name.startswith("cadre-")]


async def end(env, tmp_path):
    env.close()
    for _ in range(100):
        await asyncio.sleep(0.05)
        if not containers(tmp_path):
            return
    raise AssertionError(containers(tmp_path))


def test_a_program_in_a_container_is_observed_and_answered(agent, tmp_path):
    async def play():
        env = Program(Task("t", {"word": "fox", "image": "own:1"}), agent, ROLES, isolation="container")
        assert env.episode.launch.container.image == "own:1"
        await env.until_ready()
        assert env.observe()["scout"].messages[0].content == "fox none"
        assert await env.step({"scout": "well"}) == Reward()
        assert env.observe()["scout"].messages[0].content == "well again"
        assert await env.step({"scout": "yes"}) == Reward(team=1.0)
        assert (env.success, env.observe()) == (True, {})
        await end(env, tmp_path)

    asyncio.run(play())


def test_a_request_for_several_completions_from_a_container(agent, tmp_path):
    async def play():
        limits = InstanceLimits(seconds=20)
        env = Program(Task("t", {"word": "both"}), agent, ROLES, isolation="container", limits=limits)
        rewards = [await env.step({"scout": text}) for text in ("a", "b")]
        assert rewards == [Reward(), Reward(team=1.0)]
        await end(env, tmp_path)

    asyncio.run(play())


@pytest.mark.slow
def test_forks_are_containers_and_copied_folders_go_along(agent, tmp_path):
    async def play():
        env = Program(Task("t", {"word": "fox"}), agent, ROLES, isolation="container", folder="copied")
        await env.until_ready()
        await env.step({"scout": "well"})
        forks = [env.fork(), env.fork()]
        rewards = [await fork.step({"scout": text}) for fork, text in zip(forks, ("yes", "no"), strict=True)]
        assert rewards == [Reward(team=1.0), Reward(team=0.0)]
        await end(env, tmp_path)
        with pytest.raises(ProgramFailed, match="memo keeps nothing in a container"):
            await Program(Task("t", {"word": "memo"}), agent, ROLES, isolation="container").until_ready()

    asyncio.run(play())


def tasks(agent, tmp_path, rows='{"word": "fox"}\n', **settings):
    file = tmp_path / "tasks.jsonl"
    file.write_text(rows)
    spec = EnvSpec("program", {"run": agent, "roles": ROLES, "tasks": str(file), "held_out": 0.0, **settings})
    return spec.tasks("train")


def test_what_is_missing_is_an_error_before_a_model_loads(agent, tmp_path):
    with pytest.raises(ConfigError, match="No such image: missing"):
        tasks(agent, tmp_path, '{"image": "missing"}\n', isolation="container")
    (tmp_path / "bin" / "docker").unlink()
    forget()
    tasks(agent, tmp_path, isolation="fork")
    with pytest.raises(ConfigError, match="docker is not on the PATH; podman is not on the PATH; expected docker or"):
        tasks(agent, tmp_path, isolation="container", container={"image": "other"})


@pytest.mark.parametrize(
    ("isolation", "container", "message"),
    [
        ("fork", {}, "container: got it beside isolation: fork"),
        ("container", {"memory": 2.0}, "container.memory: got 2; expected it in settings.limits"),
        ("container", {"seconds": 2.0}, "container.seconds: got 2; expected it in settings.limits"),
    ],
)
def test_settings_that_contradict_each_other(agent, isolation, container, message):
    config = ContainerConfig(**container)
    with pytest.raises(ConfigError, match=message):
        Program(Task("t", {}), agent, ROLES, isolation=isolation, container=config)


@pytest.mark.parametrize(
    "container", [{"image": "-v=/:/x"}, {"memory": 0}, {"processes": "many"}, {"privileged": True}]
)
def test_a_container_takes_no_other_settings(agent, container):
    with pytest.raises(ConfigError, match=r"settings\.container"):
        EnvSpec("program", {"run": agent, "roles": ROLES, "isolation": "container", "container": container})


@pytest.mark.parametrize("text", ["", "no json", "[" * 100_000, "[1]", '{"value": 1', None])
def test_a_result_that_cannot_be_read_is_none(text):
    assert make_result(0, text, "", "").value is None
    assert "exit code 3" in make_result(3, text, "", "").error


@pytest.mark.parametrize(
    "printed",
    [
        b"",
        b"no json",
        b"[1]",
        b"{}",
        b"[" * 100_000,
        b'{"status": 1e999, "result": null, "output": "", "errors": ""}',
        b'{"status": 0, "result": [1], "output": {}, "errors": 7}',
    ],
)
def test_what_a_container_reports_may_be_anything(agent, tmp_path, printed):
    async def end():
        launch = make_launch(agent, "container", InstanceLimits(), "", {})
        program = ProgramContainer(ProcessTable(), launch, tmp_path)

        async def execute(*arguments):
            return "ok", 0, printed, b"oops"

        program._container.execute = execute
        await program._execute(b"{}")
        return await program.ended

    assert asyncio.run(end()).value is None or printed.startswith(b'{"status": 0')
