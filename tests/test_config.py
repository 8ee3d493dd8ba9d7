"""Bad configurations: one paragraph with the fix, no traceback, before anything heavy is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cadre import assemble, config, presets
from cadre.algorithms import ALGORITHMS
from cadre.errors import ConfigError
from tests.data.invented import folder

GOOD = {
    "env": "plan-path",
    "team": {"policies": {"shared": "seed"}, "roles": {"tool": "shared", "planner": "shared"}},
    "algorithm": "at_grpo",
}


@pytest.mark.parametrize("name", config.recipes())
def test_every_recipe_is_sound(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CADRE_DATA", folder(tmp_path))
    # The invented set of the pairs has two items.
    fewer = ["settings.data=humaneval", "settings.held_out=1"] if name.startswith("pairs-") else []
    assemble.check(config.load(name, fewer))


def test_short_forms_and_overrides() -> None:
    chosen = config.load("plan-path", ["algorithm=grpo", "algorithm.k=6", "team.policies.shared.learner.epochs=2"])
    assert chosen.algorithm.name == "grpo"
    assert chosen.algorithm.k == 6
    assert chosen.learner_of("shared").epochs == 2
    assert chosen.learner.epochs == 1


def test_a_run_of_any_algorithm_reads_back_what_it_wrote(tmp_path: Path) -> None:
    for name in ALGORITHMS.keys() - {"custom"}:
        chosen = config.load("plan-path", [f"algorithm={name}", "algorithm.k=2", "loss.aggregate=sequence_mean"])
        (tmp_path / "config.yaml").write_text(config.dump(chosen))
        assert presets.plan(config.load(str(tmp_path / "config.yaml"))).loss == presets.plan(chosen).loss


def test_what_is_written_out_reads_back_the_same(tmp_path: Path) -> None:
    chosen = config.load("plan-path", ["train.seed=3"])
    (tmp_path / "config.yaml").write_text(config.dump(chosen))
    assert config.load(str(tmp_path / "config.yaml")) == chosen
    chosen = config.load("plan-path", ["algorithm=ippo", "algorithm.critic.clip=null", "algorithm.critic.policy=seed"])
    (tmp_path / "critic.yaml").write_text(config.dump(chosen))
    assert config.load(str(tmp_path / "critic.yaml")) == chosen
    more = config.load(str(tmp_path / "critic.yaml"), ["algorithm.critic.policy.lora.rank=4"])
    assert more.algorithm.critic.policy.lora.rank == 4


def test_siblings_by_role_and_turn_are_read_back(tmp_path: Path) -> None:
    chosen = config.load("plan-path", ["algorithm.k={tool: [8, 4], planner: 4}"])
    assert chosen.algorithm.k == {"tool": (8, 4), "planner": 4}
    (tmp_path / "config.yaml").write_text(config.dump(chosen))
    assert config.load(str(tmp_path / "config.yaml")) == chosen
    game, plan = assemble.check(chosen)
    assert [plan.shape.count(role, turn, 2 * turn) for turn in (0, 1, 2) for role in game.roles] == [8, 4, 4, 4, 4, 4]


def test_unequal_siblings_at_once_are_refused_before_a_model_loads() -> None:
    team = {"policies": {"shared": "seed"}, "roles": {"left": "shared", "right": "shared"}}
    chosen = {"env": f"{Path(__file__).parent}/games.py:Pair", "team": team}
    for name in ("at_grpo", "magrpo"):
        with pytest.raises(ConfigError, match="2 of left and 3 of right act at once"):
            assemble.check(config.parse(chosen | {"algorithm": {"name": name, "k": {"left": 2, "right": 3}}}))
    crossed = {"name": "magrpo", "joint": "cross", "k": {"left": 2, "right": 3}}
    assert assemble.check(config.parse(chosen | {"algorithm": crossed}))[1].shape.joint == "cross"


BAD = {
    "unknown key": (["lerner.epochs=2"], ["lerner", "Did you mean learner?"]),
    "unknown inner key": (["learner.learning_rat=1"], ["learner.learning_rat", "Did you mean learning_rate?"]),
    "unknown key in a policy": (
        ["team.policies.shared.lora.rnk=2"],
        ["team.policies.shared.lora.rnk", "Did you mean rank?"],
    ),
    "wrong type": (["train.steps=ten"], ["train.steps", "'ten'", "integer"]),
    "missing model": (["team.policies.shared=./no/such/model"], ["./no/such/model", "config.json"]),
    "role without policy": (["team.roles={tool: shared}"], ["'planner'", "Add `planner: shared`"]),
    "unknown policy": (["team.roles.tool=shraed"], ["team.roles.tool", "Did you mean shared?"]),
    "unplayed policy": (["team.policies.other=seed"], ["team.policies.other", "no role plays it"]),
    "unknown role": (["team.roles.plannr=shared"], ["plannr", "Did you mean planner?"]),
    "no siblings": (["algorithm.k=0"], ["algorithm.k", "greater than or equal to 1"]),
    "no siblings in a later turn": (["algorithm.k=[4, 0]"], ["algorithm.k", "[4, 0]", "a list of them by turn"]),
    "siblings of an unknown role": (
        ["algorithm.k={tool: 4, planer: 2}"],
        ["algorithm.k.planer", "Did you mean planner?"],
    ),
    "siblings of some roles only": (["algorithm.k={tool: 4}"], ["algorithm.k", "'planner'", "Add `planner: 4`"]),
    "siblings by role where episodes stand side by side": (
        ["algorithm=grpo", "algorithm.k={tool: 4, planner: 2}"],
        ["algorithm.k", "integer"],
    ),
    "siblings by turn of whole episodes": (
        [
            "algorithm={name: custom, shape: independent, returns: episode, group: task, baseline: mean, scale: std}",
            "algorithm.k=[4, 2]",
        ],
        ["algorithm.k", "expected one number"],
    ),
    "unknown algorithm": (["algorithm=at_grop"], ["at_grop", "Did you mean at_grpo?"]),
    "option that the preset ignores": (["algorithm=grpo", "algorithm.carry=random"], ["algorithm.carry", "unknown"]),
    "option that the shape ignores": (
        [
            "algorithm={name: custom, shape: full, returns: step, group: node, baseline: mean, scale: std}",
            "algorithm.carry=argmax",
        ],
        ["algorithm.carry", "ignores"],
    ),
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
    "clipping without a ratio": (
        ["algorithm=magrpo", "algorithm.k=2", "settings.turns=1", "loss.clip_low=0.1"],
        ["loss.clip_low", "ignores"],
    ),
    "a divisor without a sum": (["loss.divisor=8"], ["loss.divisor", "ignores"]),
    "several steps on stale data": (
        ["algorithm=spiral", "learner.minibatches=4"],
        ["1 epochs of 4 minibatches", "loss.ratio=token"],
    ),
    "a lambda that reward-to-go ignores": (
        ["algorithm={name: ippo, estimate: reward_to_go, gae_lambda: 0.5}"],
        ["algorithm.gae_lambda", "algorithm.estimate=gae"],
    ),
    "a discount of tokens for a value a decision": (
        ["algorithm={name: mappo, token_gamma: 0.9}"],
        ["algorithm.token_gamma", "critic.level=token"],
    ),
    "a joint critic without a place": (
        ["algorithm=mappo", "team.policies={a: seed, b: seed}", "team.roles={tool: a, planner: b}"],
        ["algorithm.critic.policy", "2 policies"],
    ),
    "a frozen critic": (
        ["algorithm=mappo", "algorithm.critic.policy=seed", "algorithm.critic.policy.frozen=true"],
        ["algorithm.critic.policy.frozen", "Remove it"],
    ),
    "a critic that samples": (
        ["algorithm=ippo", "algorithm.critic.policy=seed", "algorithm.critic.policy.sampling={top_k: 2}"],
        ["algorithm.critic.policy.sampling", "Remove it"],
    ),
    "unknown key of a critic's learner": (
        ["algorithm=ippo", "algorithm.critic.policy=seed", "algorithm.critic.policy.learner={learning_rat: 1}"],
        ["algorithm.critic.policy.learner.learning_rat", "Did you mean learning_rate?"],
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
        ["env=plan-path-alone", "team.roles={planner: shared}", "algorithm={name: rlhf, reward_model: ./none}"],
        ["algorithm.reward_model", "./none"],
    ),
    "privileged where nothing is": (
        ["env=tests/games.py:Relay", "team.roles={scout: shared, runner: shared}", "algorithm=ippo"]
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
    "a weight of a role that nobody trains": (
        ["credit.role_weights={tool: 2}", "team.policies.shared.frozen=true"],
        ["role_weights.tool", "frozen"],
    ),
    "a negative weight": (["credit.role_weights={tool: -1}"], ["credit.role_weights.tool", "-1"]),
    "a penalty that nobody pays": (["credit.overlong_factor=2"], ["credit.overlong_factor", "overlong_buffer"]),
    "a penalty from before the first token": (
        ["credit.overlong_buffer=600"],
        ["credit.overlong_buffer", "at most 512"],
    ),
    "dropping what has a gradient": (
        ["algorithm=spiral", "credit.without_spread=drop"],
        ["credit.without_spread", "running", "leave_one_out"],
    ),
    "nothing to refill": (["train.refill=2"], ["train.refill", "credit.without_spread=drop"]),
    "missing file": (["env=nowhere.py:Env"], ["nowhere.py", "no file"]),
    "unknown environment": (["env=plan-pth"], ["plan-pth", "Did you mean plan-path?"]),
    "unknown setting": (["settings.turn=2"], ["settings.turn", "Did you mean turns?"]),
    "setting of a wrong type": (["settings.turns=many"], ["settings.turns", "'many'"]),
    "setting outside its choices": (["settings.prompts=short"], ["settings.prompts", "'compact' or 'full'"]),
    "override without a value": (["train.steps"], ["train.steps", "key=value"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_configurations_say_what_is_wrong_and_how_to_mend_it(case: str, tmp_path: Path) -> None:
    overrides, wanted = BAD[case]
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(GOOD))
    with pytest.raises(ConfigError) as caught:
        assemble.check(config.load(str(path), overrides))
    message = str(caught.value)
    assert all(part in message for part in wanted), message
    assert "\n" not in message


def test_an_environment_file_with_an_error_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from cadre.env import Env\n\nclass Mine(Env:\n")
    with pytest.raises(ConfigError, match=r"mine\.py failed to load at line 3: SyntaxError"):
        assemble.env_class(f"{tmp_path}/mine.py:Mine")
    (tmp_path / "other.py").write_text("import cadre\nvalue = 1 / 0\n")
    with pytest.raises(ConfigError, match=r"other\.py failed to load at line 2: ZeroDivisionError"):
        assemble.env_class(f"{tmp_path}/other.py:Mine")
    (tmp_path / "none.py").write_text("from cadre.env import Env\nclass Maze(Env): ...\n")
    with pytest.raises(ConfigError, match="Did you mean Maze"):
        assemble.env_class(f"{tmp_path}/none.py:Mase")


@pytest.mark.parametrize("arguments", [["algorithm.k=0"], ["team.policies.shared=./missing"], ["settings.turn=3"]])
def test_the_command_line_prints_one_paragraph_within_two_seconds(arguments: list[str], tmp_path: Path) -> None:
    before = os.times()
    command = [sys.executable, "-m", "cadre.cli", "train", "plan-path", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().count("\n") == 0
    assert not (tmp_path / "runs").exists()
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    assert spent < 2.0  # CPU seconds, so that a busy machine does not matter


def test_a_refusal_imports_no_torch() -> None:
    code = (
        "import sys\nfrom cadre import assemble, config\n"
        "try:\n    assemble.check(config.load('plan-path', ['team.policies.shared=./missing']))\n"
        "except Exception as error:\n    print(type(error).__name__, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ConfigError", "False"]
