"""Every recipe that the README names runs one step, on tiny weights of the architecture that it names."""

import re
from pathlib import Path

import pytest

from cadre.config.experiment import load
from tests.cadre.cli.calling import call
from tests.cadre.engines import tiny

README = Path(__file__).parents[2] / "README.md"
NAMED = sorted(set(re.findall(r"cadre train ([a-z][\w.-]+)", README.read_text(encoding="utf-8"))))
SMALL = ("sampling.max_tokens=8", "algorithm.k=2", "train.steps=1", "train.tasks_per_step=1", "settings.turns=1")


@pytest.mark.parametrize("recipe", NAMED)
def test_one_step(recipe: str, tmp_path: Path) -> None:
    models = {policy.model for policy in load(recipe).team.policies.values()}
    real = any("Qwen3" in model for model in models)
    folder = tiny.build(tmp_path / "tiny", "qwen3", max_position_embeddings=4096) if real else "seed"
    changes = [f"team.policies.*.model={folder}", "team.policies.*.dtype=float32", "evaluate.tasks=1", *SMALL]
    result = call("train", recipe, *changes, "--run", str(tmp_path / "run"))
    assert result.code == 0, result.err
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 1


def test_the_readme_names_some() -> None:
    assert {"plan-path", "plan-path-qwen3-1.7b-L1"} <= set(NAMED)
