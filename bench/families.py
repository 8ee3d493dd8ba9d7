"""Every family of causal language models that transformers has: the sampler against the learner and a plain forward.

    python bench/families.py [FAMILY ...] [--write] [--fresh]

Each family gets a tiny random model, in a folder as a user's is, and is loaded as that is. Completions of prompts of
unequal length are drawn in one batch and in a second turn, in every form that the engine would choose, and their
log-probabilities are compared in float32 with those of the learner in every packing that it would choose, with and
without checkpointing, and of the model's own forward over each sequence alone. A family with a window has three:
shorter than all prompts, between prompts and whole sequences, and longer than all. With `--write` the table goes to
docs/families.md and the figures to results/correctness.jsonl. What is done is kept among the system's temporary files,
so that a run that was stopped goes on; `--fresh` begins again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as FAMILIES
from transformers.utils import logging

from cadre.advantages import batch
from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings
from cadre.engines.torch.kv_cache import run_eagerly
from cadre.errors import EngineError, first_line
from cadre.rollout.batching import gather
from cadre.settings import LearnerConfig, PolicyConfig
from cadre.types import Message, PreviousTurn, Request, Sample, Sampling
from common import ROOT, commit, record
from tiny_models import byte_tokenizer, save

SUPPORTED = 1e-4  # nats
LARGEST = 30_000_000  # parameters
SECONDS = 90
PAGE = ROOT / "docs" / "families.md"
TEXTS = ("go", "a prompt that is longer than the first of the windows")
TOKENS = 24
# Prompts have 22 and 73 tokens, whole sequences up to 97 and in the second turn more.
WINDOWS = (12, 80, 400)
# Sizes by the names that configurations give them.
SIZES: dict[str, Any] = {
    **dict.fromkeys("hidden_size d_model n_embd dim word_embed_proj_dim embedding_size lru_width".split(), 32),
    **dict.fromkeys(
        "intermediate_size ffn_dim n_inner d_ff decoder_ffn_dim encoder_ffn_dim ffn_hidden_size "
        "shared_intermediate_size".split(),
        48,
    ),
    **dict.fromkeys(
        "moe_intermediate_size shared_expert_intermediate_size moe_shared_expert_intermediate_size".split(), 16
    ),
    **dict.fromkeys("num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers".split(), 2),
    **dict.fromkeys(
        "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads "
        "attention_heads".split(),
        4,
    ),
    **dict.fromkeys("max_position_embeddings n_positions n_ctx max_seq_len".split(), 512),
    **dict.fromkeys("num_local_experts num_experts n_routed_experts moe_num_experts".split(), 4),
    **dict.fromkeys("num_experts_per_tok moe_topk moe_k moe_top_k num_experts_per_token".split(), 2),
    **dict.fromkeys("n_group topk_group n_shared_experts first_k_dense_replace num_shared_experts".split(), 1),
    **dict.fromkeys("qk_rope_head_dim qk_nope_head_dim v_head_dim kv_lora_rank head_dim global_head_dim".split(), 8),
    **dict.fromkeys("num_key_value_heads linear_num_key_heads num_global_key_value_heads index_n_heads".split(), 2),
    **dict.fromkeys("linear_key_head_dim linear_value_head_dim index_head_dim query_pre_attn_scalar".split(), 8),
    **dict.fromkeys("mamba_d_state mamba_n_heads mamba_d_head mamba_headdim mamba_num_heads mamba_head_dim".split(), 8),
    **dict.fromkeys("ssm_state_size state_size hidden_size_per_layer_input laurel_rank".split(), 8),
    **dict.fromkeys("mamba_n_groups mamba_ngroups n_groups moe_num_shared_experts".split(), 1),
    **dict.fromkeys("mamba_expand n_mamba_heads altup_num_inputs".split(), 2),
    **dict.fromkeys("mamba_d_conv mamba_dt_rank rotary_dim time_step_rank linear_num_value_heads".split(), 4),
    **{"mamba_chunk_size": 16, "chunk_size": 16, "mamba_d_ssm": 64, "q_lora_rank": 16, "num_kv_shared_layers": 0},
    **{"vocab_size": 260, "vocab_size_per_layer_input": 260, "pad_token_id": 256, "eos_token_id": 257},
}
WINDOWED = (
    "sliding_window attention_chunk_size index_topk keep_window_size window_size attention_window_size "
    "local_window_size sliding_window_size swa_window_size local_attention"
).split()
SWITCHES = {"use_sliding_window": True, "max_window_layers": 1, "is_decoder": True}
# What a family needs beside these.
OWN: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "doge": {"num_experts": 4},
    "mamba2": {"num_heads": 8, "head_dim": 8, "expand": 2},
    "zaya": {"num_experts_per_tok": 1},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 5, "layer_types": ["mamba", "hybrid", "mamba", "hybrid", "mamba"]},
    "zamba2": {
        "num_hidden_layers": 5,
        "layer_types": ["mamba", "hybrid", "mamba", "hybrid", "mamba"],
        "n_mamba_heads": 8,
        "mamba_headdim": 8,
        "chunk_size": 16,
    },
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [16, 32]},
    "mamba": {"expand": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
}


def config_of(family: str, window: int, **changes: Any) -> Any:
    """The family's configuration with everything tiny and, where it has windows, windows of this length."""
    default = AutoConfig.for_model(family)
    settings = _sizes(default, window)
    if "kv_lora_rank" in default.to_dict():  # latent attention has as many keys as queries
        settings["num_key_value_heads"] = 4
    for name in default.sub_configs:
        nested = getattr(default, name, None)
        if isinstance(nested, PreTrainedConfig):
            settings[name] = {**_sizes(nested, window), "model_type": nested.model_type}
    return AutoConfig.for_model(family, **{**settings, **OWN.get(family, {}), **changes})


