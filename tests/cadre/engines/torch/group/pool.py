"""Processes that live as long as the test session and run functions as ranks."""

from __future__ import annotations

import os
import random
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import torch

from cadre.engines.torch import TorchEngine, TorchLearner
from cadre.engines.torch.group import LearnerPart, join_group
from cadre.engines.torch.learner import RankLearner
from cadre.types import Targets
from tests.cadre.engines import tiny
from tests.cadre.learn.sequences import sequence
from tests.helpers.forked import SERVER


class Pool:
    """A pool of processes; `run` calls a function of a test's module in all of them at once."""

    def __init__(self, size: int) -> None:
        pipes = [SERVER.Pipe() for _ in range(size)]
        self._pipes = [parent_end for parent_end, _ in pipes]
        self._processes = [
            SERVER.Process(target=_serve, args=(library_result,), daemon=True) for _, library_result in pipes
        ]
        for process in self._processes:
            process.start()
        for _, reference in pipes:
            reference.close()

    def run(self, function, *arguments, ranks: int = 2) -> list:
        """Return the result of `function(make, *arguments)` of each rank; `make(part)` makes its learner."""
        meeting = f"file://{mkdtemp()}/meeting"
        for rank, pipe in enumerate(self._pipes[:ranks]):
            pipe.send((function, (rank, ranks, meeting), arguments))
        return [pipe.recv() for pipe in self._pipes[:ranks]]

    def close(self) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()
            process.join()


def _serve(pipe) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    while True:
        try:
            function, position, arguments = pipe.recv()
        except EOFError:
            return
        with _making(position) as make:
            pipe.send(function(make, *arguments))


@contextmanager
def _making(position):
    created = []

    def make(part: LearnerPart) -> RankLearner:
        created.append(join_group(part, *position))
        return created[-1]

    yield make
    for learner in created:
        learner.close()


def part(folder: Path, training, loras) -> LearnerPart:
    """The policies in `loras`: with an adapter, or with None trained whole."""
    policies = {name: tiny.policy(folder, lora=lora) for name, lora in loras.items()}
    return LearnerPart(str(folder), policies, training, 0)


def alone(part: LearnerPart) -> TorchLearner:
    """The learner in one process."""
    return TorchLearner(TorchEngine(part.model, part.policies, part.seed), part.training)


def data(policies=("p",), step=0, heads=()):
    """Three tasks of four siblings for each policy, of several lengths; for a policy in `heads` each has targets of its
    head `h`, and every third is for the critic alone; all of them are where the policy is called `critic`."""
    draw = random.Random(step)
    created = []
    for policy in policies:
        for _ in range(3):
            prompt = tuple(draw.randrange(250) for _ in range(draw.randint(8, 30)))
            for k in range(4):
                text = tuple(draw.randrange(250) for _ in range(3 + 4 * k))
                mask = (False,) * len(prompt) + (True,) * len(text)
                role = f"role {len(created) % 3}"
                created.append(replace(sequence(prompt + text, mask, policy, 1.0, draw), role=role))
    return [
        _judged(datum, number % 3 == 0 or datum.policy == "critic") if datum.policy in heads else datum
        for number, datum in enumerate(created)
    ]


def _judged(datum, only):
    at, nothing = (len(datum.token_ids) - 2, len(datum.token_ids) - 1), (0.0,) * len(datum.mask)
    if only:
        datum = replace(datum, mask=(False,) * len(datum.mask), advantages=nothing, logprobs=nothing)
    return replace(datum, targets=Targets("h", at, (0.5, -1.0), (0.0, 0.0)))
