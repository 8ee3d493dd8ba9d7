"""A run folder of a stranger's: what reads it runs none of its code, and what plays it asks first."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file

from cadre.config.resolve import find_target
from cadre.config.trusted_runs import check_trusted, find_access
from cadre.errors import ConfigError
from tests.cadre.cli.bad_calls import plain_recipe
from tests.cadre.cli.calling import call
from tests.cadre.cli.stranger import TextSetting, text_settings, texts

TRAP = "from pathlib import Path\nPath({marker!r}).touch()\nfrom tests.helpers.games import *\n"
READING = {
    "view": ["view", "RUN", "--export", "OUT.html"],
    "status": ["status", "RUN"],
    "trees": ["trees", "RUN", "--out", "OUT.parquet"],
    "report": ["report", "RUN", "--out", "OUT.md"],
    "walk": ["play", "RUN", "--step", "1"],
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
    result = call(*READING[name])
    assert not marker.exists()
    if roles and name not in ("trees", "report"):  # which need packages that may not be here
        assert result.code == 0, result.err


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
    result = call(*{**READING, **PLAYING}[command])
    assert not (run.parent / "it-ran").exists()
    if command in PLAYING:
        assert result.code == 2
        assert str(run / "evil.py") in result.err


@pytest.mark.parametrize("name", PLAYING)
def test_what_plays_names_the_file_and_asks_for_trust(name: str, run: Path) -> None:
    marker = with_evil_env(run)
    initial = sorted(path for path in run.rglob("*") if path.is_file())
    refused = call(*PLAYING[name])
    assert refused.code == 2
    assert f"{run / 'evil.py'} (env)" in refused.err
    assert "--trust" in refused.err
    assert not marker.exists()
    assert sorted(path for path in run.rglob("*") if path.is_file()) == initial
    result = call(*PLAYING[name], "--trust", *(["--force"] if name == "resume" else []))
    assert result.code == 0, result.err
    assert marker.exists()
    assert f"imports {run / 'evil.py'} (env)" in result.err


def test_a_file_that_the_user_trained_with_is_named_and_played(run: Path) -> None:
    """The same holds for a copy of the run."""
    result = call(*PLAYING["eval"])
    assert result.code == 0
    assert "games.py (env)" in result.err


def test_code_that_the_user_has_replaced_is_not_run(run: Path, tmp_path: Path) -> None:
    """Mistake: the run's own configuration is read once more, and asks its environment for the roles."""
    file, marker = trap(tmp_path)
    changed(run, lambda config: (config.update(env=f"{file}:Pair"), config["team"].pop("roles")))
    assert call("eval", str(run), "--tasks", "1", "env=tests/helpers/games.py:Pair").code in (0, 2)
    assert not marker.exists()


def test_a_file_beside_the_run_wants_trust_and_is_named_before_it_runs(run: Path, tmp_path: Path) -> None:
    """It may have come with the run, and may end the process."""
    file, _ = trap(tmp_path)
    file.write_text(f"import sys\nsys.stderr.write('RAN')\n{file.read_text()}")
    changed(run, lambda config: config.update(env=f"{file}:Pair"))
    assert f"{file} (env)" in call(*PLAYING["eval"]).err
    result = call(*PLAYING["eval"], "--trust")
    assert result.err.index(f"imports {file} (env)") < result.err.index("RAN")


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


@pytest.mark.parametrize("kind", REACHES)
@pytest.mark.parametrize("command", ["eval", "fork", "resume"])
def test_what_a_configuration_reaches_beside_files_wants_trust(kind: str, command: str, run: Path) -> None:
    changed(run, REACHES[kind])
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
    own_content = json.loads(recipe.read_text())
    own_content["team"]["policies"]["shared"] = {
        "model": own_content["team"]["policies"]["shared"],
        "trust_remote_code": True,
    }
    (run.parent / "own.yaml").write_text(json.dumps(own_content))
    result = call("train", "own.yaml", "train.steps=2", "--run", "RUN", "--resume", "--force")
    assert result.code == 0, result.err


