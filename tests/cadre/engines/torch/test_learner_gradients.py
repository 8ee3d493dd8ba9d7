"""Value heads in the engine: what they read, what they move, and that a checkpoint has them; then KL and entropy."""

import dataclasses
import math

import pytest
import torch

from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings
from cadre.settings import CriticConfig, LearnerConfig, LoraConfig, LossConfig
from cadre.types import Message, Targets, TrainingSequence
from tests.cadre.engines import tiny
from tests.cadre.engines.tiny import datum, request, sample, update
from tests.cadre.learn.sequences import sequence
from tests.helpers.memory_shortage import run_out_of_memory

IDS = (5, 6, 7, 8)


def build(folder, loss=None, critic=None, heads=("joint",), lora=None, **settings) -> TorchLearner:
    training = TrainingSettings(
        {"p": LearnerConfig(learning_rate=1e-2, **settings)},
        loss or LossConfig(),
        heads={"p": heads} if heads else {},
        critic=critic or CriticConfig(),
    )
    return TorchLearner(TorchEngine(folder, {"p": tiny.policy(folder, lora=lora)}, 0), training)


def judged(at, returns, head="joint", values=None, ids=IDS) -> TrainingSequence:
    """A sequence that only a critic reads."""
    none = (0.0,) * len(ids)
    targets = Targets(head, at, returns, values or (0.0,) * len(at))
    return TrainingSequence("p", "r", ids, (False,) * len(ids), none, none, 0, targets=targets)


def hidden(learner, ids=IDS) -> torch.Tensor:
    return learner.engine.loaded.model.model(torch.tensor([ids])).last_hidden_state[0]


def test_a_value_is_the_head_on_the_state_after_its_token(folders):
    torch_build = build(folders["llama"])
    data = [judged((0, 3), (0.0, 0.0)), judged((1,), (0.0,), ids=(9, 9, 9))]
    assert torch_build.values(data) == [(0.0, 0.0), (0.0,)]
    head = torch_build.rank._heads.heads["p"]["joint"]
    with torch.no_grad():
        head.weight.normal_(generator=torch.Generator().manual_seed(0))
        head.bias.fill_(0.3)
        long, short = (hidden(torch_build, datum.token_ids) @ head.weight[0] + 0.3 for datum in data)
    result = torch_build.values(data)
    assert result[0] == pytest.approx([float(long[0]), float(long[3])], abs=1e-5)
    assert result[1] == pytest.approx([float(short[1])], abs=1e-5)


@pytest.mark.parametrize(
    ("policy", "changes", "expected"),
    [
        (1e-6, {}, 1e-4),  # the rate of a large model would leave a head that starts at zero there
        (1e-6, {"weight_decay": 0.1}, 1e-4),
        (1e-3, {}, 1e-3),
        (1e-6, {"learning_rate": 1e-6}, 1e-6),
        (1e-3, {"learning_rate": 2e-5}, 2e-5),
    ],
)
def test_value_heads_have_a_rate_of_their_own(folders, policy, changes, expected):
    critic = CriticConfig(learner=LearnerConfig(**changes))
    training = TrainingSettings({"p": LearnerConfig(learning_rate=policy)}, heads={"p": ("joint",)}, critic=critic)
    single_learner = TorchLearner(TorchEngine(folders["llama"], {"p": tiny.policy(folders["llama"])}, 0), training)
    pair = single_learner.rank._optimisers["p"]
    assert (pair.weights.rate, pair.heads.rate) == (policy, expected)
    assert pair.heads.config.weight_decay == changes.get("weight_decay", 0.0)
    update(single_learner, [judged((3,), (1.0,))])
    # Adam's first step moves every weight of a head by its rate.
    assert single_learner.rank._heads.heads["p"]["joint"].bias.item() == pytest.approx(expected, rel=1e-3)
    single_learner.close()