def _sizes(config: Any, window: int) -> dict[str, Any]:
    names = config.to_dict().keys() | (getattr(config, "attribute_map", None) or {}).keys()
    sizes = {name: size for name, size in SIZES.items() if name in names}
    windows: dict[str, Any] = {name: window for name in WINDOWED if name in names}
    windows |= {name: value for name, value in SWITCHES.items() if name in names}
    return {**sizes, **windows, "vocab_size": 260, "pad_token_id": 256, "eos_token_id": 257, "bos_token_id": 258}


def has_window(config: Any) -> bool:
    """Return True if a configuration, or a nested one, has an attention window."""
    text = config.get_text_config()
    return any(getattr(part, name, None) is not None for part in (config, text) for name in WINDOWED)


def measure(family: str, window: int, folder: Path) -> dict[str, Any]:
    """Measure one family with one window: the form, the largest difference, or the reason why it is not supported."""
    try:
        config = config_of(family, window)
        with torch.device("meta"):
            count = sum(weight.numel() for weight in AutoModelForCausalLM.from_config(config).parameters())
        if count > LARGEST:
            return {"untried": f"cannot be made tiny: {count:,} parameters"}
        save(lambda: AutoModelForCausalLM.from_config(config), folder)
        byte_tokenizer().save_pretrained(folder)
        plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        with torch.no_grad():
            plain(input_ids=torch.arange(8).unsqueeze(0), use_cache=False)
    except Exception as error:  # noqa: BLE001 - each family has its own way of not being made
        return {"untried": f"cannot be made tiny: {first_line(error)}"}
    return {"windowed": has_window(config), **_compared(folder, plain)}


