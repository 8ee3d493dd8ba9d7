"""A setting under another library's name, or without its section, is told by its own name."""

import asyncio
from pathlib import Path

import pytest

import cadre
from cadre.config.experiment import FOREIGN_NAMES, OUR_NAMES, load, section_settings
from cadre.config.resolve import find_target, resolve
from cadre.envs.check import check_env
from cadre.envs.spec import EnvSpec, env_class
from cadre.errors import ConfigError, ContractError, as_sentence


@pytest.mark.parametrize(
    ("override", "intended"),
    [
        ("lr=1e-3", "learner.learning_rate"),
        ("learner.lr=1e-3", "learning_rate"),  # the section is written already
        ("train.num_generations=8", "algorithm.k"),
        ("num_generations=8", "algorithm.k"),
        ("learner.per_device_train_batch_size=2", "tokens_per_microbatch"),
        ("train.max_completion_length=64", "sampling.max_tokens"),
        ("beta=0.1", "loss.kl"),
        ("temperature=0.7", "sampling.temperature"),
        ("schedule=round_robin", "train.schedule"),  # of several sections, train comes first
        ("max_tokens=3", "sampling.max_tokens"),  # as vLLM calls it
        ("lerner.epochs=2", "learner"),  # the nearest name, as before
    ],
)
def test_the_setting_that_was_meant(override: str, intended: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("plan-path", [override])
    assert f": unknown option. Did you mean {intended}? Expected one of " in str(caught.value)


def test_every_suggested_setting_exists_and_no_name_is_given_twice() -> None:
    sections = section_settings()
    for setting in FOREIGN_NAMES:
        section, _, leaf = setting.partition(".")
        assert section in ("team", "settings") or leaf in sections[section], setting
    assert len(OUR_NAMES) == sum(len(names.split()) for names in FOREIGN_NAMES.values())


def test_from_python_too() -> None:
    with pytest.raises(ConfigError, match=r"lr: unknown option.*Did you mean learner\.learning_rate\?"):
        cadre.train("plan-path", lr=1e-3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "train.steps=many",
            "train.steps: got 'many'; expected a whole number (updates). Write a whole number",
        ),
        ("learner.weight_decay=much", "expected a number ("),
        ("sampling=4", "sampling: got 4; expected a mapping ("),
        ("loss.ratio=sequnce", "expected 'token', 'sequence', 'cispo' or 'none'"),
        ("settings.turns=many", "settings.turns: got 'many'; expected a whole number. Fix the value."),
        (
            "learner.tokens_per_microbatch=x",
            "learner.tokens_per_microbatch: got 'x'; expected a whole number or 'auto' (",
        ),
        ("credit.role_weights={tool: x, planner: x}", "credit.role_weights.tool: got 'x'; expected a number"),
        ("loss.function=ppoo", "loss.function: got 'ppoo'; expected file.py:function."),
    ],
)
def test_values_are_told_in_plain_words(override: str, expected: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(load("plan-path", [override]))
    text = str(error.value)
    assert expected in text
    assert "?." not in text


def test_files_and_runs_beside_the_one_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corridor.yaml").write_text("env: plan-path\n")
    (tmp_path / "runs/corridor-001").mkdir(parents=True)
    (tmp_path / "runs/corridor-001/config.yaml").write_text("env: plan-path\n")
    for missing, near in (("corridr.yaml", "corridor.yaml"), ("runs/corridor-999", "runs/corridor-001")):
        with pytest.raises(ConfigError, match=rf"Did you mean {near}\?") as caught:
            find_target(missing)
        assert len(str(caught.value)) < 250
    with pytest.raises(ConfigError, match=r"no such folder"):
        find_target("runs/corridor-999")


def test_a_file_without_its_class_and_a_class_misspelt(tmp_path: Path) -> None:
    file = tmp_path / "corridor.py"
    file.write_text("from cadre import Env\n\n\nclass Corridor(Env):\n    pass\n")
    with pytest.raises(ConfigError, match=r"and no class of it.*Write .*corridor\.py:Corridor\."):
        env_class(str(file))
    with pytest.raises(ConfigError, match=r"and there is no such file.*Did you mean .*corridor\.py\?"):
        env_class(str(tmp_path / "corridr.py"))
    with pytest.raises(ConfigError, match=r"it has Corridor\. Did you mean Corridor\?"):
        env_class(f"{file}:Corrido")


STEP = """
from tests.helpers.games import Digit
class Own(Digit):
    async def step(self, actions):
        {line}
"""


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("return self.rewrad(actions)", "Fix that line."),
        ("return rewrad", "Fix that line."),
        ("return __import__('re').match('#', actions['speaker']).group()", "A model may say anything"),
        ("return int(actions['speaker'] + 'x')", "A model may say anything"),
    ],
)
def test_the_advice_is_about_the_code_where_the_code_is_wrong(line: str, advice: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(STEP.format(line=line))
    with pytest.raises(ContractError) as error:
        asyncio.run(check_env(EnvSpec(f"{tmp_path}/own.py:Own", {})))
    message = str(error.value)
    assert "raised" in message
    assert advice in message
    assert ("A model may say anything" in message) == advice.startswith("A model")


def test_a_class_without_settings(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(STEP.format(line="return None"))
    with pytest.raises(ConfigError, match=r"settings\.turns: got it for Own, which has no settings; expected none"):
        EnvSpec(f"{tmp_path}/own.py:Own", {"turns": 2})


def test_a_question_mark_ends_a_sentence() -> None:
    assert [as_sentence(text) for text in ("It is", "It is.", "Did you mean one?")] == [
        "It is.",
        "It is.",
        "Did you mean one?",
    ]
