"""What an experiment is told of, and not refused for: it works, and is seldom meant."""

from __future__ import annotations

from cadre.experiment.experiment import Experiment

# The modules of the games whose transcripts the embedded model was made from, in their compact wording.
SEED_GAMES = {"cadre.envs.plan_path", "cadre.envs.sokoban", "cadre.envs.sudoku"}


def cautions(experiment: Experiment) -> list[str]:
    """A paragraph for each."""
    return [*_embedded_model(experiment)]


def _embedded_model(experiment: Experiment) -> list[str]:
    """The embedded model has read its games and nothing else, and those in one wording only."""
    spec = experiment.env_spec
    names = [name for name, policy in experiment.policies.items() if policy.model == "seed"]
    known = any(kind.__module__ in SEED_GAMES for kind in spec.declared.__mro__)
    if not names or (known and spec.all_settings.get("prompts") == "compact"):
        return []
    asked = f"{experiment.config.env} without settings.prompts=compact" if known else experiment.config.env
    return [
        f"warning: {names[0]} is the embedded model (seed), which has read nothing but plan-path, sokoban and sudoku "
        f"in their compact wording, and is asked for {asked}; expect no words from it that mean anything. "
        + ("Set settings.prompts=compact." if known else "Name another model, such as Qwen/Qwen3-1.7B.")
    ]
