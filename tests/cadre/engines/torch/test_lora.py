"""Adapters: mixed equals alone, the base never moves, files that PEFT and transformers read."""

import dataclasses
import warnings

import pytest
import torch
from peft import PeftModel
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from cadre.engines.torch import TorchEngine, llama_step
from cadre.engines.torch.llama_step import MODEL_TYPES, LlamaStep
from cadre.engines.torch.sizes import measure
from cadre.errors import EngineError
from cadre.settings import LearnerConfig, LoraConfig
from tests.cadre.engines import tiny
from tests.cadre.engines.tiny import datum, request, sample, update
from tests.helpers.adapters import rollouts
from tests.helpers.learners import weights
from tests.helpers.plain_logprobs import plain_logprobs
from tests.helpers.slow import few_of

RANKS = {"planner": 4, "tool": 8, "critic": 2, "scribe": 16}


def trained(learner, policy):
    """Return the parameters and moments that an update changes, by name."""
    return {**learner.engine.parameters(policy), **learner.rank._optimisers[policy].weights.moments()}


def largest_difference(first, second):
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).detach().abs().max()) for name in first)


def gap(model, sample):
    """The largest difference of a plain model's log-probabilities from a sample's own."""
    return float((plain_logprobs(model, sample, 1.0) - torch.tensor(sample.logprobs)).abs().max())


@pytest.mark.parametrize("names", [("planner", "tool"), tuple(RANKS)])
def test_mixed_training_equals_training_alone(team, names):
    ranks = {name: RANKS[name] for name in names}
    changes = {"tool": {"learning_rate": 3e-4, "max_grad_norm": 0.1, "warmup_steps": 3, "schedule": "cosine"}}
    settings = {"changes": changes, "learning_rate": 1e-3, "tokens_per_microbatch": 600}
    mixed = team(ranks, **settings)
    base = weights(mixed)
    data = rollouts(mixed, ranks)
    for _ in range(3):
        update(mixed, data)
    for name in names:
        single = team({name: ranks[name]}, **settings)
        start = {key: value.detach().clone() for key, value in single.engine.parameters(name).items()}
        for _ in range(3):
            update(single, [datum for datum in data if datum.policy == name])
        assert largest_difference(trained(mixed, name), trained(single, name)) < 1e-6
        assert largest_difference(start, single.engine.parameters(name)) > 1e-4
    assert all(torch.equal(base[key], value) for key, value in weights(mixed).items())


def test_schedules_go_on_where_a_policy_has_nothing_to_learn_from(team):
    """Mistake: rates that stand still for a policy without data, so that a cosine does not end at the last step."""
    built_team = team({"planner": 4, "tool": 8}, schedule="cosine")
    data = [rollout for rollout in rollouts(built_team, ("planner", "tool")) if rollout.policy == "planner"]
    initial = {key: value.detach().clone() for key, value in trained(built_team, "tool").items()}
    assert set(update(built_team, data)) == {"planner"}
    update(built_team, [])
    rates = {name: optimiser.weights.rate for name, optimiser in built_team.rank._optimisers.items()}
    assert rates["planner"] == rates["tool"] < LearnerConfig().learning_rate
    assert all(torch.equal(initial[key], value) for key, value in trained(built_team, "tool").items())


def test_all_adapters_share_one_forward(team, monkeypatch):
    built_team = team(RANKS, frozen=("judge",))
    calls = []
    model = type(built_team.engine.loaded.model)
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda self, **options: calls.append(1) or forward(self, **options))
    step = LlamaStep.__call__
    monkeypatch.setattr(LlamaStep, "__call__", lambda self, *arguments: calls.append(1) or step(self, *arguments))
    requests = [request("go", 2, 1, name, max_tokens=3) for name in (*RANKS, "judge")]
    samples = sample(built_team, *requests)
    assert len(calls) == 3  # one prefill, two steps
    assert [sample.policy for siblings in samples for sample in siblings] == [
        each_request.policy for each_request in requests for _ in range(2)
    ]
    update(built_team, [datum(sample, (-1.0) ** k) for siblings in samples[:-1] for k, sample in enumerate(siblings)])
    assert len(calls) == 5  # one forward for all, and the look at what came of it


