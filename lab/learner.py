"""An update with prefix trees against a padded one: `python -m lab.learner [--write]`, eight minutes.

`learner.vs_bound.pP.kK` is the time of an update with prefix trees over that of a padded one, divided by the fraction
of tokens that are distinct, for K completions of each prompt of P tokens: 64 sequences of random tokens, a Llama of
three million weights in float32, both sides in turn, seven times after two that are not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM

from bench.common import record
from bench.tiny_models import byte_tokenizer, save
from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings
from cadre.settings import LearnerConfig, PolicyConfig
from cadre.types import TrainingSequence

SEQUENCES, WARMING, REPEATS = 64, 2, 7
COMPLETIONS = {200: 32, 1024: 64}  # tokens of a completion, by those of a prompt
VOCABULARY = 1024


def make_learner(folder: Path, packing: str) -> TorchLearner:
    """Return a learner of a whole model."""
    settings = LearnerConfig(learning_rate=1e-6, pack=packing, tokens_per_microbatch=4_096)
    engine = TorchEngine(folder, {"p": PolicyConfig(model=str(folder), device="cpu", dtype="float32")}, 0)
    return TorchLearner(engine, TrainingSettings({"p": settings}))


def siblings(prompt: int, completion: int, count: int) -> list[TrainingSequence]:
    """Return sequences of random tokens, `count` after each prompt."""
    draw, data, shared = random.Random(0), [], ()
    for number in range(SEQUENCES):
        if number % count == 0:
            shared = tuple(draw.randrange(VOCABULARY) for _ in range(prompt))
        ids = shared + tuple(draw.randrange(VOCABULARY) for _ in range(completion))
        before, mask = (0.0,) * prompt, (False,) * prompt + (True,) * completion
        logprobs, advantages = before + (-7.0,) * completion, before + ((-1.0) ** number,) * completion
        data.append(TrainingSequence("p", "any", ids, mask, logprobs, advantages, 0))
    return data


def time_ratios(sides: tuple[TorchLearner, TorchLearner], prompt: int, count: int) -> list[float]:
    """Return the tree's time over the padded one's, over the fraction of distinct tokens."""
    completion, ratios = COMPLETIONS[prompt], []
    bound = (prompt + count * completion) / (count * (prompt + completion))
    data = siblings(prompt, completion, count)
    for _ in range(WARMING + REPEATS):
        seconds = []
        for side in sides:
            began = time.perf_counter()
            asyncio.run(side.update(data))
            seconds.append(time.perf_counter() - began)
        ratios.append(seconds[0] / seconds[1] / bound)
    return ratios[WARMING:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    size = {"hidden_size": 256, "intermediate_size": 672, "num_hidden_layers": 4, "max_position_embeddings": 2048}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "tie_word_embeddings": True}
    ids = {"vocab_size": VOCABULARY, "pad_token_id": 256, "eos_token_id": 257, "bos_token_id": None}
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "model"
        save(lambda: LlamaForCausalLM(LlamaConfig(**size, **heads, **ids)), folder)
        byte_tokenizer().save_pretrained(folder)
        sides = make_learner(folder, "prefix_tree"), make_learner(folder, "padded")
        for prompt in COMPLETIONS:
            for count in (4, 8):
                name, ratios = f"learner.vs_bound.p{prompt}.k{count}", time_ratios(sides, prompt, count)
                print(name, " ".join(f"{ratio:.3f}" for ratio in sorted(ratios)), flush=True)
                if write:
                    record("learner", name, ratios, "ratio", "python -m lab.learner --write", REPEATS)
        for side in sides:
            side.close()


if __name__ == "__main__":
    main()
