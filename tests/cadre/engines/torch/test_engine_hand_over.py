"""Weights and their versions on the way from a learner to samplers: in place, copied, read from a folder, refused."""

import asyncio
from pathlib import Path

import pytest
import torch

from cadre.engines.openai import OpenAISampler
from cadre.engines.scripted import ScriptedSampler
from cadre.engines.torch import TorchEngine
from cadre.engines.torch.trainer import Trainer
from cadre.errors import EngineError
from cadre.team import Team, Weights
from tests.cadre.engines import tiny
from tests.cadre.engines.tiny import datum, request, sample, update
from tests.helpers.adapters import rollouts
from tests.helpers.learners import rollouts as whole_rollouts
from tests.helpers.learners import weights


def storage(engine, policy):
    """Return the addresses of the policy's tensors, and how often they were written."""
    return {name: (value.data_ptr(), value._version) for name, value in engine.parameters(policy).items()}


def test_within_an_engine_nothing_is_copied(learner):
    torch_learner = learner(learning_rate=1e-2)
    update(torch_learner, whole_rollouts(torch_learner))
    initial_storage = storage(torch_learner.engine, "p")
    published = asyncio.run(torch_learner.publish("p"))
    asyncio.run(torch_learner.engine.load(published))
    assert published.version == 1
    assert storage(torch_learner.engine, "p") == initial_storage
    assert all(published.tensors[name] is value for name, value in torch_learner.engine.parameters("p").items())


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("way", ["tensors", "folder"])
def test_another_engine_samples_what_the_learner_samples(learner, team, tmp_path, lora, way):
    built_team, other_built_team = (
        team({"p": 4}, learning_rate=2e-2) if lora else learner(learning_rate=2e-2) for _ in range(2)
    )
    update(built_team, rollouts(built_team, ("p",)))
    samples = sample(built_team, request("go", 3))
    assert sample(other_built_team, request("go", 3)) != samples
    published = asyncio.run(built_team.publish("p"))
    if way == "folder":
        built_team.save(tmp_path)
        published = Weights("p", published.version, tmp_path / "p")
    asyncio.run(other_built_team.engine.load(published))
    assert sample(other_built_team, request("go", 3)) == samples
    assert samples[0][0].version == 1


def test_a_version_counts_updates_and_not_optimiser_steps(team):
    """One in which a policy had nothing to learn from too, as its schedules go on."""
    built_team = team({"planner": 4, "tool": 4}, epochs=2, minibatches=2, learning_rate=1e-3)
    for names in (("planner", "tool"), ("tool",)):
        update(built_team, rollouts(built_team, names))
    samples = sample(built_team, request("x", policy="planner"), request("x", policy="tool"))
    assert [siblings[0].version for siblings in samples] == [2, 2]


def test_a_version_is_that_of_when_sampling_began(learner):
    """An update that is asked for while a completion is drawn comes after it."""
    torch_learner = learner(learning_rate=1e-2)
    data = whole_rollouts(torch_learner)

    async def at_once():
        drawing = asyncio.create_task(torch_learner.engine.sample(request("go", 2, max_tokens=64)))
        await asyncio.sleep(0.05)
        metrics = await torch_learner.update(data)
        return await drawing, metrics

    samples, metrics = asyncio.run(at_once())
    assert {sample.version for sample in samples} == {0}
    assert metrics["p"]["updates"] == 1
    assert sample(torch_learner, request("go"))[0][0].version == 1


def test_what_waits_for_an_update_is_drawn_from_the_new_weights_and_says_so(learner):
    """Asked for before the update was done, drawn after it."""
    torch_learner = learner(learning_rate=1e-2)
    data = whole_rollouts(torch_learner)

    async def at_once():
        learning = asyncio.create_task(torch_learner.update(data))
        await asyncio.sleep(0)
        drawing = asyncio.create_task(torch_learner.engine.sample(request("go", 2)))
        await asyncio.sleep(0)
        assert torch_learner.engine.versions == {"p": 0}
        await learning
        return await drawing

    samples = asyncio.run(at_once())
    assert {sample.version for sample in samples} == {1}
    assert update(torch_learner, [datum(sample, 1.0) for sample in samples])["p"]["logprob_diff_max"] < 1e-4


