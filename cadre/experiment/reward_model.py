"""The training of a reward model as a command: saved every so often, and gone on with by the same command.

Until the model is written, what is done of `OUT` lies in `OUT.unfinished`: what it was begun with, and the last save.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from cadre.data.preferences import Pair, line_of
from cadre.engines.torch.reward_training import Report, Settings, Training
from cadre.errors import DivergedError, RunError
from cadre.experiment import checkpoint, sealed
from cadre.experiment.interrupt import Interrupt
from cadre.experiment.lock import RunLock
from cadre.experiment.records import Begun, read_record
from cadre.experiment.to_disk import write_text

BEGUN = "begun.json"
SAVE_EVERY = 20  # steps


def train(
    pairs: Sequence[Pair], model: str, out: Path, settings: Settings, tell: Callable[[int, float], None]
) -> Report | None:
    """Train a head and the model below it on preference pairs, from the last save on where there is one, and write it
    to the new folder `out`. None where it was interrupted; the same call goes on.

    `tell` is called with every step's number and loss. Raises RunError where `out` exists, or where what is unfinished
    was begun with something else; ConfigError, DataError and DivergedError as `Training` does.
    """
    if out.exists():
        raise RunError(f"reward-model: {out} exists; expected a new folder, as nothing is ever overwritten.")
    home, begun = unfinished(out), begun_with(pairs, model, settings)
    _refuse_another(home, begun)
    training = Training(pairs, model, settings)
    home.mkdir(parents=True, exist_ok=True)
    with RunLock(home):
        write_text(home / BEGUN, json.dumps(begun, indent=1) + "\n")
        try:
            report = _trained(training, home, out, tell)
        except DivergedError:
            shutil.rmtree(home)
            raise
        if report is not None:
            shutil.rmtree(home)
    return report


def unfinished(out: Path) -> Path:
    """Where a training that is not complete lies."""
    return out.with_name(f"{out.name}.unfinished")


def steps_done(out: Path) -> int:
    """Steps that are saved of a training that is not complete."""
    return max(checkpoint.steps(unfinished(out)), default=0)


def begun_with(pairs: Sequence[Pair], model: str, settings: Settings) -> dict[str, object]:
    """What makes a training the same one: of a folder its whole path, and of the pairs a checksum."""
    told = hashlib.sha256("\n".join(map(line_of, pairs)).encode()).hexdigest()
    source = str(Path(model).absolute()) if Path(model).is_dir() else model
    return {"model": source, "checksum": told, **asdict(settings)}


def _refuse_another(home: Path, begun: dict[str, object]) -> None:
    path = home / BEGUN
    if not path.is_file():
        return
    before = read_record(path, Begun).model_dump()
    for name, value in begun.items():
        if before.get(name) != value:
            raise RunError(
                f"reward-model: {home} holds a training that was begun with {name}={before.get(name)}; expected the "
                f"same to go on with, got {value}. Call it as before, remove the folder, or name another --out."
            )


def _trained(training: Training, home: Path, out: Path, tell: Callable[[int, float], None]) -> Report | None:
    """Make the steps that are left. None where an interrupt asked for the end; all is saved then."""
    if steps := checkpoint.steps(home):
        saved = home / checkpoint.name_of(steps[-1])
        if (wrong := sealed.damage(saved)) is not None:
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
                _save(training, home)
        _save(training, home)  # at the end, and where an interrupt asks for it, however late in a step
        return None if interrupt.asked else training.finish(out)


def _save(training: Training, home: Path) -> None:
    """Save the only checkpoint that is kept, unless it is there."""
    done = len(training.losses)
    if done and done not in checkpoint.steps(home):
        sealed.write(home / checkpoint.name_of(done), training.save)
        checkpoint.prune(home, done, 1, None)
