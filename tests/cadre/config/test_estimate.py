"""A dry run of every recipe with a model of real size, by numbers worked out by hand, without weights or network."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import template_forms as forms
from cadre.cli.app import app
from cadre.config.estimate import EngineEstimate, ResourceEstimate, estimate_resources, format_estimate
from cadre.config.experiment import Config, load, parse
from cadre.config.recipes import recipes
from cadre.config.resolve import find_model
from cadre.engines.torch import memory, sizes
from cadre.engines.torch.memory import GIB, SequenceMemory
from cadre.errors import DataError, EngineError
from tests.cadre.engines import tiny
from tests.helpers.playing import source
from tests.helpers.slow import few_of

LARGE = [name for name in recipes() if "qwen" in name]


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 32 GiB."""
    monkeypatch.setattr(memory, "total_and_free", lambda device: (32 * GIB, 32 * GIB))


def the_engine(resource_estimate: ResourceEstimate) -> EngineEstimate:
    (engine,) = resource_estimate.engines
    return engine


def held(resource_estimate: ResourceEstimate) -> int:
    return sum(engine.resident for engine in resource_estimate.engines)


def loaded(recipe: str, *more: str) -> Config:
    data_source = [] if recipe.startswith("plan-path") else [f"settings.source={source()}"]
    held_out = ["settings.held_out=1"] if recipe.startswith("pairs-humaneval") else []
    data = ["settings.data=humaneval", "settings.held_out=1"] if recipe.startswith("pairs-coop") else []
    return load(recipe, [*data_source, *held_out, *data, *more])


@pytest.mark.parametrize("recipe", few_of(LARGE, LARGE[:1]))
def test_every_large_recipe(recipe: str) -> None:
    chosen = loaded(recipe)
    result = estimate_resources(chosen)
    assert set(result.samples) == set(chosen.team.roles)
    assert min(result.tasks) >= 1
    message = "\n".join(format_estimate(result))
    assert f"a step: {sum(result.samples.values()):,} samples" in message
    engine = the_engine(result)
    assert engine.resident == engine.parameters * 2 + engine.trained * 16


