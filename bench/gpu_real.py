"""A graphics card: games and pairs with programs that a 0.5B coder really writes, in slices of under ten minutes.

    python bench/gpu_real.py --model DIR [--data DIR] [--runs DIR] [--steps 100] [--minutes 9] [plan-path sokoban pairs]

First the temperature is found: 20 tasks four times each at 0.3, 0.6 and 1.0, and the one at which most programs run
(for pairs: pass a test) is trained at. Then the training, stopped and gone on with every `--minutes`, and 100 held-out
tasks before and after. Call it again until it says that all is done; everything lies in `--runs`. DIR is the folder of
Qwen2.5-Coder-0.5B-Instruct; weights that had to be brought in parts (`model.safetensors.part-00`, ...) are put together
there first. Appends `gpu.TASK.*` to results/gpu.jsonl, and writes the curve and episodes to results/gpu-TASK.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import real_measures as measures
from common import RESULTS, ROOT, record
from slices import Clock, OutOfTimeError, evaluate, play_sampled, train
from trainings import console

COMMAND = "python bench/gpu_real.py --model DIR"
TEMPERATURES = (0.3, 0.6, 1.0)
# By task: the recipe, what shows that a program runs, and changes.
GAMES = ("settings={prompts: full, turns: 2}", "sampling.max_tokens=512", "algorithm.k=8")
KNOWN: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "plan-path": ("plan-path-qwen2.5-coder-0.5b-L1", "tool/ran", GAMES),
    "sokoban": ("sokoban-qwen2.5-coder-0.5b-L1", "tool/ran", GAMES),
    "pairs": ("pairs-mbpp-qwen2.5-coder-0.5b", "tests", ("train.tasks_per_step=8",)),
}
CURVE = ("rollout/success", "rollout/tokens", "time/sample_s", "time/learn_s")
SHORT = ("train.checkpoint_minutes=2", "evaluate.tasks=0")
EVERY_GAME_STEP = ("train.tasks_per_step=16", "learner.learning_rate=1.0e-4", "learner.minibatches=1")


def joined(folder: Path) -> Path:
    """The folder with its weights in one file, put together where they are in parts."""
    whole, parts = folder / "model.safetensors", sorted(folder.glob("model.safetensors.part-*"))
    if parts and not whole.exists():
        partial = whole.with_suffix(".joining")
        with partial.open("wb") as out:
            for part in parts:
                out.write(part.read_bytes())
        partial.rename(whole)
    return folder


def changes_of(name: str, model: Path, data: str) -> list[str]:
    _, _, more = KNOWN[name]
    own = EVERY_GAME_STEP if name != "pairs" else (f"settings.source={data}",)
    return [f"team.policies.*.model={model.absolute()}", *more, *SHORT, *own]


def temperature_of(name: str, changes: Sequence[str], home: Path, clock: Clock) -> float:
    """The temperature at which most programs run, found once and kept."""
    kept = home / "temperature.json"
    if not kept.exists():
        recipe, what, _ = KNOWN[name]
        shares = {
            warm: play_sampled(recipe, changes, home / f"try-{warm}.json", warm, clock)["parts"].get(what, 0.0)
            for warm in TEMPERATURES
        }
        for warm, share in shares.items():
            record("gpu", f"gpu.{name}.runs.{warm}", [share], "share", COMMAND, 80)
        kept.write_text(json.dumps(max(shares, key=lambda warm: shares[warm])))
    return float(json.loads(kept.read_text()))


def work(name: str, model: Path, data: str, runs: Path, steps: int, clock: Clock) -> None:
    """Everything about one task that is not done yet."""
    home, recipe = runs / name, KNOWN[name][0]
    home.mkdir(parents=True, exist_ok=True)
    changes = changes_of(name, model, data)
    changes.append(f"sampling.temperature={temperature_of(name, changes, home, clock)}")
    before = evaluate(recipe, changes, home / "before", range(100), clock, each=100)
    train(recipe, changes, home / "run", clock, [f"train.steps={steps}"])
    after = evaluate(str(home / "run"), [], home / "after", range(100), clock, each=100)
    told = home / "told"
    if told.exists():
        return
    tables = [[measures.success(tree) for tree in measures.trees_of(played.files)] for played in (before, after)]
    for when, values in zip(("before", "after"), tables, strict=True):
        record("gpu", f"gpu.{name}.success.{when}", [fmean(values)], "share", COMMAND, len(values), [0])
    mean, low, high = measures.gain(*tables)
    record("gpu", f"gpu.{name}.gain", [low, mean, high], "share", COMMAND, 100, [0])
    console.print(f"{name}: {mean:+.3f} [{low:+.3f}, {high:+.3f}]", highlight=False)
    read_aloud(name, home, before.files, after.files)
    told.touch()


def read_aloud(name: str, home: Path, before: Sequence[Path], after: Sequence[Path]) -> None:
    """The curve, and episodes before and after, as results/gpu-NAME.md."""
    steps = [json.loads(line) for line in (home / "run" / "metrics.jsonl").read_text().splitlines()]
    columns = [key for key in steps[0] if key in CURVE or key.startswith("parts/") or key.endswith("/reward")]
    lines = [f"# {name} on a graphics card", "", f"By `{COMMAND}`. Training, a line a step:", ""]
    lines += [f"| step | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {one['step'] + 1} | {' | '.join(f'{one.get(key, 0.0):.6g}' for key in columns)} |" for one in steps]
    lines += [*measures.aloud("Before, greedily", before, 3), *measures.aloud("After, greedily", after, 30)]
    (RESULTS / f"gpu-{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help=f"of {', '.join(KNOWN)}; all unless named")
    parser.add_argument("--model", type=Path, required=True, help="the folder of Qwen2.5-Coder-0.5B-Instruct")
    parser.add_argument("--data", default="hub", help="where MBPP is: a folder, or hub")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "gpu")
    parser.add_argument("--steps", type=int, default=100, help="of training; may be changed when it goes on")
    parser.add_argument("--minutes", type=float, default=9.0, help="end after so long, and go on at the next call")
    chosen = parser.parse_args()
    if unknown := [task for task in chosen.tasks if task not in KNOWN]:
        parser.error(f"got {unknown[0]!r}; expected some of {', '.join(KNOWN)}")
    # What is begun in time may go on for a checkpoint, or for one slice of an evaluation.
    clock = Clock(time.monotonic(), max(60.0, 60 * chosen.minutes - 90))
    try:
        for name in chosen.tasks or KNOWN:
            work(name, joined(chosen.model), chosen.data, chosen.runs.absolute(), chosen.steps, clock)
    except OutOfTimeError:
        console.print("The time is over; the same command goes on.", highlight=False)
    else:
        console.print("All is done.", highlight=False)


if __name__ == "__main__":
    main()