def test_changes_that_a_folder_notes_are_not_the_users(run: Path, trained: Path) -> None:
    """Mistake: the user names the recipe, and what `command.json` says it was changed by counts as theirs."""
    recipe = trained.parent / "RECIPE"
    changed(run, REACHES["a weak sandbox"])
    begun = json.loads((run / "command.json").read_text())
    begun.update(recipe=str(recipe), overrides=["train.trees_kept=1", "sandbox.level=process"])
    (run / "command.json").write_text(json.dumps(begun))
    refused = call("train", str(recipe), "train.steps=2", "--run", "RUN", "--resume")
    assert (refused.code, "sandbox.level" in refused.err, "--trust" in refused.err) == (2, True, True)


@pytest.mark.parametrize("kind", ["a command", "a weak sandbox", "another machine's Ray"])
def test_a_change_on_the_command_line_is_the_users(kind: str, run: Path) -> None:
    changed(run, REACHES[kind])
    own_settings = {
        "a command": "settings.run=[touch, it-ran]",
        "a weak sandbox": "sandbox.level=process",
        "another machine's Ray": "cluster.address=ray://192.0.2.1:10001",
    }
    for second in (value for name, value in own_settings.items() if name != kind):
        with pytest.raises(ConfigError, match="--trust"):
            find_target("RUN", [second])
    assert find_target("RUN", [own_settings[kind]]).run == Path("RUN")


@pytest.fixture(scope="module")
def own_run(trained: Path) -> Path:
    """A run that is begun on this machine, with what a stranger's would have to ask for."""
    recipe, run = trained.parent / "RECIPE", trained.parent / "OWN"
    assert call("train", str(recipe), "team.policies.shared.trust_remote_code=true", "--run", str(run)).code == 0
    return run