@pytest.mark.parametrize("architecture", few_of(tiny.ARCHITECTURES, ["llama", "qwen3", "gemma3"]))
def test_a_mixed_batch_samples_what_each_policy_samples_alone(team, architecture):
    built_team = team({"planner": 4, "tool": 8}, architecture, frozen=("judge",), learning_rate=2e-2)
    for _ in range(2):
        update(built_team, rollouts(built_team, ("planner", "tool")))
    requests = [
        request("one", 3, 5, "tool", max_tokens=4),
        request("a second prompt", 2, 6, "judge", max_tokens=12),
        request("one", 3, 5, "planner"),
        request("one", 3, 5, "judge", max_tokens=8),
        request("another", 2, 7, "tool", temperature=0.0),
    ]
    together = sample(built_team, *requests)
    for sequence, siblings in zip(requests, together, strict=True):
        (single,) = sample(built_team, sequence)
        assert [first.token_ids for first in siblings] == [second.token_ids for second in single]
    figures = update(built_team, [datum(item, 1.0) for item in (*together[0], *together[2])])
    assert max(figure["logprob_diff_max"] for figure in figures.values()) < 1e-4
    assert together[2][0].token_ids != together[3][0].token_ids[:16]


def test_frozen_policies_are_the_base_to_the_bit(team, folders):
    built_team = team({"tool": 8}, frozen=("judge",), learning_rate=2e-2)
    initial = sample(built_team, request("x", 4, 3, "judge"))
    update(built_team, rollouts(built_team, ("tool",)))
    assert sample(built_team, request("x", 4, 3, "judge")) == initial
    assert built_team.policies == ("tool",)
    plain = AutoModelForCausalLM.from_pretrained(folders["llama"])
    for item in initial[0]:
        assert torch.allclose(plain_logprobs(plain, item, 1.0), torch.tensor(item.logprobs), atol=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_plain_peft_reads_an_adapter(team, folders, tmp_path, architecture):
    built_team = team({"planner": 4, "tool": 8}, architecture, learning_rate=1e-2)
    for _ in range(2):
        update(built_team, rollouts(built_team, ("planner", "tool")))
    samples = sample(built_team, *(request("go", 3, 5, name) for name in ("planner", "tool")))
    built_team.save(tmp_path)
    for name, siblings in zip(("planner", "tool"), samples, strict=True):
        base = AutoModelForCausalLM.from_pretrained(folders[architecture], attn_implementation="eager")
        model = PeftModel.from_pretrained(base, tmp_path / name).eval()
        assert sorted(path.name for path in (tmp_path / name).glob("adapter*")) == [
            "adapter_config.json",
            "adapter_model.safetensors",
        ]
        for item in siblings:
            assert float((plain_logprobs(model, item, 1.0) - torch.tensor(item.logprobs)).abs().max()) < 1e-5
        with model.disable_adapter():
            assert (
                float((plain_logprobs(model, siblings[0], 1.0) - torch.tensor(siblings[0].logprobs)).abs().max()) > 1e-3
            )
    assert AutoTokenizer.from_pretrained(tmp_path / "tool").chat_template == tiny.CHATML


def test_peft_written_adapters_load_too(team, folders, tmp_path):
    built_team, other_built_team = team({"tool": 8}, learning_rate=1e-2), team({"tool": 8})
    update(built_team, rollouts(built_team, ("tool",)))
    built_team.save(tmp_path / "cadre")
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folders["llama"]), tmp_path / "cadre/tool")
    model.save_pretrained(tmp_path / "peft/tool")
    (tmp_path / "cadre/tool/optimiser").rename(tmp_path / "peft/tool/optimiser")
    other_built_team.load(tmp_path / "peft")
    assert largest_difference(trained(built_team, "tool"), trained(other_built_team, "tool")) == 0.0


def test_a_merged_adapter_is_a_plain_model(team, tmp_path):
    built_team = team({"tool": 8}, learning_rate=1e-2)
    update(built_team, rollouts(built_team, ("tool",)))
    base = weights(built_team)
    ((item,),) = sample(built_team, request("go", policy="tool"))
    built_team.export("tool", tmp_path, merge=True)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.allclose(plain_logprobs(model, item, 1.0), torch.tensor(item.logprobs), atol=1e-5)
    assert not list(tmp_path.glob("adapter*"))
    assert all(torch.equal(base[name], value) for name, value in weights(built_team).items())


