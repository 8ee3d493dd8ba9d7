"""The same task as an environment and as a program: the same trees, token for token, and the same update."""

import asyncio

from cadre.advantages.batch import build_batch
from cadre.algorithms.grpo import AtGrpo
from cadre.env import Env
from cadre.rollout import walk
from cadre.rollout.episodes import grow_many
from cadre.rollout.grow import Rollout
from cadre.team import Team
from cadre.types import Message, Observation, Reward, Sampling, Task
from cadre_programs.program import Program
from tests.cadre.engines import tiny
from tests.helpers.programs import AGENTS, ROLES

TASKS = [Task(f"t{turns}", {"word": "fox", "turns": turns, "program": "dialogue"}) for turns in (1, 2)]


class Dialogue(Env):
    """A planner says something, a coder repeats it; the planner goes on in its conversation."""

    roles = tuple(ROLES)

    def __init__(self, task):
        super().__init__(task)
        self.heard, self.turn, self.asked = [], 0, False

    def observe(self):
        if self.turn == self.task.data["turns"]:
            return {}
        if self.asked:
            return {"coder": Observation("coder", (Message("user", f"repeat {self.heard[-1]}"),))}
        answer = [*self.heard, f"{self.task.data['word']} {self.turn}"]
        speakers = ("user", "assistant")
        messages = tuple(Message(speakers[position % 2], text) for position, text in enumerate(answer))
        return {"planner": Observation("planner", messages)}

    async def step(self, actions):
        if "planner" in actions:
            note = actions["planner"]
            self.heard += [f"{self.task.data['word']} {self.turn}", note]
            self.asked = True
            return Reward(local={"planner": len(set(note)) / 10})
        echo, note = actions["coder"], self.heard[-1]
        self.turn, self.asked = self.turn + 1, False
        return Reward(float(echo[:1] == note[:1]), {"coder": len(set(echo) & set(note)) / 10})

    @property
    def success(self):
        return False


def learned(folder, make):
    """The trees of two steps, each learnt from before the next, and the weights after them."""
    plan = AtGrpo(name="at_grpo", k=4).plan()
    learner = tiny.team(folder, {"planner": 4, "coder": 2}, learning_rate=1e-2)
    sampling = dict.fromkeys(ROLES, Sampling(max_tokens=12))
    team = Team({role: role for role in ROLES}, dict.fromkeys(ROLES, learner.engine), sampling, [learner])

    async def train():
        samples = []
        for step in range(2):
            trees, failures = await grow_many(TASKS, Rollout(make, team, plan.shape, 1.0), step)
            assert failures == []
            await team.update(build_batch(trees, plan, team).sequences)
            samples.append(trees)
        return samples

    trees = asyncio.run(train())
    weights = [weight.detach().clone() for role in ROLES for weight in learner.engine.parameters(role).values()]
    team.close()
    return trees, weights


def tokens(trees):
    return [
        [(sample.role, sample.prompt_ids, sample.token_ids, sample.logprobs) for sample in walk.samples(tree.root)]
        for step in trees
        for tree in step
    ]


def paid(trees):
    return [
        [branch.reward for node in walk.nodes(tree.root) for branch in node.branches] for step in trees for tree in step
    ]


def max_difference(folder):
    """Return the largest difference of the weights that the two learn, after checking that their trees are equal."""
    as_env, weights = learned(folder, Dialogue)
    as_program, rest = learned(folder, lambda task: Program(task, f"{AGENTS}:run", ROLES))
    assert tokens(as_env) == tokens(as_program)
    assert paid(as_env) == paid(as_program)
    return max(float((first - second).abs().max()) for first, second in zip(weights, rest, strict=True))


def test_a_program_is_trained_as_an_environment_is(tmp_path):
    assert max_difference(tiny.build(tmp_path)) <= 1e-6
