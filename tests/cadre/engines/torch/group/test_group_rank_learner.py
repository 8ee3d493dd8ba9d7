"""Two ranks train as one process does: the same weights after ten steps, from and into the same checkpoints."""

import asyncio
import math
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex_attention
from transformers import AutoModelForCausalLM

from cadre.engines.torch import TrainingSettings, forward, logprobs, prefix_tree
from cadre.engines.torch.prefix_tree import TreeForm
from cadre.engines.torch.ranks import Ranks
from cadre.engines.torch.trainer import PATIENCE
from cadre.engines.vllm.weight_sync import read_tensors
from cadre.errors import DivergedError
from cadre.learn.loss import ValueHeads
from cadre.settings import LearnerConfig, LoraConfig, LossConfig
from cadre.team import Weights
from tests.cadre.engines.torch.group.pool import alone, data, part
from tests.helpers.slow import few_of

LORAS = {"p": LoraConfig(rank=4, alpha=8.0), "q": LoraConfig(rank=2, alpha=4.0)}
WHOLE = {"p": None}
STEPS = 10
# What the learner is told, the adapters, and the value heads.
CASES = {
    "whole, padded": ({"pack": "padded"}, WHOLE, {}),
    "whole, prefix tree, critic": ({"pack": "prefix_tree", "gradient_checkpointing": True}, WHOLE, {"p": ("h",)}),
    "a critic alone": ({"weight_decay": 0.1}, {"critic": None}, {"critic": ("h",)}),
    "two adapters, padded, critic": ({"pack": "padded"}, LORAS, {"q": ("h",)}),
    "two adapters, prefix tree": ({"pack": "prefix_tree", "minibatches": 2}, LORAS, {}),
}


def made(model, learner, loras=WHOLE, heads=None, **training):
    """What a group trains; a micro-batch holds only some of the data."""
    config = LearnerConfig(**{"learning_rate": 1e-4, "tokens_per_microbatch": 120, **learner})
    settings = TrainingSettings(dict.fromkeys(loras, config), heads=heads or {}, **training)
    return part(model, settings, loras)


def steps(learner, heads, count=STEPS, first=0):
    """So many updates; the metrics of the last, and then reference log-probabilities and values of fresh data."""
    for step in range(first, first + count):
        metrics = learner.update(data(learner.policies, step, heads))
        metrics = asyncio.run(metrics) if asyncio.iscoroutine(metrics) else metrics
    asked = data(learner.policies, 99, heads)
    return metrics, learner.reference_logprobs(asked), learner.values(asked) if heads else []


def ranked(make, part, into, out_of=None, count=STEPS, first=0):
    """In a rank: steps, from a checkpoint where there is one, and then a checkpoint and folders for use elsewhere."""
    learner = make(part)
    if out_of is not None:
        learner.load(out_of)
    results = steps(learner, part.training.heads, count, first)
    learner.save(into)
    for name in learner.policies:
        learner.export(name, into / "exported" / name, merge=part.engine.policies[name].lora is not None)
    return results


def weights(learner):
    """All that training changed, by policy and name."""
    moved = {}
    for name, optimiser in learner.rank._optimisers.items():
        parts = {
            **learner.engine.parameters(name),
            **optimiser.weights.moments(),
            **learner.rank._heads.parameters(name),
        }
        moved |= {f"{name}.{key}": value.detach().clone() for key, value in parts.items()}
    return moved


def apart(ones, others):
    assert ones.keys() == others.keys()
    return max(float((ones[key] - others[key]).detach().abs().max()) for key in ones)


def flat(answers):
    return [number for answer in answers for number in answer]


@pytest.mark.parametrize(
    ("case", "count"),
    [("whole, prefix tree, critic", 2), ("two adapters, padded, critic", 2)]
    + [pytest.param(case, STEPS, marks=pytest.mark.slow) for case in CASES],
)
def test_steps_of_two_ranks_equal_those_of_one_process(pool, folders, tmp_path, case, count):
    group = made(folders["qwen3"], *CASES[case])
    (metrics, reference, values), other = pool.run(ranked, group, tmp_path, None, count)
    assert other[1:] == (reference, values)

    one = alone(group)
    start = weights(one)
    known_metrics, known_reference, known_values = steps(one, group.training.heads, count)
    trained = weights(one)
    assert max(float((trained[key] - value).abs().max()) for key, value in start.items()) > count * 5e-5
    assert flat(reference) == pytest.approx(flat(known_reference), abs=1e-5)
    assert flat(values) == pytest.approx(flat(known_values), abs=1e-5)
    for name, known in known_metrics.items():
        same = {key: value for key, value in known.items() if key != "tokens_per_s"}
        assert {key: metrics[name][key] for key in same} == pytest.approx(same, rel=1e-4, abs=1e-5)

    one.load(tmp_path)
    assert apart(trained, weights(one)) < 1e-5
    one.close()


# What only a GPU does. Each prepares a rank's learner, and returns what counts how often it was done.


