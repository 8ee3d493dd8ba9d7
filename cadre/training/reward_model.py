"""Preference pairs from a team's samples, and the training of a reward model on pairs.

Until the model is written, the state of the training of `OUT` is in `OUT.unfinished`: its settings, and the last save.
The same command resumes it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from cadre import random_keys
from cadre.advantages.preferences import make_joint_pairs, make_pairs
from cadre.concurrency import run_coroutine
from cadre.config.engines import build_team
from cadre.config.experiment import Experiment
from cadre.engines.torch.reward_model import RewardReport, RewardSettings, RewardTraining
from cadre.errors import ConfigError, DivergedError, RunError
from cadre.files import find_damage, publish_atomically, read_record, write_text_atomically, write_with_manifest
from cadre.plugins import configure_sandbox
from cadre.preferences import PreferencePair, pair_to_json, require_text_only
from cadre.rollout import walk
from cadre.rollout.episodes import grow_many
from cadre.runs.folder import RunLock
from cadre.runs.records import RewardModelStart
from cadre.training.checkpoint import checkpoint_name, checkpoint_steps, remove_old_checkpoints
from cadre.training.interrupt import Interrupt

# ---- Preference pairs: `cadre preference-pairs`


def write_pairs(experiment: Experiment, tasks: int, out: Path, joint: bool = False) -> tuple[int, int]:
    """Sample `tasks` of the training split with the untrained team and write preference pairs, the sample of higher
    reward first; return the number of pairs, and of tasks.

    Ties are left out, and so are ambiguous pairs; `joint` pairs are of whole joint actions. Raises ConfigError for
    `joint` with a shape that does not roll every branch out.
    """
    plan = experiment.plan
    if joint and not plan.shape.selects_all:
        raise ConfigError(
            f"preference-pairs --joint: got {experiment.algorithm.name}, which leaves branches behind, and what "
            "follows those is not known; expected an algorithm that plays every branch out. Add algorithm=magrpo, or "
            "leave out --joint."
        )
    configure_sandbox(experiment.sandbox.level, experiment.sandbox.cgroup)
    rollout = experiment.rollout(build_team(experiment))
    key = random_keys.key(experiment.train.seed, "pairs")
    trees, _ = run_coroutine(grow_many(experiment.training_tasks[:tasks], rollout, key))
    # A pair is text: images, tools and tool calls have no place in it.
    for tree in trees:
        for node in walk.nodes(tree.root):
            for observation in node.observations.values():
                require_text_only(observation, "preference-pairs")
    pairs = remove_ambiguous_pairs((make_joint_pairs if joint else make_pairs)(trees, plan.credit.first))
    if not pairs:
        raise RunError(
            f"preference-pairs: in none of {len(trees)} tasks did siblings earn differently; expected some that did. "
            "Raise --tasks, algorithm.k or sampling.temperature."
        )
    with publish_atomically(out) as (partial,):
        partial.write_text("".join(pair_to_json(pair) + "\n" for pair in pairs), encoding="utf-8")
    return len(pairs), len(trees)


def remove_ambiguous_pairs(pairs: Sequence[PreferencePair]) -> list[PreferencePair]:
    """Return the pairs, each once, without those whose opposite was seen too, by chance, and without those that prefer
    an empty answer."""
    all_pairs = set(pairs)
    return [pair for pair in dict.fromkeys(pairs) if pair.chosen.strip() and pair.opposite not in all_pairs]


START_FILE = "begun.json"
SAVE_EVERY = 20  # steps


# ---- Training: `cadre reward-model`


def train_reward_model(
    pairs: Sequence[PreferencePair], model: str, out: Path, settings: RewardSettings, tell: Callable[[int, float], None]
) -> RewardReport | None:
    """Train a head and the model below it on preference pairs, from the last save if there is one, and write it to the
    new folder `out`. Returns None if it was interrupted; the same call resumes it.

    `tell` is called with every step's number and loss. Raises RunError if `out` exists, or if the unfinished training
    was started with something else; ConfigError, DataError and DivergedError as `RewardTraining` does.
    """
    if out.exists():
        raise RunError(f"reward-model: {out} exists; expected a new folder, as nothing is ever overwritten.")
    home, start = unfinished_folder(out), describe_start(pairs, model, settings)
    if (home / START_FILE).is_file():
        old_start = read_record(home / START_FILE, RewardModelStart).model_dump()
        for name, value in start.items():
            if old_start.get(name) != value:
                raise RunError(
                    f"reward-model: {home} holds a training that was begun with {name}={old_start.get(name)}; expected "
                    f"the same to go on with, got {value}. Call it as before, remove the folder, or name another --out."
                )
    training = RewardTraining(pairs, model, settings)
    home.mkdir(parents=True, exist_ok=True)
    with RunLock(home):
        write_text_atomically(home / START_FILE, json.dumps(start, indent=1) + "\n")
        try:
            report = _train_steps(training, home, out, tell)
        except DivergedError:
            shutil.rmtree(home)  # resuming would diverge again
            raise
        if report is not None:
            shutil.rmtree(home)
    return report


def unfinished_folder(out: Path) -> Path:
    """Return the folder of a training that is not complete."""
    return out.with_name(f"{out.name}.unfinished")


def count_saved_steps(out: Path) -> int:
    """Return the number of saved steps of a training that is not complete."""
    return max(checkpoint_steps(unfinished_folder(out)), default=0)


def describe_start(pairs: Sequence[PreferencePair], model: str, settings: RewardSettings) -> dict[str, object]:
    """Return what identifies a training: the model, as an absolute path if it is a folder, a checksum of the pairs, and
    the settings."""
    checksum = hashlib.sha256("\n".join(map(pair_to_json, pairs)).encode()).hexdigest()
    source = str(Path(model).absolute()) if Path(model).is_dir() else model
    return {"model": source, "checksum": checksum, **asdict(settings)}


def _train_steps(
    training: RewardTraining, home: Path, out: Path, tell: Callable[[int, float], None]
) -> RewardReport | None:
    if steps := checkpoint_steps(home):
        saved = home / checkpoint_name(steps[-1])
        if (damage := find_damage(saved)) is not None:
            raise RunError(
                f"reward-model: {saved} is damaged ({damage}); expected what this command saved. Restore it, or remove "
                f"{home} and call it again."
            )
        training.load(saved)

    def save() -> None:
        steps = len(training.losses)
        if steps and steps not in checkpoint_steps(home):
            write_with_manifest(home / checkpoint_name(steps), training.save)
            remove_old_checkpoints(home, steps, 1, None)

    interrupt, total = Interrupt(), training.settings.steps
    with interrupt.on_signals():
        while len(training.losses) < total and not interrupt.requested:
            loss = training.step()
            tell(len(training.losses) - 1, loss)
            if len(training.losses) % SAVE_EVERY == 0:
                save()
        save()  # at the end, and after an interrupt, however late in a step
        return None if interrupt.requested else training.finish(out)
