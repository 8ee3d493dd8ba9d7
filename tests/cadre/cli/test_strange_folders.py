"""A run folder of a stranger's: what reads it runs none of its code, and what plays it asks first."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cadre.config.resolve import find_target
from cadre.errors import ConfigError
from tests.cadre.cli.bad_calls import plain_recipe
from tests.cadre.cli.calling import call

TRAP = "from pathlib import Path\nPath({marker!r}).touch()\nfrom tests.helpers.games import *\n"
READING = {
    "view": ["view", "RUN", "--export", "OUT.html"],
    "status": ["status", "RUN"],
    "trees": ["trees", "RUN", "--out", "OUT.parquet"],
    "report": ["report", "RUN", "--out", "OUT.md"],
    "walk": ["play", "RUN", "--step", "1", "--plain"],
    "export": ["export", "RUN", "shared", "OUT"],
}
PLAYING = {
    "eval": ["eval", "RUN", "--tasks", "1"],
    "play": ["play", "RUN"],
    "audit": ["audit", "RUN", "--tasks", "1", "--decisions", "1", "--plays", "2"],
    "fork": ["fork", "RUN", "--at", "1", "--run", "OUT"],
    "resume": ["train", "train.steps=2", "--run", "RUN", "--resume"],
}


@pytest.fixture(scope="module")
def trained(speaker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strange")
    (folder / "RECIPE").write_text(plain_recipe(speaker))
    assert call("train", str(folder / "RECIPE"), "train.trees_kept=1", "--run", str(folder / "RUN")).code == 0
    return folder / "RUN"


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "RUN")
    return tmp_path / "RUN"


def changed(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the configuration of a run, and that of its checkpoints' copies not."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    change(config)
    (run / "config.yaml").write_text(yaml.safe_dump(config))


def trap(folder: Path, name: str = "evil.py") -> tuple[Path, Path]:
    """A file that leaves a mark where it is run, and the mark."""
    file, marker = folder / name, folder.parent / "it-ran"
    file.parent.mkdir(exist_ok=True)
    file.write_text(TRAP.format(marker=str(marker)))
    return file, marker


def with_evil_env(run: Path) -> Path:
    file, marker = trap(run)
    changed(run, lambda config: config.update(env=f"{file}:Pair"))
    return marker


@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize("roles", [True, False], ids=["roles", "no roles"])
def test_what_reads_a_run_runs_none_of_its_code(name: str, roles: bool, run: Path) -> None:
    """Without roles the environment would be asked for them."""
    marker = with_evil_env(run)
    if not roles:
        changed(run, lambda config: config["team"].pop("roles"))
    done = call(*READING[name])
    assert not marker.exists()
    if roles and name not in ("trees", "report"):  # which need packages that may not be here
        assert done.code == 0, done.err


def functions(run: Path) -> dict[str, Callable[[dict[str, Any]], object]]:
    """Other places where a configuration names code."""
    file, _ = trap(run, "evil.py")
    named = f"{file}:Pair"
    axes = {"returns": "reward_to_go", "group": "node", "baseline": "mean", "scale": "std"}
    custom = {"name": "custom", "k": 2, "shape": "independent", **axes}
    return {
        "aggregate": lambda config: config["loss"].update(aggregate=named),
        "baseline": lambda config: config.update(algorithm={**custom, "baseline": named}),
        "shape": lambda config: config.update(algorithm={**custom, "shape": named}),
        "setting": lambda config: config.update(env="program", settings={"run": named}),
        "held out": lambda config: config["evaluate"].update(settings={"reward": named}),
    }


@pytest.mark.parametrize("command", ["view", "export", "eval", "fork", "resume"])
@pytest.mark.parametrize("where", ["aggregate", "baseline", "shape", "setting", "held out"])
def test_code_in_any_setting_is_not_run(where: str, command: str, run: Path) -> None:
    changed(run, functions(run)[where])
    done = call(*{**READING, **PLAYING}[command])
    assert not (run.parent / "it-ran").exists()
    if command in PLAYING:
        assert done.code == 2
        assert str(run / "evil.py") in done.err


@pytest.mark.parametrize("name", PLAYING)
def test_what_plays_names_the_file_and_asks_for_trust(name: str, run: Path) -> None:
    marker = with_evil_env(run)
    before = sorted(path for path in run.rglob("*") if path.is_file())
    refused = call(*PLAYING[name])
    assert refused.code == 2
    assert f"{run / 'evil.py'} (env)" in refused.err
    assert "--trust" in refused.err
    assert not marker.exists()
    assert sorted(path for path in run.rglob("*") if path.is_file()) == before
    done = call(*PLAYING[name], "--trust", *(["--force"] if name == "resume" else []))
    assert done.code == 0, done.err
    assert marker.exists()
    assert f"imports {run / 'evil.py'} (env)" in done.err


def test_a_file_elsewhere_is_named_and_played(run: Path) -> None:
    done = call(*PLAYING["eval"])
    assert done.code == 0
    assert "games.py (env)" in done.err


def test_a_file_is_named_before_it_runs(run: Path, tmp_path: Path) -> None:
    """A file beside the run may have come with it, and may end the process."""
    file, _ = trap(tmp_path)
    file.write_text(f"import sys\nsys.stderr.write('RAN')\n{file.read_text()}")
    changed(run, lambda config: config.update(env=f"{file}:Pair"))
    done = call(*PLAYING["eval"])
    assert done.err.index(f"imports {file} (env)") < done.err.index("RAN")


@pytest.mark.parametrize("way", ["a link in the folder", "a link into the folder", "a way around", "a folder below"])
def test_ways_into_the_folder(way: str, run: Path, tmp_path: Path) -> None:
    file, marker = trap(run, "below/evil.py" if way == "a folder below" else "evil.py")
    named = {"a way around": run / ".." / "RUN" / "evil.py", "a folder below": file}.get(way)
    if way == "a link into the folder":
        named = tmp_path / "link.py"
        named.symlink_to(file)
    elif way == "a link in the folder":
        file.rename(tmp_path / "real.py")
        file.symlink_to(tmp_path / "real.py")
        named = file
    changed(run, lambda config: config.update(env=f"{named}:Pair"))
    refused = call(*PLAYING["eval"])
    assert (refused.code, "--trust" in refused.err) == (2, True)
    assert not marker.exists()


def test_a_module_that_lies_in_the_folder(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, marker = trap(run)
    changed(run, lambda config: config.update(env="evil:Pair"))
    monkeypatch.syspath_prepend(run)
    refused = call(*PLAYING["eval"])
    assert (refused.code, "--trust" in refused.err) == (2, True)
    assert not marker.exists()


REACHES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a command": lambda config: config.update(env="program", settings={"run": ["touch", "it-ran"]}),
    "an interpreter": lambda config: config.update(env="program", settings={"run": "a.py:b", "python": "/bin/sh"}),
    "code of a checkpoint": lambda config: config["team"]["policies"]["shared"].update(trust_remote_code=True),
    "another machine": lambda config: config["team"]["policies"]["shared"].update(
        url="https://example.com/v1", frozen=True
    ),
    "another machine's Ray": lambda config: config.update(cluster={"address": "ray://192.0.2.1:10001"}),
    "a weak sandbox": lambda config: config.update(sandbox={"level": "process"}),
}


@pytest.mark.parametrize("what", REACHES)
@pytest.mark.parametrize("command", ["eval", "fork", "resume"])
def test_what_a_configuration_reaches_beside_files_wants_trust(what: str, command: str, run: Path) -> None:
    changed(run, REACHES[what])
    refused = call(*PLAYING[command])
    assert (refused.code, "--trust" in refused.err) == (2, True)
    assert not (run.parent / "it-ran").exists()


def test_a_weak_sandbox_may_be_changed_in_place_of_trusting(run: Path) -> None:
    changed(run, REACHES["a weak sandbox"])
    assert call(*PLAYING["eval"], "sandbox.level=auto").code == 0


def test_export_asks_before_code_of_a_checkpoint_runs(run: Path) -> None:
    changed(run, REACHES["code of a checkpoint"])
    refused = call(*READING["export"])
    assert (refused.code, "--trust" in refused.err) == (2, True)


def test_a_recipe_of_the_users_own_needs_no_trust(run: Path, trained: Path) -> None:
    """Resuming with the recipe that the user names: its settings are theirs."""
    recipe = trained.parent / "RECIPE"
    own = json.loads(recipe.read_text())
    own["team"]["policies"]["shared"] = {"model": own["team"]["policies"]["shared"], "trust_remote_code": True}
    (run.parent / "own.yaml").write_text(json.dumps(own))
    done = call("train", "own.yaml", "train.steps=2", "--run", "RUN", "--resume", "--force")
    assert done.code == 0, done.err


def test_changes_that_a_folder_notes_are_not_the_users(run: Path, trained: Path) -> None:
    """Mistake: the user names the recipe, and what `command.json` says it was changed by counts as theirs."""
    recipe = trained.parent / "RECIPE"
    changed(run, REACHES["a weak sandbox"])
    begun = json.loads((run / "command.json").read_text())
    begun.update(recipe=str(recipe), overrides=["train.trees_kept=1", "sandbox.level=process"])
    (run / "command.json").write_text(json.dumps(begun))
    refused = call("train", str(recipe), "train.steps=2", "--run", "RUN", "--resume")
    assert (refused.code, "sandbox.level" in refused.err, "--trust" in refused.err) == (2, True, True)


@pytest.mark.parametrize("what", ["a command", "a weak sandbox", "another machine's Ray"])
def test_a_change_on_the_command_line_is_the_users(what: str, run: Path) -> None:
    changed(run, REACHES[what])
    own = {
        "a command": "settings.run=[touch, it-ran]",
        "a weak sandbox": "sandbox.level=process",
        "another machine's Ray": "cluster.address=ray://192.0.2.1:10001",
    }
    for other in (value for name, value in own.items() if name != what):
        with pytest.raises(ConfigError, match="--trust"):
            find_target("RUN", [other])
    assert find_target("RUN", [own[what]]).run == Path("RUN")


@pytest.fixture(scope="module")
def own(trained: Path) -> Path:
    """A run that is begun on this machine, with what a stranger's would have to ask for."""
    recipe, run = trained.parent / "RECIPE", trained.parent / "OWN"
    assert call("train", str(recipe), "team.policies.shared.trust_remote_code=true", "--run", str(run)).code == 0
    return run


