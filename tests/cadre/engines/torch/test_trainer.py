"""Updates: what is trained and what is not, how batches are cut, what happens when numbers go wrong, and learning."""

import dataclasses
import json
import math
import shutil
import statistics

import pytest
import torch

from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings, forward, trainer
from cadre.engines.torch.forward import Precision, Scorer
from cadre.engines.torch.trainer import UpdateMetrics
from cadre.errors import DivergedError
from cadre.learn.batching import collate
from cadre.learn.loss_functions import Denominators
from cadre.learn.tensors import read
from cadre.learn.token_notes import TokenNotes
from cadre.settings import LearnerConfig, LoraConfig, LossConfig
from cadre.types import Sampling, Targets, TrainingSequence
from tests.cadre.engines import tiny
from tests.cadre.engines.tiny import datum, request, sample, update
from tests.cadre.learn.sequences import sequence
from tests.helpers.learners import rollouts, weights


def gradient(learner, data) -> dict[str, torch.Tensor]:
    """Return the gradients that the optimiser receives, captured in place of a step."""
    caught = {}
    (optimiser,) = (pair.weights for pair in learner.rank._optimisers.values())

    def catch(loss, norm):
        caught.update({name: weight.grad.clone() for name, weight in optimiser._parameters.items()})
        optimiser.clear()
        return 1.0

    optimiser.step = catch
    update(learner, data)
    del optimiser.step
    return caught


@pytest.mark.parametrize("budget", [1, 120, 400])
def test_micro_batches_do_not_change_the_gradient(learner, budget):
    data = rollouts(learner())
    full = gradient(learner(), data)
    cut = gradient(learner(tokens_per_microbatch=budget), data)
    assert all(torch.allclose(cut[name], value, atol=1e-6, rtol=1e-5) for name, value in full.items())
    assert max(float(value.abs().max()) for value in full.values()) > 1e-3


def test_checkpointing_does_not_change_the_gradient(learner):
    data = rollouts(learner())
    full, again = gradient(learner(), data), gradient(learner(gradient_checkpointing=True), data)
    assert all(torch.allclose(again[name], value, atol=1e-7) for name, value in full.items())


@pytest.mark.parametrize("checkpointing", [False, True])
def test_nothing_is_dropped_out_while_learning(learner, folders, tmp_path, checkpointing):
    """Mistake: a model whose config asks for dropout learns from log-probabilities that nobody sampled by."""
    shutil.copytree(folders["llama"], tmp_path / "dropping")
    config = json.loads((tmp_path / "dropping/config.json").read_text())
    (tmp_path / "dropping/config.json").write_text(json.dumps(config | {"attention_dropout": 0.5}))
    options = {"pack": "padded", "gradient_checkpointing": checkpointing}
    plain, dropping = learner(**options), learner(str(tmp_path / "dropping"), **options)
    assert dropping.engine.loaded.model.model.layers[0].self_attn.attention_dropout == 0.5
    data = rollouts(plain)
    expected, got = gradient(plain, data), gradient(dropping, data)
    assert all(torch.equal(got[name], value) for name, value in expected.items())
    assert max(float(value.abs().max()) for value in expected.values()) > 1e-3


def test_checkpointing_recomputes_and_sampling_goes_on(learner, monkeypatch):
    torch_learner = learner(gradient_checkpointing=True)
    data = rollouts(torch_learner)
    layer = torch_learner.engine.loaded.model.model.layers[0]
    calls = []
    monkeypatch.setattr(layer, "forward", lambda *a, f=layer.forward, **k: calls.append(1) or f(*a, **k))
    update(torch_learner, data)
    assert len(calls) == 3  # forward, once more in the backward pass, and the look at what came of it
    monkeypatch.undo()
    assert len(sample(torch_learner, request("x", 2))[0]) == 2
    assert not any(module.training for module in torch_learner.engine.loaded.model.modules())


