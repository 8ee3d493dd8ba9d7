"""Settings without effect: for each condition a recipe where it does not hold, and one where it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cadre.config import checks
from cadre.config.checks import find_training_warnings, ignored_settings
from cadre.config.experiment import Config, Experiment, dump, load
from cadre.config.recipes import read_recipe
from cadre.config.resolve import resolve, resolve_for_evaluation
from cadre.errors import ConfigError
from cadre.learn import loss_functions
from cadre.settings.engines import VllmConfig
from cadre.settings.section import ReadIf, Section
from cadre.settings.yaml_file import apply_overrides, dump_yaml, typed_keys
from tests.cadre.engines import tiny_vision
from tests.helpers.slow import few_of

# A second policy, which a frozen model plays here or behind an endpoint.
FROZEN = "team={policies: {a: seed, b: {model: seed, frozen: true}}, roles: {tool: a, planner: b}}"
REMOTE = "team={policies: {a: seed, b: {model: m, url: 'http://x', frozen: true}}, roles: {tool: a, planner: b}}"
IPPO, CRITIC = "algorithm=ippo", "algorithm.critic.policy=seed"
SINGLE = ("env=plan-path-single-agent", "team={policies: {shared: seed}, roles: {agent: shared}}")
RLHF = "algorithm={name: rlhf, alpha: 0.5}"
# The algorithms that compare parts of a reward, with the team that each one trains.
STILL = "team={policies: {a: seed, b: {model: seed, frozen: true}}, roles: {tool: a, planner: b}}"
PARTED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("grpo", "grpo_by_role", "matpo", "at_grpo", "dr_mamr"), ()),
    "flow_grpo": (STILL,),
    **dict.fromkeys(("m_grpo", "teamtr"), ("team={policies: {a: seed, b: seed}, roles: {tool: a, planner: b}}",)),
}
ALONE, GRPO = "teacher={model: seed, alone: true}", "algorithm={{name: grpo, k: 3, {}}}"
VLLM, TORCH = "sampling.engine=vllm", "sampling.engine=torch"


def custom(shape: str, returns: str = "step", **more: object) -> str:
    options = "".join(f", {name}: {value}" for name, value in more.items())
    return (
        f"algorithm={{name: custom, k: 2, shape: {shape}, returns: {returns}, group: node, baseline: mean, "
        f"scale: none{options}}}"
    )


def second(**more: object) -> str:
    options = "".join(f", {name}: {value}" for name, value in more.items())
    return custom(
        "full", "reward_to_go", second=f"{{group: node, baseline: mean, scale: none{options}}}".replace("'", "")
    )


# A loss in a file: a copy of a bundled one stands for one of the user's.
OWN_LOSS = f"loss.function={loss_functions.__file__}:ppo"
# By path, and by algorithm where the declaration is about one: (overrides that are refused, overrides that work).
CASES: dict[str, tuple[list[str], list[str]]] = {
    "team.policies.*.device": (
        [REMOTE, "team.policies.b.device=cpu"],
        [FROZEN, "team.policies.b.device=cpu"],
    ),
    "team.policies.*.dtype": (
        [REMOTE, "team.policies.b.dtype=bfloat16"],
        [FROZEN, "team.policies.b.dtype=bfloat16"],
    ),
    "team.policies.*.quantization": (
        [REMOTE, "team.policies.b.quantization=4bit"],
        [FROZEN, "team.policies.b.quantization=4bit"],
    ),
    "team.policies.*.trust_remote_code": (
        [REMOTE, "team.policies.b.trust_remote_code=true"],
        [FROZEN, "team.policies.b.trust_remote_code=true"],
    ),
    "team.policies.*.lora of an endpoint": (
        [REMOTE, "team.policies.b.lora={rank: 4, path: adapter}"],
        [FROZEN, "team.policies.a.lora.rank=4"],
    ),
    "team.policies.*.lora": (
        [FROZEN, "team.policies.b.lora.rank=4"],
        [FROZEN, "team.policies.a.lora.rank=4"],
    ),
    **{
        f"team.policies.*.sampling.{name}": (
            [REMOTE, f"team.policies.b.sampling.{name}={value}"],
            [FROZEN, f"team.policies.b.sampling.{name}={value}"],
        )
        for name, value in {"engine": "torch", "memory": 1, "turns_memory": 1, "graphs": "true"}.items()
    },
    "team.policies.*.key_variable": (
        [FROZEN, "team.policies.b.key_variable=KEY"],
        [REMOTE, "team.policies.b.key_variable=KEY"],
    ),
    **{
        f"teacher.model.{name}": (
            ["teacher={model: {model: m, url: 'http://x/v1'}}", f"teacher.model.{name}={value}"],
            ["teacher={model: {model: seed}}", f"teacher.model.{name}={value}"],
        )
        for name, value in {
            "device": "cpu",
            "dtype": "bfloat16",
            "quantization": "4bit",
            "trust_remote_code": "true",
        }.items()
    },
    "teacher.model.key_variable": (
        ["teacher={model: {model: seed, key_variable: KEY}}"],
        ["teacher={model: {model: m, url: 'http://x/v1', key_variable: KEY}}"],
    ),
    **{
        f"teacher.model.{name}": (
            ["teacher={model: {model: seed}}", f"teacher.model.{key}={value}"],
            ["teacher={model: {model: seed}}"],
        )
        for name, key, value in (
            ("sampling", "sampling.top_k", 3),
            ("learner", "learner.epochs", 2),
            ("enable_thinking", "enable_thinking", "true"),
        )
    },
    "teacher.weights": (["teacher={model: seed, weights: initial}"], ["teacher={weights: initial}"]),
    "algorithm.critic.policy.key_variable": (
        [IPPO, CRITIC, "algorithm.critic.policy.key_variable=KEY"],
        [IPPO, CRITIC, "algorithm.critic.policy.key_variable=OPENAI_API_KEY"],  # no critic is an endpoint's
    ),
    "team.policies.*.learner": (
        [FROZEN, "team.policies.b.learner.learning_rate=1"],
        [FROZEN, "team.policies.a.learner.learning_rate=1"],
    ),
    "train.deterministic": (["train.deterministic=true"], ["train.deterministic=true", VLLM]),
    "vllm": (["vllm.context=64"], ["vllm.context=64", VLLM]),
    "vllm.sleep": (
        ["vllm.sleep=cache", "vllm.colocated=false", VLLM],
        ["vllm.sleep=cache", "vllm.colocated=true", VLLM],
    ),
    "sampling.graphs": (["sampling.graphs=true", VLLM], ["sampling.graphs=true", TORCH]),
    "sampling.turns_memory": (["sampling.turns_memory=1", VLLM], ["sampling.turns_memory=1", TORCH]),
    "cluster.sampler_gpus": (
        ["cluster={sampler_gpus: 1, learner_gpus: 1, colocated: true}"],
        ["cluster={sampler_gpus: 1, learner_gpus: 1}"],
    ),
    "cluster.policies.*.sampler_gpus": (
        ["cluster={learner_gpus: 1, colocated: true, policies: {shared: {sampler_gpus: 1}}}"],
        ["cluster={learner_gpus: 1, policies: {shared: {sampler_gpus: 1}}}"],
    ),
    "credit.overlong_factor": (
        ["credit.overlong_factor=2"],
        ["credit.overlong_factor=2", "credit.overlong_buffer=4"],
    ),
    "credit.drop_fraction": (
        ["credit.drop_fraction=0.5"],
        ["credit.drop_fraction=0.5", "credit.drop_groups=lowest_mean"],
    ),
    "loss.ratio": (["loss.ratio=cispo", OWN_LOSS], ["loss.ratio=cispo"]),
    "kl.reference": (["kl.reference=start"], ["kl.reference=start", "loss.kl=0.1"]),
    "loss.settings": (["loss.settings={clip_low: 0.1}"], ["loss.settings={clip_low: 0.1}", OWN_LOSS]),
    "loss.clip_low": (["loss.clip_low=0.1", "loss.ratio=none"], ["loss.clip_low=0.1"]),
    "loss.clip_high": (["loss.clip_high=0.2", "loss.ratio=none"], ["loss.clip_high=0.2"]),
    "loss.dual_clip": (["loss.dual_clip=3", "loss.ratio=cispo"], ["loss.dual_clip=3"]),
    "loss.divisor": (["loss.divisor=8"], ["loss.divisor=8", "loss.aggregate=sequence_sum"]),
    "loss.entropy_tokens": (["loss.entropy_tokens=9"], ["loss.entropy_tokens=9", "loss.entropy=0.1"]),
    "loss.kl_bound": (["loss.kl_bound=0.1"], ["loss.kl_bound=0.1", "learner.epochs=2"]),
    "loss.schedule": (["loss.schedule=linear"], ["loss.schedule=linear", "loss.kl=0.1"]),
    "loss.correction_level": (
        ["loss.correction_level=sequence"],
        ["loss.correction_level=sequence", "loss.correction=truncate"],
    ),
    "loss.correction_high": (["loss.correction_high=3"], ["loss.correction_high=3", "loss.correction=truncate"]),
    "loss.correction_low": (
        ["loss.correction_low=0.1", "loss.correction=truncate"],
        ["loss.correction_low=0.1", "loss.correction=mask"],
    ),
    "algorithm.gae_lambda": (
        [IPPO, "algorithm.gae_lambda=0.5", "algorithm.estimate=reward_to_go"],
        [IPPO, "algorithm.gae_lambda=0.5"],
    ),
    "algorithm.token_gamma": (
        [IPPO, "algorithm.token_gamma=0.5"],
        [IPPO, "algorithm.token_gamma=0.5", "algorithm.critic.level=token"],
    ),
    **{
        f"algorithm.alpha of {name}": (
            [*team, f"algorithm={{name: {name}, k: 2, parts: {{goal: 1.0}}, alpha: 0.5}}"],
            [*team, f"algorithm={{name: {name}, k: 2, alpha: 0.5}}"],
        )
        for name, team in PARTED.items()
    },
    **{
        f"algorithm.normalise of {name}": (
            [f"algorithm={{name: {name}, k: 2, broadcast: 0, normalise: sum}}"],
            [f"algorithm={{name: {name}, k: 2, broadcast: 1, normalise: sum}}"],
        )
        for name in ("counterfactual", "shapley")
    },
    "algorithm.alpha of rlhf": ([*SINGLE, RLHF, "algorithm.reward_model=."], [*SINGLE, RLHF]),
    "algorithm.critic.policy.sampling": (
        [IPPO, CRITIC, "algorithm.critic.policy.sampling.top_k=2"],
        [IPPO, CRITIC, "team.policies.shared.sampling.temperature=2"],
    ),
    **{
        f"algorithm.critic.learner.{name}": (
            [IPPO, f"algorithm.critic.learner.{name}={value}"],
            [IPPO, CRITIC, f"algorithm.critic.policy.learner.{name}={value}"],
        )
        for name, value in {
            "epochs": 2,
            "minibatches": 2,
            "minibatch_size": 2,
            "tokens_per_microbatch": 512,
            "pack": "prefix_tree",
            "gradient_checkpointing": "true",
            "ranks": 2,
            "flex_attention": "true",
            "compile": "true",
        }.items()
    },
    "algorithm.select of custom": (
        [custom("independent", select="random")],
        [custom("greedy", select="random")],
    ),
    "algorithm.joint of custom": ([custom("greedy", joint="cross")], [custom("full", joint="cross")]),
    "algorithm.where of custom": ([custom("full", where="random")], [custom("branch", where="random")]),
    **{
        f"algorithm.{name} of custom": ([custom("full", **{name: 2})], [custom("branch", **{name: 2})])
        for name in ("decisions", "siblings", "rounds", "budget")
    },
    "algorithm.lookahead of custom": (
        [custom("greedy", "step", lookahead=1)],
        [custom("greedy", "first_reward", lookahead=1)],
    ),
    "algorithm.gamma of custom": (
        [custom("full", "episode", gamma=0.5)],
        [custom("full", "reward_to_go", gamma=0.5)],
    ),
    "algorithm.second.gamma of custom": (
        [second(returns="episode", gamma=0.5)],
        [second(returns="reward_to_go", gamma=0.5)],
    ),
    **{
        f"{section}.{name}": ([*more, f"{section.replace('*', 'shared')}.{name}=true", padded], works)
        for section, more, padded in (
            ("learner", [], "learner.pack=padded"),
            ("team.policies.*.learner", [], "learner.pack=padded"),
            ("algorithm.critic.policy.learner", [IPPO, CRITIC], "algorithm.critic.policy.learner.pack=padded"),
        )
        for name in ("flex_attention", "compile")
        for works in [[*more, f"{section.replace('*', 'shared')}.{name}=true"]]
    },
    "learner.saved_moments": (
        ["learner={saved_moments: bfloat16, ranks: 2}"],
        ["learner.saved_moments=bfloat16"],
    ),
    "team.policies.*.learner.saved_moments": (
        ["team.policies.shared.learner.saved_moments=bfloat16", "learner.ranks=2"],
        ["team.policies.shared.learner.saved_moments=bfloat16"],
    ),
    "algorithm.critic.policy.learner.saved_moments": (
        [IPPO, CRITIC, "algorithm.critic.policy.learner={saved_moments: bfloat16, ranks: 2}"],
        [IPPO, CRITIC, "algorithm.critic.policy.learner.saved_moments=bfloat16"],
    ),
    "algorithm.critic.learner.saved_moments": (
        [IPPO, "algorithm.critic.learner.saved_moments=bfloat16", "learner.ranks=2"],
        [IPPO, "algorithm.critic.learner.saved_moments=bfloat16"],
    ),
    "learner.final_rate_fraction": (
        ["learner.final_rate_fraction=0.1"],
        ["learner.final_rate_fraction=0.1", "learner.schedule=cosine"],
    ),
    "team.policies.*.learner.final_rate_fraction": (
        ["team.policies.shared.learner.final_rate_fraction=0.1"],
        ["team.policies.shared.learner.final_rate_fraction=0.1", "learner.schedule=cosine"],
    ),
    "algorithm.critic.policy.learner.final_rate_fraction": (
        [IPPO, CRITIC, "algorithm.critic.policy.learner.final_rate_fraction=0.1"],
        [IPPO, CRITIC, "algorithm.critic.policy.learner={final_rate_fraction: 0.1, schedule: cosine}"],
    ),
    "algorithm.critic.learner.final_rate_fraction": (
        [IPPO, "algorithm.critic.learner.final_rate_fraction=0.1"],
        [IPPO, "algorithm.critic.learner.final_rate_fraction=0.1", "learner.schedule=cosine"],
    ),
    "learner.compile in layers that are not compiled": (
        ["learner={compile: true, gradient_checkpointing: true}"],
        ["learner={compile: true, flex_attention: true}"],
    ),
    "team.policies.*.learner.compile in layers that are not compiled": (
        ["team.policies.shared.learner={compile: true, flex_attention: false}"],
        ["team.policies.shared.learner={compile: true}"],
    ),
    "algorithm.critic.policy.learner.compile in layers that are not compiled": (
        [IPPO, CRITIC, "algorithm.critic.policy.learner={compile: true, ranks: 2}"],
        [IPPO, CRITIC, "algorithm.critic.policy.learner={compile: true}"],
    ),
    "cluster.learner_kept": (["cluster={learner_kept: 5, replaced: 0}"], ["cluster={learner_kept: 5}"]),
    "credit.role_weights": (
        [FROZEN, "credit.role_weights={planner: 2}"],
        [FROZEN, "credit.role_weights={tool: 2}"],
    ),
    "algorithm.kl": (["algorithm={name: ma_dpo, k: 2, kl: 0.1}"], ["algorithm.kl=0.1"]),
    "credit.overlong_buffer": (["algorithm=ma_dpo", "credit.overlong_buffer=4"], ["credit.overlong_buffer=4"]),
    "credit.without_std": (["algorithm=ma_dpo", "credit.without_std=drop"], ["credit.without_std=drop"]),
    "algorithm.scale where a teacher teaches alone": ([ALONE, GRPO.format("scale: none")], [ALONE, "algorithm=grpo"]),
    "credit.overlong_buffer where a teacher teaches alone": (
        [ALONE, "credit.overlong_buffer=4"],
        [ALONE, "credit.truncated=mask"],
    ),
    "credit.drop_groups": (
        ["algorithm=ma_dpo", "credit={drop_groups: lowest_mean, drop_fraction: 0.5}"],
        ["credit={drop_groups: lowest_mean, drop_fraction: 0.5}"],
    ),
    "credit.drop_groups under a critic": (
        [IPPO, "credit={drop_groups: lowest_mean, drop_fraction: 0.5}"],
        ["credit={drop_groups: lowest_mean, drop_fraction: 0.5}"],
    ),
    "train.schedule_period": (
        ["train.schedule_period=2", "team={policies: {a: seed, b: seed}, roles: {tool: a, planner: b}}"],
        [
            "train={schedule: round_robin, schedule_period: 2}",
            "team={policies: {a: seed, b: seed}, roles: {tool: a, planner: b}}",
        ],
    ),
    "train.replacements": (["train.replacements=2"], ["train.replacements=2", "credit.without_std=drop"]),
    "algorithm.gamma of gigpo": (
        ["algorithm={name: gigpo, gamma: 0.5, step_weight: 0}"],
        ["algorithm={name: gigpo, gamma: 0.5}"],
    ),
    "train.trees_megabytes": (["train.trees_megabytes=9", "train.trees_kept=0"], ["train.trees_megabytes=9"]),
    "train.stop_at_success": (["train.stop_at_success=0.9"], ["train.stop_at_success=0.9", "evaluate.every=5"]),
    "train.patience": (["train.patience=2"], ["train.patience=2", "evaluate.every=5"]),
    # Evaluations after 0, 5 and 10 steps: the second of them that is not better is that of the last step.
    "train.patience in a short training": (
        ["train.patience=2", "evaluate.every=5", "train.steps=10"],
        ["train.patience=2", "evaluate.every=5", "train.steps=11"],
    ),
    "trackers.project": (["trackers.project=x"], ["trackers.project=x", "trackers.names=[mlflow]"]),
}
IMAGES = ("sampling.turns_memory", "team.policies.*.sampling.turns_memory")


@pytest.fixture(autouse=True)
def packages_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: object())


def with_turns(overrides: list[str]) -> list[str]:
    return [*([] if any("env=" in pair for pair in overrides) else ["settings.turns=1"]), *overrides]


def chosen(overrides: list[str]) -> Config:
    return load("plan-path", with_turns(overrides))


def typed(overrides: list[str]) -> Experiment:
    """The experiment of a command line."""
    return resolve(chosen(overrides), typed=typed_keys(overrides))


def is_of(setting: str, case: str) -> bool:
    """Return True if a setting belongs to a case, in whose key `*` is any name."""
    parts, names = case.partition(" ")[0].split("."), setting.split(".")
    return len(parts) == len(names) and all(part in ("*", name) for part, name in zip(parts, names, strict=True))


def sections(kind: type[Section] = Section) -> Iterator[type[Section]]:
    for inner in kind.__subclasses__():
        yield from (inner, *sections(inner))


def test_every_condition_has_a_case() -> None:
    declared = {
        condition.words
        for section in sections()
        for model_field in section.model_fields.values()
        for condition in (*section.conditions, *model_field.metadata)
        if isinstance(condition, ReadIf)
    }
    reached = {words for failing, _ in CASES.values() for _, words in ignored_settings(resolve(chosen(failing)))}
    assert declared - {"the torch engine samples the policy, and its model reads text alone"} <= reached


@pytest.mark.parametrize("case", CASES)
def test_a_typed_setting_without_effect_is_refused_and_one_with_effect_works(case: str) -> None:
    failing, works = CASES[case]
    assert not any(is_of(setting, case) for setting, _ in ignored_settings(typed(works)))
    with pytest.raises(ConfigError, match=r"^\S+ has no effect here \(it is read if [^\n]+\): remove it\.$") as caught:
        typed(failing)
    assert is_of(str(caught.value).partition(" ")[0], case), str(caught.value)


# Which conditions hold is tested above; how a setting came here is the same for all of them.
SOME_CASES = few_of(CASES, list(CASES)[::8])


@pytest.mark.parametrize("case", SOME_CASES)
def test_a_setting_without_effect_in_a_recipe_is_warned_of_through_a_base(case: str, tmp_path: Path) -> None:
    """The base has the setting, and the recipe only the name of the base; another setting is typed."""
    raw = apply_overrides(read_recipe("plan-path"), with_turns(CASES[case][0]))
    (tmp_path / "base.yaml").write_text(dump_yaml(raw))
    (tmp_path / "own.yaml").write_text("base: base.yaml\n")
    experiment = resolve(load(str(tmp_path / "own.yaml")), typed=["episodes.retries"])
    assert any(is_of(setting, case) for setting, _ in ignored_settings(experiment))


def test_the_warning_says_when_a_setting_is_read() -> None:
    experiment = resolve(chosen(["loss.clip_low=0.1", "loss.ratio=none"]))
    warning = "warning: loss.clip_low has no effect here (it is read if loss.ratio is not none)."
    assert find_training_warnings(experiment) == [warning]


@pytest.mark.parametrize("case", SOME_CASES)
def test_a_run_records_what_works_and_reads_it_back(case: str, tmp_path: Path) -> None:
    _, works = CASES[case]
    (tmp_path / "config.yaml").write_text(dump(chosen(works)))
    read = resolve(load(str(tmp_path / "config.yaml")))
    assert not any(is_of(setting, case) for setting, _ in ignored_settings(read))


ADVANTAGES_ALONE = (
    *("{name: grpo, alpha: 0}", "{name: grpo, kl: 0.5}", "{name: grpo, parts: {goal: 1}}"),
    *("{name: magrpo, k: 2, gamma: 0.1}", "{name: magrpo, k: 2, lenient: true}", "{name: magrpo, k: 2, kl: 0.5}"),
    *("{name: gigpo, step_weight: 0.5}", "{name: gigpo, gamma: 0.1}", "{name: state_value, prior: 9}"),
    *("{name: counterfactual, broadcast: 0.3}", "{name: spiral, decay: 0.5}", "{name: tree_grpo, alpha: 2}"),
    "{name: at_grpo, alpha: 2, select: random, lookahead: 0}",
    "{name: at_grpo, scale: mean}",
    "{name: custom, k: 2, shape: full, returns: reward_to_go, group: node, baseline: mean, scale: none, gamma: 0.5}",
)
READ_ALONE = (
    *(
        "{name: grpo, k: 5}",
        "{name: at_grpo, select: random}",
        "{name: at_grpo, alpha: 2}",
        "{name: at_grpo, k: [2, 3]}",
    ),
    *("{name: magrpo, k: 2, stop_at: 0.5}", "{name: c3, k: 2, joint: aligned}", "{name: tree_grpo, siblings: 2}"),
    "{name: custom, k: 2, shape: greedy, returns: step, group: node, baseline: mean, scale: none, select: random}",
)


@pytest.mark.parametrize("algorithm", ADVANTAGES_ALONE)
def test_settings_of_advantages_are_refused_where_a_teacher_gives_them(algorithm: str) -> None:
    """A setting that changes nothing but how rewards become advantages has no effect under teacher.alone."""
    typed([f"algorithm={algorithm}", "teacher={model: seed}"])
    with pytest.raises(ConfigError, match=r"^algorithm\.\w+ has no effect here .*which teacher\.alone leaves out"):
        typed([f"algorithm={algorithm}", ALONE])


@pytest.mark.parametrize("algorithm", READ_ALONE)
def test_settings_of_sampling_and_selection_are_read_where_a_teacher_gives_advantages(algorithm: str) -> None:
    typed([f"algorithm={algorithm}", ALONE])


@pytest.mark.parametrize("algorithm", ["ippo", "mappo", "{name: dr_mamr, k: 3}"])
def test_values_and_influences_are_refused_where_a_teacher_gives_advantages(algorithm: str) -> None:
    typed([f"algorithm={algorithm}", "teacher={model: seed}"])
    with pytest.raises(ConfigError, match=r"^teacher.alone: got true with algorithm.name=\w+, which computes values"):
        typed([f"algorithm={algorithm}", ALONE])


def test_a_policys_own_settings_count_where_another_sampler_draws() -> None:
    override = "team.policies.b.sampling={engine: vllm, graphs: true}"
    team = "team={policies: {a: seed, b: {model: seed}}, roles: {tool: a, planner: b}}"
    with pytest.raises(ConfigError, match=r"team\.policies\.b\.sampling\.graphs has no effect"):
        typed([team, override, TORCH])
    typed([team, "team.policies.a.sampling.graphs=true", "team.policies.b.sampling.engine=vllm", TORCH])
    # One policy of two reads what is set for both.
    typed([team, "sampling={graphs: true, engine: torch}", "team.policies.b.sampling.engine=vllm"])


def test_settings_of_vllm_wait_where_the_engine_is_open() -> None:
    typed(["vllm={context: 64, sleep: cache}", "train.deterministic=true", "sampling.engine=auto"])


def test_models_that_read_images_keep_no_earlier_turns(tmp_path: Path) -> None:
    model = tiny_vision.build(tmp_path / "model", "smolvlm")
    picture = ["env=plan-path-picture", f"team={{policies: {{shared: {model}}}, roles: {{planner: shared}}}}"]
    for section in IMAGES:
        key = section.replace("*", "shared")
        with pytest.raises(ConfigError, match=r"turns_memory has no effect here .*its model reads text alone"):
            typed([*picture, f"{key}=1"])


def test_a_typed_star_and_a_typed_section_count() -> None:
    for pair in ("team.policies.*.key_variable=KEY", "team.policies.shared={model: seed, key_variable: KEY}"):
        with pytest.raises(ConfigError, match=r"^team\.policies\.shared\.key_variable has no effect here"):
            typed([pair])


def test_an_evaluation_refuses_what_is_typed_in_vain_and_takes_what_a_recipe_has() -> None:
    pairs = ["loss.schedule=linear"]
    resolve_for_evaluation(chosen(pairs))
    with pytest.raises(ConfigError, match=r"^loss\.schedule has no effect here"):
        resolve_for_evaluation(chosen(pairs), typed=typed_keys(pairs))


def test_defaults_and_what_turns_a_setting_off_are_not_given() -> None:
    typed([f"vllm.{name}={'null' if value is None else value}" for name, value in VllmConfig().model_dump().items()])
    typed(["loss.dual_clip=null", "loss.ratio=none", "sampling.graphs=false", VLLM])
    # In changes to the algorithm's loss a default counts.
    with pytest.raises(ConfigError, match=r"^loss\.clip_low has no effect"):
        typed(["loss.clip_low=0.2", "loss.ratio=none"])


def test_the_keys_of_pairs_are_those_of_their_settings() -> None:
    pairs = ["evaluate={every: 5}", "team.policies.a.sampling.top_k=2", "team.prompts.a=You: are: b", "algorithm=grpo"]
    keys = ["evaluate.every", "team.policies.a.sampling.top_k", "team.prompts.a", "algorithm"]
    assert typed_keys(pairs) == keys
