"""Write the table of docs/one_gpu.md from results/gpu.jsonl: `python bench/gpu_tables.py`; `bench/gpu.py --merge` does
so, too.

A row is the newest line of a figure, and is left out where there is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import common

PAGE = common.ROOT / "docs" / "one_gpu.md"
MARK = "<!-- gpu -->"
_STEP, _TREE = "gpu.step.qwen3-0.6b", "gpu.tree.qwen3-0.6b.vllm"
FIGURES = {
    "gpu.step.vs_trl_vllm": "TRL's step over Cadre's, both with vLLM, Qwen3-0.6B",
    "gpu.step.qwen3-1.7b.vs_trl_vllm": "the same, Qwen3-1.7B",
    "gpu.step.qwen3-8b.vs_trl_vllm": "the same, Qwen3-8B with an adapter",
    "gpu.tree.vs_trl_vllm": "TRL's step (one turn) over Cadre's of two roles and three turns, as many samples",
    f"{_STEP}.vllm.step_s": "a step with vLLM",
    f"{_STEP}.vllm.sample_s": "of it sampling",
    f"{_STEP}.vllm.update_s": "of it the update",
    f"{_STEP}.vllm.sync_s": "of it weight sync",
    f"{_STEP}.vllm.peak_gb": "memory of the GPU in a step, all processes",
    f"{_STEP}.torch.step_s": "a step with the torch engine",
    "gpu.step.qwen3-1.7b.vllm.step_s": "a step of Qwen3-1.7B with vLLM",
    "gpu.step.qwen3-8b.vllm.step_s": "a step of Qwen3-8B with vLLM, an adapter",
    "gpu.trl.qwen3-0.6b.vllm.step_s": "a step of TRL with vLLM",
    "gpu.trl.qwen3-0.6b.generate.step_s": "a step of TRL with `generate`",
    "gpu.sampling.qwen3-0.6b.tokens_per_s": "sampling with vLLM, Qwen3-0.6B",
    f"{_STEP}.vllm.sampling.bandwidth_fraction": "of the memory's bandwidth",
    "gpu.learning.qwen3-0.6b.update_s": "an update of Qwen3-0.6B, full fine-tuning",
    "gpu.learning.qwen3-0.6b.mfu": "its MFU",
    "gpu.learning.qwen3-0.6b.peak_gb": "its memory",
    "gpu.learning.qwen3-0.6b.first_update_s": "its first update, which compiles",
    "gpu.learning.qwen3-1.7b.update_s": "an update of Qwen3-1.7B, full fine-tuning",
    "gpu.learning.qwen3-1.7b.mfu": "its MFU",
    "gpu.learning.qwen3-1.7b.peak_gb": "its memory",
    "gpu.learning.qwen3-8b.update_s": "an update of Qwen3-8B, two adapters",
    "gpu.learning.qwen3-8b.mfu": "its MFU",
    "gpu.learning.qwen3-8b.peak_gb": "its memory",
    f"{_TREE}.barrier.sampling.tokens_per_s": "two roles, three turns, sampling with the batch barrier",
    f"{_TREE}.streamed.sampling.tokens_per_s": "without it",
    "gpu.largest.adapters": "the largest model with two adapters",
    "gpu.largest.models": "the largest of two fully fine-tuned models",
    "gpu.parity.float32.tree": "log-probabilities against a CPU's, float32, largest difference: attention by tree",
    "gpu.parity.float32.flex": "the same: FlexAttention",
    "gpu.parity.float32.padded": "the same: padded sequences",
    "gpu.parity.float32.gradient": "gradients against a CPU's, float32, largest difference",
    "gpu.parity.bfloat16.tree": "log-probabilities in bfloat16 against a CPU's, largest difference: attention by tree",
    "gpu.parity.bfloat16.flex": "the same: FlexAttention",
    "gpu.parity.bfloat16.padded": "the same: padded sequences",
    "gpu.sampling.qwen3-0.6b.graphs.tokens_per_s": "128 completions by the torch engine, CUDA graphs",
    "gpu.sampling.qwen3-0.6b.steps.tokens_per_s": "the same, kernel by kernel",
}


def rows(lines: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the rows of the table for the newest line of each figure."""
    yield "| | median (lowest to highest) | unit | GPU | commit, date |"
    yield "|---|---|---|---|---|"
    for name, label in FIGURES.items():
        if (line := lines.get(name)) is not None:
            value = _number(line["value"])
            if line["low"] != line["high"]:
                value += f" ({_number(line['low'])} to {_number(line['high'])})"
            gpu = line["machine"].rpartition(", ")[2]
            yield f"| {label} | {value} | {line['unit']} | {gpu} | {line['commit']}, {line['date']} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def render(text: str) -> str:
    """Return the page with its table made anew."""
    results, newest = common.RESULTS / "gpu.jsonl", dict[str, Mapping[str, Any]]()
    for line in map(json.loads, results.read_text().splitlines()):
        newest[line["name"]] = line
    before, _, rest = text.partition(MARK)
    _, _, after = rest.partition(MARK)
    table = "\n".join(rows(newest))
    return f"{before}{MARK}\n{table}\n{MARK}{after}"


def main() -> None:
    PAGE.write_text(render(PAGE.read_text()))


if __name__ == "__main__":
    main()