def test_saved_adapters_go_on_to_the_bit(team, tmp_path):
    settings = {"learning_rate": 1e-2, "minibatches": 2}
    names = ("planner", "tool")
    ranks = {name: RANKS[name] for name in names}
    straight, first, second = (team(ranks, **settings) for _ in range(3))
    for _ in range(4):
        update(straight, rollouts(straight, names))
    for _ in range(2):
        update(first, rollouts(first, names))
    first.save(tmp_path)
    second.load(tmp_path)
    for _ in range(2):
        update(second, rollouts(second, names))
    for name in names:
        assert largest_difference(trained(straight, name), trained(second, name)) == 0.0


def test_another_adapters_files_are_refused(team, tmp_path):
    team({"tool": 8}).save(tmp_path)
    with pytest.raises(EngineError, match="do not fit"):
        team({"tool": 4}).load(tmp_path)


def test_an_adapter_without_data_does_not_move(team):
    built_team = team({"planner": 4, "tool": 8}, learning_rate=1e-2, weight_decay=0.1)
    initial = {name: value.detach().clone() for name, value in built_team.engine.parameters("planner").items()}
    figures = update(built_team, rollouts(built_team, ("tool",)))
    assert set(figures) == {"tool"}
    assert largest_difference(initial, built_team.engine.parameters("planner")) == 0.0
    assert built_team.rank._optimisers["planner"].updates == 1  # schedules go by the steps of the training


def test_a_bad_adapter_does_not_spoil_the_others(team):
    built_team, clean = (team({"planner": 4, "tool": 8}, learning_rate=1e-2) for _ in range(2))
    data = rollouts(built_team, ("planner", "tool"))
    bad = [
        dataclasses.replace(datum, logprobs=(-1e4,) * len(datum.logprobs)) if datum.policy == "tool" else datum
        for datum in data
    ]
    figures = update(built_team, bad)
    update(clean, data)
    assert (figures["tool"]["skipped"], figures["planner"]["skipped"]) == (1, 0)
    assert largest_difference(trained(built_team, "planner"), trained(clean, "planner")) < 1e-6


def test_checkpointing_with_adapters(team):
    first, other_built_team = (
        team({"planner": 4, "tool": 8}, learning_rate=1e-3, gradient_checkpointing=on) for on in (False, True)
    )
    data = rollouts(first, ("planner", "tool"))
    update(first, data)
    update(other_built_team, data)
    for name in ("planner", "tool"):
        assert largest_difference(trained(first, name), trained(other_built_team, name)) < 1e-6


def test_a_bfloat16_base_is_held_once_and_in_bfloat16(team):
    built_team = team({"tool": 8}, dtype="bfloat16", learning_rate=1e-2)
    figures = update(built_team, rollouts(built_team, ("tool",)))["tool"]
    assert {value.dtype for value in built_team.engine.loaded.model.parameters()} == {torch.bfloat16}
    assert {value.dtype for value in built_team.engine.parameters("tool").values()} == {torch.float32}
    assert figures["updates"] == 1
    assert figures["logprob_diff_max"] < 0.2


def test_reference_is_the_start(team, learner, folders):
    plain = AutoModelForCausalLM.from_pretrained(folders["llama"])
    lora, torch_learner = team({"p": 8}, learning_rate=1e-2), learner(learning_rate=1e-2)
    for tested_learner in (lora, torch_learner):
        data = rollouts(tested_learner, ("p",))
        update(tested_learner, data)
        samples = sample(tested_learner, request("go", 3, policy="p"), request("further on", 2, policy="p"))
        completions = [sample for siblings in samples for sample in siblings]
        reference_logprobs = tested_learner.reference_logprobs([datum(item, 1.0) for item in completions])
        for completion, values in zip(completions, reference_logprobs, strict=True):
            start = len(completion.prompt_ids)
            assert values[:start] == (0.0,) * start
            assert torch.allclose(plain_logprobs(plain, completion, 1.0), torch.tensor(values[start:]), atol=1e-5)
    assert lora.rank._reference.model is lora.engine.loaded.model
    assert learner().rank._reference is None


def test_targets_are_matched_as_peft_does(folders, tmp_path):
    def made(targets):
        policy = tiny.policy(folders["llama"], lora=LoraConfig(rank=2, targets=targets))
        return TorchEngine(folders["llama"], {"p": policy}, 0)

    own_result = made(("q_proj", "layers.1.mlp.down_proj"))
    modules = {name.rpartition(".lora")[0] for name in own_result.parameters("p")}
    attention = {f"model.layers.{layer}.self_attn.q_proj" for layer in (0, 1)}
    assert modules == attention | {"model.layers.1.mlp.down_proj"}
    assert not any("lm_head" in name for name in made("all-linear").parameters("p"))
    for wrong in ("q_prog", "lm_head"):
        with pytest.raises(EngineError, match=f"'{wrong}'.*q_proj"):
            made((wrong,))


