"""Model families by the forms in which sampler and learner may run them, as `bench/families.py` has found them right.

A trial of a few tokens (`trials.py`) shows all that can be wrong with a form but what windows, chunks and choices of
the best keys do, as these change nothing until a sequence is longer than them. Those are known by family. A family that
is not here is run by its own plain forward over one sequence, or several of one length: that is slow, and right for all
of them. So is a model with code of its own, whatever it calls its type.
"""

from __future__ import annotations

from typing import Any

# Attention is scores of queries and keys within a window that layers pass on, so that our own functions can compute it.
SHARED = frozenset(
    """
    apertus arcee aria_text bert bert-generation biogpt bitnet cohere cohere2 cohere2_moe ctrl cwm dbrx dots1
    electra ernie ernie4_5 ernie4_5_moe exaone4 exaone_moe flex_olmo fuyu gemma gemma2 gemma3 gemma3_text
    gemma3n_text gemma4 gemma4_text gemma4_unified gemma4_unified_text glm glm4 glm4_moe gpt-sw3 gpt2 gpt_bigcode
    gpt_neox granite granitemoe granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax jais2
    laguna llama mellum minimax_m2 minimax_m3_vl_text ministral ministral3 mistral mixtral modernbert-decoder
    nanochat olmo olmo2 olmo3 olmoe opt persimmon phi phi3 phi4_multimodal qwen2 qwen3 qwen3_moe roc_bert seed_oss
    smollm3 solar_open starcoder2 vaultgemma whisper
    """.split()
)
# Keys and values may be kept, but are read by the model's own attention: it has sinks, windows in its mask alone, or
# values of another width.
COPIED = frozenset(
    """
    afmoe axk1 big_bird codegen deepseek_v2 deepseek_v3 diffllama doge falcon git glm4_moe_lite gpt_neox_japanese
    gpt_oss gptj granite_swa granitemoe_swa hrm_text jetmoe longcat_flash megatron-bert mimo_v2_flash minicpm3
    nemotron phimoe qwen2_moe rembert stablelm xglm youtu
    """.split()
)
# Nothing is kept, as layers are recurrent, attend in chunks or choose keys. What follows a token does not change it, so
# that sequences may be padded to be trained together, as those above may.
PADDED = frozenset(
    """
    axk2 bamba bart bigbird_pegasus blenderbot blenderbot-small bloom camembert data2vec-text deepseek_v32 falcon_h1
    falcon_mamba glm_moe_dsa gpt_neo granitemoehybrid hy_v4 jamba lfm2 lfm2_moe llama4 llama4_text mamba mamba2
    marian mbart minimax moshi mpt mvp nemotron_h olmo_hybrid openai-gpt pegasus plbart qwen3_5 qwen3_5_moe
    qwen3_5_moe_text qwen3_5_text qwen3_next qwen4_exp qwen4_exp_text recurrent_gemma roberta roberta-prelayernorm
    roformer rwkv trocr xlm-roberta xlm-roberta-xl xlstm xmod zamba zaya
    """.split()
)
# The setting that counts the keys that layers choose among all tokens, later ones included: in a longer sequence what
# is computed of a token depends on later ones.
CHOSEN_KEYS = {
    "doge": "keep_window_size",
    **dict.fromkeys(("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4"), "index_topk"),
}


def family_of(model: Any) -> str:
    """Return the model's type in config.json, or "" if its code is not that of transformers."""
    is_known = type(model).__module__.startswith("transformers.models.")
    return str(model.config.model_type) if is_known else ""


def count_chosen_keys(model: Any) -> int | None:
    """Return the number of tokens beyond which layers choose keys among all of them; None for other families."""
    name = CHOSEN_KEYS.get(family_of(model), "")
    count: int | None = getattr(model.config.get_text_config(), name, None)
    return count