def test_the_stop_token_is_trained_and_prompt_and_padding_are_not(learner):
    torch_learner = learner()
    prompt, long = (1, 2, 3), tuple(range(10, 40))
    short = TrainingSequence(
        "p",
        "r",
        (*prompt, 5, 259),
        (False,) * 3 + (True,) * 2,
        (0.0,) * 3 + (-5.0, -5.0),
        (0.0,) * 3 + (1.0, 1.0),
        0,
    )
    padding = TrainingSequence("p", "r", prompt + long, (False,) * 33, (0.0,) * 33, (0.0,) * 33, 0)
    batch = collate([short, padding], torch.device("cpu"))
    scores = Scorer(torch_learner.engine.loaded.model)(batch, Precision())
    logprobs, entropy = scores.logprobs, scores.entropy
    with torch.no_grad():
        scores = torch_learner.engine.loaded.model(batch.token_ids[:1, :5]).logits[0].log_softmax(-1)
    assert logprobs[0, 3:5].tolist() == pytest.approx([float(scores[2, 5]), float(scores[3, 259])], abs=1e-5)
    assert logprobs[0, :3].tolist() == [0.0] * 3
    assert not logprobs[0, 5:].any()
    assert not logprobs[1].any()
    assert entropy[0, 4] == pytest.approx(float(-(scores[3].exp() * scores[3]).sum()), abs=1e-4)

    # The gradient reaches the output rows of every token through the normaliser, so compare with the sum by hand.
    caught = gradient(torch_learner, [dataclasses.replace(short, logprobs=tuple(logprobs[0, :5].tolist()))])
    model = torch_learner.engine.loaded.model
    model.zero_grad()
    own_model = model(batch.token_ids[:1, :5]).logits[0].log_softmax(-1)
    (-(own_model[2, 5] + own_model[3, 259]) / 2).backward()
    assert all(torch.allclose(weight.grad, caught[name], atol=1e-6) for name, weight in model.named_parameters())


def test_log_probabilities_are_those_at_the_temperature_of_the_sample(learner):
    torch_learner = learner()
    (samples,) = sample(torch_learner, request("go", 4, 1, temperature=0.5))
    data = [dataclasses.replace(datum(sample, (-1.0) ** k), temperature=0.5) for k, sample in enumerate(samples)]
    assert update(torch_learner, data)["p"]["logprob_diff_max"] < 1e-4


def test_an_update_without_spread_moves_nothing(learner, monkeypatch):
    torch_learner = learner(learning_rate=1e-2)
    data = rollouts(torch_learner, advantage=lambda k: 0.0)
    initial_weights = weights(torch_learner)
    monkeypatch.setattr(type(torch_learner.engine.loaded.model), "forward", None)
    figures = update(torch_learner, data)["p"]
    assert (figures["updates"], figures["skipped"], figures["sequences"]) == (0, 0, 18)
    assert not torch_learner.rank._optimisers["p"].weights.moments()
    assert all(torch.equal(initial_weights[name], value) for name, value in weights(torch_learner).items())


def test_sequences_without_advantage_count_but_are_not_run(learner):
    torch_learner = learner()
    data = rollouts(torch_learner)
    idle = [dataclasses.replace(datum, advantages=(0.0,) * len(datum.advantages)) for datum in data]
    single, with_idle = gradient(torch_learner, data), gradient(torch_learner, data + idle)
    assert all(torch.allclose(with_idle[name], value / 2, atol=1e-6) for name, value in single.items())


def test_epochs_and_minibatches_make_steps(learner):
    torch_learner = learner(learning_rate=1e-3, epochs=2, minibatches=3)
    figures = update(torch_learner, rollouts(torch_learner))["p"]
    assert figures["updates"] == 6
    assert figures["ratio"] != 1.0
    assert sample(torch_learner, request("x"))[0][0].version == 1


def test_metrics_are_complete_and_plain(learner):
    torch_learner = learner(learning_rate=1e-3, warmup_steps=2)
    data = rollouts(torch_learner)
    figures = update(torch_learner, data)["p"]
    names = "loss entropy kl_to_sampler clip_fraction grad_norm learning_rate trained_tokens skipped sequences"
    assert set(names.split()) <= set(figures)
    assert all(type(value) in (int, float) and math.isfinite(value) for value in figures.values())
    assert figures["learning_rate"] == pytest.approx(5e-4)
    assert update(torch_learner, data)["p"]["learning_rate"] == pytest.approx(1e-3)
    assert figures["trained_tokens"] == sum(sum(datum.mask) for datum in data)


def test_an_aggregate_of_the_users_own_weighs_the_gradient(folders, tmp_path):
    """Three times the mean over tokens gives three times its gradient, also where a minibatch is cut."""
    (tmp_path / "mine.py").write_text("def thrice(length, whole):\n    return 3.0 / whole.tokens\n")
    results = {}
    for aggregate in ("token_mean", f"{tmp_path}/mine.py:thrice"):
        learner = LearnerConfig(tokens_per_microbatch=120)
        engine = tiny.engine(folders["llama"])
        single_learner = TorchLearner(engine, TrainingSettings({"p": learner}, LossConfig(aggregate=aggregate)))
        results[aggregate] = gradient(single_learner, rollouts(single_learner))
        single_learner.close()
    plain, thrice = results.values()
    assert all(torch.allclose(thrice[name], 3.0 * value, atol=1e-6) for name, value in plain.items())


