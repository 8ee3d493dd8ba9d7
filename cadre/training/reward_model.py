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
from cadre.data.preferences import PreferencePair, pair_to_json, require_text_only
from cadre.engines.torch.reward_model import RewardReport, RewardSettings, RewardTraining
from cadre.errors import ConfigError, DivergedError, RunError
from cadre.files import find_damage, publish_atomically, read_record, write_text_atomically, write_with_manifest
from cadre.plugins import configure_sandbox
from cadre.rollout import walk
from cadre.rollout.episodes import grow_many
from cadre.runs.folder import RunLock
from cadre.runs.records import RewardModelStart
from cadre.training.checkpoint import checkpoint_name, checkpoint_steps, remove_old_checkpoints
from cadre.training.interrupt import Interrupt


def write_pairs(experiment: Experiment, tasks: int, out: Path, joint: bool = False) -> tuple[int, int]:
    """Sample `tasks` of the training split with the untrained team and write the pairs, the better paid first; ties are
    left out, and so is what `clear` leaves out; `joint` pairs are of all that is said at once. Returns how many pairs,
    of how many tasks.

    Raises ConfigError where `joint` is asked for and branches are left behind.
    """
    config, plan, env_spec = experiment.config, experiment.plan, experiment.env_spec
    if joint and not plan.shape.selects_all:
        raise ConfigError(
            f"preference-pairs --joint: got {config.algorithm.name}, which leaves branches behind, and what follows "
            "those is not known; expected an algorithm that plays every branch out. Add algorithm=magrpo, or leave out "
            "--joint."
        )
    configure_sandbox(config.sandbox.level, config.sandbox.cgroup)
    rollout = experiment.rollout(build_team(experiment))
    key = random_keys.key(config.train.seed, "pairs")
    trees, _ = run_coroutine(grow_many(env_spec.tasks("train")[:tasks], rollout, key))
    for tree in trees:
        for node in walk.nodes(tree.root):
            for seen in node.observations.values():
                require_text_only(seen, "preference-pairs")
    pairs = remove_ambiguous_pairs((make_joint_pairs if joint else make_pairs)(trees, plan.credit))
    if not pairs:
        raise RunError(
            f"preference-pairs: in none of {len(trees)} tasks did siblings earn differently; expected some that did. "
            "Raise --tasks, algorithm.k or sampling.temperature."
        )
    with publish_atomically(out) as (built,):
        built.write_text("".join(pair_to_json(pair) + "\n" for pair in pairs), encoding="utf-8")
    return len(pairs), len(trees)


def remove_ambiguous_pairs(pairs: Sequence[PreferencePair]) -> list[PreferencePair]:
    """The pairs, each once, without those of which the opposite was seen too, as chance pays, and without those that
    prefer to say nothing."""
    seen = set(pairs)
    return [pair for pair in dict.fromkeys(pairs) if pair.chosen.strip() and pair.opposite not in seen]


START_FILE = "begun.json"


SAVE_EVERY = 20  # steps


def train_reward_model(
    pairs: Sequence[PreferencePair], model: str, out: Path, settings: RewardSettings, tell: Callable[[int, float], None]
) -> RewardReport | None:
    """Train a head and the model below it on preference pairs, from the last save on where there is one, and write it
    to the new folder `out`. None where it was interrupted; the same call goes on.

    `tell` is called with every step's number and loss. Raises RunError where `out` exists, or where what is unfinished
    was begun with something else; ConfigError, DataError and DivergedError as `RewardTraining` does.
    """
    if out.exists():
        raise RunError(f"reward-model: {out} exists; expected a new folder, as nothing is ever overwritten.")
    home, begun = unfinished_folder(out), describe_start(pairs, model, settings)
    _check_same_start(home, begun)
    training = RewardTraining(pairs, model, settings)
    home.mkdir(parents=True, exist_ok=True)
    with RunLock(home):
        write_text_atomically(home / START_FILE, json.dumps(begun, indent=1) + "\n")
        try:
            report = _train_steps(training, home, out, tell)
        except DivergedError:
            shutil.rmtree(home)
            raise
        if report is not None:
            shutil.rmtree(home)
    return report


def unfinished_folder(out: Path) -> Path:
    """Where a training that is not complete lies."""
    return out.with_name(f"{out.name}.unfinished")


def count_saved_steps(out: Path) -> int:
    """Steps that are saved of a training that is not complete."""
    return max(checkpoint_steps(unfinished_folder(out)), default=0)


def describe_start(pairs: Sequence[PreferencePair], model: str, settings: RewardSettings) -> dict[str, object]:
    """What makes a training the same one: of a folder its whole path, and of the pairs a checksum."""
    told = hashlib.sha256("\n".join(map(pair_to_json, pairs)).encode()).hexdigest()
    source = str(Path(model).absolute()) if Path(model).is_dir() else model
    return {"model": source, "checksum": told, **asdict(settings)}


def _check_same_start(home: Path, begun: dict[str, object]) -> None:
    path = home / START_FILE
    if not path.is_file():
        return
    before = read_record(path, RewardModelStart).model_dump()
    for name, value in begun.items():
        if before.get(name) != value:
            raise RunError(
                f"reward-model: {home} holds a training that was begun with {name}={before.get(name)}; expected the "
                f"same to go on with, got {value}. Call it as before, remove the folder, or name another --out."
            )


def _train_steps(
    training: RewardTraining, home: Path, out: Path, tell: Callable[[int, float], None]
) -> RewardReport | None:
    """Make the steps that are left. None where an interrupt asked for the end; all is saved then."""
    if steps := checkpoint_steps(home):
        saved = home / checkpoint_name(steps[-1])
        if (wrong := find_damage(saved)) is not None:
            raise RunError(
                f"reward-model: {saved} is damaged ({wrong}); expected what this command saved. Restore it, or remove "
                f"{home} and call it again."
            )
        training.load(saved)
    interrupt, total = Interrupt(), training.settings.steps
    with interrupt.on_signals():
        while len(training.losses) < total and not interrupt.asked:
            loss = training.step()
            done = len(training.losses)
            tell(done - 1, loss)
            if done % SAVE_EVERY == 0:
                _save_progress(training, home)
        _save_progress(training, home)  # at the end, and where an interrupt asks for it, however late in a step
        return None if interrupt.asked else training.finish(out)


def _save_progress(training: RewardTraining, home: Path) -> None:
    """Save the only checkpoint that is kept, unless it is there."""
    done = len(training.losses)
    if done and done not in checkpoint_steps(home):
        write_with_manifest(home / checkpoint_name(done), training.save)
        remove_old_checkpoints(home, done, 1, None)
