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
    """Where the policy's tensors lie, and how often they were written."""
    return {name: (value.data_ptr(), value._version) for name, value in engine.parameters(policy).items()}


def test_within_an_engine_nothing_is_copied(learner):
    mine = learner(learning_rate=1e-2)
    update(mine, whole_rollouts(mine))
    before = storage(mine.engine, "p")
    published = asyncio.run(mine.publish("p"))
    asyncio.run(mine.engine.load(published))
    assert published.version == 1
    assert storage(mine.engine, "p") == before
    assert all(published.tensors[name] is value for name, value in mine.engine.parameters("p").items())


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("way", ["tensors", "folder"])
def test_another_engine_samples_what_the_learner_samples(learner, team, tmp_path, lora, way):
    mine, other = (team({"p": 4}, learning_rate=2e-2) if lora else learner(learning_rate=2e-2) for _ in range(2))
    update(mine, rollouts(mine, ("p",)))
    drawn = sample(mine, request("go", 3))
    assert sample(other, request("go", 3)) != drawn
    published = asyncio.run(mine.publish("p"))
    if way == "folder":
        mine.save(tmp_path)
        published = Weights("p", published.version, tmp_path / "p")
    asyncio.run(other.engine.load(published))
    assert sample(other, request("go", 3)) == drawn
    assert drawn[0][0].version == 1


def test_a_version_counts_updates_and_not_optimiser_steps(team):
    """One in which a policy had nothing to learn from too, as its schedules go on."""
    mine = team({"planner": 4, "tool": 4}, epochs=2, minibatches=2, learning_rate=1e-3)
    for names in (("planner", "tool"), ("tool",)):
        update(mine, rollouts(mine, names))
    drawn = sample(mine, request("x", policy="planner"), request("x", policy="tool"))
    assert [siblings[0].version for siblings in drawn] == [2, 2]


def test_a_version_is_that_of_when_sampling_began(learner):
    """An update that is asked for while a completion is drawn comes after it."""
    mine = learner(learning_rate=1e-2)
    data = whole_rollouts(mine)

    async def at_once():
        drawing = asyncio.create_task(mine.engine.sample(request("go", 2, max_tokens=64)))
        await asyncio.sleep(0.05)
        metrics = await mine.update(data)
        return await drawing, metrics

    drawn, metrics = asyncio.run(at_once())
    assert {one.version for one in drawn} == {0}
    assert metrics["p"]["updates"] == 1
    assert sample(mine, request("go"))[0][0].version == 1


def test_what_waits_for_an_update_is_drawn_from_the_new_weights_and_says_so(learner):
    """Asked for before the update was done, drawn after it."""
    mine = learner(learning_rate=1e-2)
    data = whole_rollouts(mine)

    async def at_once():
        learning = asyncio.create_task(mine.update(data))
        await asyncio.sleep(0)
        drawing = asyncio.create_task(mine.engine.sample(request("go", 2)))
        await asyncio.sleep(0)
        assert mine.engine.versions == {"p": 0}
        await learning
        return await drawing

    drawn = asyncio.run(at_once())
    assert {one.version for one in drawn} == {1}
    assert update(mine, [datum(one, 1.0) for one in drawn])["p"]["logprob_diff_max"] < 1e-4


def test_the_event_loop_goes_on_while_a_learner_updates(learner):
    mine = learner(learning_rate=1e-2, epochs=4)
    data = whole_rollouts(mine, 16)
    ticks = 0

    async def beside():
        nonlocal ticks
        work = asyncio.create_task(mine.update(data))
        while not work.done():
            ticks += 1
            await asyncio.sleep(0.001)
        return await work

    asyncio.run(beside())
    assert ticks > 3


def test_two_engines_at_the_same_time_learn_what_they_learn_alone(learner):
    made = [[learner(learning_rate=1e-2, epochs=3) for _ in range(2)] for _ in range(2)]
    data = whole_rollouts(made[0][0])

    async def together():
        return await asyncio.gather(*(mine.update(data) for mine in made[0]))

    at_once = asyncio.run(together())
    for number, mine in enumerate(made[1]):
        alone = update(mine, data)["p"]
        both = at_once[number]["p"]
        assert {name: both[name] for name in both if name != "tokens_per_s"} == {
            name: alone[name] for name in alone if name != "tokens_per_s"
        }
        assert all(torch.equal(value, weights(mine)[name]) for name, value in weights(made[0][number]).items())


def test_updates_on_the_cpu_take_turns(learner, monkeypatch):
    made = [learner(learning_rate=1e-2) for _ in range(2)]
    data = whole_rollouts(made[0])
    running, most = 0, 0
    plain = Trainer.update

    def counted(self, data):
        nonlocal running, most
        running += 1
        most = max(most, running)
        metrics = plain(self, data)
        running -= 1
        return metrics

    monkeypatch.setattr(Trainer, "update", counted)

    async def together():
        return await asyncio.gather(*(mine.update(data) for mine in made))

    assert [set(metrics) for metrics in asyncio.run(together())] == [{"p"}, {"p"}]
    assert most == 1


def test_restored_weights_have_their_version(learner, tmp_path):
    mine, other = learner(learning_rate=1e-2), learner(learning_rate=1e-2)
    for _ in range(2):
        update(mine, whole_rollouts(mine))
    mine.save(tmp_path)
    other.load(tmp_path)
    assert sample(other, request("x"))[0][0].version == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Weights("q", 1, tensors={}), "does not hold; it holds p"),
        (Weights("p", 1, tensors={"w": torch.zeros(1)}), "got 1 tensors, expected"),
        (Weights("p", 1), "without tensors.*expected a folder"),
    ],
)
def test_weights_that_cannot_be_loaded(engine, given, message):
    mine = engine()
    with pytest.raises(EngineError, match=message):
        asyncio.run(mine.load(given))
    assert mine.versions == {"p": 0}


def test_a_frozen_policy_takes_no_weights(folders):
    mine = TorchEngine(folders["llama"], {"judge": tiny.policy(folders["llama"], frozen=True)}, 0)
    with pytest.raises(EngineError, match="'judge', which is frozen"):
        asyncio.run(mine.load(Weights("judge", 1, Path("nowhere"))))
    mine.close()


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
    mine = learner()
    Team({"r": "p"}, {"p": mine.engine}, {}, [mine]).close()
    with pytest.raises(EngineError, match="was closed"):
        mine.engine.work(int)