def compile_layers(patch, learner):
    """Layers traced as a GPU compiles them."""
    patch.setattr(torch_flex_attention, "_validate_device", lambda *_: None)
    patch.setattr(forward, "MIN_COMPILED", 0)
    layer = torch.compile(prefix_tree._run_layer, backend="aot_eager")
    patch.setattr(prefix_tree, "_compiled_layer", lambda: layer)
    learner._runner._precision = replace(learner._runner._precision, form=TreeForm(True, True))
    graphs = torch._dynamo.utils.counters["stats"]
    initial = graphs["unique_graphs"]
    return lambda: graphs["unique_graphs"] - initial


def fuse(patch, learner):
    """The fused vocabulary projection and the fused AdamW."""
    fused, calls = logprobs.fused_logprobs, []

    def compute(model, states, query, entropy_tokens=0):
        assert logprobs.can_fuse(model)
        blank = torch.zeros(len(query.tokens))
        if not len(query.tokens):
            return blank, blank
        calls.append(query)
        outputs = fused(model, states, query, entropy_gradient=entropy_tokens > 0)
        return tuple(blank.index_put((query.order,), output) for output in outputs)

    patch.setattr(forward, "compute_token_logprobs", compute)
    for optimiser in learner._optimisers.values():
        adam = optimiser.weights._adam
        optimiser.weights._adam = torch.optim.AdamW(adam.param_groups, fused=True, foreach=False)
    return lambda: len(calls)


PREPARE = {"fused": fuse, "compiled": compile_layers}


