"""A server of a tiny model in a thread, and a client of plain HTTP for it: what Tinker's own sends, and no more."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy
import uvicorn

from cadre.sockets import listen
from cadre_tinker.model import TinkerModel
from cadre_tinker.server import Service, make_application
from cadre_tinker.wire import Message, field
from tests.cadre.engines import tiny

KEY = "tml-test"


def training_request(
    model_id: str,
    seq_id: int,
    data: Sequence[tuple[Sequence[int], Mapping[str, Sequence[float]]]],
    loss: str = "cross_entropy",
    config: Mapping[str, float] | None = None,
    forward_only: bool = False,
) -> bytes:
    """The message of `forward_backward`, field by field as in Tinker's schema."""
    parts = [field(1, model_id), field(2, seq_id), field(4, loss), field(6, int(forward_only))]
    for tokens, inputs in data:
        datum = field(1, field(1, field(1, numpy.array(tokens, "<i4").tobytes())))
        for name, values in inputs.items():
            array = numpy.array(values, "<i8" if name == "target_tokens" else "<f4")
            shape = field(4, bytes(array.shape))  # packed; a size below 128 is one byte
            tensor = field(1, array.tobytes()) + field(3, 2 if name == "target_tokens" else 1) + shape
            datum += field(2, field(1, name) + field(2, tensor))
        parts.append(field(3, datum))
    parts += [field(7, field(1, name) + field(2, field(1, float(value)))) for name, value in (config or {}).items()]
    return b"".join(parts)


def floats(piece: memoryview) -> list[float]:
    return numpy.frombuffer(piece, "<f4").tolist()


def read_training_response(body: bytes) -> tuple[list[list[float]], dict[str, float]]:
    """The log-probabilities of every datum, and the metrics."""
    message = Message(memoryview(body))
    arrays = [record.mapping(2)["logprobs"] for record in message.messages(2)]
    metrics = {entry.text(1): float(numpy.frombuffer(entry.piece(2), "<f8")[0]) for entry in message.messages(3)}
    return [floats(array.piece(1)) for array in arrays], metrics


def read_samples(body: bytes) -> tuple[list[tuple[list[int], list[float], int]], list[float]]:
    """(tokens, log-probabilities, stop reason) of every sample, and the log-probabilities of the prompt."""
    message = Message(memoryview(body))
    samples = [
        (numpy.frombuffer(one.piece(2), "<i4").tolist(), floats(one.piece(3)), one.integer(1))
        for one in message.messages(1)
    ]
    return samples, floats(message.piece(2))


@dataclass
class Served:
    """A server, open to tests."""

    service: Service
    port: int
    key: str = KEY

    def send(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The status and the answer: bytes of a message, or JSON."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        content = body if isinstance(body, bytes) else json.dumps(body)
        connection.request(method, f"/api/v1/{path}", content, {"x-api-key": self.key})
        answer = connection.getresponse()
        received = answer.read()
        connection.close()
        return answer.status, received if "protobuf" in (answer.getheader("content-type") or "") else json.loads(
            received
        )

    def post(self, path: str, body: Any) -> Any:
        status, answer = self.send("POST", path, body)
        assert status == 200, answer
        return answer

    def fetch(self, promise: Mapping[str, Any]) -> Any:
        return self.post("retrieve_future", {"request_id": promise["request_id"]})

    def result(self, path: str, body: Any) -> Any:
        return self.fetch(self.post(path, body))

    def session(self) -> str:
        return str(self.post("create_session", {})["session_id"])

    def run(self, session: str, number: int = 0, **lora: Any) -> str:
        """A new training run."""
        config = {"rank": 4, "seed": 1, **lora}
        body = {"session_id": session, "model_seq_id": number, "base_model": "tiny", "lora_config": config}
        return str(self.result("create_model", body)["model_id"])

    def train(
        self, model_id: str, seq_id: int, *arguments: Any, **more: Any
    ) -> tuple[list[list[float]], dict[str, float]]:
        """The log-probabilities and metrics of `forward_backward`."""
        answer = self.result("forward_backward", training_request(model_id, seq_id, *arguments, **more))
        assert isinstance(answer, bytes), answer
        return read_training_response(answer)

    def step(self, model_id: str, seq_id: int, **params: float) -> Any:
        body = {"model_id": model_id, "seq_id": seq_id, "adam_params": {"learning_rate": 0.01, **params}}
        return self.result("optim_step", body)

    def sample(self, sampler: str, seq_id: int, prompt: Sequence[int], params: Any = None, **more: Any) -> Any:
        chunks = {"chunks": [{"type": "encoded_text", "tokens": list(prompt)}]}
        body = {"sampling_session_id": sampler, "seq_id": seq_id, "prompt": chunks, "sampling_params": params or {}}
        return read_samples(self.result("asample", {**body, **more}))


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    """A server of a tiny model, with its checkpoints in a folder."""
    model = TinkerModel(tiny.policy(tiny.build(folder / "model"), frozen=True), ["tiny"], folder / "state")
    model.state.mkdir()
    with listen(0) as listening:
        service = Service(model)
        server = uvicorn.Server(
            uvicorn.Config(
                make_application(service, KEY), lifespan="off", log_level="warning", timeout_graceful_shutdown=1
            )
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield Served(service, listening.getsockname()[1])
        server.should_exit = server.force_exit = True
        thread.join()
    model.engine.close()
