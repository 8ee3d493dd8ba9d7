"""Check which of vLLM's faults with a workaround here the installed version has: `python -m lab.vllm_faults`.

Each is tried as its users met it, with the embedded model on a CPU, in an environment that has vLLM (`make vllm`). What
ends the engine comes last in its part, and is meant to print vLLM's own error. `--write` keeps the counts in
results/vllm.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.common import record
from cadre.engines.torch.lora import linear_layers
from cadre.engines.torch.storage import write_adapter
from cadre.engines.vllm.engine import CPU_ENVIRONMENT, ENVIRONMENT
from cadre.plugins import embedded_models
from cadre.settings import LoraConfig

MODEL = embedded_models()["seed"]
LORA = LoraConfig(rank=8, alpha=16)
PROMPT = list(range(20, 84))
# Two engines that compute the same in float32 differ by less.
SAME = 1e-3
STILL, GONE = "still there", "gone"

Outcome = tuple[str, str]
Drawn = list[tuple[tuple[int, ...], tuple[float, ...]]]


class Raw:
    """vLLM's AsyncLLM without any of our care."""

    def __init__(self, **arguments: Any) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        usual = {
            "model": str(MODEL),
            "dtype": "float32",
            "max_model_len": 512,
            "max_num_seqs": 16,
            "block_size": 32,
            "kv_cache_memory_bytes": 1 << 26,
            "enforce_eager": True,
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "async_scheduling": False,
            "disable_log_stats": True,
        }
        self.engine: Any = AsyncLLM.from_engine_args(AsyncEngineArgs(**usual | arguments))
        self._made = 0

    async def draw(self, prompt: Sequence[int], lora: Any = None, **settings: Any) -> Drawn:
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        self._made += 1
        chosen = SamplingParams(
            **{"temperature": 1.0, "max_tokens": 24, "ignore_eos": True, "logprobs": 0, "seed": 5} | settings,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompted = tokens_input(list(prompt))
        async for output in self.engine.generate(prompted, chosen, f"call-{self._made}", lora_request=lora):
            last = output
        return [
            (
                tuple(completion.token_ids),
                tuple(
                    alternatives[token].logprob
                    for token, alternatives in zip(completion.token_ids, completion.logprobs, strict=True)
                ),
            )
            for completion in last.outputs
        ]


def scored(model: Any, prompt: Sequence[int], completions: Drawn) -> float:
    """Mean |log-probability drawn with - transformers'| of what was drawn."""
    gaps: list[float] = []
    for ids, logprobs in completions:
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        recomputed = logits.log_softmax(-1).gather(1, torch.tensor(ids).unsqueeze(1)).squeeze(1)
        gaps += (recomputed - torch.tensor(logprobs)).abs().tolist()
    return sum(gaps) / len(gaps)


def changed_model(folder: Path) -> Any:
    """Another model of the same shape, saved; and in memory."""
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.0 + 0.1 * torch.randn_like(weight))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(MODEL).save_pretrained(folder)
    return model


