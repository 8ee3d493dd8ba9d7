"""A dry run of every recipe with a model of real size, by numbers worked out by hand, without weights or network."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import template_forms as forms
from cadre.cli.app import app
from cadre.config.dry_run import estimate_resources, format_estimate, total_bytes
from cadre.config.experiment import Config, load, parse
from cadre.config.recipes import recipes
from cadre.engines.torch import estimate, memory
from cadre.engines.torch.memory import GIB, SequenceMemory
from cadre.errors import DataError, EngineError
from tests.cadre.engines import tiny
from tests.helpers.playing import source
from tests.helpers.slow import few_of

LARGE = [name for name in recipes() if "qwen" in name]


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that takes a picosecond a weight and vector, whatever else it does, and has 32 GiB."""
    monkeypatch.setattr(estimate, "measure_product", lambda device, dtype, vectors: vectors * 1e-12)
    monkeypatch.setattr(memory, "total_and_free", lambda device: (32 * GIB, 32 * GIB))


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Activations are not measured, which takes seconds for a model of real size."""
    monkeypatch.setattr(estimate, "measure_activations", lambda *arguments: 1)


def loaded(recipe: str, *more: str) -> Config:
    own = [] if recipe.startswith("plan-path") else [f"settings.source={source()}"]
    held = ["settings.held_out=1"] if recipe.startswith("pairs-humaneval") else []
    data = ["settings.data=humaneval", "settings.held_out=1"] if recipe.startswith("pairs-coop") else []
    return load(recipe, [*own, *held, *data, *more])


@pytest.mark.slow
@pytest.mark.parametrize("recipe", LARGE)
def test_every_large_recipe(recipe: str) -> None:
    check_totals(recipe)


@pytest.mark.usefixtures("unmeasured")
def test_a_large_recipe() -> None:
    check_totals(LARGE[0])


def check_totals(recipe: str) -> None:
    chosen = loaded(recipe)
    found = estimate_resources(chosen)
    assert set(found.samples) == set(chosen.team.roles)
    assert min(found.tasks) >= 1
    told = "\n".join(format_estimate(found))
    assert f"a step: {sum(found.samples.values()):,} samples" in told
    size = next(iter(found.policies.values())).sizes
    assert total_bytes(found) == size.parameters * 2 + 2 * size.trained * 16


@pytest.mark.parametrize("recipe", [name for name in recipes() if "qwen" in name or "smollm2" in name])
def test_without_data_an_invented_task_stands_in(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CADRE_DATA", raising=False)
    small = estimate.Sizes(1, 1, 1, 1, SequenceMemory(1, 1), 1)
    monkeypatch.setattr(estimate, "measure", lambda model, policy: small)
    monkeypatch.setattr(estimate, "measure_activations", lambda *arguments: 1)
    chosen = load(recipe, [])
    found = estimate_resources(chosen)
    assert min(found.samples.values()) > 0
    (first, *_) = format_estimate(found)
    assert ("data not read" in first) is not recipe.startswith(("plan-path", "almanac"))


@pytest.mark.usefixtures("unmeasured")
def test_two_whole_models_have_two_of_everything() -> None:
    found = estimate_resources(loaded("maths-qwen3-1.7b"))
    assert total_bytes(found) == 2 * 1_720_574_976 * 16


def test_a_source_that_holds_nothing_is_still_refused() -> None:
    with pytest.raises(DataError, match="got no file of math500"):
        estimate_resources(load("maths-qwen3-1.7b", ["settings.source=/no/such/folder"]))


@pytest.mark.usefixtures("unmeasured")
def test_samples_of_a_step_by_hand() -> None:
    """AT-GRPO draws k a decision: 4 turns of two roles; MAGRPO 4 at the root and 4 below each of 4 branches."""
    assert estimate_resources(loaded("maths-qwen3-1.7b")).samples == {"reasoner": 4 * 4 * 128, "tool": 4 * 4 * 128}
    pairs = estimate_resources(loaded("pairs-humaneval-qwen2.5-coder-3b"))
    assert pairs.samples == {"aux": (4 + 16) * 2, "main": (4 + 16) * 2}
    assert pairs.tokens == 2 * 40 * 256


@pytest.mark.slow
def test_adapters_of_one_base_share_it() -> None:
    lora = "{model: Qwen/Qwen3-8B, dtype: bfloat16, lora: {rank: 16}}"
    chosen = loaded("maths-qwen3-8b", f"team.policies.reasoner={lora}", f"team.policies.tool={lora}")
    found = estimate_resources(chosen)
    trained = found.policies["tool"].sizes.trained
    assert total_bytes(found) == 2 * found.policies["tool"].sizes.parameters + 2 * 16 * trained


@pytest.mark.usefixtures("unmeasured")
def test_the_command_and_what_it_refuses() -> None:
    done = CliRunner().invoke(app, ["train", "plan-path-qwen3-1.7b", "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "1,720,574,976 parameters" in done.output
    assert "estimated time of a step on this machine" in done.output


def test_memory_and_time_by_hand() -> None:
    """Plan-Path: 16 trees, in each of 2 turns 8 siblings of a tool, then 8 of a planner that goes on from one.

    The seed has 1,136,000 weights, its LoRA recipe trains none of them. At a picosecond a weight and vector: 4 rounds
    of 128 completions of 96 tokens, and two products a token of each prompt and completion.
    """
    found = estimate_resources(load("plan-path-lora"))
    assert (found.rounds, found.samples) == (4, {"tool": 256, "planner": 256})
    coder, mover = found.policies["coder"], found.policies["mover"]
    assert (coder.load.sequences, mover.load.sequences) == ((128, 128), (128, 128))
    assert coder.load.completion == 96
    assert 96 < coder.load.longest <= 96 + found.characters
    # A quarter of 32 GiB, less what is taken, as a power of two.
    assert coder.memory == mover.memory == 4 * GIB
    assert coder.sampling == pytest.approx(2 * 96 * 128 * 1_136_000e-12)
    assert coder.learning == pytest.approx(2 * coder.load.learned * 1_136_000e-12)
    assert coder.load.learned >= 256 * 96
    told = "\n".join(format_estimate(found))
    assert f"4 GiB for keys and values (5 KiB a token) and scores: {coder.at_once:,} at once" in told
    assert "this machine has 32 GiB on cpu" in told


def test_a_sequence_that_is_longer_than_a_micro_batch_stands_alone() -> None:
    short = estimate_resources(load("plan-path-lora", ["learner.tokens_per_microbatch=8"])).policies["coder"]
    exact = [f"learner.tokens_per_microbatch={short.load.longest}"]
    fits = estimate_resources(load("plan-path-lora", exact)).policies["coder"]
    assert (short.activations, short.scores) == (fits.activations, fits.scores)
    more = estimate_resources(load("plan-path-lora")).policies["coder"]
    assert 0 < fits.activations < more.activations


@pytest.mark.parametrize(
    "change", few_of(["loss.kl=0.01", "algorithm.kl=0.01", "algorithm=ma_dpo"], ["algorithm=ma_dpo"])
)
def test_a_copy_from_before_training_is_counted_where_one_is_asked_for(change: str) -> None:
    """Of a model that is trained whole; the base of an adapter is there anyway."""
    plain, asked = (estimate_resources(load("plan-path", changes)) for changes in ([], [change]))
    size = plain.policies["shared"].sizes.parameters
    assert total_bytes(asked) == total_bytes(plain) + 4 * size
    assert "a copy from before it" in "\n".join(format_estimate(asked))
    adapted = estimate_resources(load("plan-path-lora", ["loss.kl=0.01"]))
    assert total_bytes(adapted) == total_bytes(estimate_resources(load("plan-path-lora")))


def test_a_critic_of_its_own_is_counted_and_samples_nothing() -> None:
    found = estimate_resources(load("plan-path-mappo"))
    critic, shared = found.policies["critic"], found.policies["shared"]
    assert (critic.load.sequences, critic.sampling) == ((), 0.0)
    assert critic.load.learned == shared.load.learned > 0
    assert total_bytes(found) == 2 * shared.sizes.parameters * 16


def test_a_policy_that_is_not_asked_in_the_task_that_was_tried(tmp_path: Path) -> None:
    """It is taken to do what the others do there."""
    file = tmp_path / "seldom.py"
    file.write_text(
        "from cadre import Env, Message, Observation, Reward, Task\n\n\nclass Seldom(Env):\n"
        "    roles = ('solver', 'helper')\n    over = False\n\n"
        "    @classmethod\n    def tasks(cls, split):\n"
        "        return [Task(f'{split}-{n}', {'n': n}) for n in range(3)]\n\n"
        "    def observe(self):\n"
        "        return {} if self.over else {'solver': Observation('solver', (Message('user', 'Go.'),))}\n\n"
        "    async def step(self, actions):\n        self.over = True\n        return Reward(team=1.0)\n\n"
        "    @property\n    def success(self):\n        return True\n"
    )
    team = {"policies": {"s": "seed", "h": "seed"}, "roles": {"solver": "s", "helper": "h"}}
    raw = {"env": f"{file}:Seldom", "team": team, "algorithm": "grpo", "train": {"steps": 1}, "evaluate": {"tasks": 1}}
    looked = estimate_resources(parse(raw))
    assert looked.policies["h"].memory == looked.policies["s"].memory


TOOLED = '''
from cadre import Env, Message, Observation, Reward, Task
from cadre.types import Tool

class Asks(Env):
    """A role looks things up before it answers, up to five times."""

    roles = ("a",)

    def __init__(self, task, strict=False):
        super().__init__(task)
        self.messages, self.done, self.strict = [Message("user", "?")], False, strict

    def observe(self):
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        tool = Tool("look", "Looks.", schema)
        return {} if self.done else {"a": Observation("a", tuple(self.messages), (tool,))}

    async def step(self, actions):
        raise NotImplementedError

    async def step_samples(self, samples):
        import json
        message = samples["a"].message
        for call in message.tool_calls:
            assert json.loads(call.arguments) == {"n": 1}
            if self.strict:
                raise KeyError(call.name)
            self.messages += [message, Message("tool", "found", tool_call_id=call.id)]
        self.done = not message.tool_calls or len(self.messages) > 10
        return Reward(team=1.0)

    @property
    def success(self):
        return self.done

    @classmethod
    def tasks(cls, split, strict=False):
        return [Task(f"{split}-{n}", {"n": n, "split": split}) for n in range(3)]
'''


@pytest.mark.parametrize(("shape", "drawn"), [("independent", 10), ("greedy", 10)])
def test_tool_calls_are_turns_of_their_own(shape: str, drawn: int, speaker: Path, tmp_path: Path) -> None:
    """Five calls and the answer after the last result; two siblings side by side, or two a turn."""
    (tmp_path / "asks.py").write_text(TOOLED)
    algorithm = {"independent": "grpo", "greedy": "at_grpo"}[shape]
    sections = {
        "env": f"{tmp_path}/asks.py:Asks",
        "team": {"policies": {"p": str(speaker)}, "roles": {"a": "p"}},
        "algorithm": {"name": algorithm, "k": 2},
        "train": {"tasks_per_step": 1},
    }
    found = estimate_resources(parse(sections))
    assert (found.rounds, found.samples) == (5, {"a": drawn})
    assert "with up to 5 calls in a row" in "\n".join(format_estimate(found))
    unplayable = estimate_resources(parse(sections | {"settings": {"strict": True}}))
    assert (unplayable.rounds, unplayable.samples, unplayable.tool_calls) == (1, {"a": 2}, 0)


OFFERS_TOOLS = """
from cadre.env import Env
from cadre.types import Message, Observation, Reward, Task, Tool

