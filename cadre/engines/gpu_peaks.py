"""Peak rates of known GPUs: the denominators of model FLOP utilisation (MFU) and of the share of memory bandwidth."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuPeaks:
    """What a GPU can do at most: `bandwidth` of its memory in bytes per second, and `flops`, bfloat16 FLOP per second
    without sparsity."""

    bandwidth: float
    flops: float


# By words that must all be in the name torch has for a GPU; the first match counts, so variants come before the rest.
# From the data sheets of NVIDIA.
PEAKS: tuple[tuple[tuple[str, ...], GpuPeaks], ...] = (
    (("B200",), GpuPeaks(8.0e12, 2.25e15)),
    (("H200",), GpuPeaks(4.8e12, 0.989e15)),
    (("H100", "PCIe"), GpuPeaks(2.0e12, 0.756e15)),
    (("H100", "NVL"), GpuPeaks(3.9e12, 0.835e15)),
    (("H100",), GpuPeaks(3.35e12, 0.989e15)),
    (("A100", "40GB"), GpuPeaks(1.555e12, 0.312e15)),
    (("A100",), GpuPeaks(2.0e12, 0.312e15)),
    (("L40S",), GpuPeaks(0.864e12, 0.362e15)),
    (("RTX 4090",), GpuPeaks(1.008e12, 0.165e15)),
)


def find_peaks(name: str) -> GpuPeaks | None:
    """Return the peaks of the GPU with this name, or None for an unknown one."""
    return next((peaks for words, peaks in PEAKS if all(word in name for word in words)), None)
