"""The buffer that weights go through on a GPU, without one: memory that both sides map is a tensor that both have."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm installs and runs it")

from torch.multiprocessing import reductions

from cadre.engines.vllm import weight_transfer
from cadre.engines.vllm.weight_transfer import BufferReceiver, Slice, keeps_checkpoint_weights, plan_parts, send


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
        positions = {"up": ("both", slice(0, 2)), "down": ("both", slice(2, 4)), "embed": ("embed", slice(None))}
        loaded = set()
        for name, weight in weights:
            parameter, rows = positions[name]
            getattr(self, parameter).data[rows].copy_(weight)
            loaded.add(parameter)
        return loaded


class Client:
    """vLLM's life cycle of an update, in one process."""

    def __init__(self, model):
        config = SimpleNamespace(quant_config=None, lora_config=None, parallel_config=None, model_config=None)
        self.receiver = BufferReceiver(None, config, torch.device("cpu"), model)
        self.calls = []

    def init_weight_transfer_engine(self, info):
        self.receiver.init_transfer_engine(self.receiver.parse_init_info(info))

    def start_weight_update(self):
        self.calls.append("start")
        self.receiver.start_weight_update()

    def update_weights(self, info):
        self.calls.append([name for name, _, _ in info["slices"]])
        self.receiver.receive_weights(self.receiver.parse_update_info(info))

    def finish_weight_update(self):
        self.calls.append("finish")
        self.receiver.finish_weight_update()
        assert self.receiver._buffer is None, "the sender's memory is given back"


@pytest.fixture
def sent(monkeypatch):
    """Send weights to a model through a buffer of 12 numbers; return the client."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, device=None, **settings: empty(*size, **settings))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "ipc_collect", lambda: None)
    monkeypatch.setattr(reductions, "reduce_tensor", lambda tensor: (None, (tensor, *range(6))))
    monkeypatch.setattr(reductions, "rebuild_cuda_tensor", lambda tensor, *rest: tensor)
    monkeypatch.setattr(weight_transfer, "PART_BYTES", 12 * 2)

    def run(model, weights):
        client = Client(model)
        send("cadre-ipc", client, weights, torch.bfloat16)
        return client

    return run


def test_parts_are_copied_into_the_layers_own_memory(sent):
    model = Model()
    memory = model.both.data_ptr()
    weights = {name: torch.randn(size, 3) for name, size in (("up", 2), ("down", 2), ("embed", 5))}
    client = sent(model, weights)
    assert client.calls == ["start", ["up", "down"], ["embed"], "finish"]
    cast = {name: weight.to(torch.bfloat16).float() for name, weight in weights.items()}
    assert torch.equal(model.both, torch.cat([cast["up"], cast["down"]]))
    assert torch.equal(model.head.weight, cast["embed"])
    assert model.both.data_ptr() == memory


def test_a_weight_that_was_not_sent_is_an_error(sent):
    with pytest.raises(RuntimeError, match=r"not sent and are the old ones: \['embed'\]"):
        sent(Model(), {"up": torch.zeros(2, 3), "down": torch.zeros(2, 3)})


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
