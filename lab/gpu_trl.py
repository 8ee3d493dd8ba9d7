"""TRL's GRPOTrainer on the work of gpu_words.Words: `python -m lab.gpu_trl MODEL OUT [--vllm] [--lora-rank 16] ...`.

Run by lab/gpu.py where TRL can be imported; writes one line of JSON per step to OUT. The prompts are the same texts,
with the chat template applied, so both sides read and write the same number of tokens. An adapter needs PEFT.

Chosen for its speed: no gradient checkpointing (its default is on), and nothing logged, saved or evaluated. The model
is held, trained and stepped in bfloat16, with no float32 copy of the weights, which Cadre has. A device batch of
`--batch` sequences with as many accumulation steps as one update over everything takes. Its other defaults stay.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lab.gpu_words import TASKS, checksum, random_words


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder that lab/gpu_models.py wrote")
    parser.add_argument("out", type=Path, help="file for a line of JSON per step")
    parser.add_argument("--vllm", action="store_true", help="sample with vLLM on the same GPU instead of `generate`")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--words", type=int, default=512, help="of a prompt")
    parser.add_argument("--completions", type=int, default=8, help="of each prompt")
    parser.add_argument("--tokens", type=int, default=256, help="of a completion")
    parser.add_argument("--batch", type=int, default=32, help="sequences in one forward of the learner")
    parser.add_argument("--lora-rank", type=int, help="train an adapter of this rank on all linear layers")
    parser.add_argument("--lora-alpha", type=float, default=32.0)
    parser.add_argument("--memory", type=float, default=0.3, help="part of the GPU's memory for vLLM")
    parser.add_argument("--cpu", action="store_true", help="in float32 on the CPU, to test this script")
    options = parser.parse_args(arguments)
    if (options.prompts * options.completions) % batch_size(options):
        parser.error(
            f"got --batch {options.batch}; expected a divisor of the {options.prompts * options.completions} sequences "
            "of a step. Name another."
        )
    return options


def batch_size(options: argparse.Namespace) -> int:
    """Return the sequences in one forward of the learner."""
    return min(int(options.batch), int(options.prompts * options.completions))


def config_keys(options: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Return the arguments of a GRPOConfig: a step is one update on all completions of `prompts` prompts."""
    sequences, batch = options.prompts * options.completions, batch_size(options)
    sampler = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": options.memory}
    return {
        "output_dir": folder,
        "model_init_kwargs": {"dtype": "float32" if options.cpu else "bfloat16"},
        "num_generations": options.completions,
        "max_completion_length": options.tokens,
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": sequences // batch,
        "gradient_checkpointing": False,
        "bf16": not options.cpu,
        "use_cpu": options.cpu,
        "max_steps": options.steps,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "seed": 0,
        **(sampler if options.vllm else {}),
    }


def adapter(options: argparse.Namespace) -> Any:
    """Return PEFT's settings of the adapter, or None to train the model whole."""
    if options.lora_rank is None:
        return None
    from peft import LoraConfig

    return LoraConfig(r=options.lora_rank, lora_alpha=options.lora_alpha, target_modules="all-linear")


def make_prompts(tokenizer: Any, words: int, count: int = TASKS) -> list[str]:
    """Return the prompts of gpu_words.Words with the chat template applied."""

    def prompt(seed: int) -> str:
        message = {"role": "user", "content": random_words(seed, words, len(tokenizer))}
        return str(tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True))

    return [prompt(seed) for seed in range(count)]


def main() -> None:
    options = parse()

    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    def wait() -> None:
        if not options.cpu:
            torch.cuda.synchronize()

    class TimedTrainer(GRPOTrainer):
        """Measures how long generation takes, and counts its tokens."""

        def _generate(self, *arguments: Any, **keywords: Any) -> Any:
            wait()
            began = time.perf_counter()
            generated = super()._generate(*arguments, **keywords)
            wait()
            self.sample_s = time.perf_counter() - began
            self.sampled = sum(len(ids) for ids in generated[1])
            self.read = sum(len(ids) for ids in generated[0])
            return generated

    class StepTimer(TrainerCallback):
        """Writes a line for each step: generation, reward and update."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            wait()
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            wait()
            step_s = time.perf_counter() - self.began
            line = {
                "step_s": step_s,
                "sample_s": trainer.sample_s,
                "learn_s": step_s - trainer.sample_s,
                "tokens": trainer.sampled,
                "prompt_tokens": trainer.read,
                "learner_peak": 0 if options.cpu else torch.cuda.max_memory_allocated(),
            }
            with options.out.open("a") as out:
                out.write(json.dumps(line) + "\n")

    tokenizer = AutoTokenizer.from_pretrained(options.model, padding_side="left")

    with tempfile.TemporaryDirectory() as folder:
        trainer = TimedTrainer(
            model=options.model,
            reward_funcs=lambda completions, **_: [checksum(text) for text in completions],
            args=GRPOConfig(**config_keys(options, folder)),
            train_dataset=Dataset.from_dict({"prompt": make_prompts(tokenizer, options.words)}),
            processing_class=tokenizer,
            callbacks=[StepTimer()],
            peft_config=adapter(options),
        )
        trainer.train()


if __name__ == "__main__":
    main()