def experts(folder):
    """Two layers of attention with 2 * 4 * 32 * 32 weights, 4 fused experts of 3 * 16 * 32, and a router of 4 * 32."""
    moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    config = Qwen3MoeConfig(vocab_size=260, **{**tiny.SHAPE, "num_key_value_heads": 4}, head_dim=8, **moe)
    tiny.save(lambda: Qwen3MoeForCausalLM(config), folder)
    tiny.byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("targets", "percent"), [("all-linear", 40), (("q_proj",), 10)])
def test_experts_that_get_no_adapter_are_named(tmp_path, targets, percent):
    """Attention has 4,096 of the 10,368 weights of a layer, q_proj a quarter of these."""
    policy = tiny.policy(experts(tmp_path), lora=LoraConfig(rank=2, targets=targets))
    expected = (
        f"adapters on {percent}% of the weights of the model's layers; mlp.experts.gate_up_proj, "
        "mlp.experts.down_proj, mlp.gate.weight are no linear layers and take none"
    )
    assert measure(str(tmp_path), policy).reach == expected
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        TorchEngine(tmp_path, {"p": policy}, 0).close()
    message = [str(warning.message) for warning in caught if "adapters on" in str(warning.message)]
    assert message == [f"Policy 'p': {expected}, and stay as they are. Leave lora out to train them too."] * (
        percent == 40
    )


def test_a_dense_model_gets_adapters_on_all_layers(folders):
    assert measure(str(folders["llama"]), tiny.policy(folders["llama"], lora=LoraConfig(rank=2))).reach == (
        "adapters on 100% of the weights of the model's layers"
    )


def test_an_expert_as_a_target_is_refused_as_a_weight_that_takes_no_adapter(tmp_path):
    policy = tiny.policy(experts(tmp_path), lora=LoraConfig(rank=2, targets=("gate_up_proj",)))
    with pytest.raises(EngineError, match=r"'gate_up_proj', .*none: the vocab.*mlp\.experts\.gate_up_proj.*of k_proj"):
        TorchEngine(tmp_path, {"p": policy}, 0)


@pytest.mark.parametrize("targets", ["all-linear", ("c_attn",)])
def test_a_model_without_linear_layers_takes_no_adapter(tmp_path, targets):
    """Mistake: an adapter of no layer, over which the optimiser then complains."""
    config = GPT2Config(vocab_size=260, n_embd=32, n_layer=1, n_head=2, pad_token_id=256, eos_token_id=257)
    tiny.save(lambda: GPT2LMHeadModel(config), tmp_path)
    tiny.byte_tokenizer().save_pretrained(tmp_path)
    policies = {"p": tiny.policy(tmp_path, lora=LoraConfig(rank=2, targets=targets))}
    with pytest.raises(EngineError, match=r"'p' has a lora.*type 'gpt2', no linear layer.*; expected.*leave lora out"):
        TorchEngine(tmp_path, policies, 0)


def test_nothing_is_merged_into_a_quantised_base(team, tmp_path):
    """Mistake: only bases that Cadre quantised are known, and packed weights of a file have an adapter added."""
    built_team = team({"tool": 2})
    built_team.engine.loaded.model.hf_quantizer = object()
    with pytest.raises(EngineError, match="has a quantised base, to which nothing can be added exactly"):
        built_team.export("tool", tmp_path, merge=True)


def test_a_whole_model_has_nothing_to_merge(engine, tmp_path):
    with pytest.raises(EngineError, match="no adapter to merge"):
        engine().export("p", tmp_path, merge=True)


@pytest.mark.parametrize("architecture", few_of(MODEL_TYPES, ["qwen2"]))
def test_steps_on_a_bfloat16_base_sample_what_the_learner_scores(team, architecture, monkeypatch):
    monkeypatch.setattr(llama_step, "LARGE", 1)
    built_team = team({"planner": 4, "tool": 8}, architecture, dtype="bfloat16", learning_rate=2e-2)
    assert LlamaStep.for_model(built_team.engine.loaded.model) is not None
    for _ in range(2):
        data = rollouts(built_team, ("planner", "tool"))
        figures = update(built_team, data)
        # Three significant digits of logits about one: 0.024 to 0.035, and so it is by the model's own forward.
        assert max(figure["logprob_diff_max"] for figure in figures.values()) < 0.05
