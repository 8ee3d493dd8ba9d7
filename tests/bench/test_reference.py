"""The pages of reference are up to date, and describe what runs write and what can be imported, no more and no less."""

import json
from pathlib import Path

import pytest
import typer
import yaml

import cadre
import reference
from cadre.cli.app import app
from tests.cadre.cli.calling import call

ROOT = Path(__file__).parents[2]
ROLES = {"scout": "one", "runner": "two"}
# What these runs do not write: it takes a reward model, a branch that fails (tests/cadre/rollout/test_failures.py),
# credit by ablation (tests/cadre/rollout/test_grow_ablation.py),
# a pool of opponents (tests/cadre/training/test_opponents.py),
# vLLM (tests/cadre/config/test_engines_vllm.py), or a GPU (tests/cadre/training/test_metrics_gpu.py).
ELSEWHERE = {"reward_model/score", "rollout/failed_branches/REASON", "rollout/ablated_steps", "POLICY/loss/NAME"}
ELSEWHERE |= {"POLICY/elo", "POLICY/score", "POLICY/from_step"}
ELSEWHERE |= {"time/sync_s", "time/sleep_s", "time/wake_s", "time/update_s"}
ELSEWHERE |= {name for name in reference.METRICS if name.startswith("gpu/")}
EXPERIMENTS = {
    "groups": {"algorithm": {"name": "dr_mamr", "k": 4, "kl": 0.1}, "credit": {"overlong_buffer": 2}}
    | {"curriculum": {"levels": [{}, {}]}},
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


def test_the_pages_are_up_to_date() -> None:
    for name, text in reference.pages().items():
        assert (reference.DOCS / name).read_text() == text, "run: python bench/reference.py"


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
        result = [metric for metric in metrics for name in names if metric.startswith(f"{name}/")]
        assert any(tail == "PART" or metric.endswith(f"/{tail}") for metric in result), pattern
    assert not reference.described("rollout/invented", ROLES)


def test_a_role_and_a_policy_may_have_one_name() -> None:
    """With `planner: planner` the description of one must not overwrite the other's."""
    of_roles, of_policies = (
        {pattern.removeprefix(head) for pattern in reference.METRICS if pattern.startswith(head)}
        for head in ("ROLE/", "POLICY/")
    )
    assert not of_roles & of_policies


def test_every_setting_is_on_the_page() -> None:
    page = reference.pages()["settings.md"]
    for name in ("train.steps", "learner.betas", "algorithm.gae_lambda", "sampling.max_tokens", "sandbox.cgroup"):
        assert f"| `{name}` |" in page
    assert "| `algorithm.k` | " in page


def test_every_command_is_on_its_page_with_its_options() -> None:
    page = reference.pages()["commands.md"]
    for name, command in typer.main.get_group(app).commands.items():
        chapter = page.partition(f"## cadre {name}\n")[2].partition("\n## ")[0]
        for parameter in command.params:
            for option in parameter.opts:
                assert option in chapter or option.upper() in chapter, (name, option)


def test_every_public_name_is_on_the_page_of_the_python_api() -> None:
    page = reference.pages()["python.md"]
    for name in cadre.__all__:
        assert f"### cadre.{name}\n" in page
    # Signatures, fields and attributes are those of the code.
    assert "Task(id: str, data: Mapping[str, Any])" in page
    assert "evaluate(tasks: int | Sequence[Task] = 200, first: int = 0, seed: int = 0) -> Report" in page
    assert "| `tool_turns` | `int` | `8` | Completions with calls that a role may sample in one turn. |" in page


def test_docstrings_become_markdown() -> None:
    lines = "\n".join(
        reference._paragraphs("""Do it; see docs/algorithms/grpo.md.

        do(1)

    first, second   what to do,
                    twice
    third           no more
    """)
    )
    assert (
        lines
        == """Do it; see [grpo](algorithms/grpo.md).

```py
do(1)
```

- `first, second`: what to do,
  twice
- `third`: no more"""
    )
