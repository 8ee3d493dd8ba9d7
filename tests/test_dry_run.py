"""A dry run of every recipe with a model of real size, by numbers worked out by hand, without weights or network."""

import pytest
from typer.testing import CliRunner

from cadre import config, dry_run
from cadre.cli import app
from cadre.engines.torch import meta
from cadre.errors import DataError, EngineError
from cadre.sections import LoraConfig, PolicyConfig
from tests.envs.playing import source

LARGE = [name for name in config.recipes() if "qwen" in name]
ADAPTED = {name for name in LARGE if name.endswith("-0.5b")}


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        # embeddings 151936 * 2048; a layer 2048 * (16 + 8 + 8 + 16) * 128 + 3 * 2048 * 6144 + 2 * 128 + 2 * 2048
        ("Qwen/Qwen3-1.7B", 151936 * 2048 + 28 * (2048 * 48 * 128 + 3 * 2048 * 6144 + 256 + 4096) + 2048),
        ("Qwen/Qwen3-8B", 2 * 151936 * 4096 + 36 * (4096 * 80 * 128 + 3 * 4096 * 12288 + 256 + 8192) + 4096),
        # queries and outputs 16 heads, keys and values 2 each, with biases on the first three
        (
            "Qwen/Qwen2.5-Coder-3B",
            151936 * 2048 + 36 * (2048 * 36 * 128 + 20 * 128 + 3 * 2048 * 11008 + 4096) + 2048,
        ),
        # 14 heads of 64, of keys and values 2 each
        (
            "Qwen/Qwen2.5-Coder-0.5B-Instruct",
            151936 * 896 + 24 * (896 * 32 * 64 + 18 * 64 + 3 * 896 * 4864 + 2 * 896) + 896,
        ),
    ],
)
def test_parameters_by_hand(model: str, parameters: int) -> None:
    assert meta.measure(model, PolicyConfig(model=model)).parameters == parameters


def test_bytes_by_hand() -> None:
    whole = meta.measure("Qwen/Qwen3-1.7B", PolicyConfig(model="-", dtype="bfloat16"))
    assert whole.parameters == 1_720_574_976
    assert (whole.trained, whole.base, whole.training) == tuple(whole.parameters * n for n in (1, 4, 12))
    assert whole.key_values == 2 * 28 * 8 * 128 * 2
    lora = PolicyConfig(model="-", dtype="bfloat16", lora=LoraConfig(rank=8))
    adapted = meta.measure("Qwen/Qwen3-1.7B", lora)
    # queries 2048 to 2048, keys and values to 1024, output 2048 to 2048, and the three of 6144
    layer = (2048 + 2048) * 2 + (2048 + 1024) * 2 + 3 * (2048 + 6144)
    assert adapted.trained == 28 * 8 * layer
    assert (adapted.base, adapted.training) == (2 * whole.parameters, 16 * adapted.trained)
    frozen = meta.measure("Qwen/Qwen3-1.7B", PolicyConfig(model="-", frozen=True))
    assert (frozen.trained, frozen.training, frozen.base) == (0, 0, 4 * whole.parameters)


def loaded(recipe: str, *more: str) -> config.Config:
    own = [] if recipe.startswith("plan-path") else [f"settings.source={source()}"]
    held = ["settings.held_out=1"] if recipe.startswith("pairs-humaneval") else []
    data = ["settings.data=humaneval", "settings.held_out=1"] if recipe.startswith("pairs-coop") else []
    return config.load(recipe, [*own, *held, *data, *more])


@pytest.mark.parametrize("recipe", LARGE)
def test_every_large_recipe(recipe: str) -> None:
    chosen = loaded(recipe)
    found = dry_run.look(chosen)
    assert set(found.samples) == set(chosen.team.roles)
    assert min(found.tasks) >= 1
    told = "\n".join(dry_run.lines(chosen, found))
    assert f"a step: {sum(found.samples.values()):,} samples" in told
    size = next(iter(found.sizes.values()))
    two_whole, two_adapters = 2 * size.parameters * 16, size.parameters * 2 + 2 * size.trained * 16
    assert dry_run.total(chosen, found) == (two_adapters if recipe in ADAPTED else two_whole)


def test_samples_of_a_step_by_hand() -> None:
    """AT-GRPO draws k a decision: 4 turns of two roles; MAGRPO 4 at the root and 4 below each of 4 branches."""
    assert dry_run.look(loaded("maths-qwen3-1.7b")).samples == {"reasoner": 4 * 4 * 128, "tool": 4 * 4 * 128}
    pairs = dry_run.look(loaded("pairs-humaneval-qwen2.5-coder-3b"))
    assert pairs.samples == {"aux": (4 + 16) * 2, "main": (4 + 16) * 2}
    assert pairs.tokens == 2 * 40 * 256


def test_adapters_of_one_base_share_it() -> None:
    lora = "{model: Qwen/Qwen3-8B, dtype: bfloat16, lora: {rank: 16}}"
    chosen = loaded("maths-qwen3-8b", f"team.policies.reasoner={lora}", f"team.policies.tool={lora}")
    found = dry_run.look(chosen)
    trained = found.sizes["tool"].trained
    assert dry_run.total(chosen, found) == 2 * found.sizes["tool"].parameters + 2 * 16 * trained


def test_the_command_and_what_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(app, ["train", "plan-path-qwen3-1.7b", "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "1,720,574,976 parameters" in done.output
    monkeypatch.delenv("CADRE_DATA", raising=False)
    with pytest.raises(DataError, match=r"settings\.source"):
        dry_run.look(config.load("maths-qwen3-1.7b"))
    with pytest.raises(EngineError, match=r"config\.json"):
        meta.configuration("nobody/no-model-of-this-name")
