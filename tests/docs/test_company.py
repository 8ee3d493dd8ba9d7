"""`examples/company.py` rewards each role by what it did, and trains an adapter of each role."""

from __future__ import annotations

import asyncio
import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import cadre
from cadre.types import Reward, Task
from cadre.view.export import write_page
from cadre.view.reading import open_runs
from tests.cadre.cli.calling import call

ROOT = Path(__file__).parents[2]
COMPANY = runpy.run_path(str(ROOT / "examples" / "company.py"))
ROW: dict[str, Any] = COMPANY["rows"]("train")[1]
(PATH,) = ROW["fixed"]
PATCH = f"```python\n{ROW['fixed'][PATH]}```"
# The result of the last test is wrong, and with the bug the package gives that of the second, too.
FINDS = json.dumps({"arguments": ROW["calls"][1], "result": ROW["expected"][1]})
HOLDS = json.dumps({"arguments": ROW["calls"][-1], "result": ROW["expected"][-1]})
FALSE = json.dumps({"arguments": ROW["calls"][2], "result": [[], [], 99]})


def play(*answers: dict[str, str]) -> tuple[list[Reward], bool]:
    """Return the rewards of the decisions of an episode with these answers, and whether it is a success."""

    async def episode() -> tuple[list[Reward], bool]:
        env = cadre.episode(COMPANY["company"])(Task("t", ROW))
        rewards = []
        for actions in answers:
            await env.until_ready()
            assert set(env.observe()) == set(actions)
            rewards.append(await env.step(actions))
        assert env.observe() == {}
        return rewards, env.success

    return asyncio.run(episode())


PLANNED = ({"product_manager": "Stock of no item may be lost."}, {"architect": f"`{PATH}`: skip less."})


def test_a_company_that_mends_the_bug_at_once() -> None:
    rewards, solved = play(*PLANNED, {"engineer": PATCH, "tester": FINDS})
    assert [dict(reward.local) for reward in rewards] == [
        {},
        {"product_manager": 0.25, "architect": 0.25},
        {"tester": pytest.approx(0.5), "engineer": pytest.approx(0.5)},
    ]
    assert [reward.team for reward in rewards] == [0.0, 0.0, 0.5]
    assert solved


def test_the_engineer_writes_again_if_a_test_fails() -> None:
    """Here the test is false: the second patch, which passes it alone, does not mend the bug."""
    rewards, solved = play(*PLANNED, {"engineer": PATCH, "tester": FALSE}, {"engineer": "No, it is right."})
    assert dict(rewards[2].local) == {"tester": 0.1}
    assert rewards[3] == Reward(0.0, {"engineer": 0.0}, rewards[3].parts)
    assert not solved


@pytest.mark.parametrize(
    ("tests", "reward"),
    [("", 0.0), ("run(1) == 2", 0.0), (FALSE, 0.1), (HOLDS, 0.3), (f"{FALSE}\n{FINDS}", 0.5), ('{"arguments":', 0.0)],
)
def test_a_test_is_rewarded_if_it_is_right_and_more_if_it_finds_the_bug(tests: str, reward: float) -> None:
    nobody = ({"product_manager": ""}, {"architect": "?"})
    rewards, _ = play(*nobody, {"engineer": "", "tester": tests}, *[{"engineer": ""}] * (reward in (0.1, 0.5)))
    assert dict(rewards[1].local) == {"product_manager": 0.0, "architect": 0.0}
    assert rewards[2].local["tester"] == pytest.approx(reward)


@pytest.mark.slow
def test_two_steps_train_four_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded model answers in a few tokens; at this temperature some of its answers are cut off, and cost."""
    monkeypatch.chdir(ROOT)
    sampling = "sampling={max_tokens: 8, temperature: 1.5}"
    small = ["train.steps=2", "train.tasks_per_step=2", "evaluate.tasks=0", "algorithm.k=3", sampling]
    folder = tmp_path / "run"
    result = call("train", "examples/company.yaml", *small, "--run", str(folder))
    assert result.code == 0, result.err
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(metrics) == 2
    for policy in ("manager", "architect", "engineer", "tester"):
        weights = load_file(folder / "checkpoints" / "step-000002" / policy / "adapter_model.safetensors")
        assert any(tensor.any() for name, tensor in weights.items() if "lora_B" in name), policy  # zero untrained
    (run,) = open_runs([folder])
    assert write_page([run], tmp_path / "page.html", 100.0) == 4
    page = (tmp_path / "page.html").read_text()
    assert all(text in page for text in ("A user reports", "Which file has to change", "The design", "Write 3 tests"))
