"""A picture task and a sound task, learned by models that cadre_tasks.models.make_vision and make_audio wrote.

    python -m lab.media {picture,sound} FOLDER [--seeds 0 1 2] [--write]

`vlm.picture.success` is the share of held-out Plan-Path pictures solved after training, `audio.sound.success` that of
held-out melodies which a listener and a player play rightly; beside each that of the model before.
"""

from __future__ import annotations

from typing import Any

from lab.taught import record_success, train_success, training_parser

TASKS = 200
LINES = {"picture": "vlm.picture", "sound": "audio.sound"}
ROLES = {"picture": ("planner",), "sound": ("listener", "player")}
RECIPES: dict[str, dict[str, Any]] = {
    "picture": {
        "env": "plan-path-picture",
        "settings": {"size": 6, "cell": 8, "prompts": "compact", "turns": 1, "reward": "outcome"},
        "algorithm": {"name": "grpo", "k": 8},
        "sampling": {"max_tokens": 24},
        "learner": {"learning_rate": 3e-4},
        "train": {"steps": 160, "tasks_per_step": 16},
        "evaluate": {"tasks": TASKS},
    },
    "sound": {
        "env": "melody",
        "settings": {"prompts": "compact"},
        "algorithm": {"name": "at_grpo", "k": 8},
        "sampling": {"max_tokens": 8},
        "learner": {"learning_rate": 5e-4},
        "train": {"steps": 30, "tasks_per_step": 16},
        "evaluate": {"tasks": TASKS, "every": 10},
    },
}


def main() -> None:
    options = training_parser(__doc__, list(RECIPES), "models/vision").parse_args()
    roles = dict.fromkeys(ROLES[options.part], "shared")
    experiment = {**RECIPES[options.part], "team": {"policies": {"shared": str(options.folder)}, "roles": roles}}
    curves = [train_success(experiment, seed) for seed in options.seeds]
    if options.write:
        line = LINES[options.part]
        record_success("vision", f"{line}.base", line, curves, TASKS, options.seeds)


if __name__ == "__main__":
    main()
