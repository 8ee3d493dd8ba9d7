"""Tinker's client and cookbook against Cadre: `python -m lab.tinker_recipes --python VENV/bin/python --gsm8k DIR`.

VENV has tinker 0.38.0, tinker-cookbook 0.6.1 and peft; nothing is downloaded. Three recipes run unmodified in a folder
where the names that they load are local: a Llama of two layers as Qwen/Qwen3-8B-Base, since the recipes know no small
model, and rows of GSM8K as openai/gsm8k and as conversations. Then losses, gradients, steps of AdamW and
log-probabilities are compared with PEFT and plain torch in float32.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NAME, STEPS, DATA = "Qwen/Qwen3-8B-Base", 2, "dataset_builder"
SHARED = f"{DATA}.common_config"
RECIPES = {
    "sl_basic": f"{DATA}=tinker_cookbook.recipes.chat_sl.chat_datasets:NoRobotsBuilder {SHARED}.batch_size=4 "
    f"{SHARED}.model_name_for_tokenizer={NAME} {SHARED}.renderer_name=role_colon {SHARED}.max_length=256",
    "rl_basic": f"{DATA}=tinker_cookbook.recipes.math_rl.math_env:Gsm8kDatasetBuilder {DATA}.batch_size=2 "
    f"{DATA}.model_name_for_tokenizer={NAME} {DATA}.renderer_name=role_colon {DATA}.group_size=4 max_tokens=24",
    "multiplayer_rl.guess_number.train": "renderer_name=role_colon group_size=4 batch_size=2 max_tokens=8 eval_every=0",
}
LOSSES = ["cross_entropy", "importance_sampling", "ppo", "cispo", "dro"]


def lay_out(folder: Path, gsm8k: Path) -> None:
    """Write what the recipes load by name below a folder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from bench.tiny_models import byte_tokenizer, save

    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=260, max_position_embeddings=8192, eos_token_id=257, bos_token_id=None, **size)
    save(lambda: LlamaForCausalLM(config), folder / NAME)
    byte_tokenizer().save_pretrained(folder / NAME)
    for split, source, count in (("train", "train_first5000", 100), ("test", "test", 4)):
        rows = [json.loads(line) for line in (gsm8k / f"{source}.jsonl").read_text().splitlines()[:count]]
        turns = [(("user", row["question"]), ("assistant", row["answer"])) for row in rows]
        chats = [{"messages": [{"role": role, "content": text} for role, text in chat]} for chat in turns]
        for name, table in (("openai/gsm8k/main", rows), ("HuggingFaceH4/no_robots", chats)):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in table))
    files = [f"  - {{split: {split}, path: main/{split}.jsonl}}" for split in ("train", "test")]
    head = ["---", "configs:", "- config_name: main", "  data_files:", *files, "---", ""]
    (folder / "openai/gsm8k/README.md").write_text("\n".join(head))