def adapter(folder: Path, seed: int) -> Path:
    """An adapter that changes much, in a PEFT folder."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, linear in linear_layers(AutoModelForCausalLM.from_pretrained(MODEL)).items():
        shapes = {"A": (LORA.rank, linear.in_features), "B": (linear.out_features, LORA.rank)}
        for side, shape in shapes.items():
            tensors[f"{name}.lora_{side}.weight"] = 0.1 * torch.randn(shape, generator=generator)
    write_adapter(tensors, LORA, str(MODEL), folder)
    return folder


def differ(first: Drawn, second: Drawn) -> bool:
    return (
        first[0][0] != second[0][0]
        or max(abs(left - right) for left, right in zip(first[0][1], second[0][1], strict=True)) > SAME
    )


async def reload_of_a_tied_head(raw: Raw, folder: Path) -> Outcome:
    model = changed_model(folder / "changed")
    await raw.engine.collective_rpc("reload_weights", kwargs={"weights_path": str(folder / "changed")})
    await raw.engine.reset_prefix_cache()
    gap = scored(model, PROMPT, await raw.draw(PROMPT))
    return (STILL if gap > SAME else GONE, f"mean |difference| from transformers {gap:.2g}")


async def prefix_cache_after_weights(raw: Raw, folder: Path) -> Outcome:
    await raw.draw(PROMPT)
    await raw.engine.collective_rpc("reload_weights", kwargs={"weights_path": str(MODEL)})
    stale = await raw.draw(PROMPT)
    await raw.engine.reset_prefix_cache()
    fresh = await raw.draw(PROMPT)
    return (STILL if differ(stale, fresh) else GONE, "the same call before and after the cache is reset")


async def seed_and_a_prompt_in_parts(raw: Raw, folder: Path) -> Outcome:
    return await dies(raw.draw([token % 900 + 20 for token in range(300)]), "300 tokens, 128 at once, with a seed")


async def dies(drawing: Coroutine[Any, Any, Drawn], situation: str) -> Outcome:
    from vllm.v1.engine.exceptions import EngineDeadError

    try:
        await asyncio.wait_for(drawing, 120)
    except (EngineDeadError, TimeoutError):
        return STILL, f"{situation}: the engine dies"
    return GONE, situation


def lora_request(name: str, number: int, folder: Path) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(name, number, str(folder))


async def same_id_new_files(raw: Raw, folder: Path) -> Outcome:
    request = lora_request("again", 9, adapter(folder / "again", 1))
    old_files = await raw.draw(PROMPT, request)
    adapter(folder / "again", 2)
    await raw.engine.reset_prefix_cache()
    await raw.engine.add_lora(request)
    new_files = await raw.draw(PROMPT, request)
    await raw.engine.remove_lora(9)
    return (STILL if not differ(old_files, new_files) else GONE, "new files under the same name and id")


async def rows_without_an_adapter(raw: Raw, folder: Path) -> Outcome:
    loras = [lora_request(f"full-{number}", number, adapter(folder / str(number), number)) for number in (1, 2)]
    single = await raw.draw(PROMPT)
    await raw.engine.reset_prefix_cache()
    both = [raw.draw(PROMPT, loras[0]), raw.draw(PROMPT), raw.draw(PROMPT, loras[1])]
    batched = (await asyncio.gather(*both))[1]
    return (STILL if differ(single, batched) else GONE, "beside two adapters in two slots")


async def adapter_while_decoding(raw: Raw, folder: Path) -> Outcome:
    loras = [lora_request(f"full-{number}", number, folder / str(number)) for number in (1, 2)]
    third = adapter(folder / "3", 3)
    works = [raw.draw(PROMPT, lora, max_tokens=300) for lora in loras]
    single = await asyncio.gather(*works)
    await raw.engine.reset_prefix_cache()
    drawing = [asyncio.create_task(raw.draw(PROMPT, lora, max_tokens=300)) for lora in loras]
    meanwhile = 0
    for number in range(3, 8):
        await asyncio.sleep(0.1)
        await raw.engine.add_lora(lora_request(f"late-{number}", number, third))
        meanwhile += not all(work.done() for work in drawing)
    wrong = [differ(left, right) for left, right in zip(single, await asyncio.gather(*drawing), strict=True)]
    return (STILL if any(wrong) else GONE, f"{meanwhile} adapters more than there are slots, without a pause")


async def prompt_logprobs_and_adapters(raw: Raw, folder: Path) -> Outcome:
    lora = lora_request("full-1", 1, folder / "1")
    works = (raw.draw(PROMPT[: 40 + index], lora, prompt_logprobs=0) for index in range(4))
    return await dies(first_of(asyncio.gather(*works)), "four prompts at once, scored under an adapter")


async def first_of(works: Any) -> Drawn:
    result: Drawn = (await works)[0]
    return result


Try = Callable[[Raw, Path], Coroutine[Any, Any, Outcome]]
WHOLE: dict[str, Try] = {
    "reload_weights leaves a tied head as it was": reload_of_a_tied_head,
    "prompts that were read stay after new weights": prefix_cache_after_weights,
    "a seed, and a prompt read in parts, on a CPU": seed_and_a_prompt_in_parts,
}
ADAPTERS: dict[str, Try] = {
    "an adapter's id with new files keeps the old ones": same_id_new_files,
    "rows without an adapter get that of the last slot": rows_without_an_adapter,
    "an adapter added while decoding (vllm#47724)": adapter_while_decoding,
    "prompt_logprobs with adapters in a batch": prompt_logprobs_and_adapters,
}
ENGINES: tuple[tuple[dict[str, Try], dict[str, Any]], ...] = (
    (WHOLE, {"max_num_batched_tokens": 128}),
    (ADAPTERS, {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}),
)


async def tried(faults: dict[str, Try], arguments: dict[str, Any], folder: Path) -> dict[str, Outcome]:
    """The outcome of each, on one engine."""
    raw = Raw(**arguments)
    try:
        return {name: await attempt(raw, folder) for name, attempt in faults.items()}
    finally:
        raw.engine.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="append the counts to results/vllm.jsonl")
    write = parser.parse_args().write
    for name, value in (ENVIRONMENT | CPU_ENVIRONMENT).items():
        os.environ.setdefault(name, value)
    folder = Path(tempfile.mkdtemp(prefix="cadre-faults-"))
    outcomes: dict[str, Outcome] = {}
    for faults, arguments in ENGINES:
        outcomes |= asyncio.run(tried(faults, arguments, folder))
    shutil.rmtree(folder)
    table = Table("fault", "now", "how it was tried")
    for name, (verdict, how) in outcomes.items():
        table.add_row(name, verdict, how)
    Console(soft_wrap=True).print(table)
    if write:
        still = sum(verdict == STILL for verdict, _ in outcomes.values())
        record("vllm", "vllm.faults_still_there", [still], "count", "python -m lab.vllm_faults", len(outcomes))


if __name__ == "__main__":
    main()
