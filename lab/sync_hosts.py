"""A weight sync between two hosts, in seconds: Ray's object store, as Cadre uses it, and torch.distributed (gloo).

    python -m lab.hosts sync [--gigabytes 3] [--write]    runs it, in network namespaces

The first host has the tensors, of 64 MiB each, and the second one has to have them all; a way is measured five times,
after one that is not counted. `python -m lab.sync_hosts WAY RANK GIGABYTES` is one host's process.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed

ADDRESS, TENSOR = "10.77.0.1", 2**24  # float32
ROUNDS = 5


def tensors(gigabytes: float, value: float) -> dict[str, torch.Tensor]:
    count = max(1, round(gigabytes * 1e9 / (4 * TENSOR)))
    return {str(number): torch.full((TENSOR,), value + number) for number in range(count)}


def check(received: dict[str, torch.Tensor], value: float) -> None:
    for number, tensor in received.items():
        assert tensor[0] == tensor[-1] == value + int(number), "the second host has other weights"


class Receiver:
    """The second host's side of the store."""

    def load(self, packed: Any, value: float) -> None:
        from cadre_ray.processes import unpack_tensors

        check(unpack_tensors(packed), value)


def by_store(gigabytes: float) -> list[float]:
    import ray

    from cadre.team import Weights
    from cadre_ray.processes import pack_weights

    ray.init(address=f"{ADDRESS}:6379", log_to_driver=False)
    receiver = ray.remote(Receiver).options(num_gpus=1).remote()  # the second host has them

    def sync(sent: dict[str, torch.Tensor], value: float) -> None:
        ray.get(receiver.load.remote(ray.put(pack_weights(Weights("policy", 1, tensors=sent))), value))

    return timed(gigabytes, sync)


def by_gloo(rank: int, gigabytes: float) -> list[float]:
    distributed.init_process_group("gloo", init_method=f"tcp://{ADDRESS}:29511", rank=rank, world_size=2)

    def sync(sent: dict[str, torch.Tensor], value: float) -> None:
        for tensor in sent.values():
            distributed.broadcast(tensor, 0)
        check(sent, value)
        distributed.barrier()  # the first host knows that the second has it

    seconds = timed(gigabytes, sync, sends=rank == 0)
    distributed.destroy_process_group()
    return seconds


def timed(gigabytes: float, sync: Callable[[dict[str, torch.Tensor], float], None], sends: bool = True) -> list[float]:
    """Return the seconds of every sync; tensors are made before, with other values each time."""
    seconds = []
    for round_ in range(ROUNDS + 1):
        made = tensors(gigabytes, 1000.0 * round_ if sends else -1.0)
        began = time.monotonic()
        sync(made, 1000.0 * round_)
        seconds.append(time.monotonic() - began)
    return seconds[1:]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=("store", "gloo"))
    parser.add_argument("rank", type=int)
    parser.add_argument("gigabytes", type=float)
    chosen = parser.parse_args()
    seconds = by_store(chosen.gigabytes) if chosen.way == "store" else by_gloo(chosen.rank, chosen.gigabytes)
    print(json.dumps(seconds))
