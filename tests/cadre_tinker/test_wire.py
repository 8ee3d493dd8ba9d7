"""Messages byte by byte, as protobuf.dev's own examples have them, and what is not one."""

from __future__ import annotations

import pytest
import torch

from cadre_tinker.wire import (
    Message,
    field,
    read_integer,
    read_training_request,
    write_samples,
    write_training_response,
)
from tests.cadre_tinker.served import read_samples, read_training_response, training_request


def test_fields_are_those_of_the_documentation() -> None:
    """https://protobuf.dev/programming-guides/encoding: 150 as field 1, "testing" as field 2."""
    assert field(1, 150) == bytes.fromhex("089601")
    assert field(2, "testing") == bytes.fromhex("120774657374696e67")
    assert read_integer(memoryview(bytes.fromhex("9601")), 0) == (150, 2)
    message = Message(memoryview(bytes.fromhex("089601120774657374696e67")))
    assert (message.integer(1), message.text(2), message.text(3)) == (150, "testing", "")


@pytest.mark.parametrize(
    "content",
    ["08", "12", "1205aa", "0bff", "09aabb", "08ffffffffffffffffffff01", "12ffffffffffffffff7f00"],
    ids=["no value", "no length", "cut", "group", "half a float", "endless integer", "huge length"],
)
def test_half_a_message_is_an_error(content: str) -> None:
    with pytest.raises(ValueError, match="not a protocol buffer"):
        Message(memoryview(bytes.fromhex(content)))


def test_a_request_is_read_as_it_was_written() -> None:
    inputs = {"target_tokens": [2, 3, 4], "weights": [0.5, 0.0, -1.0]}
    body = training_request("m", 300, [([1, 2, 3], inputs)], "ppo", {"clip_low_threshold": 0.0}, forward_only=True)
    request = read_training_request(Message(memoryview(body)))
    assert (request.loss, request.config, request.forward_only) == ("ppo", {"clip_low_threshold": 0.0}, True)
    (datum,) = request.data
    assert datum.tokens.tolist() == [1, 2, 3]
    assert {name: tensor.tolist() for name, tensor in datum.inputs.items()} == inputs


@pytest.mark.parametrize(
    ("datum", "message"),
    [
        (field(1, field(2, field(1, b"png"))), "got an image or a sound"),
        (field(2, field(1, "weights") + field(2, field(2, b"") + field(3, 1))), "weights: got a sparse tensor"),
        (
            field(2, field(1, "weights") + field(2, field(1, b"\0\0") + field(3, 4))),
            "weights: got a sparse tensor or an",
        ),
        (field(2, field(1, "weights") + field(2, field(1, b"\0\0") + field(3, 1))), "multiple of element size"),
        (field(2, field(1, "w") + field(2, field(1, b"\0" * 8) + field(3, 1) + field(4, b"\3"))), "reshape"),
    ],
    ids=["image", "sparse", "bfloat16", "bytes", "shape"],
)
def test_what_is_not_supported_is_said(datum: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_training_request(Message(memoryview(field(3, datum))))


def test_responses_are_read_as_they_were_written() -> None:
    body = write_training_response([torch.tensor([-1.0, -2.0]), torch.tensor([-3.0])], {"loss:sum": 6.0})
    assert read_training_response(body) == ([[-1.0, -2.0], [-3.0]], {"loss:sum": 6.0})
    assert (
        Message(memoryview(write_training_response([torch.zeros(2, 3)], {})))
        .messages(2)[0]
        .mapping(2)["logprobs"]
        .integer(4)
        == 3
    )
    body = write_samples([((7, 8), (-0.5, -0.25), "length")], [-1.0])
    assert read_samples(body) == ([([7, 8], [-0.5, -0.25], 1)], [-1.0])
