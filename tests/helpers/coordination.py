"""The coordination game with a setting for every preset: what the test suite and the bench both train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

GAMES = f"{Path(__file__).parent}/games.py"
MARKS = ("=== left ===\n", "\n=== right ===\n")


def write_speaker(folder: Path, marks: tuple[str, ...] = ()) -> Path:
    """An untrained Llama over ten digits, an end, a pad and `marks`; it reads over whatever else a prompt holds."""
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<end>", *"0123456789", *marks])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("|".join([*marks, "[0-9]"])), "removed", invert=True)
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<end>")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}<end>{% endfor %}"
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {"eos_token_id": 1, "pad_token_id": 0, "bos_token_id": None}
    LlamaForCausalLM(
        LlamaConfig(vocab_size=len(vocabulary), max_position_embeddings=64, **ends, **shape)
    ).save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class Setting:
    """A preset's way to play the game; `marks` are the model's characters beside digits."""

    learning_rate: float = 1e-2
    steps: int = 60
    k: int = 16
    max_tokens: int = 1
    game: str = "Handshake"
    roles: tuple[str, ...] = ("left", "right")
    pays: str = "each"
    entropy: float = 0.0
    marks: tuple[str, ...] = ()
    policies: tuple[str, ...] = ("shared",)
    options: Mapping[str, Any] = field(default_factory=dict)


# Advantages in deviations of their group need fewer steps. Critics play the game in which only the joint action pays,
# where half of the digits are never found without a bonus for entropy. The central model has the form of an answer to
# learn too.
SCALED = Setting(steps=30)
CRITIC = Setting(steps=100, pays="both", entropy=0.2)
SETTINGS = {
    "at_grpo": SCALED,
    "grpo": SCALED,
    "grpo_by_role": SCALED,
    "matpo": SCALED,
    "flow_grpo": Setting(steps=30, max_tokens=2, game="HandshakeSingleAgent", roles=("both",)),
    "m_grpo": Setting(steps=30, policies=("one", "two")),
    "teamtr": Setting(policies=("one", "two")),
    "gigpo": SCALED,
    "state_value": Setting(),
    "tree_grpo": SCALED,
    "tree_rl": Setting(),
    "arpo": SCALED,
    "bpo": Setting(),
    "c3": Setting(),
    "counterfactual": SCALED,
    "shapley": SCALED,
    "hierarchical_grpo": Setting(),
    "sirius": Setting(steps=60, entropy=0.1, options={"threshold": 0.5}),
    "ma_dpo": Setting(),
    "dr_mas": SCALED,
    "dr_mamr": SCALED,
    "magrpo": Setting(),
    "ma_reinforce": Setting(),
    "ma_rloo": Setting(),
    "ma_remax": Setting(),
    "magrpo_central": Setting(5e-3, 120, 48, max_tokens=5, roles=("team",), marks=MARKS),
    "spiral": Setting(),
    "ippo": CRITIC,
    "mappo": CRITIC,
    "gdpo": Setting(steps=30, options={"name": "grpo", "parts": {"left": 1.0, "right": 1.0}}),
    "teacher": Setting(steps=30, options={"name": "at_grpo"}),  # whose teacher is named where it is trained
    "rlhf": Setting(steps=100, max_tokens=2, game="HandshakeSingleAgent", roles=("both",), entropy=0.2),
}


def experiment(name: str, folder: Path) -> dict[str, Any]:
    """The configuration of a preset's experiment; its model is made in `folder` unless it is there."""
    chosen = SETTINGS[name]
    model = folder / ("marking-speaker" if chosen.marks else "speaker")
    if not model.exists():
        write_speaker(model, chosen.marks)
    return {
        "env": f"{GAMES}:{chosen.game}",
        "settings": {"pays": chosen.pays},
        "team": {
            "policies": dict.fromkeys(chosen.policies, str(model)),
            "roles": dict(zip(chosen.roles, chosen.policies * len(chosen.roles), strict=False)),
        },
        "algorithm": {"name": name, "k": chosen.k, **chosen.options},
        "loss": {"entropy": chosen.entropy} if chosen.entropy else {},
        "sampling": {"max_tokens": chosen.max_tokens},
        "learner": {"learning_rate": chosen.learning_rate},
        "train": {"steps": chosen.steps, "tasks_per_step": 8},
        "evaluate": {"tasks": 8},
    }
