"""Vision-language models in figures: how far log-probabilities are from the model's own, and a picture task learned.

    python bench/vision.py logits [--write]
    python bench/vision.py learn --model FOLDER [--seeds 0 1 2] [--write]     FOLDER of cadre_tasks.models.make_vision

`vlm.logits.max_diff` is the largest difference of a sampler's or learner's log-probability from that of the model's own
forward, over tiny random models of every kind, with and without an adapter. `vlm.picture.success` is the share of
held-out Plan-Path pictures solved after training; beside it that of the model before.
"""

from __future__ import annotations

from functools import partial

from transformers import AutoImageProcessor, AutoModelForImageTextToText

from media_models import MediaBench, main
from tests.cadre.engines import tiny_vision

SHAPES = ((40, 20), (16, 48), (64, 64), (20, 20), (33, 50), (48, 16))
BENCH = MediaBench(
    script="vision",
    prefix="vlm",
    task="picture",
    tiny_models=tiny_vision,
    token="image_token_id",
    media=[tiny_vision.noise(*shape, seed=number) for number, shape in enumerate(SHAPES)],
    load_model=AutoModelForImageTextToText.from_pretrained,
    load_processor=partial(AutoImageProcessor.from_pretrained, backend="pil"),
    recipe={
        "env": "plan-path-picture",
        "settings": {"size": 6, "cell": 8, "prompts": "compact", "turns": 1, "reward": "outcome"},
        "algorithm": {"name": "grpo", "k": 8},
        "sampling": {"max_tokens": 24},
        "learner": {"learning_rate": 3e-4},
        "train": {"steps": 160, "tasks_per_step": 16},
        "evaluate": {"tasks": 200},
    },
    roles=("planner",),
)

if __name__ == "__main__":
    main(BENCH, __doc__, "models/vision")
