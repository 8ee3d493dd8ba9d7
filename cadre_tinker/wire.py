"""The messages of Tinker's client that are protocol buffers: training data in, log-probabilities and samples out.

Of the format (protobuf.dev/programming-guides/encoding) this has what those messages use: a message is a sequence of
fields, each a number with an integer, the bytes of a float, or a counted piece of bytes, which is a text, an array of
numbers, or a message again. All other requests and responses are JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

INTEGER, EIGHT_BYTES, COUNTED, FOUR_BYTES = 0, 1, 2, 5
# Numbers of Tinker's DType that requests have, and of its StopReason.
DTYPES = {1: "<f4", 2: "<i8"}
STOP_REASONS = {"stop": 0, "length": 1}


@dataclass(frozen=True)
class Datum:
    """One training sequence: `tokens` int64 [T], and what the loss reads of each, by name: [T] or [T, K]."""

    tokens: Tensor
    inputs: Mapping[str, Tensor]


@dataclass(frozen=True)
class TrainingRequest:
    """A request for a forward pass, and unless it is `forward_only` a backward pass."""

    loss: str
    config: Mapping[str, float]
    data: Sequence[Datum]
    forward_only: bool


class Message:
    """The fields of a message by number: integers, and pieces of its bytes. Raises ValueError if it is not whole."""

    def __init__(self, content: memoryview) -> None:
        self._integers: dict[int, int] = {}
        self._pieces: dict[int, list[memoryview]] = {}
        position = 0
        while position < len(content):
            tag, position = read_integer(content, position)
            size = {EIGHT_BYTES: 8, FOUR_BYTES: 4}.get(tag & 7, 0)
            if tag & 7 in (INTEGER, COUNTED):
                size, position = read_integer(content, position)
            if tag & 7 == INTEGER:
                self._integers[tag >> 3] = size
                continue
            if not (size or tag & 7 == COUNTED) or position + size > len(content):
                raise ValueError("not a protocol buffer: it ends within a field")
            self._pieces.setdefault(tag >> 3, []).append(content[position : position + size])
            position += size

    def integer(self, number: int) -> int:
        """Return an integer, 0 if it is absent."""
        return self._integers.get(number, 0)

    def pieces(self, number: int) -> list[memoryview]:
        """Return all pieces of a number, in order."""
        return self._pieces.get(number, [])

    def piece(self, number: int) -> memoryview:
        """Return the last piece of a number, an empty one if there is none."""
        return self.pieces(number)[-1] if self.pieces(number) else memoryview(b"")

    def text(self, number: int) -> str:
        """Return a text, "" if it is absent."""
        return bytes(self.piece(number)).decode()

    def messages(self, number: int) -> list[Message]:
        """Return the messages within this one."""
        return [Message(piece) for piece in self.pieces(number)]

    def mapping(self, number: int) -> dict[str, Message]:
        """Return a map of messages by their keys."""
        return {entry.text(1): Message(entry.piece(2)) for entry in self.messages(number)}


def read_integer(content: memoryview, position: int) -> tuple[int, int]:
    """Return an integer of seven bits a byte, the lowest first, and the position after it."""
    value = 0
    for index, byte in enumerate(content[position : position + 10]):
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value, position + index + 1
    raise ValueError("not a protocol buffer: an integer does not end")


def read_training_request(message: Message) -> TrainingRequest:
    """Return what `forward` and `forward_backward` of the client send. Raises ValueError for anything else."""
    config: dict[str, float] = {}
    for name, value in message.mapping(7).items():
        if len(value.piece(1)) != 8:
            raise ValueError(f"loss_fn_config.{name[:80]}: got no number; expected one")
        config[name] = float(numpy.frombuffer(value.piece(1), "<f8")[0])
    data = []
    for datum in message.messages(3):
        chunks = [numpy.zeros(0, numpy.int64)]
        for chunk in datum.messages(1):
            if not chunk.pieces(1):
                raise ValueError("model_input: got an image or a sound; expected chunks of tokens (EncodedTextChunk)")
            chunks.append(numpy.frombuffer(Message(chunk.piece(1)).piece(1), "<i4").astype(numpy.int64))
        inputs = {name: _read_tensor(name, tensor) for name, tensor in datum.mapping(2).items()}
        data.append(Datum(torch.from_numpy(numpy.concatenate(chunks)), inputs))
    return TrainingRequest(message.text(4), config, data, forward_only=bool(message.integer(6)))


def _read_tensor(name: str, tensor: Message) -> Tensor:
    if tensor.pieces(2) or tensor.integer(3) not in DTYPES:
        raise ValueError(f"{name[:80]}: got a sparse tensor or another type; expected a dense one of float32 or int64")
    shape, position, packed = [], 0, tensor.piece(4)
    while position < len(packed):
        size, position = read_integer(packed, position)
        shape.append(min(size, 1 << 40))
    values = numpy.frombuffer(tensor.piece(1), DTYPES[tensor.integer(3)])
    return torch.from_numpy(values.reshape(shape or -1).copy())


def field(number: int, value: int | float | str | bytes) -> bytes:
    """Return one field of a message. Floats are written with eight bytes."""
    if isinstance(value, int):
        return _write_integer(number << 3 | INTEGER) + _write_integer(value)
    if isinstance(value, float):
        return _write_integer(number << 3 | EIGHT_BYTES) + _write_array([value], "<f8")
    piece = value.encode() if isinstance(value, str) else value
    return _write_integer(number << 3 | COUNTED) + _write_integer(len(piece)) + piece


def _write_integer(value: int) -> bytes:
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + _write_integer(rest) if rest else bytes([low])


def _write_array(values: Sequence[float], dtype: str) -> bytes:
    return numpy.array(values, dtype).tobytes()


def write_training_response(logprobs: Sequence[Tensor], metrics: Mapping[str, float]) -> bytes:
    """Return the message of a forward pass: log-probabilities [T] or [T, K] of each datum, as a record of its own."""
    parts = [field(1, "ArrayRecord")]
    for tensor in logprobs:
        values = _write_array(tensor.flatten().tolist(), "<f4")
        array = field(1, values) + field(2, _write_array([0, len(values)], "<i8")) + field(3, 1)
        array += b"".join(field(4, size) for size in tensor.shape[1:])
        parts.append(field(2, field(2, field(1, "logprobs") + field(2, array)) + field(3, 1)))
    return b"".join(parts + [field(3, field(1, name) + field(2, float(value))) for name, value in metrics.items()])


def write_samples(
    samples: Iterable[tuple[Sequence[int], Sequence[float], str]], prompt_logprobs: Sequence[float]
) -> bytes:
    """Return the message of samples: tokens, their log-probabilities, and `stop` or `length`. Of the log-probabilities
    of the prompt those that were not computed are NaN."""
    parts = [field(2, _write_array(prompt_logprobs, "<f4"))] if prompt_logprobs else []
    for tokens, logprobs, reason in samples:
        arrays = field(2, _write_array(tokens, "<i4")) + field(3, _write_array(logprobs, "<f4"))
        parts.append(field(1, field(1, STOP_REASONS[reason]) + arrays))
    return b"".join(parts)
