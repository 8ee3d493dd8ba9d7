"""Audio-language models in figures: how far log-probabilities are from the model's own, and a sound task learned.

    python bench/audio.py logits [--write]
    python bench/audio.py learn --model FOLDER [--seeds 0 1 2] [--write]     FOLDER of cadre_tasks.models.make_audio

`audio.logits.max_diff` is the largest difference of a sampler's or learner's log-probability from that of the model's
own forward, over tiny random models of every kind, with and without an adapter. `audio.sound.success` is the share of
held-out melodies that a listener and a player play rightly after training; beside it that of the model before.
"""

from __future__ import annotations

from transformers import AutoFeatureExtractor, AutoModelForMultimodalLM

from media_models import MediaBench, main
from tests.cadre.engines import tiny_audio

SECONDS = (0.1, 0.3, 0.47, 0.62, 0.8, 1.0)
BENCH = MediaBench(
    script="audio",
    prefix="audio",
    task="sound",
    tiny_models=tiny_audio,
    token="audio_token_id",
    media=[tiny_audio.noise(seconds, seed=number) for number, seconds in enumerate(SECONDS)],
    load_model=AutoModelForMultimodalLM.from_pretrained,
    load_processor=AutoFeatureExtractor.from_pretrained,
    recipe={
        "env": "melody",
        "settings": {"prompts": "compact"},
        "algorithm": {"name": "at_grpo", "k": 8},
        "sampling": {"max_tokens": 8},
        "learner": {"learning_rate": 5e-4},
        "train": {"steps": 30, "tasks_per_step": 16},
        "evaluate": {"tasks": 200, "every": 10},
    },
    roles=("listener", "player"),
)

if __name__ == "__main__":
    main(BENCH, __doc__, "models/audio")