def test_the_event_loop_goes_on_while_a_learner_updates(learner):
    torch_learner = learner(learning_rate=1e-2, epochs=4)
    data = whole_rollouts(torch_learner, 16)
    ticks = 0

    async def beside():
        nonlocal ticks
        work = asyncio.create_task(torch_learner.update(data))
        while not work.done():
            ticks += 1
            await asyncio.sleep(0.001)
        return await work

    asyncio.run(beside())
    assert ticks > 3


def test_two_engines_at_the_same_time_learn_what_they_learn_alone(learner):
    torch_learner = [[learner(learning_rate=1e-2, epochs=3) for _ in range(2)] for _ in range(2)]
    data = whole_rollouts(torch_learner[0][0])

    async def together():
        return await asyncio.gather(*(own_file.update(data) for own_file in torch_learner[0]))

    at_once = asyncio.run(together())
    for number, one_learner in enumerate(torch_learner[1]):
        single = update(one_learner, data)["p"]
        both = at_once[number]["p"]
        assert {name: both[name] for name in both if name != "tokens_per_s"} == {
            name: single[name] for name in single if name != "tokens_per_s"
        }
        assert all(
            torch.equal(value, weights(one_learner)[name]) for name, value in weights(torch_learner[0][number]).items()
        )


def test_updates_on_the_cpu_take_turns(learner, monkeypatch):
    torch_learner = [learner(learning_rate=1e-2) for _ in range(2)]
    data = whole_rollouts(torch_learner[0])
    running, limit = 0, 0
    plain = Trainer.update

    def counted(self, data):
        nonlocal running, limit
        running += 1
        limit = max(limit, running)
        metrics = plain(self, data)
        running -= 1
        return metrics

    monkeypatch.setattr(Trainer, "update", counted)

    async def together():
        return await asyncio.gather(*(side.update(data) for side in torch_learner))

    assert [set(metrics) for metrics in asyncio.run(together())] == [{"p"}, {"p"}]
    assert limit == 1


def test_restored_weights_have_their_version(learner, tmp_path):
    torch_learner, other_torch_learner = learner(learning_rate=1e-2), learner(learning_rate=1e-2)
    for _ in range(2):
        update(torch_learner, whole_rollouts(torch_learner))
    torch_learner.save(tmp_path)
    other_torch_learner.load(tmp_path)
    assert sample(other_torch_learner, request("x"))[0][0].version == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (Weights("q", 1, tensors={}), "does not hold; it holds p"),
        (Weights("p", 1, tensors={"w": torch.zeros(1)}), "got 1 tensors, expected"),
        (Weights("p", 1), "without tensors.*expected a folder"),
    ],
)
def test_weights_that_cannot_be_loaded(engine, arguments, message):
    torch_engine = engine()
    with pytest.raises(EngineError, match=message):
        asyncio.run(torch_engine.load(arguments))
    assert torch_engine.versions == {"p": 0}


def test_a_frozen_policy_takes_no_weights(folders):
    torch_engine = TorchEngine(folders["llama"], {"judge": tiny.policy(folders["llama"], frozen=True)}, 0)
    with pytest.raises(EngineError, match="'judge', which is frozen"):
        asyncio.run(torch_engine.load(Weights("judge", 1, Path("nowhere"))))
    torch_engine.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ScriptedSampler(lambda request: []), "which a script plays"),
        (lambda: OpenAISampler("m", "http://localhost:1/v1", "NO_KEY"), "endpoint http://localhost:1/v1 serves"),
    ],
)
def test_samplers_without_weights_of_ours_say_so(make, message):
    team_of_it = Team({}, {"p": make()}, {})
    with pytest.raises(EngineError, match=message):
        asyncio.run(team_of_it.load([Weights("p", 1)]))
    team_of_it.close()


def test_closing_twice_is_closing_once(learner):
    torch_learner = learner()
    Team({"r": "p"}, {"p": torch_learner.engine}, {}, [torch_learner]).close()
    with pytest.raises(EngineError, match="was closed"):
        torch_learner.engine.work(int)