def test_a_bonus_falls_with_the_policys_own_updates(folders):
    """Nothing but the bonus has a gradient; after 1 of 4 updates it is three quarters of what it was at first."""
    loss = LossConfig(entropy=0.5, schedule="linear")
    training = TrainingSettings({"p": LearnerConfig()}, loss, total_steps=4)
    single_learner = TorchLearner(tiny.engine(folders["llama"]), training)
    data = rollouts(single_learner, advantage=lambda k: 0.0)
    first, second = gradient(single_learner, data), gradient(single_learner, data)
    assert max(float(value.abs().max()) for value in first.values()) > 1e-3
    assert all(torch.allclose(second[name], 0.75 * value, atol=1e-7) for name, value in first.items())
    single_learner.close()


@pytest.mark.parametrize("entropy_tokens", [100, None])
def test_a_bonus_in_bfloat16_has_nearly_the_gradient_of_float32(folders, entropy_tokens):
    """Nothing but the bonus has a gradient; a forward in bfloat16 moves it by a few hundredths. Which tokens are the
    few likeliest may change in it, so many are taken.
    """
    results, data = {}, []
    for dtype in ("float32", "bfloat16"):
        loss = LossConfig(entropy=0.5, entropy_tokens=entropy_tokens)
        single_learner = TorchLearner(
            tiny.engine(folders["llama"], dtype=dtype), TrainingSettings({"p": LearnerConfig()}, loss)
        )
        data = data or rollouts(single_learner, advantage=lambda k: 0.0)
        results[dtype] = torch.cat([value.flatten() for value in gradient(single_learner, data).values()])
        single_learner.close()
    error = float((results["bfloat16"] - results["float32"]).norm() / results["float32"].norm())
    assert 0.0 < error < 0.05


def test_a_part_of_a_minibatch_weighs_by_the_denominators_of_the_whole(learner):
    """Gradients of two halves, each told what the whole holds, add up to the gradient of the whole."""
    torch_learner = learner()
    data = rollouts(torch_learner)
    full = {"p": Denominators.of(data)}
    optimiser, backward = torch_learner.rank._optimisers["p"].weights, torch_learner.rank._trainer._backward

    def added(*parts):
        losses = [backward(part, full, {"p": UpdateMetrics()})["p"].loss for part in parts]
        total = {name: weight.grad.clone() for name, weight in optimiser._parameters.items()}
        optimiser.clear()
        return sum(losses), total

    (loss, at_once), (halves, summed) = added(data), added(data[::2], data[1::2])
    assert halves == pytest.approx(loss, abs=1e-6)
    assert all(torch.allclose(summed[name], value, atol=1e-6) for name, value in at_once.items())
    assert max(float(value.abs().max()) for value in at_once.values()) > 1e-3


def test_equal_seeds_give_equal_weights_to_the_bit(learner):
    created = []
    for _ in range(2):
        torch_learner = learner(learning_rate=1e-2, minibatches=2)
        for _ in range(2):
            update(torch_learner, rollouts(torch_learner))
        created.append(weights(torch_learner))
    assert all(torch.equal(created[0][name], value) for name, value in created[1].items())


def test_three_updates_that_are_not_finite_stop_with_the_sequence_saved(learner, tmp_path):
    torch_learner = learner(learning_rate=1e-2, diverged_folder=tmp_path / "here")
    good = rollouts(torch_learner)
    bad = dataclasses.replace(good[4], advantages=(0.0,) * 5 + (math.nan,) * (len(good[4].advantages) - 5))
    initial_weights = weights(torch_learner)
    for count in (1, 2):
        figures = update(torch_learner, [*good, bad])["p"]
        assert (figures["skipped"], figures["updates"]) == (1, 0)
        assert torch_learner.rank._optimisers["p"].weights.skips == count
    with pytest.raises(DivergedError, match=str(tmp_path)) as caught:
        update(torch_learner, [*good, bad])
    (saved,) = (tmp_path / "here").iterdir()
    assert str(saved) in str(caught.value)
    assert json.loads(saved.read_text())["token_ids"] == list(bad.token_ids)
    assert all(value is None for value in json.loads(saved.read_text())["advantages"][5:])
    assert all(torch.equal(initial_weights[name], value) for name, value in weights(torch_learner).items())


def test_a_good_update_ends_the_count(learner):
    torch_learner = learner(learning_rate=1e-2)
    good = rollouts(torch_learner)
    bad = dataclasses.replace(good[0], logprobs=tuple(-math.inf for _ in good[0].logprobs))
    for _ in range(2):
        assert update(torch_learner, [bad])["p"]["skipped"] == 1
        assert update(torch_learner, [bad])["p"]["skipped"] == 1
        assert update(torch_learner, good)["p"]["updates"] == 1
    assert torch_learner.rank._optimisers["p"].weights.skipped == 4


