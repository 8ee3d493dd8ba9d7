"""vLLM's CPU build, all prompts with their siblings at once, a generation a turn. Runs in an environment given by name.

Its prefix cache is on, so siblings share their prompt, and it is emptied between turns, as new prompts would find it.
"""

from __future__ import annotations

from turns import Turns


def main() -> None:
    turns = Turns()
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams

    job = turns.job
    ids = AutoTokenizer.from_pretrained(job["model"])(job["prompts"], add_special_tokens=False).input_ids
    engine = LLM(
        job["model"],
        dtype=job["dtype"],
        max_model_len=max(map(len, ids)) + job["completion"],
        block_size=32,
        enforce_eager=True,
        enable_prefix_caching=True,
        gpu_memory_utilization=0.2,  # of the processor's memory, in this build, which the sides share
    )
    settings = SamplingParams(n=job["k"], temperature=1.0, max_tokens=job["completion"], ignore_eos=True, logprobs=0)
    prompts = [{"prompt_token_ids": list(one)} for one in ids]
    while turns.wait():
        outputs = engine.generate(prompts, settings, use_tqdm=False)
        sampled = sum(len(one.token_ids) for output in outputs for one in output.outputs)
        turns.done(turns.elapsed(), ids, sampled, 0)
        engine.reset_prefix_cache()


if __name__ == "__main__":
    main()
