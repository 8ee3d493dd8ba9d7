"""A frozen model as a teacher: its log-probabilities are those of a plain forward, and policies come nearer to it."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from cadre.advantages.batch import make_sequence
from cadre.advantages.distillation import add_distillation
from cadre.advantages.returns import ScoredSample
from cadre.engines.text.model import check_same_vocabulary
from cadre.engines.torch.teacher import TorchTeacher
from cadre.errors import EngineError
from cadre.rollout.walk import TreeSample
from cadre.settings import TeacherConfig
from cadre.team import Team
from cadre.types import Node, Observation, Sampling
from tests.cadre.engines import tiny
from tests.cadre.engines.tiny import datum, request, sample, update
from tests.cadre.learn.sequences import sequence
from tests.helpers.plain_logprobs import plain_logprobs


def test_packed_scores_are_those_of_a_plain_forward_at_the_temperature_of_the_sampling(engine, folders):
    """The teacher's architecture is not the sampler's; a prompt that siblings share is run once."""
    samples = [first for group in sample(engine(), request("go", 3), request("gone", 2, key=2)) for first in group]
    teacher = TorchTeacher(engine("qwen3"), "p")
    plain = AutoModelForCausalLM.from_pretrained(folders["qwen3"])
    logprobs = teacher.logprobs([datum(sample, 0.0, temperature=0.7) for sample in samples])
    for item, numbers in zip(samples, logprobs, strict=True):
        assert numbers[: len(item.prompt_ids)] == (0.0,) * len(item.prompt_ids)
        expected = plain_logprobs(plain, item, 0.7).tolist()
        assert numbers[len(item.prompt_ids) :] == pytest.approx(expected, abs=1e-5)


def test_updates_towards_a_teacher_lower_the_divergence(learner, engine):
    """KL(policy || teacher) of the first token, summed over the vocabulary, before and after three updates."""
    torch_learner, other_torch_engine = learner(learning_rate=1e-2), engine("qwen3")
    teacher = TorchTeacher(other_torch_engine, "p")
    with torch.no_grad():
        other_torch_engine.loaded.model.get_output_embeddings().weight.mul_(-3.0)  # it prefers what the policy does not

    def divergence() -> float:
        prompt = torch.tensor([torch_learner.encode("p", request("go").messages)])
        with torch.no_grad():
            own_model, target = (
                side.loaded.model(prompt).logits[0, -1].log_softmax(-1)
                for side in (torch_learner.engine, other_torch_engine)
            )
        return float((own_model.exp() * (own_model - target)).sum())

    def scored(sampled) -> ScoredSample:
        observation = Observation("r", request("go").messages)
        return ScoredSample(TreeSample(0, (), (), Node(0, {"r": observation}, {"r": (sampled,)}, ()), "r", 0))

    team = Team({"r": "p"}, {}, {"r": Sampling()}, (torch_learner,), teacher=teacher)
    divergences = [divergence()]
    for key in range(3):
        (samples,) = sample(torch_learner, request("go", 64, key, max_tokens=1))
        taught, _ = add_distillation(list(map(scored, samples)), TeacherConfig(model="seed"), team)
        update(torch_learner, [make_sequence(item, 1.0) for item in taught])
        divergences.append(divergence())
    assert divergences[-1] < 0.8 * divergences[0]


def test_the_base_of_an_adapter_teaches_it_from_the_same_weights(folders):
    learner = tiny.team(folders["llama"], {"tool": 4}, frozen=("teacher",))
    data = [replace(sequence((1, 2, 3, 4), (False, True, True, True)), policy="tool")]
    for pair in learner.engine.loaded.adapters.parameters("tool").values():
        torch.nn.init.constant_(pair, 0.05)
    base = TorchTeacher(learner.engine, "teacher").logprobs(data)
    assert base == learner.reference_logprobs(data)
    assert learner.logprobs(data)[0][1:] != pytest.approx(base[0][1:], abs=1e-3)
    learner.close()


def test_a_vocabulary_that_differs_is_refused(engine, folders, speaker):
    teacher = TorchTeacher(engine(), "p")
    with pytest.raises(EngineError, match=r"embeddings for 260 tokens, and a policy sampled the token 900"):
        teacher.logprobs([sequence((1, 900), (False, True))])
    check_same_vocabulary("p", str(folders["llama"]), str(folders["qwen3"]))
    with pytest.raises(EngineError, match=r"token '<pad>' has id 0 in the tokenizer of policy p .* and 256 in"):
        check_same_vocabulary("p", str(speaker), str(folders["llama"]))