def compare(model: str, state: str) -> float:
    """Return the largest difference from PEFT: in log-probabilities and weights, and relative in losses and norms. Runs
    in the client's environment."""
    import tinker
    import torch
    from peft import PeftModel
    from tinker.types import AdamParams, Datum, ModelInput, SamplingParams
    from transformers import AutoModelForCausalLM

    def logprobs_of(tokens: Any, temperature: float = 1.0) -> Any:
        scores = peft(tokens[None, :-1]).logits[0] / temperature
        return scores.log_softmax(-1).gather(1, tokens[1:, None])[:, 0]

    def differ(got: Any, expected: Any) -> None:
        got, expected = torch.as_tensor(got), torch.as_tensor(expected).detach()
        scale = max(1.0, abs(float(expected))) if got.dim() == 0 else 1.0
        differences.append(float((got - expected).abs().max()) / scale)

    def read(path: str) -> Path:
        return Path(state, *path.removeprefix("tinker://").split("/"))

    service, draw, differences = tinker.ServiceClient(), torch.Generator().manual_seed(0), [0.0]
    client = service.create_lora_training_client(base_model=NAME, rank=8, seed=1).result()
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    peft = PeftModel.from_pretrained(base, str(read(client.save_state("start").result().path)), is_trainable=True)
    weights = [weight for weight in peft.parameters() if weight.requires_grad]
    adam = torch.optim.AdamW(weights, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01)
    for loss in 2 * LOSSES:
        data, logprobs, total = [], [], torch.zeros(())
        for length in (9, 24, 17):
            tokens = torch.randint(100, base.config.vocab_size, (length,), generator=draw)
            weight, noise = (torch.randn(length - 1, generator=draw) for _ in range(2))
            now = logprobs_of(tokens)
            sampled = now.detach() + 0.3 * noise
            ratio = (now - sampled).exp()
            values = {
                "cross_entropy": -weight * now,
                "importance_sampling": -ratio * weight,
                "ppo": -torch.minimum(ratio * weight, ratio.clamp(0.8, 1.2) * weight),
                "cispo": -ratio.clamp(0.0, 4.0).detach() * weight * now,
                "dro": -(weight * now - 0.05 * (now - sampled) ** 2),
            }
            total, logprobs = total + values[loss].sum(), [*logprobs, now]
            inputs = {"weights": weight} if loss == "cross_entropy" else {"logprobs": sampled, "advantages": weight}
            inputs["target_tokens"] = tokens[1:]
            data.append(Datum(model_input=ModelInput.from_ints(tokens[:-1].tolist()), loss_fn_inputs=inputs))
        answer = client.forward_backward(data, loss, {"beta": 0.1} if loss == "dro" else None)
        params = AdamParams(learning_rate=1e-4, eps=1e-8, weight_decay=0.01, grad_clip_norm=1.0)
        step = client.optim_step(params).result()
        total.backward()
        differ(answer.result().metrics["loss:sum"], total)
        for output, expected in zip(answer.result().loss_fn_outputs, logprobs, strict=True):
            differ(output["logprobs"].to_torch(), expected)
        differ(step.metrics["unclipped_grad_l2:mean"], torch.nn.utils.clip_grad_norm_(weights, 1.0))
        adam.step()
        adam.zero_grad()
    trained = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    trained = PeftModel.from_pretrained(trained, str(read(client.save_state("end").result().path)), is_trainable=True)
    for got, expected in zip([one for one in trained.parameters() if one.requires_grad], weights, strict=True):
        differ(got.detach(), expected)
    sampler = service.create_sampling_client(client.save_weights_for_sampler("end").result().path).result()
    prompt, sampling = ModelInput.from_ints(tokens.tolist()), SamplingParams(max_tokens=9, temperature=0.7)
    differ(sampler.compute_logprobs(prompt).result()[1:], logprobs_of(tokens))
    for sequence in sampler.sample(prompt, 3, sampling).result().sequences:
        whole = torch.tensor([*tokens.tolist(), *sequence.tokens])
        differ(sequence.logprobs, logprobs_of(whole, 0.7)[len(tokens) - 1 :])
    return max(differences)


def main() -> None:
    from bench.common import CADRE, record

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--gsm8k", type=Path, required=True, help="with train_first5000.jsonl and test.jsonl")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    codes = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        lay_out(folder, options.gsm8k)
        model, state = str(folder / NAME), str(folder / "state")
        serve = ["serve", "--tinker", model, "--name", NAME, "--port", "0", "--state", state, "dtype=float32"]
        server = subprocess.Popen([*CADRE, *serve], stdout=subprocess.PIPE, text=True)
        try:
            _, *lines = (server.stdout.readline() for _ in range(3)) if server.stdout else ()
            variables = dict(line.removeprefix("export ").strip().split("=", 1) for line in lines)
            variables |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
            run: dict[str, Any] = {"cwd": folder, "env": {**os.environ, **variables}, "stdout": subprocess.PIPE}
            for recipe, settings in RECIPES.items():
                more = [f"model_name={NAME}", f"max_steps={STEPS}", f"log_path={folder / 'logs' / recipe}"]
                command = [options.python, "-m", f"tinker_cookbook.recipes.{recipe}", *more, *settings.split()]
                codes.append(subprocess.run(command, **run).returncode)
            answer = subprocess.run([options.python, __file__, model, state], **run, text=True, check=True).stdout
        finally:
            server.terminate()
            server.wait()
    difference = float(answer.split()[-1])
    print(f"tinker.recipes {codes.count(0)} of {len(codes)}; tinker.max_diff {difference:.3g}")
    if options.write:
        command = "python -m lab.tinker_recipes --python VENV/bin/python --gsm8k DIR --write"
        record("tinker", "tinker.recipes", [codes.count(0)], "recipes", command, len(codes))
        record("tinker", "tinker.max_diff", [difference], "nats", command, 1)


if __name__ == "__main__":
    if len(sys.argv) == 3 and not sys.argv[1].startswith("--"):
        print(compare(*sys.argv[1:]))  # in the client's environment
    else:
        main()