def test_learns_which_token_is_rewarded(learner):
    torch_learner = learner(learning_rate=1e-2)
    (expected,) = tiny.byte_tokenizer()("b").input_ids
    shares = []
    for step in range(20):
        (samples,) = sample(torch_learner, request("Say b.", 256, step, max_tokens=1))
        rewards = [float(sample.token_ids[0] == expected) for sample in samples]
        mean, spread = statistics.mean(rewards), statistics.pstdev(rewards)
        update(
            torch_learner,
            [datum(sample, (reward - mean) / (spread or 1.0)) for sample, reward in zip(samples, rewards, strict=True)],
        )
        shares.append(mean)
    assert shares[0] < 0.1
    assert shares[-1] > 0.9


def test_greedy_evaluation_is_not_noise(learner):
    torch_learner = learner()
    first, second = sample(torch_learner, request("x", 1, 1, temperature=0.0), request("x", 2, 2, temperature=0.0))
    assert {sample.token_ids for sample in second} == {first[0].token_ids}
    assert Sampling(0.0).temperature == 0.0


def test_an_update_ends_where_its_kl_to_the_sampler_exceeds_the_bound(learner, engine):
    """Two epochs of one step each: the second is made within the bound, and beyond it the update is that of one."""
    data = rollouts(learner())

    def updated(epochs, bound):
        settings = {"p": LearnerConfig(epochs=epochs, learning_rate=1e-2)}
        single_learner = TorchLearner(engine(), TrainingSettings(settings, LossConfig(kl_bound=bound)))
        return update(single_learner, data)["p"], weights(single_learner), single_learner

    _, once, moved = updated(1, None)
    # k3 by hand: the mean of r - 1 - log r over the sampled tokens, r = pi / sampler after the first step.
    changed = moved.engine.work(moved.rank._runner.compute_logprobs, data)
    ratios = [
        new - old
        for sequence, numbers in zip(data, changed, strict=True)
        for new, old, inside in zip(numbers, sequence.logprobs, sequence.mask, strict=True)
        if inside
    ]
    kl = statistics.fmean(math.exp(ratio) - 1.0 - ratio for ratio in ratios)
    figures, stopped, _ = updated(2, kl * 0.99)
    assert figures["kl_checked"] == pytest.approx(kl, rel=1e-3)
    assert (figures["updates"], figures["kl_stopped"]) == (1, 1.0)
    assert all(torch.equal(once[name], value) for name, value in stopped.items())
    figures, inner, _ = updated(2, kl * 1.01)
    assert (figures["updates"], figures["kl_stopped"]) == (2, 0.0)
    assert not all(torch.equal(once[name], value) for name, value in inner.items())


@pytest.mark.parametrize(
    ("settings", "heads", "reads"), [({}, (), 3), ({"epochs": 4}, (), 6), ({}, ("joint",), 4)], ids=str
)
def test_an_update_reads_from_the_gpu_once_an_optimiser_step_and_twice_at_its_end(
    folders, monkeypatch, settings, heads, reads
):
    """Losses, norms and notes of a step; the check after the update (values are another read); metrics of all policies.

    Nothing else that an update computes on a GPU is turned into a Python number.
    """
    names = ("p", "q")
    policies = {name: tiny.policy(folders["llama"], lora=LoraConfig(rank=2)) for name in names}
    notes = TokenNotes(2)
    training = TrainingSettings(
        {name: LearnerConfig(**settings) for name in names},
        heads=dict.fromkeys(names, heads) if heads else {},
        notes=notes,
    )
    single_learner = TorchLearner(TorchEngine(folders["llama"], policies, 0), training)
    data = [
        dataclasses.replace(
            sequence((5, 6, 7, number), (False, True, True, True), name), position=(number, (), name, 0)
        )
        for number in range(4)
        for name in names
    ]
    if heads:
        data += [dataclasses.replace(datum, targets=Targets("joint", (3,), (1.0,), (0.0,))) for datum in data[:1]]
    recorded = []
    for module in (trainer, forward):
        monkeypatch.setattr(module, "read", lambda tensors: recorded.append(tensors) or read(tensors))
    metrics = update(single_learner, data)
    assert {metrics[name]["updates"] for name in names} == {reads - 2 - len(heads)}
    assert len(recorded) == reads
    assert len(notes.drain()) == 4
    single_learner.close()
