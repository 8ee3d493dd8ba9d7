"""What every test may use: a tiny model folder that says digits, and a quiet display."""

from pathlib import Path

import pytest
import torch
from rich.console import Console
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained Llama over twelve tokens: ten digits, an end and a pad."""
    folder = tmp_path_factory.mktemp("speaker")
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<end>", *"0123456789"])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<end>")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}<end>{% endfor %}"
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=12, max_position_embeddings=64, eos_token_id=1, pad_token_id=0, bos_token_id=None, **shape
        )
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def quiet() -> Console:
    return Console(quiet=True)
