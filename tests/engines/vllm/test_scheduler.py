"""The parts in which tokens leave vLLM's engine, and the buffer that weights go through. They need vLLM, no model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm installs and runs it")

from cadre.engines.vllm.scheduler import PART_TOKENS, PartCollector
from cadre.engines.vllm.weight_transfer import BufferReceiver, Slice, keeps_checkpoint_weights, plan_parts


def output(name, token, finish=None, prefill=None):
    ids = [] if token is None else [token]
    return SimpleNamespace(
        request_id=name, new_token_ids=ids, finish_reason=finish, prefill_stats=prefill, new_logprobs=None
    )


def tokens_of(messages, name):
    return [token for message in messages if message.request_id == name for token in message.new_token_ids]


def test_parts_are_the_tokens_and_logprobs_in_order():
    collector, sent = PartCollector(), []
    for step in range(100):
        for name in ("a", "b"):
            finish = "length" if step == 99 else None
            message = output(name, 1000 * (name == "b") + step, finish, "prompt" if step == 0 else None)
            part = collector.add(message, -step / 2)
            sent += [] if part is None else [part]
    for name, first in (("a", 0), ("b", 1000)):
        parts = [message for message in sent if message.request_id == name]
        assert tokens_of(parts, name) == list(range(first, first + 100))
        logprobs = [float(value) for part in parts for value in part.new_logprobs.logprobs[:, 0]]
        assert logprobs == [-step / 2 for step in range(100)]
        assert [int(token) for part in parts for token in part.new_logprobs.logprob_token_ids[:, 0]] == tokens_of(
            parts, name
        )
        assert all(len(part.new_logprobs.sampled_token_ranks) == len(part.new_token_ids) for part in parts)
        assert [part.prefill_stats for part in parts] == ["prompt"] + [None] * (len(parts) - 1)
        assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + ["length"]
        # All parts are full but the first, which sets sequences apart, and the last.
        assert {len(part.new_token_ids) for part in parts[1:-1]} == {PART_TOKENS}
        assert len(parts) <= 2 + 100 // PART_TOKENS


def test_a_sequence_that_ends_is_sent_at_once_also_without_a_token():
    collector = PartCollector()
    collector.add(output("a", 5), -1.0)
    part = collector.add(output("a", None, "error"), None)
    assert (part.new_token_ids, part.finish_reason) == ([5], "error")
    assert collector.flush() == []


def test_what_is_left_is_sent_before_weights_change_and_once():
    collector = PartCollector()
    collector.add(output("a", 5), -1.0)
    collector.add(output("b", 6), -1.0)
    collector.forget(["b"])
    assert tokens_of(collector.flush(), "a") == [5]
    assert collector.flush() == []
    assert collector.add(output("a", 7), -1.0, immediately=True).new_token_ids == [7]


def test_weights_share_a_buffer_as_long_as_they_fit():
    weights = {name: torch.zeros(size) for name, size in (("a", 4), ("b", 6), ("c", 3), ("d", 20), ("e", 1))}
    assert plan_parts(weights, 10) == [
        [Slice("a", 0, (4,)), Slice("b", 4, (6,))],
        [Slice("c", 0, (3,))],
        [Slice("d", 0, (20,))],
        [Slice("e", 0, (1,))],
    ]


class Model(torch.nn.Module):
    """Layers as vLLM's: a tied head, a matrix of two weights of the checkpoint."""

    def __init__(self):
        super().__init__()
        self.both = torch.nn.Parameter(torch.zeros(4, 3), requires_grad=False)
        self.embed = torch.nn.Parameter(torch.zeros(5, 3), requires_grad=False)
        self.head = torch.nn.Module()
        self.head.weight = self.embed

    def load_weights(self, weights):
        places = {"up": ("both", slice(0, 2)), "down": ("both", slice(2, 4)), "embed": ("embed", slice(None))}
        for name, weight in weights:
            parameter, rows = places[name]
            getattr(self, parameter).data[rows].copy_(weight)
            yield parameter


def receiver(model):
    model.load_weights = (lambda load: lambda weights: set(load(weights)))(model.load_weights)
    config = SimpleNamespace(quant_config=None, lora_config=None, parallel_config=None, model_config=None)
    return BufferReceiver(None, config, torch.device("cpu"), model)


def send(receiver, weights, capacity):
    receiver.start_weight_update()
    for part in plan_parts(weights, capacity):
        buffer = torch.cat([weights[piece.name].reshape(-1) for piece in part])
        receiver.load_part(buffer, [[piece.name, piece.start, list(piece.shape)] for piece in part])
        buffer.fill_(-1.0)  # as the next part overwrites it
    receiver.finish_weight_update()


def test_parts_are_copied_into_the_layers_own_memory():
    model = Model()
    memory = model.both.data_ptr()
    weights = {name: torch.randn(size, 3) for name, size in (("up", 2), ("down", 2), ("embed", 5))}
    send(receiver(model), weights, 12)
    assert torch.equal(model.both, torch.cat([weights["up"], weights["down"]]))
    assert torch.equal(model.head.weight, weights["embed"])
    assert model.both.data_ptr() == memory


def test_a_weight_that_was_not_sent_is_an_error():
    with pytest.raises(RuntimeError, match=r"not sent and are the old ones: \['embed'\]"):
        send(receiver(Model()), {"up": torch.zeros(2, 3), "down": torch.zeros(2, 3)}, 12)


@pytest.mark.parametrize(
    ("change", "plain"),
    [
        (lambda model, config: None, True),
        (lambda model, config: setattr(config, "quant_config", object()), False),
        (lambda model, config: setattr(config, "lora_config", object()), False),
        (lambda model, config: setattr(model.head, "quant_method", object()), False),
        (lambda model, config: setattr(model.head, "process_weights_after_loading", lambda dtype: None), False),
    ],
)
def test_only_layers_that_keep_their_weights_are_written_in_place(change, plain):
    model, config = Model(), SimpleNamespace(quant_config=None, lora_config=None)
    change(model, config)
    assert keeps_checkpoint_weights(model, config) is plain
