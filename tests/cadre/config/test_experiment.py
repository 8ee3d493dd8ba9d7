"""Bad configurations: one paragraph with the fix, no traceback, before anything heavy is imported."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cadre.algorithms import ALGORITHMS
from cadre.config.experiment import dump, load, parse
from cadre.config.recipes import recipes
from cadre.config.resolve import make_plan, resolve
from cadre.envs.spec import env_class
from cadre.errors import ConfigError
from cadre.settings.yaml_file import merge_sections, read_yaml
from tests.cadre_tasks.data.invented import folder
from tests.helpers.coordination import GAMES
from tests.helpers.slow import few_of

GOOD = {
    "env": "plan-path",
    "team": {"policies": {"shared": "seed"}, "roles": {"tool": "shared", "planner": "shared"}},
    "algorithm": "at_grpo",
}


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_is_sound(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CADRE_DATA", folder(tmp_path))
    if name == "signals-compact":  # its models are made by a bench
        monkeypatch.chdir(tmp_path)
        for model in ("ears", "eyes", "hands"):
            (tmp_path / "models" / "signals" / model).mkdir(parents=True)
            (tmp_path / "models" / "signals" / model / "config.json").write_text("{}")
    # The invented set of the pairs has two items.
    fewer = ["settings.data=humaneval", "settings.held_out=1"] if name.startswith("pairs-") else []
    resolve(load(name, fewer))


def test_short_forms_and_overrides() -> None:
    chosen = load("plan-path", ["algorithm=grpo", "algorithm.k=6", "team.policies.shared.learner.epochs=2"])
    assert chosen.algorithm.name == "grpo"
    assert chosen.algorithm.k == 6
    assert resolve(chosen).learners["shared"].epochs == 2
    assert chosen.learner.epochs == 1


def test_a_run_of_any_algorithm_reads_back_what_it_wrote(tmp_path: Path) -> None:
    for name in ALGORITHMS.keys() - {"custom"}:
        chosen = load("plan-path", [f"algorithm={name}", "algorithm.k=2", "loss.aggregate=sequence_mean"])
        (tmp_path / "config.yaml").write_text(dump(chosen))
        assert make_plan(load(str(tmp_path / "config.yaml"))).loss == make_plan(chosen).loss


def test_what_is_written_out_reads_back_the_same(tmp_path: Path) -> None:
    chosen = load("plan-path", ["train.seed=3"])
    (tmp_path / "config.yaml").write_text(dump(chosen))
    assert load(str(tmp_path / "config.yaml")) == chosen
    chosen = load("plan-path", ["algorithm=ippo", "algorithm.critic.clip=null", "algorithm.critic.policy=seed"])
    (tmp_path / "critic.yaml").write_text(dump(chosen))
    assert load(str(tmp_path / "critic.yaml")) == chosen
    more = load(str(tmp_path / "critic.yaml"), ["algorithm.critic.policy.lora.rank=4"])
    assert more.algorithm.critic.policy.lora.rank == 4


def test_siblings_by_role_and_turn_are_read_back(tmp_path: Path) -> None:
    chosen = load("plan-path", ["algorithm.k={tool: [8, 4], planner: 4}"])
    assert chosen.algorithm.k == {"tool": (8, 4), "planner": 4}
    (tmp_path / "config.yaml").write_text(dump(chosen))
    assert load(str(tmp_path / "config.yaml")) == chosen
    experiment = resolve(chosen)
    count, roles = experiment.plan.shape.count, experiment.env_spec.roles
    assert [count(role, turn, 2 * turn) for turn in (0, 1, 2) for role in roles] == [8, 4, 4, 4, 4, 4]


def test_unequal_siblings_at_once_are_refused_before_a_model_loads() -> None:
    team = {"policies": {"shared": "seed"}, "roles": {"left": "shared", "right": "shared"}}
    chosen = {"env": f"{GAMES}:Pair", "team": team}
    for name in ("at_grpo", "magrpo"):
        with pytest.raises(ConfigError, match="2 of left and 3 of right act at once"):
            resolve(parse(chosen | {"algorithm": {"name": name, "k": {"left": 2, "right": 3}}}))
    crossed = {"name": "magrpo", "joint": "cross", "k": {"left": 2, "right": 3}}
    assert resolve(parse(chosen | {"algorithm": crossed})).plan.shape.joint == "cross"


BAD = {
    "unknown key": (["lerner.epochs=2"], ["lerner", "Did you mean learner?"]),
    "unknown inner key": (["learner.learning_rat=1"], ["learner.learning_rat", "Did you mean learning_rate?"]),
    "unknown key in a policy": (
        ["team.policies.shared.lora.rnk=2"],
        ["team.policies.shared.lora.rnk", "Did you mean rank?"],
    ),
    "wrong type": (["train.steps=ten"], ["train.steps", "'ten'", "a whole number"]),
    "too short a list": (
        ["curriculum.levels=[{turns: 2}]"],
        ["curriculum.levels: got [{'turns': 2}]; expected 2 or more"],
    ),
    "missing model": (["team.policies.shared=./no/such/model"], ["./no/such/model", "config.json"]),
    "role without policy": (["team.roles={tool: shared}"], ["'planner'", "Add `planner: shared`"]),
    "option of another algorithm": (
        ["algorithm.broadcast=3"],
        ["algorithm.broadcast: unknown option", "It is an option of "],
    ),
    "unknown policy": (["team.roles.tool=shraed"], ["team.roles.tool", "Did you mean shared?"]),
    "unplayed policy": (["team.policies.other=seed"], ["team.policies.other", "no role plays it", "frozen: true"]),
    "unknown role": (["team.roles.plannr=shared"], ["plannr", "Did you mean planner?"]),
    "no siblings": (["algorithm.k=0"], ["algorithm.k", "greater than or equal to 1"]),
    "no siblings in a later turn": (["algorithm.k=[4, 0]"], ["algorithm.k", "[4, 0]", "a list of them by turn"]),
    "siblings beyond number": (["algorithm.k=100000000"], ["algorithm.k: got 100,000,000", "at most 10,000"]),
    "siblings beyond number in a later turn of a role": (
        ["algorithm.k={tool: [4, 100000000], planner: 4}"],
        ["algorithm.k: got 100,000,000", "at most 10,000"],
    ),
    "trees beyond number": (["train.tasks_per_step=1000000000"], ["train.tasks_per_step", "less than or equal to"]),
    "siblings of an unknown role": (
        ["algorithm.k={tool: 4, planer: 2}"],
        ["algorithm.k.planer", "Did you mean planner?"],
    ),
    "siblings of some roles only": (["algorithm.k={tool: 4}"], ["algorithm.k", "'planner'", "Add `planner: 4`"]),
    "siblings by role where episodes stand side by side": (
        ["algorithm=grpo", "algorithm.k={tool: 4, planner: 2}"],
        ["algorithm.k", "a whole number"],
    ),
    "siblings by turn of whole episodes": (
        [
            "algorithm={name: custom, shape: independent, returns: episode, group: task, baseline: mean, scale: std}",
            "algorithm.k=[4, 2]",
        ],
        ["algorithm.k", "expected one number"],
    ),
    "unknown algorithm": (["algorithm=at_grop"], ["at_grop", "Did you mean at_grpo?"]),
    "option that the preset ignores": (["algorithm=grpo", "algorithm.select=random"], ["algorithm.select", "unknown"]),
    "a future that greedy does not play": (
        ["algorithm={name: custom, shape: greedy, returns: episode, group: node, baseline: mean, scale: std}"],
        ["algorithm.returns", "greedy"],
    ),
    "a tree of a million nodes": (
        [
            "algorithm={name: custom, shape: full, returns: step, group: node, baseline: mean, scale: none}",
            "algorithm.k=8",
        ],
        ["leaves", "expected at most"],
    ),
    "several steps on stale data": (
        ["algorithm=spiral", "learner.minibatches=4"],
        ["1 epochs of 4 minibatches", "loss.ratio=token"],
    ),
    "a joint critic without a place": (
        ["algorithm=mappo", "team.policies={a: seed, b: seed}", "team.roles={tool: a, planner: b}"],
        ["algorithm.critic.policy", "2 policies"],
    ),
    "a frozen critic": (
        ["algorithm=mappo", "algorithm.critic.policy=seed", "algorithm.critic.policy.frozen=true"],
        ["algorithm.critic.policy.frozen", "Remove it"],
    ),
    "unknown key of a critic's learner": (
        ["algorithm=ippo", "algorithm.critic.policy=seed", "algorithm.critic.policy.learner={learning_rat: 1}"],
        ["algorithm.critic.policy.learner.learning_rat", "Did you mean learning_rate?"],
    ),
    "a distance where what passed is learned from": (
        ["algorithm={name: sirius, kl: 0.1}"],
        ["algorithm.kl: got 0.1", "Set loss.kl"],
    ),
    "stale pairs": (
        ["algorithm=ma_dpo", "train.max_staleness=1", "loss.correction=truncate"],
        ["train.max_staleness: got 1"],
    ),
    "pairs with a ratio": (["algorithm=ma_dpo", "loss.ratio=token"], ["loss.ratio: got token", "expected none"]),
    "pairs with a correction": (["algorithm=ma_dpo", "loss.correction=truncate"], ["loss.correction: got truncate"]),
    "a length that what passed ignores": (
        ["algorithm=sirius", "credit.overlong_buffer=1"],
        ["credit.overlong_buffer: got 1", "passed alone"],
    ),
    "a reward model of pairs that is not there": (
        ["algorithm={name: ma_dpo, reward_model: nowhere}"],
        ["algorithm.reward_model: got 'nowhere'"],
    ),
    "unknown key of a critic": (["algorithm=ippo", "algorithm.critic={clp: 1}"], ["algorithm.critic.clp", "clip"]),
    "a critic's name that is taken": (
        ["algorithm=mappo", "algorithm.critic.policy=seed", "team={policies: {critic: seed}, roles: {tool: critic}}"]
        + ["team.roles.planner=critic"],
        ["team.policies.critic", "another"],
    ),
    "a critic that cannot read the tokens": (
        ["algorithm=ippo", "algorithm.critic={level: token, policy: Qwen/Qwen3-1.7B}"],
        ["algorithm.critic.policy.model", "the same model"],
    ),
    "a critic's missing model": (["algorithm=ippo", "algorithm.critic.policy=./none"], ["./none", "config.json"]),
    "a team under rlhf": (["algorithm=rlhf"], ["single agent", "tool, planner"]),
    "a reward model that is nowhere": (
        ["env=plan-path-no-tool", "team.roles={planner: shared}", "algorithm={name: rlhf, reward_model: ./none}"],
        ["algorithm.reward_model", "./none"],
    ),
    "privileged where nothing is": (
        ["env=tests/helpers/games.py:Relay", "team.roles={scout: shared, runner: shared}", "algorithm=ippo"]
        + ["algorithm.critic.privileged=true"],
        ["algorithm.critic.privileged", "privileged()"],
    ),
    "a negative penalty": (["algorithm.kl=-0.1"], ["algorithm.kl", "greater than or equal to 0"]),
    "discount where nothing is discounted": (["algorithm.gamma=0.9"], ["algorithm.gamma", "unknown"]),
    "nucleus sampling in training": (["sampling.top_p=0.9"], ["top_p=0.9", "full softmax"]),
    "a weight of an unknown role": (
        ["credit.role_weights={planer: 2}"],
        ["role_weights.planer", "Did you mean planner?"],
    ),
    "a negative weight": (["credit.role_weights={tool: -1}"], ["credit.role_weights.tool", "-1"]),
    "a penalty from before the first token": (
        ["credit.overlong_buffer=600"],
        ["credit.overlong_buffer", "at most 512"],
    ),
    "parts that weigh nothing": (["algorithm.parts={goal: 0.0}"], ["algorithm.parts", "expected one that is not"]),
    "costs beside parts": (
        ["algorithm.parts={goal: 1.0}", "algorithm.kl=0.1"],
        ["algorithm.kl", "algorithm.parts", "loss.kl"],
    ),
    "minibatches under a loss without a ratio": (
        ["algorithm=magrpo", "learner.minibatch_size=16"],
        ["minibatches of 16 sequences", "loss.ratio=token"],
    ),
    "dropping what has a gradient": (
        ["algorithm=spiral", "credit.without_std=drop"],
        ["credit.without_std", "running", "leave_one_out"],
    ),
    "dropping what has a gradient by a second comparison": (
        [
            "algorithm={name: custom, shape: independent, returns: episode, group: task, baseline: mean, scale: none, "
            "second: {returns: episode, group: task, baseline: none, scale: none}}",
            "credit.without_std=drop",
        ],
        ["credit.without_std", "baseline none", "leave_one_out"],
    ),
    "episodes of what was left behind": (
        ["credit.tree_weight=by_episode"],
        ["credit.tree_weight", "by_episode", "greedy", "by_decision"],
    ),
    "branches of unequally many": (
        [
            "algorithm={name: custom, shape: branch, k: [4, 2], returns: episode, group: task_role, baseline: mean, "
            "scale: none}"
        ],
        ["algorithm.k", "with shape branch", "algorithm.siblings"],
    ),
    "an end by a reward that is not learned from": (
        ["algorithm={name: magrpo, stop_at: 0.5, reward_model: nowhere}"],
        ["algorithm.stop_at", "0.5", "reward_model"],
    ),
    "missing file": (["env=nowhere.py:Env"], ["nowhere.py", "no file"]),
    "unknown environment": (["env=plan-pth"], ["plan-pth", "Did you mean plan-path?"]),
    "unknown setting": (["settings.turn=2"], ["settings.turn", "Did you mean turns?"]),
    "setting of a wrong type": (["settings.turns=many"], ["settings.turns", "'many'"]),
    "setting outside its choices": (
        ["settings.prompts=short"],
        ["settings.prompts", "'compact', 'full' or 'function'"],
    ),
    "override without a value": (["train.steps"], ["train.steps", "key=value"]),
    "override that is no YAML": (["train.steps=["], ["train.steps=[", "not valid YAML"]),
    "override that is nested too deeply": (["train.steps=" + "[" * 9000], ["nested too deeply"]),
    "override that is a date": (["train.steps=2026-12-24"], ["train.steps: got '2026-12-24'", "a whole number"]),
    "override below a number": (["train.steps=1", "train.steps.more=1"], ["train.steps is 1", "nothing below"]),
    "override of every policy that is wrong": (
        ["team.policies.*.dtype=float16"],
        ["team.policies.shared.dtype", "'float32' or 'bfloat16'"],
    ),
    "override of everything below nothing": (["settings.*=1"], ["* below settings", "nothing is named"]),
    "a section that is a number": (["learner=3"], ["learner", "got 3", "expected a mapping"]),
    "a key that is a number": (["credit={1: 2}"], ["credit", "string"]),
    "a remote policy that is trained": (
        ["team.policies.shared={model: m, url: 'http://localhost'}"],
        ["team.policies.shared: got a url", "frozen: true"],
    ),
    "unknown key of a policy's sampling": (
        ["team.policies.shared.sampling.top_c=1"],
        ["team.policies.shared.sampling.top_c", "Did you mean top_p?"],
    ),
    "nucleus sampling of one policy": (["team.policies.shared.sampling.top_p=0.5"], ["top_p=0.5", "full softmax"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_configurations_say_what_is_wrong_and_how_to_mend_it(case: str, tmp_path: Path) -> None:
    overrides, expected = BAD[case]
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(GOOD))
    with pytest.raises(ConfigError) as caught:
        resolve(load(str(path), overrides))
    message = str(caught.value)
    assert all(part in message for part in expected), message
    assert "\n" not in message


def test_an_environment_file_with_an_error_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from cadre.env import Env\n\nclass Mine(Env:\n")
    with pytest.raises(ConfigError, match=r"mine\.py failed to load at line 3: SyntaxError"):
        env_class(f"{tmp_path}/mine.py:Mine")
    (tmp_path / "other.py").write_text("import cadre\nvalue = 1 / 0\n")
    with pytest.raises(ConfigError, match=r"other\.py failed to load at line 2: ZeroDivisionError"):
        env_class(f"{tmp_path}/other.py:Mine")
    (tmp_path / "none.py").write_text("from cadre.env import Env\nclass Maze(Env): ...\n")
    with pytest.raises(ConfigError, match="Did you mean Maze"):
        env_class(f"{tmp_path}/none.py:Mase")


@pytest.mark.parametrize(
    "arguments",
    few_of([["algorithm.k=0"], ["team.policies.shared=./missing"], ["settings.turn=3"]], [["settings.turn=3"]]),
)
def test_the_command_line_prints_one_paragraph(arguments: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cadre", "train", "plan-path", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
    assert result.stderr.strip().count("\n") == 0
    assert not (tmp_path / "runs").exists()


def test_a_refusal_imports_no_torch() -> None:
    code = (
        "import sys\nfrom cadre.config import experiment\nfrom cadre.config.resolve import resolve\n"
        "try:\n    resolve(experiment.load('plan-path', ['team.policies.shared=./missing']))\n"
        "except Exception as error:\n    print(type(error).__name__, 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["ConfigError", "False"]


def test_a_star_stands_for_every_policy(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(
        yaml.safe_dump(
            GOOD | {"team": {"policies": {"a": "seed", "b": "seed"}, "roles": {"tool": "a", "planner": "b"}}}
        )
    )
    changes = ["team.policies.*.dtype=bfloat16", "team.policies.*.learner.learning_rate=0.5"]
    changes += ["team.policies.*.lora={rank: 4}", "team.policies.b.lora.rank=8", "learner.epochs=3"]
    experiment = resolve(load(str(tmp_path / "two.yaml"), changes))
    assert {policy.dtype for policy in experiment.policies.values()} == {"bfloat16"}
    assert {(learner.learning_rate, learner.epochs) for learner in experiment.learners.values()} == {(0.5, 3)}
    assert [policy.lora.rank for policy in experiment.policies.values()] == [4, 8]


def test_what_a_policy_changes_is_written_and_read_back_alone(tmp_path: Path) -> None:
    chosen = load("plan-path", ["team.policies.shared.sampling.temperature=0.5", "sampling.max_tokens=9"])
    written = dump(chosen)
    assert yaml.safe_load(written)["team"]["policies"]["shared"]["sampling"] == {"temperature": 0.5}
    (tmp_path / "config.yaml").write_text(written)
    sampling = resolve(load(str(tmp_path / "config.yaml"), ["sampling.max_tokens=7"])).sampling
    assert {(samples.temperature, samples.max_tokens) for samples in sampling.values()} == {(0.5, 7)}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"env: plan-path\nenv: sudoku\n", ["'env' stands twice", "line 2"]),
        (b"team: {roles: {tool: a, tool: b}}", ["'tool' stands twice"]),
        (b"env: \xff\xfe", ["not UTF-8 (byte 5)"]),
        (b"env: [", ["not valid YAML"]),
        (b"- env", ["got list at the top"]),
        (b"", ["got NoneType at the top"]),
        (b"[" * 9000, ["nested too deeply"]),
    ],
)
def test_a_file_that_cannot_be_read_is_one_paragraph(content: bytes, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(str(tmp_path / "bad.yaml"))
    assert all(part in str(caught.value) for part in expected), str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_or_an_unreadable_file_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"which is a folder[.;].* [Ee]xpected one of"):
        load(str(tmp_path))
    with pytest.raises(ConfigError, match="neither a bundled recipe nor a file"):
        load("n" * 300)
    with pytest.raises(ConfigError, match="'env=sudoku', which is a setting; a recipe stands before it"):
        load("env=sudoku")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    with pytest.raises(ConfigError, match="neither a bundled recipe nor a file"):
        load(str(tmp_path / "loop.yaml"))
    (tmp_path / "secret.yaml").write_text("env: plan-path")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(tmp_path / "secret.yaml" / "inside")


def test_a_team_that_is_one_word_plays_every_role(tmp_path: Path) -> None:
    (tmp_path / "short.yaml").write_text(yaml.safe_dump(GOOD | {"team": "seed"}))
    short = load(str(tmp_path / "short.yaml"))
    assert short == load(str(tmp_path / "short.yaml"), ["team={policies: {shared: seed}}"])
    assert short.team.roles == {"tool": "shared", "planner": "shared"}
    more = load(str(tmp_path / "short.yaml"), ["team.policies.shared.dtype=bfloat16"])
    assert more.team.policies["shared"].dtype == "bfloat16"
    central = load(str(tmp_path / "short.yaml"), ["algorithm=magrpo_central", "algorithm.k=2"])
    assert resolve(central).config.team.roles == {"team": "shared"}
    with pytest.raises(ConfigError, match=r"team\.roles: missing; expected role: policy"):
        load(str(tmp_path / "short.yaml"), ["team={policies: {a: seed, b: seed}}"])


def test_what_is_merged_changes_the_rest_of_nothing() -> None:
    raw = {"algorithm": "at_grpo", "team": "seed", "train": {"steps": 3, "seed": 1}, "settings": None}
    merge_sections(
        raw, {"algorithm": {"k": 2}, "team": {"policies": {"*": {"dtype": "bfloat16"}}}, "train": {"steps": 4}}
    )
    merge_sections(raw, {"settings": {"turns": 1}, "env": "plan-path"})
    assert raw == {
        "algorithm": {"name": "at_grpo", "k": 2},
        "team": {"policies": {"shared": {"model": "seed", "dtype": "bfloat16"}}},
        "train": {"steps": 4, "seed": 1},
        "settings": {"turns": 1},
        "env": "plan-path",
    }
    merge_sections(raw, {"algorithm": {"name": "grpo"}, "team": {"policies": {"a": "seed"}, "roles": {"tool": "a"}}})
    assert raw["algorithm"] == {"name": "grpo"}
    assert raw["team"] == {"policies": {"a": "seed"}, "roles": {"tool": "a"}}
