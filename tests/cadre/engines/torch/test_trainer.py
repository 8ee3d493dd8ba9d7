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
    """What the optimiser is given: caught in place of a step."""
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
    whole = gradient(learner(), data)
    cut = gradient(learner(tokens_per_microbatch=budget), data)
    assert all(torch.allclose(cut[name], value, atol=1e-6, rtol=1e-5) for name, value in whole.items())
    assert max(float(value.abs().max()) for value in whole.values()) > 1e-3


def test_checkpointing_does_not_change_the_gradient(learner):
    data = rollouts(learner())
    whole, again = gradient(learner(), data), gradient(learner(gradient_checkpointing=True), data)
    assert all(torch.allclose(again[name], value, atol=1e-7) for name, value in whole.items())


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
    wanted, got = gradient(plain, data), gradient(dropping, data)
    assert all(torch.equal(got[name], value) for name, value in wanted.items())
    assert max(float(value.abs().max()) for value in wanted.values()) > 1e-3


def test_checkpointing_recomputes_and_sampling_goes_on(learner, monkeypatch):
    mine = learner(gradient_checkpointing=True)
    data = rollouts(mine)
    layer = mine.engine.loaded.model.model.layers[0]
    calls = []
    monkeypatch.setattr(layer, "forward", lambda *a, f=layer.forward, **k: calls.append(1) or f(*a, **k))
    update(mine, data)
    assert len(calls) == 3  # forward, once more in the backward pass, and the look at what came of it
    monkeypatch.undo()
    assert len(sample(mine, request("x", 2))[0]) == 2
    assert not any(module.training for module in mine.engine.loaded.model.modules())


def test_the_stop_token_is_trained_and_prompt_and_padding_are_not(learner):
    mine = learner()
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
    scores = Scorer(mine.engine.loaded.model)(batch, Precision())
    logprobs, entropy = scores.logprobs, scores.entropy
    with torch.no_grad():
        scores = mine.engine.loaded.model(batch.token_ids[:1, :5]).logits[0].log_softmax(-1)
    assert logprobs[0, 3:5].tolist() == pytest.approx([float(scores[2, 5]), float(scores[3, 259])], abs=1e-5)
    assert logprobs[0, :3].tolist() == [0.0] * 3
    assert not logprobs[0, 5:].any()
    assert not logprobs[1].any()
    assert entropy[0, 4] == pytest.approx(float(-(scores[3].exp() * scores[3]).sum()), abs=1e-4)

    # The gradient reaches the output rows of every token through the normaliser, so compare with the sum by hand.
    caught = gradient(mine, [dataclasses.replace(short, logprobs=tuple(logprobs[0, :5].tolist()))])
    model = mine.engine.loaded.model
    model.zero_grad()
    own = model(batch.token_ids[:1, :5]).logits[0].log_softmax(-1)
    (-(own[2, 5] + own[3, 259]) / 2).backward()
    assert all(torch.allclose(weight.grad, caught[name], atol=1e-6) for name, weight in model.named_parameters())


def test_log_probabilities_are_those_at_the_temperature_of_the_sample(learner):
    mine = learner()
    (drawn,) = sample(mine, request("go", 4, 1, temperature=0.5))
    data = [dataclasses.replace(datum(one, (-1.0) ** k), temperature=0.5) for k, one in enumerate(drawn)]
    assert update(mine, data)["p"]["logprob_diff_max"] < 1e-4


def test_an_update_without_spread_moves_nothing(learner, monkeypatch):
    mine = learner(learning_rate=1e-2)
    data = rollouts(mine, advantage=lambda k: 0.0)
    before = weights(mine)
    monkeypatch.setattr(type(mine.engine.loaded.model), "forward", None)
    figures = update(mine, data)["p"]
    assert (figures["updates"], figures["skipped"], figures["sequences"]) == (0, 0, 18)
    assert not mine.rank._optimisers["p"].weights.moments()
    assert all(torch.equal(before[name], value) for name, value in weights(mine).items())


def test_sequences_without_advantage_count_but_are_not_run(learner):
    mine = learner()
    data = rollouts(mine)
    idle = [dataclasses.replace(one, advantages=(0.0,) * len(one.advantages)) for one in data]
    alone, beside = gradient(mine, data), gradient(mine, data + idle)
    assert all(torch.allclose(beside[name], value / 2, atol=1e-6) for name, value in alone.items())


