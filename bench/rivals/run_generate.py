"""`model.generate` of transformers, all prompts with their siblings in one batch, a generation a turn.

With `continuous` in the job its continuous batching (`generate_batch`) instead: by itself that takes nine tenths of the
machine's memory for its cache, so it is told how much this needs, in the sizes that were fastest of six.
"""

from __future__ import annotations

from turns import Turns

PAGE, BATCH_TOKENS = 32, 256


def main() -> None:
    turns = Turns()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, ContinuousBatchingConfig, GenerationConfig

    job = turns.job
    torch.set_num_threads(job["threads"])
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=job["dtype"]).eval()
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    prompts = torch.tensor(tokenizer(job["prompts"], add_special_tokens=False).input_ids)
    config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        max_new_tokens=job["completion"],
        eos_token_id=model.generation_config.eos_token_id,
        pad_token_id=model.generation_config.pad_token_id,
    )
    rows = prompts.repeat_interleave(job["k"], dim=0).tolist()
    pages = len(rows) * -(-(prompts.shape[1] + job["completion"]) // PAGE)
    batching = ContinuousBatchingConfig(page_size=PAGE, num_blocks=pages, max_batch_tokens=BATCH_TOKENS)
    while turns.wait():
        if job["continuous"]:
            outputs = model.generate_batch(rows, generation_config=config, continuous_batching_config=batching).values()
            sampled = sum(len(output.generated_tokens) for output in outputs)
        else:
            mask, count = torch.ones_like(prompts), job["k"]
            with torch.inference_mode():
                sequences = model.generate(
                    input_ids=prompts, attention_mask=mask, generation_config=config, num_return_sequences=count
                )
            sampled = sequences[:, prompts.shape[1] :].numel()
        turns.done(turns.elapsed(), prompts.tolist(), sampled, 0)


if __name__ == "__main__":
    main()