def _compared(folder: Path, plain: Any) -> dict[str, Any]:
    """The form and the largest difference of a folder's model, of samples that are the learner's, too."""
    policy = PolicyConfig(model=str(folder), device="cpu")
    try:
        engine = TorchEngine(folder, {"p": policy}, seed=0)
    except EngineError as error:
        return {"refused": str(error).replace(str(folder), "MODEL")}
    try:
        samples = _drawn(engine)
        form = {"shared": "shared prompt", "copied": "copied prompt", "plain": "no cache"}[engine._form]
        engine.record = run_eagerly
        samples += _drawn(engine)
        plain.set_attn_implementation(engine.loaded.model.config._attn_implementation)
        worst = max(_gap(sample.logprobs, plain_logprobs(plain, sample)) for sample in samples)
        learnt: dict[str, float] = {}
        data = [batch.sequence_of(sample, 1.0, 1.0) for sample in samples]
        for checkpointing in (False, True):
            for pack in ("auto", "padded"):
                learner_settings = LearnerConfig(pack=pack, gradient_checkpointing=checkpointing)
                try:
                    learner = TorchLearner(engine, TrainingSettings({"p": learner_settings}))
                except EngineError as error:
                    return {"form": form, "max_diff": worst, "untrained": str(error)}
                runner = learner.rank._runner
                with runner.checkpointing():
                    logprobs = engine.work(runner.compute_logprobs, data)
                worst = max(
                    worst,
                    *(
                        _gap(sample.logprobs, got[-len(sample.logprobs) :])
                        for sample, got in zip(samples, logprobs, strict=True)
                    ),
                )
                learnt[pack] = 1.0 if runner.tokens else 0.0
        packing = runner._packing if learnt["padded"] else "alone"
        if (
            learnt["auto"]
            and TorchLearner(engine, TrainingSettings({"p": LearnerConfig()})).rank._runner._packing == "auto"
        ):
            packing = "prefix tree, padded"
        return {"form": form, "packing": packing, "max_diff": worst}
    finally:
        engine.close()


def _drawn(engine: TorchEngine) -> list[Sample]:
    """Samples of prompts of unequal length in one batch, and of the second turn of one of them."""

    def request(text: str, count: int, key: int) -> Request:
        return Request("r", "p", (Message("user", text),), count, Sampling(max_tokens=TOKENS), key)

    async def turns() -> list[Sample]:
        first = [request(TEXTS[0], 2, 1), request(TEXTS[1], 2, 2)]
        samples = [sample for siblings in await gather(*map(engine.sample, first)) for sample in siblings]
        messages = (Message("assistant", samples[0].text), Message("user", "and then?"))
        previous = PreviousTurn(first[0].messages, samples[0])
        second = replace(first[0], messages=first[0].messages + messages, key=3, previous=previous)
        return samples + await engine.sample(second)

    (samples,) = asyncio.run(gather(turns()))
    return samples


@torch.no_grad()
def plain_logprobs(model: Any, sample: Sample) -> Sequence[float]:
    """Return log-probabilities from the model's own forward over the single sequence."""
    ids = torch.tensor([sample.prompt_ids + sample.token_ids])
    scores = model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
    start = len(sample.prompt_ids)
    return scores[start - 1 : -1].gather(1, ids[0, start:, None]).squeeze(1).tolist()