def test_a_run_that_was_begun_here_needs_no_trust(own: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(own)
    assert call("eval", str(own), "--tasks", "1").code == 0
    assert call("eval", str(tmp_path / "link"), "--tasks", "1").code == 0
    assert call("fork", str(own), "--at", "1", "--run", str(tmp_path / "fork")).code == 0
    assert call("eval", str(tmp_path / "fork"), "--tasks", "1").code == 0
    assert call("train", "train.steps=2", "--run", str(own), "--resume").code == 0


@pytest.mark.parametrize("other", ["a copy", "in its place", "another machine", "another reach"])
def test_what_is_not_that_run_needs_trust(
    other: str, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = own
    if other == "a copy":
        run = shutil.copytree(own, tmp_path / "copy")
    elif other == "another machine":
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    else:
        own.rename(own.with_name("ELSEWHERE"))
        if other == "in its place":
            shutil.copytree(own.with_name("ELSEWHERE"), own)
        else:
            own.with_name("ELSEWHERE").rename(own)
            changed(own, REACHES["another machine"])
    refused = call("eval", str(run), "--tasks", "1")
    if other == "in its place":
        shutil.rmtree(own)
        own.with_name("ELSEWHERE").rename(own)
    assert (refused.code, "--trust" in refused.err) == (2, True)


@pytest.mark.parametrize("content", ["fifo", "deep", "huge", "link"])
def test_an_odd_note_of_the_command_is_no_traceback(content: str, run: Path, tmp_path: Path) -> None:
    """Mistake: `eval` opens command.json by itself, and waits at a pipe."""
    path = run / "command.json"
    path.rename(tmp_path / "real")
    if content == "fifo":
        os.mkfifo(path)
    elif content == "link":
        path.symlink_to(tmp_path / "real")
    else:
        path.write_text("[" * 100_000 if content == "deep" else '{"root": "' + "x" * (1 << 25) + '"}')
    done = call(*PLAYING["eval"])
    assert done.code == 0, done.err


def test_from_python(run: Path) -> None:
    import cadre

    marker = with_evil_env(run)
    with pytest.raises(ConfigError, match="--trust"):
        cadre.evaluate(run, tasks=1)
    with pytest.raises(ConfigError, match="--trust"):
        cadre.train(run=run, resume=True, steps=2)
    assert not marker.exists()
    assert cadre.evaluate(run, tasks=1, trust=True).tasks == 1