def test_value_gradient_by_hand(folders, monkeypatch):
    # Loss 0.4 * mean over both values of (v - R)^2 / 2, on the head and on the trunk.
    torch_build = build(folders["llama"], critic=CriticConfig(coefficient=0.4, clip=None))
    head = torch_build.rank._heads.heads["p"]["joint"]
    with torch.no_grad():
        head.weight.fill_(0.1)
    caught = {}
    pair = torch_build.rank._optimisers["p"]
    for name, optimiser in (("trunk", pair.weights), ("head", pair.heads)):
        monkeypatch.setattr(
            optimiser, "step", lambda loss, norm, name=name, source=optimiser: _catch(caught, name, source)
        )
    figures = update(torch_build, [judged((1,), (2.0,)), judged((3,), (-1.0,))])["p"]
    states = hidden(torch_build)
    values = head(states[[1, 3]]).squeeze(1)
    loss = 0.4 * ((values[0] - 2.0) ** 2 + (values[1] + 1.0) ** 2) / 2 / 2
    loss.backward()
    assert figures["value_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert torch.allclose(caught["head"]["joint.weight"], head.weight.grad, atol=1e-6)
    weight = torch_build.engine.loaded.model.model.layers[0].mlp.up_proj.weight
    assert torch.allclose(caught["trunk"]["model.layers.0.mlp.up_proj.weight"], weight.grad, atol=1e-6)
    assert float(weight.grad.abs().max()) > 1e-4


def test_heads_forget_an_update_that_was_out_of_memory(folders, monkeypatch):
    """The second forward is out of memory once: heads move as if the first had not been run twice."""
    torch_build, other_torch_build = (
        build(folders["llama"], critic=CriticConfig(clip=None), tokens_per_microbatch=5) for _ in range(2)
    )
    calls = run_out_of_memory(monkeypatch, torch_build, least_tokens=2)
    caught = {}
    for name, side in (("mine", torch_build), ("other", other_torch_build)):
        heads = side.rank._optimisers["p"].heads
        monkeypatch.setattr(heads, "step", lambda loss, norm, name=name, custom=heads: _catch(caught, name, custom))
    data = [judged((1,), (2.0,)), judged((3,), (-1.0,), ids=(9, 8, 7, 6))]
    with pytest.warns(UserWarning, match="in parts of 2 tokens"):
        update(torch_build, data)
    update(other_torch_build, data)
    assert len(calls) > 2
    assert torch.equal(caught["mine"]["joint.bias"], caught["other"]["joint.bias"])
    assert caught["other"]["joint.bias"].item() == pytest.approx((-2.0 + 1.0) / 2 * 0.5, rel=1e-3)


def test_values_that_do_not_fit_are_computed_in_halves(folders, monkeypatch):
    torch_build = build(folders["llama"], tokens_per_microbatch=8)
    with torch.no_grad():
        torch_build.rank._heads.heads["p"]["joint"].weight.fill_(0.1)
    data = [judged((1,), (2.0,)), judged((3,), (-1.0,), ids=(9, 8, 7, 6))]
    expected = torch_build.values(data)
    calls = run_out_of_memory(monkeypatch, torch_build, least_tokens=4, first=1)
    with pytest.warns(UserWarning, match="in parts of 4 tokens"):
        halves = torch_build.values(data)
    assert [numbers for (numbers,) in halves] == pytest.approx([numbers for (numbers,) in expected], abs=1e-6)
    assert len(calls) == 3


@pytest.mark.parametrize("failing", ["before the update", "check after it"])
def test_other_forwards_of_an_update_that_do_not_fit_are_run_again(folders, monkeypatch, failing):
    data = [sequence((5, 6, 7, number), (False, True, True, True)) for number in range(4)]
    torch_build, other_torch_build = (
        build(folders["llama"], LossConfig(correction="truncate"), heads=()) for _ in range(2)
    )
    forwards = run_out_of_memory(monkeypatch, other_torch_build, least_tokens=64, times=0)
    expected = update(other_torch_build, data)["p"]
    run_out_of_memory(
        monkeypatch, torch_build, least_tokens=64, first=1 if failing == "before the update" else len(forwards)
    )
    with pytest.warns(UserWarning, match="in parts of 2,048 tokens from here on"):
        metrics = update(torch_build, data)["p"]
    assert len(forwards) == 3
    assert metrics | {"tokens_per_s": 0.0} == expected | {"tokens_per_s": 0.0}


def _catch(caught, name, optimiser):
    stored = {key: weight.grad.clone() for key, weight in optimiser._parameters.items() if weight.grad is not None}
    caught[name] = stored
    optimiser.clear()
    return 1.0


def test_a_policy_is_trained_the_same_beside_its_critic(folders):
    """The value targets of other sequences take no weight from the policy's tokens."""
    single, with_critic = build(folders["llama"]), build(folders["llama"], critic=CriticConfig(coefficient=1e-12))
    (samples,) = sample(single, request("go", 4))
    data = [datum(sample, (-1.0) ** k) for k, sample in enumerate(samples)]
    first, second = update(single, data)["p"], update(with_critic, [*data, judged((3,), (5.0,))])["p"]
    assert second["loss"] == pytest.approx(first["loss"], abs=1e-6)
    assert second["entropy"] == pytest.approx(first["entropy"], abs=1e-6)


@pytest.mark.parametrize("lora", [None, pytest.param(LoraConfig(rank=4, alpha=8), marks=pytest.mark.slow)])
def test_heads_learn_their_own_returns(folders, lora):
    torch_build = build(folders["llama"], critic=CriticConfig(clip=None), heads=("a", "b"), lora=lora)
    data = [judged((1, 3), (1.0, -1.0), "a"), judged((3,), (2.0,), "b", ids=(9, 9, 9, 9))]
    initial = {name: value.clone() for name, value in torch_build.engine.loaded.model.named_parameters()}
    losses = [update(torch_build, data)["p"]["value_loss"] for _ in range(60)]
    assert losses[-1] < 0.05 * losses[0]
    assert torch_build.values(data)[0] == pytest.approx([1.0, -1.0], abs=0.3)
    assert torch_build.values(data)[1] == pytest.approx([2.0], abs=0.3)
    moved = any(
        not torch.equal(initial[name], value) for name, value in torch_build.engine.loaded.model.named_parameters()
    )
    assert moved == (lora is None)


def test_a_checkpoint_has_the_heads_and_their_moments(folders, tmp_path):
    torch_build, other_torch_build = (build(folders["llama"]) for _ in range(2))
    data = [judged((1, 3), (1.0, -1.0))]
    update(torch_build, data)
    torch_build.save(tmp_path)
    other_torch_build.load(tmp_path)
    assert other_torch_build.values(data) == torch_build.values(data) != [(0.0, 0.0)]
    for item in (torch_build, other_torch_build):
        update(item, data)
    assert other_torch_build.values(data) == torch_build.values(data)


def test_encode_is_the_prompt_of_a_sample(folders):
    torch_build = build(folders["llama"])
    (samples,) = sample(torch_build, request("hello"))
    assert torch_build.encode("p", (Message("user", "hello"),)) == samples[0].prompt_ids


def test_an_entropy_bonus_keeps_the_policy_wide(folders):
    widths = {}
    for bonus in (0.0, 1.0):
        torch_build = build(folders["llama"], LossConfig(entropy=bonus), heads=())
        for step in range(4):
            (samples,) = sample(torch_build, request("go", 16, step, max_tokens=4))
            widths[bonus] = update(torch_build, [datum(sample, float(k < 8)) for k, sample in enumerate(samples)])["p"][
                "entropy"
            ]
    assert widths[1.0] > widths[0.0] + 0.1


def test_a_kl_penalty_pulls_back_to_the_reference(folders):
    separate = {}
    for kl in (0.0, 1.0):
        torch_build = build(folders["llama"], LossConfig(kl=kl), heads=())
        for step in range(12):
            (samples,) = sample(torch_build, request("go", 16, step, max_tokens=4))
            data = [datum(sample, float(step < 4 and k < 8)) for k, sample in enumerate(samples)]
            references = torch_build.reference_logprobs(data)
            data = [
                dataclasses.replace(datum, reference=values) for datum, values in zip(data, references, strict=True)
            ]
            separate[kl] = update(torch_build, data)["p"].get("kl_to_reference", separate.get(kl))
    assert separate[0.0] > 0.1
    assert separate[1.0] < 0.5 * separate[0.0]


def test_without_a_reference_nothing_is_said_of_one(folders):
    """Mistake: the divergence from the sampler under the name of that from the reference."""
    torch_build = build(folders["llama"], LossConfig(), heads=())
    (samples,) = sample(torch_build, request("go", 2))
    metrics = update(torch_build, [datum(sample, float(k)) for k, sample in enumerate(samples)])["p"]
    assert "kl_to_reference" not in metrics
    assert "kl_to_sampler" in metrics


def test_a_correction_measures_the_mismatch_of_the_sampler(folders):
    loss = LossConfig(correction="truncate", correction_high=1.5)
    torch_build = build(folders["llama"], loss, heads=(), minibatches=2)
    (samples,) = sample(torch_build, request("go", 4))
    data = [datum(sample, (-1.0) ** k) for k, sample in enumerate(samples)]
    off = [
        dataclasses.replace(
            datum, logprobs=tuple(x - stored for x, stored in zip(datum.logprobs, datum.mask, strict=True))
        )
        for datum in data
    ]
    honest, shifted = update(build(folders["llama"], loss, heads=()), data)["p"], update(torch_build, off)["p"]
    assert honest["correction_fraction"] == 0.0
    assert shifted["correction_fraction"] == 1.0
    assert shifted["logprob_diff_max"] >= 1.0
    assert honest["ratio"] == pytest.approx(1.0, abs=0.2)
    assert shifted["ratio"] == pytest.approx(math.e, abs=0.5)  # to the sampler, which is one nat below