def test_a_run_that_was_begun_here_needs_no_trust(own_run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(own_run)
    assert call("eval", str(own_run), "--tasks", "1").code == 0
    assert call("eval", str(tmp_path / "link"), "--tasks", "1").code == 0
    assert call("fork", str(own_run), "--at", "1", "--run", str(tmp_path / "fork")).code == 0
    assert call("eval", str(tmp_path / "fork"), "--tasks", "1").code == 0
    assert call("train", "train.steps=2", "--run", str(own_run), "--resume").code == 0


@pytest.mark.parametrize("second", ["a copy", "in its place", "another machine", "another reach"])
def test_what_is_not_that_run_needs_trust(
    second: str, own_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = own_run
    if second == "a copy":
        run = shutil.copytree(own_run, tmp_path / "copy")
    elif second == "another machine":
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    else:
        own_run.rename(own_run.with_name("ELSEWHERE"))
        if second == "in its place":
            shutil.copytree(own_run.with_name("ELSEWHERE"), own_run)
        else:
            own_run.with_name("ELSEWHERE").rename(own_run)
            changed(own_run, REACHES["another machine"])
    refused = call("eval", str(run), "--tasks", "1")
    if second == "in its place":
        shutil.rmtree(own_run)
        own_run.with_name("ELSEWHERE").rename(own_run)
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
    result = call(*PLAYING["eval"])
    assert result.code == 0, result.err


def test_from_python(run: Path) -> None:
    import cadre

    marker = with_evil_env(run)
    with pytest.raises(ConfigError, match="--trust"):
        cadre.evaluate(run, tasks=1)
    with pytest.raises(ConfigError, match="--trust"):
        cadre.train(run=run, resume=True, steps=2)
    assert not marker.exists()
    assert cadre.evaluate(run, tasks=1, trust=True).tasks == 1


# ---- What asks: all text but what is listed


PLAIN_CONFIG = {
    "team": {"policies": {"shared": {"model": "seed"}}, "roles": {"first": "shared"}},
    "algorithm": {"name": "grpo"},
}
# Settings of policies, and of environments by their class, that take any text, since none of it is opened or run.
FREE = {"trackers.project", "team.prompts.first", "program.settings.clock"}
FREE |= {f"program.settings.{name}" for name in ("roles", "models", "errors", "limits", "masks")}
FREE |= {f"gymnasium.settings.{name}" for name in ("observation", "prompt")}
FREE |= {f"openenv.settings.{name}" for name in ("action", "observation", "prompt")}
FREE_ENDS = ("lora.targets", "sampling.stop", "key_variable", "settings.fields")
# Settings of environments that take a single word, which is a name of a list of theirs.
WORDS = {"gymnasium.settings.id", "openspiel.settings.game", "textarena.settings.game"}
WORDS |= {"reasoning-gym.settings.dataset", "reasoning-gym.settings.options"}
WORD_ENDS = ("settings.data", "settings.train", "settings.test")


# What names a model: it may lie in the folder.
MODELS = (".model", "lora.path", "reward_model", "policies.shared")


def takes(setting: TextSetting, text: str, folder: Path) -> bool:
    """Return True if the setting takes the text in some shape without a question."""
    key = ".".join(setting.key)
    places = (key, "env") if setting.env == "mixture" else (key,)  # an entry of `envs` asks as an `env` does
    return not all(
        any(result.setting.startswith(places) for result in find_access(setting.put(PLAIN_CONFIG, value), folder))
        for value in setting.values(text)
    )


def test_all_text_that_may_name_code_a_command_a_file_or_an_address_asks(tmp_path: Path) -> None:
    """New settings are among them, unless they are listed here and there."""
    hostile = texts(tmp_path / "RUN", "http://192.0.2.1/v1", tmp_path / "mark", "strange_module")
    word, inside = hostile.pop("package"), hostile.pop("file")
    settings, run = list(text_settings()), tmp_path / "RUN"
    (tmp_path / "private.jsonl").touch()
    (tmp_path / "strange_module.py:Pair").touch()  # a model's folder of that name would be asked for, too
    command = hostile.pop("command")  # it is an absolute path of nothing, for a model
    free = {it.name for it in settings if any(takes(it, text, run) for text in hostile.values())}
    free |= {it.name for it in settings if not it.name.endswith(MODELS) and takes(it, command, run)}
    free.discard("gymnasium.settings.id")  # NAMESPACE/NAME-v0
    words = {it.name for it in settings if it.env and takes(it, word, run)}
    folders = {it.name for it in settings if takes(it, inside, run)}
    assert len(settings) > 300
    assert {name for name in free if not name.endswith(FREE_ENDS)} == FREE
    assert {name for name in words - free if not name.endswith(WORD_ENDS)} == WORDS
    assert all(name.endswith(MODELS) for name in folders - free)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sandbox": {"level": "process"}}, "process (sandbox.level)"),
        ({"trackers": {"names": ["tensorboard", "wandb"]}}, "the tracker wandb (trackers.names)"),
        ({"cluster": {"address": "localhost:6379"}}, "localhost:6379 (cluster.address)"),
        ({"env": "repair", "settings": {"container": {"network": True}}}, "True (settings.container.network)"),
        ({"env": "openspiel", "settings": {"game": "efg_game(filename=x)"}}, "efg_game(filename=x) (settings.game)"),
        ({"env": "plan-path", "settings": {"size": "8"}}, "8 (settings.size)"),
        ({"env": "tldr", "settings": {"reward": "published.py:f"}}, "published.py:f (settings.reward)"),
        ({"team": "stranger/model"}, "stranger/model (team.model)"),
        # An environment of a mixture asks as it would alone, whatever its entry looks like, and so does a level.
        ({"env": [{"name": "plan-path", "settings": {"reward": "strange.py:f"}}]}, "strange.py:f (settings.reward)"),
        ({"env": ["plan-path", "strange.py:Pair"]}, "strange.py:Pair (env)"),
        (
            {"env": "mixture", "settings": {"envs": [{"name": "program", "settings": {"run": "reboot"}}]}},
            "reboot (settings.run)",
        ),
        ({"env": "mixture", "evaluate": {"settings": {"envs": ["strange:Pair"]}}}, "strange:Pair (env)"),
        (
            {"env": "plan-path", "curriculum": {"levels": [{"size": 3}, {"reward": "f.py:f"}]}},
            "f.py:f (settings.reward)",
        ),
        # The name of a policy is no way around the rule.
        ({"team": {"policies": {"a.sampling.stop": "b/c"}}}, "b/c (team.policies.a.sampling.stop.model)"),
    ],
)
def test_what_asks(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    assert [f"{it.description} ({it.setting})" for it in find_access({**PLAIN_CONFIG, **change}, tmp_path)] == [named]


@pytest.mark.parametrize(
    "change",
    [
        {"env": "plan-path", "settings": {"size": 8, "prompts": "full", "reward": "shaped"}},
        {"env": [{"name": "plan-path", "weight": 2, "settings": {"size": 8, "prompts": "full"}}, "sokoban"]},
        {"env": ["plan-path", "sokoban"], "curriculum": {"levels": [{"weights": {"sokoban": 0}}, {"weights": {}}]}},
        {"env": "mixture", "settings": {"envs": [{"name": "tldr", "settings": {"data": "scitldr"}}, "maths"]}},
        {"env": "plan-path", "curriculum": {"levels": [{"size": 3}, {"size": 4, "prompts": "full"}]}},
        {"env": "tldr", "settings": {"reward": "faithful", "data": "scitldr", "held_out": 3}},
        {"env": "openspiel", "settings": {"game": "leduc_poker(players=3)"}},
        {"team": {"policies": {"a": {"model": "seed", "device": "cuda:1", "sampling": {"stop": ["a/b.py:c"]}}}}},
        {"team": "/nowhere/at/all"},
        {"trackers": {"names": ["tensorboard"], "project": "a/b"}, "cluster": {"address": "auto"}},
    ],
)
def test_plain_settings_ask_nothing(change: dict[str, Any], tmp_path: Path) -> None:
    assert list(find_access({**PLAIN_CONFIG, **change}, tmp_path)) == []


def test_the_base_of_an_adapter_in_the_folder_asks(tmp_path: Path) -> None:
    """Mistake: the folder of the adapter is the run's own, and the base that it names is another machine's."""
    adapter = tmp_path / "RUN" / "adapter"
    adapter.mkdir(parents=True)
    described = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"]}
    described["base_model_name_or_path"] = "stranger/model"
    (adapter / "adapter_config.json").write_text(json.dumps(described))
    names = [f"base_model.model.q_proj.lora_{matrix}.weight" for matrix in "AB"]
    save_file({name: torch.zeros(1, 1) for name in names}, adapter / "adapter_model.safetensors")
    raw = {**PLAIN_CONFIG, "team": {"policies": {"shared": {"model": str(adapter)}}, "roles": {"first": "shared"}}}
    assert list(find_access(raw, tmp_path / "RUN")) == []
    with pytest.raises(ConfigError, match="stranger/model"):
        check_trusted(tmp_path / "RUN", raw, trust=False)


def test_a_colleagues_run_of_a_bundled_task_with_its_model_needs_no_trust(
    speaker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = json.loads(plain_recipe(speaker))
    recipe.update(env="sudoku-no-tool", settings={"prompts": "compact", "turns": 1}, team=str(speaker))
    (tmp_path / "RECIPE").write_text(json.dumps(recipe))
    assert call("train", str(tmp_path / "RECIPE"), "--run", str(tmp_path / "RUN")).code == 0
    run = shutil.copytree(tmp_path / "RUN", tmp_path / "copy")
    shutil.copytree(speaker, run / "model")
    changed(run, lambda config: config["team"]["policies"]["shared"].update(model=str(run / "model")))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "colleague"))
    assert call("eval", str(run), "--tasks", "1").code == 0
    assert call("fork", str(run), "--at", "1", "--run", str(tmp_path / "fork")).code == 0
    assert call("eval", str(tmp_path / "RUN"), "--tasks", "1").code == 2  # its model lies elsewhere
    assert call("eval", str(tmp_path / "RUN"), f"team.policies.shared.model={speaker}", "--tasks", "1").code == 0


def test_held_out_tasks_of_another_environment_do_not_import_that_of_the_run(run: Path) -> None:
    """Mistake: to count tasks that the run was trained on, its own environment is imported."""
    file, marker = trap(run.parent / "beside")
    changed(run, lambda config: config.update(env=f"{file}:Pair"))
    (run.parent / "tasks.jsonl").write_text('{"question": "1?", "answer": "1"}\n{"question": "2?", "answer": "2"}\n')
    roles = "team.roles={reasoner: shared, tool: shared}"
    data = [f"settings.data={run.parent / 'tasks.jsonl'}", "settings.held_out=1", "settings.turns=1"]
    result = call("eval", str(run), "--tasks", "1", "env=maths", roles, *data)
    assert not marker.exists(), result.err
    assert result.code == 0, result.err
