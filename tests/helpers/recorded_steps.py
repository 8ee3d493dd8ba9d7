"""Decoding steps that are recorded and replayed on a CPU, under the rules of CUDA graphs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

# Operations whose result the host waits for; a CUDA graph cannot hold them.
WAITING = {"_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "_unique2", "equal", "unique_dim"}


class Recording(TorchDispatchMode):
    """Notes every operation on tensors, and undoes at its end what they wrote: recording runs nothing."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self._before = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        inputs = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
        assert name not in WAITING, f"{name} waits for the device"
        indices = {"index": inputs[1:], "index_put": inputs[1:-1], "index_put_": inputs[1:-1]}.get(name, [])
        is_masked = any(value.dtype == torch.bool for value in indices)
        assert not is_masked, f"{name} by a mask waits for the device"
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                storage = value.untyped_storage()
                self._before.setdefault(storage.data_ptr(), (storage, storage.clone()))
        result = func(*args, **kwargs)
        used = {value.untyped_storage().data_ptr() for value in inputs}
        outputs = tree_flatten(result)[0]
        is_new = [isinstance(value, Tensor) and value.untyped_storage().data_ptr() not in used for value in outputs]
        self.calls.append((func, args, kwargs, outputs, is_new))
        return result

    def undo(self):
        for storage, initial in self._before.values():
            storage.copy_(initial)


def record_operations(step):
    """Return a replay of a step's operations on the tensors of this moment; Python's numbers stay as they are now."""
    recording = Recording()
    with recording:
        step()
    recording.undo()

    def replay():
        for func, args, kwargs, outputs, is_new in recording.calls:
            results = tree_flatten(func(*args, **kwargs))[0]
            for output, value, new in zip(outputs, results, is_new, strict=True):
                if new:
                    output.copy_(value)

    return replay