@pytest.mark.parametrize("recipe", [name for name in recipes() if "qwen" in name or "smollm2" in name])
def test_without_data_an_invented_task_stands_in(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CADRE_DATA", raising=False)
    small = sizes.Sizes(1, 1, 1, 1, SequenceMemory(1, 1), 1, 1, 1, 1)
    monkeypatch.setattr(sizes, "measure", lambda model, policy: small)
    chosen = load(recipe, [])
    result = estimate_resources(chosen)
    assert min(result.samples.values()) > 0
    (first, *_) = format_estimate(result)
    assert ("data not read" in first) is not recipe.startswith(("plan-path", "almanac"))


def test_two_whole_models_have_two_of_everything() -> None:
    result = estimate_resources(loaded("maths-qwen3-1.7b"))
    assert held(result) == 2 * 1_720_574_976 * 16


def test_a_source_that_holds_nothing_is_still_refused() -> None:
    with pytest.raises(DataError, match="got no file of math500"):
        estimate_resources(load("maths-qwen3-1.7b", ["settings.source=/no/such/folder"]))


def test_samples_of_a_step_by_hand() -> None:
    """Samples per decision: AT-GRPO k, 4 turns of two roles; MAGRPO 4 at the root and 4 below each of 4 branches."""
    assert estimate_resources(loaded("maths-qwen3-1.7b")).samples == {"reasoner": 4 * 4 * 128, "tool": 4 * 4 * 128}
    pairs = estimate_resources(loaded("pairs-humaneval-qwen2.5-coder-3b"))
    assert pairs.samples == {"aux": (4 + 16) * 2, "main": (4 + 16) * 2}
    assert pairs.tokens == 2 * 40 * 256


@pytest.mark.slow
def test_adapters_of_one_base_share_it() -> None:
    lora = "{model: Qwen/Qwen3-8B, dtype: bfloat16, lora: {rank: 16}}"
    chosen = loaded("maths-qwen3-8b", f"team.policies.reasoner={lora}", f"team.policies.tool={lora}")
    engine = the_engine(estimate_resources(chosen))
    assert engine.resident == 2 * engine.parameters + 16 * engine.trained


def test_the_command() -> None:
    result = CliRunner().invoke(app, ["train", "plan-path-qwen3-1.7b", "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "1,720,574,976 parameters" in result.output
    assert "it does NOT fit the memory of this machine (32 GiB)" in result.output
    assert "set learner.gradient_checkpointing=true, or train adapters" in result.output


def test_memory_by_hand() -> None:
    """Plan-Path: 16 trees, in each of 2 turns 8 siblings of a tool, then 8 of a planner that goes on from one.

    The seed has 1,136,000 weights and its LoRA recipe trains none of them: adapters, gradients and moments are four
    float32 each.
    """
    found = estimate_resources(load("plan-path-lora"))
    assert (found.samples, found.tokens) == ({"tool": 256, "planner": 256}, 512 * 96)
    engine = the_engine(found)
    assert (list(engine.names), engine.parameters) == (["coder", "mover"], 1_136_000)
    assert (engine.resident, engine.vllm) == (4 * 1_136_000 + 16 * engine.trained, 0)
    # A quarter of 32 GiB, less what is taken, as a power of two.
    assert engine.cache == 4 * GIB
    coder = load("plan-path-lora").team.policies["coder"]
    adapted = sizes.measure(find_model("team", coder), coder)
    assert engine.microbatch == 4096
    assert engine.learning == 4096 * (adapted.activations(checkpointing=False) + 4 * adapted.vocabulary)
    assert found.peaks("cpu") == (engine.resident + 4 * GIB, engine.resident + engine.learning)
    told = "\n".join(format_estimate(found))
    assert "a step: 512 samples (256 by tool, 256 by planner), at most 49,152 tokens" in told
    assert "coder, mover (seed): 1,136,000 parameters, " in told
    assert "adapters on 100% of the weights" in told
    assert "it fits the memory of this machine (32 GiB): at least 4.0 GiB while sampling, " in told


def test_a_sequence_that_is_longer_than_a_micro_batch_stands_alone() -> None:
    """A prompt of the 123 characters that were met, and 96 tokens."""
    result = estimate_resources(load("plan-path-lora", ["learner.tokens_per_microbatch=8"]))
    assert result.characters == 123
    assert the_engine(result).microbatch == 123 // 3 + 96


@pytest.mark.parametrize(
    "change", few_of(["loss.kl=0.01", "algorithm.kl=0.01", "algorithm=ma_dpo"], ["algorithm=ma_dpo"])
)
def test_a_copy_from_before_training_is_counted_where_one_is_asked_for(change: str) -> None:
    """Of a model that is trained whole; the base of an adapter is there anyway."""
    plain, asked = (estimate_resources(load("plan-path", changes)) for changes in ([], [change]))
    assert held(asked) == held(plain) + 4 * the_engine(plain).parameters
    adapted = estimate_resources(load("plan-path-lora", ["loss.kl=0.01"]))
    assert held(adapted) == held(estimate_resources(load("plan-path-lora")))


def test_a_critic_of_its_own_is_counted_and_samples_nothing() -> None:
    result = estimate_resources(load("plan-path-mappo"))
    engines = {engine.names[0]: engine for engine in result.engines}
    assert engines["critic"].cache == 0 < engines["shared"].cache
    assert engines["critic"].microbatch == engines["shared"].microbatch > 0
    assert held(result) == 2 * engines["shared"].parameters * 16


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
    solver, helper = estimate_resources(parse(raw)).engines
    assert (helper.cache, helper.microbatch) == (solver.cache, solver.microbatch)


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
        found = estimate_resources(chosen)
        assert found.samples == {"solver": 2 * chosen.train.tasks_per_step}
        assert "every call of one is a turn more, which is not counted" in "\n".join(format_estimate(found))
        return
    with pytest.raises(EngineError, match="leaves out parts of a conversation with tools"):
        estimate_resources(chosen)


LONG = """
from cadre.types import Message, Observation, Task
from tests.helpers.games import Digit

class Long(Digit):
    @classmethod
    def tasks(cls, split):
        return [Task(f"{split}-{number}", {"digit": 1, "words": 300 if number % 4 == 3 else 1}) for number in range(40)]

    def observe(self):
        seen = super().observe()
        return {role: Observation(role, (Message("user", "Left " * self.task.data["words"]),)) for role in seen}
"""


def test_prompts_that_fill_the_context_are_told(tmp_path: Path) -> None:
    """Every fourth task has 300 words, and `games` reads 256 tokens, `seed` 2,048."""
    (tmp_path / "long.py").write_text(LONG)
    raw = {"env": f"{tmp_path}/long.py:Long", "algorithm": {"name": "grpo", "k": 2}, "sampling": {"max_tokens": 2}}
    estimate = estimate_resources(parse({**raw, "team": "games"}))
    (name,) = the_engine(estimate).names
    assert estimate.long_prompts == {name: (4, 16, 256)}
    assert f"warning: in 4 of 16 episodes a prompt of {name} fills the 256 tokens" in "\n".join(
        format_estimate(estimate)
    )
    assert estimate_resources(parse({**raw, "team": "seed"})).long_prompts == {}
