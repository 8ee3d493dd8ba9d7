"""Makes the embedded seed model: `make seed-model`, or `python -m cadre_tasks.models.make_seed OUT`.

A Llama of about a million parameters with a tokenizer of its own, pre-trained on generated transcripts of mixed quality
in the compact wording. As a tool it writes Python programs of many kinds, of which few are right
(`cadre_tasks.models.programs`); as a planner it mostly does little, sometimes copies the tool's answer, sometimes
guesses (`cadre_tasks.models.transcripts`). No reinforcement learning goes into it. Equal seeds give equal weights on
one machine.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from rich.console import Console
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from cadre import random_keys
from cadre_tasks.answers import numbered
from cadre_tasks.models.programs import KINDS, PARTS, sample_program
from cadre_tasks.models.programs.mixture import Mixture
from cadre_tasks.models.transcripts import Transcript, numbered_rows, transcript

MIXTURES = {"whole": KINDS, "parts": PARTS}
VOCABULARY = 1024
Row = tuple[list[int], list[int]]  # token ids and labels
SPECIAL = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Grid rows, numbered moves and numbered rows stay apart, so that a move like " 12R" or a row like " 3:2143" is one
# token and copying needs one look; a line of code may become one token.
PIECES = r" ?\d:[\d.]{4,}|\n?[.#SGB*+]{4,}|\n?[\d.]{4,}| ?\d+[UDLR]?|\n[^\n\d]*"


def make_tokenizer(generator: random.Random, mixture: Mixture = KINDS) -> PreTrainedTokenizerFast:
    """Return byte-level BPE trained on transcripts, with programs given more weight than grids."""
    texts = [text for _ in range(1500) for _, text in transcript(generator, mixture)]
    texts += [sample_program(game, generator, mixture)[1] for _ in range(1500) for game in KINDS]
    texts += [numbered("".join(generator.choices("UDLR", k=40))) for _ in range(3000)]
    # Rows and moves by themselves, so that each of them becomes one token.
    texts += [numbered_rows(4, generator) for _ in range(10_000)]
    return byte_level(PIECES, texts, VOCABULARY)


def byte_level(
    pattern: str, texts: Iterable[str], vocabulary: int, special: Sequence[str] = SPECIAL, template: str = TEMPLATE
) -> PreTrainedTokenizerFast:
    """Return byte-level BPE of so many tokens trained on the texts; no token crosses a match of `pattern`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[AddedToken(token, special=True) for token in special],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|end|>")
    fast.chat_template = template
    return fast


def tiny_llama(
    tokenizer: PreTrainedTokenizerFast,
    vocabulary: int,
    hidden: int,
    mlp: int,
    layers: int,
    context: int,
    spread: float = 0.02,
) -> LlamaForCausalLM:
    """Return an untrained Llama of four heads with these sizes and one matrix for tokens in and out; `spread` is the
    standard deviation of its weights."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        initializer_range=spread,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    return tiny_llama(tokenizer, VOCABULARY, hidden=128, mlp=352, layers=5, context=2048)


def encode(talk: Transcript, tokenizer: PreTrainedTokenizerFast) -> Row:
    """Return token ids and labels; only the assistant's messages have labels."""
    ids: list[int] = []
    labels: list[int] = []
    for role, text in talk:
        head = tokenizer.convert_tokens_to_ids([f"<|{role}|>"])
        body = tokenizer.encode(text, add_special_tokens=False) + [tokenizer.eos_token_id]
        ids += head + body
        labels += [-100] * len(head) + (body if role == "assistant" else [-100] * len(body))
    return ids, labels


def batches(
    tokenizer: PreTrainedTokenizerFast, size: int, generator: random.Random, mixture: Mixture = KINDS
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield endless right-padded batches, transcripts of similar length together."""
    while True:
        # A pool of 16 batches, so that sorting by length finds rows of similar length.
        talks = (transcript(generator, mixture) for _ in range(size * 16))
        yield from by_length([encode(talk, tokenizer) for talk in talks], size, generator)


def by_length(rows: list[Row], size: int, generator: random.Random) -> Iterator[dict[str, torch.Tensor]]:
    """Return an iterator over the rows in padded batches, rows of similar length together."""
    pool = sorted(rows, key=lambda row: len(row[0]))
    chunks = [pool[start : start + size] for start in range(0, len(pool), size)]
    generator.shuffle(chunks)
    return map(padded, chunks)


def batches_of(rows: list[Row], size: int, generator: random.Random) -> Iterator[dict[str, torch.Tensor]]:
    """Yield endless right-padded batches of given rows, those of similar length together."""
    while True:
        yield from by_length(generator.sample(rows, min(len(rows), size * 16)), size, generator)


def padded(rows: list[Row]) -> dict[str, torch.Tensor]:
    """Return ids and labels as tensors, padded on the right."""
    width = max(len(ids) for ids, _ in rows)
    filled = [(ids + [0] * (width - len(ids)), labels + [-100] * (width - len(ids))) for ids, labels in rows]
    ids, labels = (torch.tensor(side) for side in zip(*filled, strict=True))
    return {"input_ids": ids, "labels": labels}


def pretrain(model: PreTrainedModel, rows: Iterator[dict[str, torch.Tensor]], steps: int, peak: float) -> None:
    """Train with AdamW, a warm-up and a cosine decay. Right padding needs no mask: causal attention never
    looks ahead."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.01)
    rate = torch.optim.lr_scheduler.LambdaLR(
        # 50 steps of warm-up, then a cosine from 1 down to 0.02 of the peak.
        optimiser,
        lambda step: min(1.0, (step + 1) / 50) * (0.02 + 0.49 * (1 + math.cos(math.pi * step / steps))),
    )
    console, began = Console(), time.monotonic()
    for step, batch in zip(range(steps), rows, strict=False):
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        rate.step()
        optimiser.zero_grad()
        if step % 50 == 0 or step == steps - 1:
            console.print(f"step {step}/{steps}  loss {loss.item():.4f}  {time.monotonic() - began:.0f} s")


def make_parser(description: str, steps: int, batch: int, rate: float) -> argparse.ArgumentParser:
    """Return the options of a script that makes a model: where to write, and the size of the training."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--rate", type=float, default=rate)
    return parser


def main() -> None:
    parser = make_parser("Make the embedded seed model.", 1600, 96, 3e-3)
    parser.add_argument("--mixture", choices=MIXTURES, default="whole", help="parts: no right program is in the text")
    options = parser.parse_args()
    torch.manual_seed(0)
    mixture = MIXTURES[options.mixture]
    tokenizer = make_tokenizer(random_keys.generator("tokenizer"), mixture)
    model = make_model(tokenizer)
    Console().print(f"{model.num_parameters() / 1e6:.2f} million parameters, {len(tokenizer)} tokens")
    rows = batches(tokenizer, options.batch, random_keys.generator("pretrain"), mixture)
    pretrain(model, rows, options.steps, options.rate)
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)


if __name__ == "__main__":
    main()
