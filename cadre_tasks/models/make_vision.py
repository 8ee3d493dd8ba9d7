"""Makes a tiny model that sees: `python -m cadre_tasks.models.make_vision OUT`.

A SmolVLM of under a million parameters, whose patches are the cells of a board of 8 pixels a cell, pre-trained on
pictures of Plan-Path with answers of mixed quality: now and then the whole of a shortest way, more often its beginning,
sometimes moves at random. What it lacks is to go on to the end; no reinforcement learning goes into it. Its grids are
of the training split. Equal seeds give equal weights on one machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import PreTrainedTokenizerFast, SmolVLMConfig, SmolVLMForConditionalGeneration
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from cadre import random_keys
from cadre.engines.media import MediaProcessor, VisionProcessor
from cadre.engines.text.template import Template
from cadre.engines.torch import vision
from cadre.types import Media, Observation
from cadre_tasks.answers import numbered
from cadre_tasks.games.pictured import PlanPathPicture
from cadre_tasks.games.plan_path import shortest
from cadre_tasks.models.make_seed import SPECIAL, byte_level, make_parser, pretrain

SIZE, CELL, VOCABULARY = 6, 8, 512
PIECES = r" ?\d+[UDLR]?|[^\d]+"
SEEN = ["<image>", "<fake_token_around_image>", "<global-img>"]
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# How often an answer is the whole way, its beginning, or moves at random.
KINDS = {"whole": 18, "part": 72, "random": 10}
Row = tuple[tuple[int, ...], int, tuple[Media, ...]]  # ids, how many of them are the prompt's, and its pictures


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return byte-level BPE in which a numbered move is one token."""
    generator = random_keys.generator("vision tokenizer")
    moves = (numbered("".join(generator.choices("UDLR", k=40))) for _ in range(3000))
    return byte_level(PIECES, [*moves, *(["moves"] * 100)], VOCABULARY, SPECIAL + SEEN, TEMPLATE)


def make_model(tokenizer: PreTrainedTokenizerFast) -> SmolVLMForConditionalGeneration:
    """Return a new model with a patch a cell and a token for every four patches."""
    text = {
        "model_type": "llama",
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision_config = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
    vision_config |= {"image_size": SIZE * CELL, "patch_size": CELL}
    token = tokenizer.convert_tokens_to_ids("<image>")
    sizes = {"scale_factor": 2, "image_token_id": token, "pad_token_id": tokenizer.pad_token_id}
    return SmolVLMForConditionalGeneration(
        SmolVLMConfig(text_config=text, vision_config=vision_config, tie_word_embeddings=True, **sizes)
    )


def save(model: Any, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a Hugging Face folder, with the image processor that leaves a board's pixels as they are."""
    edge = {"longest_edge": SIZE * CELL}
    processor = SmolVLMImageProcessorPil(size=edge, max_image_size=edge, do_image_splitting=False)
    for part in (model, tokenizer, processor):
        part.save_pretrained(folder)


def example(generator: random.Random) -> tuple[Observation, str]:
    """Return a planner's observation of a training task and an answer of mixed quality."""
    tasks = PlanPathPicture.tasks("train", size=SIZE)
    env = PlanPathPicture(tasks[generator.randrange(len(tasks))], cell=CELL, prompts="compact", turns=1)
    return env.observe()["planner"], numbered(mixed(shortest(env.grid, env.cell) or "", generator))


def mixed(way: str, generator: random.Random) -> str:
    """Return moves of mixed quality."""
    (kind,) = generator.choices(list(KINDS), list(KINDS.values()))
    if kind == "random":
        return "".join(generator.choices("UDLR", k=generator.randint(1, 8)))
    return way if kind == "whole" else way[: generator.randint(1, max(1, len(way) - 1))]


def batches(
    template: Template,
    tokenizer: PreTrainedTokenizerFast,
    size: int,
    generator: random.Random,
    draw: Callable[[random.Random], tuple[Observation, str]] = example,
) -> Iterator[list[Row]]:
    """Yield endless batches of examples as token ids."""
    prompt_of = lru_cache(maxsize=4096)(lambda messages: template.prompt(messages, None, ()))

    def row() -> Row:
        observation, answer = draw(generator)
        prompt = prompt_of(observation.messages)
        answer_ids = (*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id)
        return prompt.ids + answer_ids, len(prompt.ids), prompt.images

    while True:
        yield [row() for _ in range(size)]


def tensors(model: Any, pictures: MediaProcessor, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
    """Return the training inputs: the rows as the engine would run them, with labels for the answers."""
    inputs = vision.make_inputs(model, pictures, [(ids, images) for ids, _, images in rows]).tensors
    # -100 is the label that the loss ignores: the prompt's tokens are not trained on.
    labels = [torch.tensor([-100] * start + list(ids[start:])) for ids, start, _ in rows]
    padded = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)
    return {**inputs, "labels": padded}


def main() -> None:
    options = make_parser("Make a tiny model that sees Plan-Path.", 9000, 64, 2e-3).parse_args()
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    save(model, tokenizer, options.out)
    pictures = VisionProcessor(str(options.out), tokenizer, model.config)
    Console().print(f"{model.num_parameters() / 1e6:.2f} million parameters, {len(tokenizer)} tokens")
    template = Template(tokenizer, images=pictures)
    rows = batches(template, tokenizer, options.batch, random_keys.generator("vision pretrain"))
    pretrain(model, (tensors(model, pictures, batch) for batch in rows), options.steps, options.rate)
    save(model, tokenizer, options.out)


if __name__ == "__main__":
    main()