class Tooled(Env):
    roles = ("solver",)
    done = False

    def observe(self):
        seen = Observation("solver", (Message("user", "Go."),), tools=(Tool("find", "Finds."),))
        return {} if self.done else {"solver": seen}

    async def step(self, actions):
        self.done = True
        return Reward(1.0)

    @property
    def success(self) -> bool:
        return self.done

    def fork(self):
        other = Tooled(self.task)
        other.done = self.done
        return other

    @classmethod
    def tasks(cls, split):
        return [Task(f"{split}-{i}", {"i": i, "split": split}) for i in range(4)]
"""


@pytest.mark.parametrize(
    ("change", "refused"),
    [("{% set messages = messages[-2:] %}", True), ("", False)],
    ids=["forgets calls", "sound"],
)
def test_a_template_that_forgets_calls_is_refused_before_weights_load(
    tmp_path: Path, change: str, refused: bool
) -> None:
    (tmp_path / "tooled.py").write_text(OFFERS_TOOLS)
    tiny.build(tmp_path / "model", template=forms.OFFER + change + forms.chat(forms.FORMS["hermes"], offer=""))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"env: {tmp_path}/tooled.py:Tooled\nalgorithm: {{name: grpo, k: 2}}\n"
        f"team: {{roles: {{solver: only}}, policies: {{only: {{model: {tmp_path}/model}}}}}}\n"
    )
    chosen = load(str(recipe), [])
    if not refused:
        assert estimate_resources(chosen).samples
        return
    with pytest.raises(EngineError, match="leaves out parts of a conversation with tools"):
        estimate_resources(chosen)