def test_epochs_and_minibatches_make_steps(learner):
    mine = learner(learning_rate=1e-3, epochs=2, minibatches=3)
    figures = update(mine, rollouts(mine))["p"]
    assert figures["updates"] == 6
    assert figures["ratio"] != 1.0
    assert sample(mine, request("x"))[0][0].version == 1


def test_metrics_are_complete_and_plain(learner):
    mine = learner(learning_rate=1e-3, warmup_steps=2)
    data = rollouts(mine)
    figures = update(mine, data)["p"]
    names = "loss entropy kl_to_sampler clip_fraction grad_norm learning_rate trained_tokens skipped sequences"
    assert set(names.split()) <= set(figures)
    assert all(type(value) in (int, float) and math.isfinite(value) for value in figures.values())
    assert figures["learning_rate"] == pytest.approx(5e-4)
    assert update(mine, data)["p"]["learning_rate"] == pytest.approx(1e-3)
    assert figures["trained_tokens"] == sum(sum(one.mask) for one in data)


def test_an_aggregate_of_the_users_own_weighs_the_gradient(folders, tmp_path):
    """Three times the mean over tokens gives three times its gradient, also where a minibatch is cut."""
    (tmp_path / "mine.py").write_text("def thrice(length, whole):\n    return 3.0 / whole.tokens\n")
    found = {}
    for aggregate in ("token_mean", f"{tmp_path}/mine.py:thrice"):
        learner = LearnerConfig(tokens_per_microbatch=120)
        engine = tiny.engine(folders["llama"])
        mine = TorchLearner(engine, TrainingSettings({"p": learner}, LossConfig(aggregate=aggregate)))
        found[aggregate] = gradient(mine, rollouts(mine))
        mine.close()
    plain, thrice = found.values()
    assert all(torch.allclose(thrice[name], 3.0 * value, atol=1e-6) for name, value in plain.items())


def test_a_bonus_falls_with_the_policys_own_updates(folders):
    """Nothing but the bonus has a gradient; after 1 of 4 updates it is three quarters of what it was at first."""
    loss = LossConfig(entropy=0.5, schedule="linear")
    training = TrainingSettings({"p": LearnerConfig()}, loss, total_steps=4)
    mine = TorchLearner(tiny.engine(folders["llama"]), training)
    data = rollouts(mine, advantage=lambda k: 0.0)
    first, second = gradient(mine, data), gradient(mine, data)
    assert max(float(value.abs().max()) for value in first.values()) > 1e-3
    assert all(torch.allclose(second[name], 0.75 * value, atol=1e-7) for name, value in first.items())
    mine.close()


@pytest.mark.parametrize("entropy_tokens", [100, None])
def test_a_bonus_in_bfloat16_has_nearly_the_gradient_of_float32(folders, entropy_tokens):
    """Nothing but the bonus has a gradient; a forward in bfloat16 moves it by a few hundredths. Which tokens are the
    few likeliest may change in it, so many are taken.
    """
    found, data = {}, []
    for dtype in ("float32", "bfloat16"):
        loss = LossConfig(entropy=0.5, entropy_tokens=entropy_tokens)
        mine = TorchLearner(tiny.engine(folders["llama"], dtype=dtype), TrainingSettings({"p": LearnerConfig()}, loss))
        data = data or rollouts(mine, advantage=lambda k: 0.0)
        found[dtype] = torch.cat([value.flatten() for value in gradient(mine, data).values()])
        mine.close()
    error = float((found["bfloat16"] - found["float32"]).norm() / found["float32"].norm())
    assert 0.0 < error < 0.05


def test_a_part_of_a_minibatch_weighs_by_the_denominators_of_the_whole(learner):
    """Gradients of two halves, each told what the whole holds, add up to the gradient of the whole."""
    mine = learner()
    data = rollouts(mine)
    whole = {"p": Denominators.of(data)}
    optimiser, backward = mine.rank._optimisers["p"].weights, mine.rank._trainer._backward

    def added(*parts):
        losses = [backward(part, whole, {"p": UpdateMetrics()})["p"][0] for part in parts]
        total = {name: weight.grad.clone() for name, weight in optimiser._parameters.items()}
        optimiser.clear()
        return sum(losses), total

    (loss, at_once), (halves, summed) = added(data), added(data[::2], data[1::2])
    assert halves == pytest.approx(loss, abs=1e-6)
    assert all(torch.allclose(summed[name], value, atol=1e-6) for name, value in at_once.items())
    assert max(float(value.abs().max()) for value in at_once.values()) > 1e-3


