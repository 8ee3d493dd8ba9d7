"""Blocks of the documentation work: Python is run, YAML is resolved. test_commands.py tests the commands."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cadre.config.experiment import load, parse
from cadre.config.resolve import resolve
from cadre.errors import ConfigError
from cadre.evaluation.loaded_team import LoadedTeam
from tests.cadre.view.runs import synthetic
from tests.docs.blocks import ROOT, Block, blocks

# Blocks that a test of their own runs as printed.
ELSEWHERE = dict.fromkeys(("README.md-4", "docs/python.md-0"), "tests/cadre/cli/test_cli_examples.py")
BASE = {
    "env": "plan-path",
    "team": {"policies": {"shared": "seed"}, "roles": {"tool": "shared", "planner": "shared"}},
    "algorithm": {"name": "at_grpo", "k": 4},
}


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages speak of: files that they name, a run, the algorithm of its page."""
    folder = tmp_path_factory.mktemp("docs")
    synthetic(folder / "runs" / "plan-path-001", 2, 2)
    shutil.copy(ROOT / "examples" / "programs" / "tasks.jsonl", folder)
    for block in [*blocks("python"), *blocks("yaml")]:
        if name := named(block):
            (folder / name).write_text(block.text)
    return folder


def named(block: Block) -> str:
    """The file that a block says it is in its first line."""
    first = re.match(r'(?:"""|# )([\w-]+\.(?:py|yaml))\b', block.text)
    return first[1] if first else ""


@pytest.fixture(autouse=True)
def there(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workdir)
    monkeypatch.syspath_prepend(str(workdir))


def test_blocks_that_run_elsewhere_are_there() -> None:
    assert set(ELSEWHERE) <= set(map(str, blocks("python")))


@pytest.mark.parametrize("block", [block for block in blocks("python") if str(block) not in ELSEWHERE], ids=str)
def test_python_runs(block: Block) -> None:
    if "datasets" in block.text:
        pytest.importorskip("datasets", reason="datasets is not installed")
    # A model that would have to be downloaded is replaced, and a training is short.
    text = re.sub(r"steps=\d+", "steps=1", block.text.replace("Qwen/Qwen3-0.6B", "seed"))
    names: dict[str, Any] = {"__name__": "docs"}
    try:
        exec(compile(text, str(block), "exec"), names)  # noqa: S102 - our own pages
    except ConfigError as error:
        if "pip install" not in str(error):
            raise
        pytest.skip(str(error))  # an optional package
    finally:
        for team in names.values():
            if isinstance(team, LoadedTeam):
                team.close()


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_json_is_json(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_yaml_is_a_configuration(block: Block) -> None:
    """A whole one is resolved, with the embedded model where it names another; sections are read one by one."""
    for raw in documents(block):
        if "base" in raw:
            load(named(block))
        elif "env" in raw:
            if str(raw["env"]).startswith("examples/"):
                raw["env"] = str(ROOT / raw["env"])
            try:
                resolve(parse(with_embedded({"algorithm": BASE["algorithm"], **raw})))
            except ConfigError as error:
                if "pip install" not in str(error):
                    raise
                pytest.skip(str(error))  # an optional package
        else:
            parse({**BASE, **raw})


def documents(block: Block) -> Iterator[dict[str, Any]]:
    """Return the configurations of a block: one, or one per line if its lines are alternatives."""
    lines = [line for line in block.text.splitlines() if line.strip()]
    keys = [line.split(":")[0] for line in lines]
    if len(set(keys)) < len(keys) and len(set(keys)) == 1:
        yield from (yaml.safe_load(line) for line in lines)
    elif block.text.startswith(" "):
        policies = yaml.safe_load(block.text)
        roles = {"tool": "shared", "planner": next(iter(policies))}
        yield {"team": {"policies": {"shared": "seed", **policies}, "roles": roles}}
    else:
        yield yaml.safe_load(block.text)


def with_embedded(raw: dict[str, Any]) -> dict[str, Any]:
    """The same team on models that need no download."""
    policies = raw["team"]["policies"]
    small = {
        name: message if isinstance(message, str) else {**message, "model": "seed"}
        for name, message in policies.items()
    }
    return {**raw, "team": {**raw["team"], "policies": {name: small_model(message) for name, message in small.items()}}}


def small_model(expected: Any) -> Any:
    return expected if not isinstance(expected, str) or expected in ("seed", "games") else "seed"


def test_there_are_blocks_of_every_kind() -> None:
    counted = {language: len(blocks(language)) for language in ("python", "yaml", "json", "bash", "")}
    assert all(count > 0 for count in counted.values()), counted
