"""Distillation end to end: a small policy comes nearer to its teacher, and recipes without a usable one are refused."""

from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM

from cadre.config.resolve import resolve
from cadre.errors import ConfigError
from tests.helpers.coordination import write_speaker
from tests.helpers.training import HERE, configured, lines, play

HINTED = f"""
import sys
sys.path.insert(0, {str(HERE.parent)!r})
from tests.helpers.games import Pair

class Hinted(Pair):
    def privileged(self):
        return "3 " * 8
"""


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A speaker with other weights, whose distributions are far from uniform."""
    folder = write_speaker(tmp_path_factory.mktemp("teacher"))
    model = AutoModelForCausalLM.from_pretrained(folder)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, 0.3)
    model.save_pretrained(folder)
    return folder


def taught(speaker: Path, steps: int, k: int, **teacher: object):
    sections = {
        "algorithm": {"name": "grpo", "k": k},
        "learner": {"learning_rate": 1e-2},
        "train": {"steps": steps, "tasks_per_step": 4},
        "evaluate": {"tasks": 0},
    }
    return configured(speaker, teacher=teacher, **sections)


@pytest.mark.slow  # tests/cadre/engines/torch/test_teacher.py makes three updates towards a teacher
def test_a_policy_comes_nearer_to_its_teacher(speaker: Path, teacher: Path, tmp_path: Path, quiet: Console) -> None:
    """Reverse KL on samples of the policy, without the reward of the game, whose digits the teacher does not know."""
    team, _ = play(taught(speaker, 12, 32, model=str(teacher), alone=True), tmp_path / "run", quiet)
    divergences = [line["speaker/kl_to_teacher"] for line in lines(tmp_path / "run", "metrics.jsonl")]
    assert divergences[0] > 0.8
    assert divergences[-1] < 0.6 * divergences[0]
    stored = AutoModelForCausalLM.from_pretrained(teacher).state_dict()
    teacher_weights = team.samplers["teacher"].loaded.model.state_dict()
    assert all(torch.equal(teacher_weights[name], weight) for name, weight in stored.items())
    assert sorted(path.name for path in (tmp_path / "run/checkpoints/step-000012").iterdir() if path.is_dir()) == [
        "shared"
    ]


@pytest.mark.slow  # tests/cadre/advantages/test_distillation.py has the hint itself
def test_a_policy_with_a_hint_teaches_itself_without(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    (tmp_path / "hinted.py").write_text(HINTED)
    chosen = taught(speaker, 1, 2, hint=True)
    chosen = chosen.model_copy(
        update={
            "env": f"{tmp_path}/hinted.py:Hinted",
            "team": configured(speaker, "Pair", ("one", "two")).team,
        }
    )
    play(chosen, tmp_path / "run", quiet)
    (line,) = lines(tmp_path / "run", "metrics.jsonl")
    assert line["left/kl_to_teacher"] != 0.0
    assert line["one/updates"] == line["two/updates"] == 1


TWO = ("one", "two")
REFUSED: dict[str, tuple[tuple[str, ...], dict, dict, str]] = {
    "nobody": (("shared",), {}, {}, r"teacher: got no model, no policy and no hint"),
    "two": (TWO, {"model": "seed", "policy": "two"}, {}, r"teacher\.policy: got two beside model"),
    "unknown": (TWO, {"policy": "tow"}, {}, r"teacher\.policy: got 'tow'; expected one of one, two.*Did you mean two"),
    "itself": (("shared",), {"policy": "shared"}, {}, r"beside which no policy is trained"),
    "no hint": (("shared",), {"hint": True}, {}, r"teacher\.hint: .*privileged\(\)"),
    "trained": (("shared",), {"model": {"model": "seed", "frozen": False}}, {}, r"teacher\.model\.frozen: got false"),
    "temperature": (
        ("shared",),
        {"model": {"model": "m", "url": "http://127.0.0.1:1/v1"}},
        {"sampling": {"temperature": 0.5}},
        r"sampling\.temperature: got 0\.5 for left with teacher\.model\.url",
    ),
    "pairs": (("shared",), {"model": "seed"}, {"algorithm": "ma_dpo"}, r"algorithm: got ma_dpo with a teacher"),
    "dropped": (
        ("shared",),
        {"model": "seed"},
        {"credit": {"without_std": "drop"}},
        r"credit\.without_std: got drop with a teacher",
    ),
    "cluster": (("shared",), {"model": "seed"}, {"cluster": {}}, r"teacher: got a model that is not trained, with a"),
    "missing": (("shared",), {"model": "./nowhere"}, {}, r"the model of policy teacher: got .*nowhere"),
    "name": (("teacher",), {"model": "seed"}, {}, r"team\.policies\.teacher: the teacher's own policy has that name"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_teacher_that_cannot_teach_is_refused(case: str, speaker: Path) -> None:
    policies, teacher, sections, expected = REFUSED[case]
    with pytest.raises(ConfigError, match=expected):
        resolve(configured(speaker, "Pair", policies, teacher=teacher, **sections))


def test_one_sample_a_decision_is_enough_for_a_teacher(speaker: Path) -> None:
    resolve(configured(speaker, algorithm={"name": "grpo", "k": 1}, teacher={"model": str(speaker)}))
    with pytest.raises(ConfigError, match="expected 2 or more"):
        resolve(configured(speaker, algorithm={"name": "grpo", "k": 1}))