def prepared(make, part, into, count, how):
    """In a rank: steps of a learner that was prepared, how often that took effect, and a checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        torch._dynamo.reset()
        learner = make(part)
        done = PREPARE[how](patch, learner)
        results = steps(learner, part.training.heads, count)
        learner.save(into)
        effect = done()
        torch._dynamo.reset()
        return results, effect


CRITIC = {"p": ("h",)}


@pytest.mark.parametrize(
    ("how", "ranks", "loras", "heads"),
    few_of(
        [
            ("fused", 2, LORAS, {}),
            ("fused", 4, WHOLE, CRITIC),
            ("compiled", 2, LORAS, {}),
            ("compiled", 4, WHOLE, CRITIC),
        ],
        [("fused", 2, LORAS, {})],
    ),
)
def test_what_a_gpu_does_on_ranks_equals_a_plain_process(
    four, folders, tmp_path, record_property, how, ranks, loras, heads
):
    # The correction asks for log-probabilities before the update.
    loss = LossConfig(correction="truncate")
    group = made(folders["qwen3"], {"pack": "prefix_tree", "tokens_per_microbatch": "auto"}, loras, heads, loss=loss)
    answers = four.run(prepared, group, tmp_path, 3, how, ranks=ranks)
    (metrics, reference, values), _ = answers[0]
    for results, effect in answers:
        assert results[1:] == (reference, values)
        # Graphs: one region for all layers.
        assert 1 <= effect <= (8 if how == "compiled" else 100)
    one = alone(group)
    known_metrics, known_reference, known_values = steps(one, heads, 3)
    assert flat(reference) == pytest.approx(flat(known_reference), abs=1e-5)
    assert flat(values) == pytest.approx(flat(known_values), abs=1e-5)
    for name, known in known_metrics.items():
        same = {key: value for key, value in known.items() if key != "tokens_per_s"}
        assert {key: metrics[name][key] for key in same} == pytest.approx(same, rel=1e-4, abs=1e-5)
    trained = weights(one)
    one.load(tmp_path)
    record_property(f"fsdp2.vs_single.{how}.max_diff", apart(trained, weights(one)))
    assert apart(trained, weights(one)) < 1e-5
    one.close()


def test_ranks_with_a_gpu_each_run_what_one_gpu_runs(engine):
    """Their model is on the CPU when the forms are chosen, and whole."""
    loaded, heads = engine("qwen3").loaded, ValueHeads({}, 0, torch.device("cpu"))
    for device, form in (("cuda", TreeForm(True, True)), ("cpu", TreeForm())):
        ranks = Ranks(0, 2, torch.device(device))
        runner = forward.MicroBatchRunner(loaded, torch.float32, heads, [LearnerConfig()], ranks)
        assert (runner._precision.form, runner._is_open) == (form, device == "cuda")
        assert runner._packing == ("prefix_tree" if device == "cuda" else "auto")


def test_a_checkpoint_loads_at_one_and_two_ranks_and_in_a_process_alone(pool, folders, tmp_path):
    group = made(folders["qwen3"], {})
    pool.run(ranked, group, tmp_path / "three", None, 3)
    for written in (tmp_path / "three/p", tmp_path / "three/p/optimiser"):
        assert len(list(written.glob("shard-*.safetensors"))) == 2
        (written / ".metadata").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))

    for ranks, folder in ((2, "two"), (1, "one")):
        pool.run(ranked, group, tmp_path / folder, tmp_path / "three", 2, 3, ranks=ranks)
    plain, known = alone(group), alone(group)
    plain.load(tmp_path / "three")
    sent = read_tensors(Weights("p", 3, tmp_path / "three/p"))
    assert apart(sent, plain.engine.parameters("p")) == 0.0
    steps(plain, {}, 2, 3)
    plain.save(tmp_path / "plain")
    pool.run(ranked, group, tmp_path / "back", tmp_path / "plain", 1, 5)
    assert not (tmp_path / "exploded").exists()

    steps(known, {}, 5)
    for folder in ("two", "one", "plain"):
        plain.load(tmp_path / folder)
        assert apart(weights(known), weights(plain)) < 1e-5
        assert plain.rank._optimisers["p"].updates == 5
    steps(known, {}, 1, 5)
    plain.load(tmp_path / "back")
    assert apart(weights(known), weights(plain)) < 1e-5

    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "back/exported/p")
    assert apart(dict(exported.named_parameters()), plain.engine.parameters("p")) == 0.0
    plain.close()
    known.close()


def copied(make, part, source, target):
    """In a rank: a checkpoint that is loaded and saved."""
    learner = make(part)
    learner.load(source)
    learner.save(target)


@pytest.mark.slow
def test_four_ranks_two_and_one_hand_a_checkpoint_on_to_the_bit(four, folders, tmp_path):
    group = made(folders["qwen3"], {})
    four.run(ranked, group, tmp_path / "4", None, 2, ranks=4)
    for source, ranks in ((4, 2), (2, 1)):
        four.run(copied, group, tmp_path / str(source), tmp_path / str(ranks), ranks=ranks)
    one = alone(group)
    states = []
    for ranks in (4, 2, 1):
        folder = tmp_path / str(ranks)
        assert len(list((folder / "p/optimiser").glob("shard-*.safetensors"))) == ranks
        one.load(folder)
        states.append((weights(one), (folder / "p/optimiser/optimiser.json").read_bytes()))
    assert all(apart(states[0][0], moved) == 0.0 and states[0][1] == counters for moved, counters in states)
    assert any("exp_avg_sq" in name and bool(value.any()) for name, value in states[0][0].items())
    one.close()


def scores(learner):
    """Log-probabilities of fresh data under the reference, and under the policies as they are."""
    asked = data(learner.policies, 99)
    return learner.reference_logprobs(asked), learner.logprobs(asked)


def scored(make, part):
    """In a rank: these of a learner after one update."""
    learner = make(part)
    learner.update(data(learner.policies, 7))
    return scores(learner)


@pytest.mark.slow  # test_training_kl_reference.py and test_training_distillation.py have a process alone
@pytest.mark.parametrize("loras", [WHOLE, LORAS], ids=["whole", "adapters"])
def test_ranks_score_by_the_start_of_training_and_by_the_present_as_one_process_does(pool, folders, tmp_path, loras):
    """What `kl.reference: start` and a teacher of the policy itself ask for."""
    earlier = alone(made(folders["qwen3"], {"learning_rate": 1e-2}, loras))
    steps(earlier, {}, 2)
    for name in loras:
        earlier.export(name, tmp_path / name)
    earlier.close()
    group = made(folders["qwen3"], {}, loras, start={name: str(tmp_path / name) for name in loras})
    (reference, present), other = pool.run(scored, group)
    assert other == (reference, present)

    one = alone(group)
    asyncio.run(one.update(data(one.policies, 7)))
    known_reference, known_present = scores(one)
    assert flat(reference) == pytest.approx(flat(known_reference), abs=1e-5)
    assert flat(present) == pytest.approx(flat(known_present), abs=1e-5)
    base = alone(made(folders["qwen3"], {}, loras))
    assert flat(reference) != pytest.approx(flat(base.reference_logprobs(data(base.policies, 99))), abs=1e-3)
    for learner in (one, base):
        learner.close()


class Bomb:
    """What unpickling it would leave behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def with_little(make, part, bad):
    """In a rank: an update of one sequence, and then of one at fault among three."""
    learner = make(part)
    few = data()
    metrics = learner.update(few[:1])
    for _ in range(PATIENCE - 1):
        learner.update([*few[:2], bad])
    with pytest.raises(DivergedError) as raised:
        learner.update([*few[:2], bad])
    return metrics["p"]["updates"], str(raised.value)


def test_ranks_without_data_take_part_and_all_of_them_meet_what_one_meets(pool, folders):
    group = made(folders["llama"], {})
    bad = data(step=7)[0]
    bad = replace(bad, advantages=tuple(math.inf * kept if kept else 0.0 for kept in bad.mask))
    (updates, told), other = pool.run(with_little, group, bad)
    assert (updates, told) == other
    assert updates == 1
    assert "3 optimiser steps in a row" in told


def nothing_to_learn(make, part):
    """In a rank: an update of sequences without a gradient, one of nothing at all, and the schedules after both."""
    learner = make(part)
    still = [replace(one, advantages=tuple(0.0 for _ in one.advantages)) for one in data()]
    learner.update(still)
    learner.update([])
    return learner._optimisers["p"].updates


def test_ranks_meet_an_update_in_which_there_is_nothing_to_learn(pool, folders):
    """Mistake: an idle micro-batch made of the first of no sequences, where a correction asks for log-probabilities."""
    loss = LossConfig(correction="truncate")
    assert pool.run(nothing_to_learn, made(folders["llama"], {}, loss=loss)) == [2, 2]