def _gap(first: Sequence[float], second: Sequence[float]) -> float:
    return float((torch.tensor(first) - torch.tensor(second)).abs().nan_to_num(torch.inf).max())


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise TimeoutError after so many seconds."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def main() -> None:
    """Measure what is not measured yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--fresh", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    warnings.filterwarnings("ignore")
    state = Path(tempfile.gettempdir()) / f"cadre-families-{commit()}.jsonl"
    if arguments.fresh:
        state.unlink(missing_ok=True)
    lines = [json.loads(line) for line in state.read_text().splitlines()] if state.exists() else []
    measured = {(line["family"], line["window"]): line for line in lines}
    for family in arguments.families:
        for window in WINDOWS:
            if (family, window) not in measured:
                measured[family, window] = _one(family, window)
                with state.open("a") as out:
                    out.write(json.dumps(measured[family, window]) + "\n")
            if not measured[family, window].get("windowed"):
                break  # other windows make no difference
    rows = {family: [line for (of, _), line in measured.items() if of == family] for family in arguments.families}
    supported = {name: lines for name, lines in rows.items() if is_supported(lines)}
    worst = max((line.get("max_diff", 0.0) for lines in supported.values() for line in lines), default=0.0)
    print(f"{len(supported)} of {len(rows)} families supported, largest difference {worst:.2e} nats")
    if arguments.write:
        PAGE.write_text(page(rows))
        command = "python bench/families.py --write"
        record("correctness", "families.supported", [len(supported)], "families", command, len(rows))
        record("correctness", "families.max_diff", [worst], "nats", command, len(supported))


def _one(family: str, window: int) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="cadre-family-"))
    begun = time.monotonic()
    try:
        with limited(SECONDS):
            line = measure(family, window, folder)
    except Exception as error:  # noqa: BLE001 - a fault in one family is that family's line
        line = {"failed": first_line(error)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    line = {"family": family, "window": window, **line, "seconds": round(time.monotonic() - begun, 1)}
    print(json.dumps(line), flush=True)
    return line


def is_supported(lines: Sequence[dict[str, Any]]) -> bool:
    """Return True if sampler and learner agree at every window at which the family loads."""
    loaded = [line for line in lines if "refused" not in line]
    return bool(loaded) and all(line.get("max_diff", 1.0) <= SUPPORTED and "untrained" not in line for line in loaded)


def page(rows: dict[str, list[dict[str, Any]]]) -> str:
    """The page of all families."""
    supported = {name: lines for name, lines in rows.items() if is_supported(lines)}
    table = []
    for name, lines in sorted(supported.items()):
        loaded = [line for line in lines if "refused" not in line]
        forms, packings = (", ".join(dict.fromkeys(line[key] for line in loaded)) for key in ("form", "packing"))
        windows = ", ".join(f"{line['window']}{' (not supported)' * ('refused' in line)}" for line in lines)
        worst = max(line["max_diff"] for line in loaded)
        table.append(
            f"| {name} | {forms} | {packings} | {windows if loaded[0]['windowed'] else 'none'} | {worst:.1e} |"
        )
    unsupported = [f"| {name} | {_reason(lines)} |" for name, lines in sorted(rows.items()) if name not in supported]
    return "\n".join([HEAD.rstrip(), "", *TABLE, *table, "", OTHERS.rstrip(), "", *OTHER_TABLE, *unsupported, ""])


def _reason(lines: Sequence[dict[str, Any]]) -> str:
    keys = ("refused", "untrained", "untried", "failed")
    outcome = next(((key, line[key]) for line in lines for key in keys if key in line), None)
    if outcome is None:
        return f"differs by {max(line['max_diff'] for line in lines):.1e} nats"
    key, reason = outcome
    for context in (": on two prompts of different length ", ": by its learner "):
        _, _, detail = reason.partition(context)
        reason = detail.partition(";")[0] if detail else reason
    label = {
        "refused": "not supported",
        "untrained": "sampled, not trained",
        "untried": "not tested",
        "failed": "not tested",
    }
    return f"{label[key]}: {' '.join(reason.replace('|', '/').split())[:200]}"


HEAD = """# Model families

The families of causal language models in transformers, by `model_type` in `config.json`, that the torch engine samples
and trains. `python bench/families.py --write` (hours) makes this page: for every family it loads a tiny random model
from a folder, samples completions of prompts of unequal length in one batch, and compares their float32
log-probabilities with the learner's and with the model's own forward over each sequence alone. Families with an
attention window are measured with windows of 12, 80 and 400 tokens (prompts have 22 and 73). Encoders are measured with
`is_decoder: true`.

The forms of each family are listed in `cadre/engines/torch/families.py`, which this run checks. When a model is loaded,
its form of sampling is tested on two short prompts too, and the fastest one whose logits equal those of the plain
forward is used:

- **shared prompt**: the keys and values of a prompt are stored once for all its completions.
- **copied prompt**: every completion has a copy of them.
- **no cache**: every token needs a forward of the whole sequence. This is slow; a warning says so.

Updates run as a prefix tree, padded, or one sequence at a time ("alone"). A family that is not listed, and a model with
code of its own, is sampled without a cache and trained alone. If no form is right, loading the model is an error with
the reason.
"""
TABLE = ["| Family | Sampled with | Trained | Windows | Largest difference, nats |", "|---|---|---|---|---|"]
OTHERS = """## Not supported, or not tested
"""
OTHER_TABLE = ["| Family | Why |", "|---|---|"]

if __name__ == "__main__":
    main()
