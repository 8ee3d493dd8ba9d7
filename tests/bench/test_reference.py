"""The page of settings and metrics is up to date, and describes what runs write, no more and no less."""

import json
from pathlib import Path

import pytest
import yaml

import reference
from tests.cadre.cli.calling import call

ROOT = Path(__file__).parents[2]
ROLES = {"scout": "one", "runner": "two"}
# What these runs do not write: it takes a reward model, a branch that fails (tests/cadre/rollout/test_failures.py),
# credit by ablation (tests/cadre/rollout/test_ablation.py),
# vLLM (tests/cadre/config/test_vllm.py), or a GPU (tests/cadre/training/test_gpu_metrics.py).
ELSEWHERE = {"reward_model/score", "rollout/failed_branches/REASON", "rollout/ablated_steps", "POLICY/loss/NAME"}
ELSEWHERE |= {"time/sync_s", "time/sleep_s", "time/wake_s", "time/update_s"}
ELSEWHERE |= {name for name in reference.METRICS if name.startswith("gpu/")}
EXPERIMENTS = {
    "groups": {"algorithm": {"name": "dr_mamr", "k": 4, "kl": 0.1}, "credit": {"overlong_buffer": 2}},
    "critics": {"algorithm": {"name": "ippo", "k": 2}, "loss": {"kl": 0.1}},
    "schedules": {
        "algorithm": {"name": "grpo", "k": 2},
        "loss": {"kl_bound": 0.1},
        "learner": {"epochs": 2},
        "train": {"steps": 2, "tasks_per_step": 2, "schedule": "round_robin"},
        "teacher": {"weights": "initial"},
    },
    "preferences": {"algorithm": {"name": "ma_dpo", "k": 2}},
}


@pytest.fixture(scope="module")
def written(speaker: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of one step for every experiment."""
    folder = tmp_path_factory.mktemp("reference")
    for name, sections in EXPERIMENTS.items():
        recipe = {
            "env": f"{ROOT}/tests/helpers/games.py:Relay",
            "team": {"policies": dict.fromkeys(ROLES.values(), str(speaker)), "roles": ROLES},
            "sampling": {"max_tokens": 2},
            "train": {"steps": 1, "tasks_per_step": 2},
            "evaluate": {"tasks": 2},
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(recipe | sections))
        assert call("train", str(folder / f"{name}.yaml"), "--run", str(folder / name)).code == 0
    return {name: folder / name for name in EXPERIMENTS}


def keys(path: Path) -> set[str]:
    return {key for line in path.read_text().splitlines() for key in json.loads(line)}


def test_the_page_is_up_to_date() -> None:
    assert reference.PAGE.read_text() == reference.page(), "run: python bench/reference.py"


def test_every_metric_that_is_written_is_described(written: dict[str, Path]) -> None:
    for run in written.values():
        metrics = keys(run / "metrics.jsonl") - {"step"}
        assert not {metric for metric in metrics if not reference.described(metric, ROLES)}
        assert keys(run / "evaluations.jsonl") == set(reference.EVALUATION) - {"exact"}  # of games that list decisions


def test_nothing_is_described_that_is_never_written(written: dict[str, Path]) -> None:
    metrics = {reference.unnumbered(metric) for run in written.values() for metric in keys(run / "metrics.jsonl")}
    for pattern in set(reference.METRICS) - ELSEWHERE:
        head, _, tail = pattern.partition("/")
        names = {"ROLE": [*ROLES], "POLICY": [*ROLES.values()]}.get(head, [head])
        found = [metric for metric in metrics for name in names if metric.startswith(f"{name}/")]
        assert any(tail == "PART" or metric.endswith(f"/{tail}") for metric in found), pattern
    assert not reference.described("rollout/invented", ROLES)


def test_a_role_and_a_policy_may_have_one_name() -> None:
    """As `planner: planner` has it: what is said of one may not overwrite what is said of the other."""
    of_roles, of_policies = (
        {pattern.removeprefix(head) for pattern in reference.METRICS if pattern.startswith(head)}
        for head in ("ROLE/", "POLICY/")
    )
    assert not of_roles & of_policies


def test_every_setting_is_on_the_page() -> None:
    page = reference.page()
    for name in ("train.steps", "learner.betas", "algorithm.gae_lambda", "sampling.max_tokens", "sandbox.cgroup"):
        assert f"| `{name}` |" in page
    assert "| `algorithm.k` | " in page
