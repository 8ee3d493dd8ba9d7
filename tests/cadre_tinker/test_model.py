"""Forward and backward passes, steps and files are those of PEFT and plain torch, and a run is another's never."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from cadre.engines.torch import storage
from cadre.errors import EngineError, RunError
from cadre_tinker.model import TinkerModel, TrainingRun
from cadre_tinker.requests import AdamParams
from cadre_tinker.wire import Datum, TrainingRequest
from tests.cadre.engines import tiny

peft = pytest.importorskip("peft")
TOKENS = torch.tensor([[5, 9, 200, 31, 7], [8, 8, 3, 100, 101]])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinkerModel]:
    folder = tmp_path_factory.mktemp("model")
    built = TinkerModel(tiny.policy(tiny.build(folder / "tiny"), frozen=True), ["tiny"], folder / "state")
    built.state.mkdir()
    yield built
    built.engine.close()


def new_run(model: TinkerModel, name: str, seed: int = 1) -> TrainingRun:
    return model.create_run(name, model.select_lora(4, True, True), seed)


def request(loss: str = "cross_entropy", forward_only: bool = False, scale: float = 1.0) -> TrainingRequest:
    weights = scale * torch.tensor([1.0, 0.0, -0.5, 2.0])
    name = {"weights": weights} if loss == "cross_entropy" else {"logprobs": torch.zeros(4) - 2, "advantages": weights}
    data = [Datum(row[:-1], {"target_tokens": row[1:], **name}) for row in TOKENS]
    return TrainingRequest(
        loss, {}, [*data, Datum(data[0].tokens[:2], {k: v[:2] for k, v in data[0].inputs.items()})], forward_only
    )


def loss_of(logprobs: list[torch.Tensor], loss: str) -> torch.Tensor:
    weights = torch.tensor([1.0, 0.0, -0.5, 2.0])
    if loss == "cross_entropy":
        return sum(-(one * weights[: len(one)]).sum() for one in logprobs)
    return sum(-((one + 2).exp() * weights[: len(one)]).sum() for one in logprobs)


def test_training_is_that_of_peft(model: TinkerModel) -> None:
    """Two forward_backward add up, a step of AdamW with a weight decay and a clipped norm, and the same again."""
    run = new_run(model, "parity")
    folder = model.state / "parity" / "weights" / "start"
    model.save(run, folder, with_moments=True, overwrite=False)
    base = AutoModelForCausalLM.from_pretrained(model.loaded.source)
    reference = peft.PeftModel.from_pretrained(base, str(folder), is_trainable=True)
    weights = [weight for weight in reference.parameters() if weight.requires_grad]
    adam = torch.optim.AdamW(weights, lr=1e-3, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)
    for _ in range(2):
        for loss in ("cross_entropy", "importance_sampling"):
            logprobs = [
                reference(row[None, :-1]).logits[0].log_softmax(-1).gather(1, row[1:, None])[:, 0]
                for row in (*TOKENS, TOKENS[0, :3])
            ]
            outputs, metrics = model.forward_backward(run, request(loss))
            expected = loss_of(logprobs, loss)
            expected.backward()
            assert metrics == {"loss:sum": pytest.approx(float(expected.detach()), rel=1e-5)}
            for got, one in zip(outputs, logprobs, strict=True):
                torch.testing.assert_close(got, one.detach(), atol=1e-5, rtol=0)
        norm = float(torch.nn.utils.clip_grad_norm_(weights, 1.0))
        adam.step()
        adam.zero_grad()
        params = AdamParams(learning_rate=1e-3, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.1, grad_clip_norm=1.0)
        assert norm > 1.0
        assert model.optim_step(run, params) == {"unclipped_grad_l2:mean": pytest.approx(norm, rel=1e-5)}
    own = model.loaded.adapters.parameters("parity")
    theirs = {name.removeprefix("base_model.model."): w for name, w in reference.named_parameters() if w.requires_grad}
    for name, weight in own.items():
        torch.testing.assert_close(weight, theirs[name.replace(".weight", ".default.weight")], atol=1e-5, rtol=0)


def test_targets_may_be_any_tokens_and_several_a_position(model: TinkerModel) -> None:
    """Tinker's targets need not be the next tokens: a teacher's likeliest K are [T, K]."""
    run = new_run(model, "targets")
    targets = torch.tensor([[1, 2], [3, 4], [250, 0]])
    plain = AutoModelForCausalLM.from_pretrained(model.loaded.source)(TOKENS[:1, :3]).logits[0].log_softmax(-1)
    datum = Datum(TOKENS[0, :3], {"target_tokens": targets})
    (output,), _ = model.forward_backward(run, TrainingRequest("cross_entropy", {}, [datum], True))
    torch.testing.assert_close(output, plain.detach().gather(1, targets), atol=1e-5, rtol=0)


def test_a_forward_pass_alone_adds_no_gradient(model: TinkerModel) -> None:
    run = new_run(model, "forward")
    passed, _ = model.forward_backward(run, request(forward_only=True))
    with pytest.raises(EngineError, match="optim_step: got no forward_backward since the last one"):
        model.optim_step(run, AdamParams())
    trained, _ = model.forward_backward(run, request())
    assert all(torch.equal(one, other) for one, other in zip(passed, trained, strict=True))
    model.optim_step(run, AdamParams())


def test_runs_do_not_touch_each_other(model: TinkerModel) -> None:
    """The same training alone and between another run's steps gives the same weights, to the bit."""
    alone, between, other = (new_run(model, name) for name in ("alone", "between", "other"))
    for run in (alone, between):
        for step in range(2):
            model.forward_backward(run, request())
            if run is between:
                model.forward_backward(other, request(scale=3.0))
                model.optim_step(other, AdamParams(learning_rate=0.5))
            model.optim_step(run, AdamParams(learning_rate=0.01 * (step + 1)))
    adapters = model.loaded.adapters
    pairs = zip(adapters.parameters("alone").values(), adapters.parameters("between").values(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)
    assert not torch.equal(
        next(iter(adapters.parameters("other").values())), next(iter(adapters.parameters("alone").values()))
    )


def test_equal_seeds_draw_equal_adapters(model: TinkerModel) -> None:
    names = ("seed-a", "seed-b", "seed-c")
    for name, seed in zip(names, (7, 7, 8), strict=True):
        new_run(model, name, seed)
    first, same, other = (next(iter(model.loaded.adapters.parameters(name).values())) for name in names)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_a_loaded_run_goes_on_to_the_bit(model: TinkerModel) -> None:
    """With the moments as if it had not stopped, without them as after a new start of AdamW."""
    run = new_run(model, "saved")
    folder = model.state / "saved" / "weights" / "one"
    model.forward_backward(run, request())
    model.optim_step(run, AdamParams(learning_rate=0.01))
    model.save(run, folder, with_moments=True, overwrite=False)
    assert sorted(path.name for path in folder.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "optimizer.safetensors",
    ]
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    again, fresh = (model.load_run(name, folder, with_moments=name == "again") for name in ("again", "fresh"))
    for one in (run, again, fresh):
        model.forward_backward(one, request(scale=-1.0))
        model.optim_step(one, AdamParams(learning_rate=0.01))
    own, same, other = (model.loaded.adapters.parameters(name) for name in ("saved", "again", "fresh"))
    assert all(torch.equal(own[name], same[name]) for name in own)
    assert not all(torch.equal(own[name], other[name]) for name in own)


def test_a_checkpoint_is_replaced_only_if_that_is_asked_for(
    model: TinkerModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, folder = new_run(model, "twice"), model.state / "twice" / "sampler_weights" / "one"
    model.save(run, folder, with_moments=False, overwrite=False)
    before = load_file(folder / "adapter_model.safetensors")
    model.forward_backward(run, request())
    model.optim_step(run, AdamParams(learning_rate=0.01))
    with pytest.raises(RunError, match="it exists by now"):
        model.save(run, folder, with_moments=False, overwrite=False)
    model.save(run, folder, with_moments=False, overwrite=True)
    after = load_file(folder / "adapter_model.safetensors")
    assert any(not torch.equal(before[name], after[name]) for name in before)
    monkeypatch.setattr(storage, "write_adapter", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.save(run, folder, with_moments=False, overwrite=True)
    assert (folder / "adapter_model.safetensors").exists()


def test_what_is_no_checkpoint_of_the_model_is_not_loaded(model: TinkerModel, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="got no checkpoint here"):
        model.read_lora(tmp_path)
    run, folder = new_run(model, "foreign"), model.state / "foreign" / "weights" / "one"
    model.save(run, folder, with_moments=True, overwrite=False)
    about = folder / "adapter_config.json"
    about.write_text(about.read_text().replace(model.loaded.source, "another"))
    with pytest.raises(EngineError, match="got weights of another, and this server has tiny"):
        model.load_run("foreign-2", folder, with_moments=True)


def test_a_loss_that_is_not_finite_moves_nothing(model: TinkerModel) -> None:
    run = new_run(model, "diverged")
    model.forward_backward(run, request())
    far = {"logprobs": torch.full((4,), -3e38), "advantages": torch.zeros(4)}
    data = [Datum(TOKENS[0, :4], {"target_tokens": TOKENS[0, 1:], **far})]
    with pytest.raises(EngineError, match="the loss is nan"):
        model.forward_backward(run, TrainingRequest("importance_sampling", {}, data, False))
    with pytest.raises(EngineError, match="got no forward_backward"):
        model.optim_step(run, AdamParams())


def test_a_pass_that_fails_halfway_leaves_no_gradient(model: TinkerModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mistake: the client sends the data again, and the first part of them counts twice."""
    run = new_run(model, "halfway")

    def out_of_memory(*_: object) -> Iterator[object]:
        yield next(forward([(run.id, datum) for datum in request().data]))
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        forward = model._forward
        patch.setattr(model, "_forward", out_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            model.forward_backward(run, request())
    with pytest.raises(EngineError, match="got no forward_backward"):
        model.optim_step(run, AdamParams())


@pytest.mark.parametrize(
    ("attention", "mlp", "layers"),
    [(True, False, {"q_proj", "k_proj", "v_proj", "o_proj"}), (False, True, {"gate_proj", "up_proj", "down_proj"})],
)
def test_the_client_chooses_layers(model: TinkerModel, attention: bool, mlp: bool, layers: set[str]) -> None:
    lora = model.select_lora(2, attention, mlp)
    assert set(lora.targets) == layers
    assert (lora.rank, lora.alpha) == (2, 32.0)
    with pytest.raises(EngineError, match="lora_config: got rank 2, train_attn False and train_mlp False"):
        model.select_lora(2, False, False)
    with pytest.raises(EngineError, match="lora_config: got rank 257"):
        model.select_lora(257, True, True)


def test_prompts_are_scored_at_temperature_one(model: TinkerModel) -> None:
    plain = AutoModelForCausalLM.from_pretrained(model.loaded.source)(TOKENS[:1]).logits[0].log_softmax(-1)
    scored = model.prompt_logprobs("base", TOKENS[0].tolist())
    assert math.isnan(scored[0])
    expected = plain.detach()[:-1].gather(1, TOKENS[0, 1:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(scored[1:]), expected, atol=1e-5, rtol=0)
    assert len(model.prompt_logprobs("base", [5])) == 1
