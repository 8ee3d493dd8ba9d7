"""Samples from a Llama-like model on few CPU cores, weights kept in bfloat16: for benches that read many programs.

The model of `transformers` reads each distinct prompt once; its decoding steps are done here, as they would repeat keys
and values by query head and copy the cache at every token. `python bench/quick_sampler.py MODEL` compares the
distributions with the model's own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

KEPT = 0.8  # completions are dropped from the batch when fewer than this fraction go on


@dataclass(frozen=True)
class Completion:
    text: str
    finish: str  # stop or length, as in cadre.types.Sample
    tokens: int


class QuickSampler:
    """A model and its tokenizer. Llama and Qwen2 architectures, without sliding windows."""

    def __init__(self, folder: str) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        config = self.model.config
        self.kv_heads = config.num_key_value_heads
        self.head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        ends = self.model.generation_config.eos_token_id
        self.ends = torch.tensor(ends if isinstance(ends, list) else [ends])
        self.rate = 0.0  # tokens a second of the last call

    @torch.inference_mode()
    def sample(
        self, prompts: Sequence[str], temperatures: Sequence[float], max_tokens: Sequence[int], seed: int = 0
    ) -> list[Completion]:
        """Return one completion a prompt, each with its own temperature and token limit."""
        started = time.monotonic()
        generator = torch.Generator().manual_seed(seed)
        distinct = list(dict.fromkeys(prompts))
        rows = torch.tensor([distinct.index(prompt) for prompt in prompts])
        logits, keys, values, lengths = self.read(distinct, max(max_tokens))
        state = [tensor[:, rows].clone() for tensor in (keys, values)]
        logits, lengths = logits[rows], lengths[rows]
        width = int(lengths.max())
        first = width - lengths  # column of each row's first token
        numbers = torch.arange(len(prompts))
        heat, limits = torch.tensor(temperatures), torch.tensor(max_tokens)
        said: list[list[int]] = [[] for _ in prompts]
        finish = ["length"] * len(prompts)
        for step in range(max(max_tokens)):
            noise = torch.rand(logits.shape, generator=generator).clamp_min_(1e-20)
            tokens = (logits / heat[numbers, None] - noise.log_().neg_().log_()).argmax(1)  # the Gumbel trick
            ended = torch.isin(tokens, self.ends)
            going_on = (limits[numbers] > step).tolist()
            for row, number in enumerate(numbers.tolist()):
                if going_on[row]:
                    said[number].append(int(tokens[row]))
                    finish[number] = "stop" if ended[row] else "length"
            alive = ~ended & (limits[numbers] > step + 1)
            if not alive.any():
                break
            # Rows that have ended go on unseen until there are enough of them to be worth a copy of the cache.
            limits[numbers[~alive]] = 0
            if alive.float().mean() < KEPT:
                state = [tensor[:, alive] for tensor in state]
                numbers, tokens, first = numbers[alive], tokens[alive], first[alive]
            if step % 50 == 49:
                print(f"{step + 1} tokens, {int(alive.sum())} of {len(prompts)} go on", file=sys.stderr, flush=True)
            logits = self.decode(tokens, width + step, first, state)
        self.rate = sum(map(len, said)) / (time.monotonic() - started)
        return [
            Completion(self.tokenizer.decode(ids, skip_special_tokens=True), end, len(ids))
            for ids, end in zip(said, finish, strict=True)
        ]

    def read(self, prompts: Sequence[str], room: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the logits behind each prompt, its keys and values [layer, prompt, head, column, size], aligned at
        their ends and with room for so many more, and its length."""
        ids = [
            self.tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
            )
            for prompt in prompts
        ]
        lengths = torch.tensor([len(row) for row in ids])
        width = int(lengths.max())
        layers = self.model.config.num_hidden_layers
        shape = (layers, len(ids), self.kv_heads, width + room, self.head_size)
        keys, values = torch.zeros(shape, dtype=torch.bfloat16), torch.zeros(shape, dtype=torch.bfloat16)
        logits = []
        for number, row in enumerate(ids):
            out = self.model(torch.tensor([row]), use_cache=True, logits_to_keep=1)
            logits.append(out.logits[0, -1].float())
            for layer in range(layers):
                cached = out.past_key_values.layers[layer]
                keys[layer, number, :, width - len(row) : width] = cached.keys[0]
                values[layer, number, :, width - len(row) : width] = cached.values[0]
        return torch.stack(logits), keys, values, lengths

    def decode(self, tokens: Tensor, column: int, first: Tensor, state: list[Tensor]) -> Tensor:
        """Return the logits behind one more token of every row, whose keys and values go into `column`."""
        model, count = self.model.model, len(tokens)
        hidden = model.embed_tokens(tokens)[:, None]
        cos, sin = model.rotary_emb(hidden, (column - first)[:, None])
        hidden_columns = torch.arange(column + 1) < first[:, None]
        mask = torch.zeros(count, 1, 1, column + 1).masked_fill_(hidden_columns[:, None, None], -torch.inf)
        for layer, keys, values in zip(model.layers, *state, strict=True):
            attention, normed = layer.self_attn, layer.input_layernorm(hidden)
            query = rotate(attention.q_proj(normed).view(count, -1, self.head_size), cos, sin)
            keys[:count, :, column] = rotate(attention.k_proj(normed).view(count, -1, self.head_size), cos, sin)
            values[:count, :, column] = attention.v_proj(normed).view(count, -1, self.head_size)
            # Query heads that share keys are rows of one product.
            grouped = query.view(count, self.kv_heads, -1, self.head_size)
            scores = grouped @ keys[:count, :, : column + 1].transpose(2, 3) * self.head_size**-0.5 + mask
            attended = scores.float().softmax(3).to(torch.bfloat16) @ values[:count, :, : column + 1]
            hidden = hidden + attention.o_proj(attended.reshape(count, 1, -1))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return self.model.lm_head(model.norm(hidden))[:, 0].float()


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the heads [row, head, size] with rotary positions."""
    left, right = heads.chunk(2, dim=2)
    return heads * cos + torch.cat((-right, left), 2) * sin


def main() -> None:
    """Print the largest difference of log-probabilities between a decoding step here and the model's own forward."""
    sampler = QuickSampler(sys.argv[1])
    prompts = ["Write a function that adds two numbers.", "Name three colours."]
    with torch.inference_mode():
        _, keys, values, lengths = sampler.read(prompts, 4)
        first = lengths.max() - lengths
        tokens = torch.tensor([[785, 1909], [198, 264], [9707, 13]])
        for step, token in enumerate(tokens):
            logits = sampler.decode(token, int(lengths.max()) + step, first, [keys, values])
        for number, prompt in enumerate(prompts):
            ids = sampler.tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
            )
            own = sampler.model(torch.tensor([[*ids, *tokens[:, number].tolist()]])).logits[0, -1].float()
            mine, theirs = logits[number].log_softmax(0), own.log_softmax(0)
            likely = theirs > -12
            print(f"{prompt} {(mine - theirs)[likely].abs().max():.3f} nats, of {int(likely.sum())} tokens")


if __name__ == "__main__":
    main()