def test_equal_seeds_give_equal_weights_to_the_bit(learner):
    made = []
    for _ in range(2):
        mine = learner(learning_rate=1e-2, minibatches=2)
        for _ in range(2):
            update(mine, rollouts(mine))
        made.append(weights(mine))
    assert all(torch.equal(made[0][name], value) for name, value in made[1].items())


def test_three_updates_that_are_not_finite_stop(learner):
    mine = learner(learning_rate=1e-2)
    good = rollouts(mine)
    bad = dataclasses.replace(good[4], advantages=(0.0,) * 5 + (math.nan,) * (len(good[4].advantages) - 5))
    before = weights(mine)
    for count in (1, 2):
        figures = update(mine, [*good, bad])["p"]
        assert (figures["skipped"], figures["updates"]) == (1, 0)
        assert mine.rank._optimisers["p"].weights.skips == count
    with pytest.raises(DivergedError, match="3 optimiser steps in a row"):
        update(mine, [*good, bad])
    assert all(torch.equal(before[name], value) for name, value in weights(mine).items())


def test_a_good_update_ends_the_count(learner):
    mine = learner(learning_rate=1e-2)
    good = rollouts(mine)
    bad = dataclasses.replace(good[0], logprobs=tuple(-math.inf for _ in good[0].logprobs))
    for _ in range(2):
        assert update(mine, [bad])["p"]["skipped"] == 1
        assert update(mine, [bad])["p"]["skipped"] == 1
        assert update(mine, good)["p"]["updates"] == 1
    assert mine.rank._optimisers["p"].weights.skipped == 4


def test_learns_which_token_is_rewarded(learner):
    mine = learner(learning_rate=1e-2)
    (wanted,) = tiny.byte_tokenizer()("b").input_ids
    shares = []
    for step in range(20):
        (drawn,) = sample(mine, request("Say b.", 256, step, max_tokens=1))
        rewards = [float(one.token_ids[0] == wanted) for one in drawn]
        mean, spread = statistics.mean(rewards), statistics.pstdev(rewards)
        update(
            mine, [datum(one, (reward - mean) / (spread or 1.0)) for one, reward in zip(drawn, rewards, strict=True)]
        )
        shares.append(mean)
    assert shares[0] < 0.1
    assert shares[-1] > 0.9


def test_greedy_evaluation_is_not_noise(learner):
    mine = learner()
    first, second = sample(mine, request("x", 1, 1, temperature=0.0), request("x", 2, 2, temperature=0.0))
    assert {one.token_ids for one in second} == {first[0].token_ids}
    assert Sampling(0.0).temperature == 0.0


def test_an_update_ends_where_its_kl_to_the_sampler_exceeds_the_bound(learner, engine):
    """Two epochs of one step each: the second is made within the bound, and beyond it the update is that of one."""
    data = rollouts(learner())

    def updated(epochs, bound):
        settings = {"p": LearnerConfig(epochs=epochs, learning_rate=1e-2)}
        mine = TorchLearner(engine(), TrainingSettings(settings, LossConfig(kl_bound=bound)))
        return update(mine, data)["p"], weights(mine), mine

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
    figures, within, _ = updated(2, kl * 1.01)
    assert (figures["updates"], figures["kl_stopped"]) == (2, 0.0)
    assert not all(torch.equal(once[name], value) for name, value in within.items())


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
    mine = TorchLearner(TorchEngine(folders["llama"], policies, 0), training)
    data = [
        dataclasses.replace(
            sequence((5, 6, 7, number), (False, True, True, True), name), position=(number, (), name, 0)
        )
        for number in range(4)
        for name in names
    ]
    if heads:
        data += [dataclasses.replace(one, targets=Targets("joint", (3,), (1.0,), (0.0,))) for one in data[:1]]
    seen = []
    for module in (trainer, forward):
        monkeypatch.setattr(module, "read", lambda tensors: seen.append(tensors) or read(tensors))
    metrics = update(mine, data)
    assert {metrics[name]["updates"] for name in names} == {reads - 2 - len(heads)}
    assert len(seen) == reads
    assert len(notes.drain()) == 4
    mine.close()
