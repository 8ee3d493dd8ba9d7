"""Costs and gains of asynchronous training on Plan-Path: held-out success by staleness, and time.

    python -m lab.asynchrony [success | time] [--seeds 0 1 2] [--write]

success  trains with `train.max_staleness` of 0, 1 and 2 in one process: the ratio clipped about the sampler's
         probabilities, or `loss.correction` in its place. Where something runs changes nothing
         (tests/cadre/training/test_asynchronous.py), so this is the success of samplers apart too.
time     the same recipe with a sampler and a learner in processes of their own, at 0 and 1, in turns

Trainings lie in runs/asynchrony, and one that is done is not done again: seeds may be run apart, a call be ended at any
time, and all be written at the end. `--write` appends to results/async.jsonl.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from bench.common import ROOT, record
from lab.trainings import Run, commits, console

WORK = ROOT / "runs" / "asynchrony"
MASKED, TRUNCATED = ("loss.correction=mask",), ("loss.correction=truncate",)
SETTINGS = {
    "synchronous": (0, ()),
    "one_ahead": (1, ()),
    "two_ahead": (2, ()),
    "one_ahead_truncated": (1, TRUNCATED),
    "two_ahead_truncated": (2, TRUNCATED),
    "one_ahead_masked": (1, MASKED),
    "two_ahead_masked": (2, MASKED),
}


def trained(name: str, seed: int, threads: int, more: tuple[str, ...] = ()) -> Run:
    """One training of a setting, done now unless it was done before."""
    ahead, correction = SETTINGS[name]
    changes = (f"train.max_staleness={ahead}", *correction, *more)
    folder = WORK / f"{name}{'-apart' if more else ''}-{seed}"
    run = Run(folder, "plan-path", seed, changes, first=600)
    if not run.complete:
        run.train(threads)
    return run


def keep(options: argparse.Namespace, name: str, values: list[float], unit: str, runs: Sequence[Run]) -> None:
    console.print(f"{name}: {', '.join(f'{value:.4g}' for value in values)} {unit}", highlight=False)
    if options.write:
        command = f"python -m lab.asynchrony {options.part} --write"
        record("async", name, values, unit, command, len(values), options.seeds, commits(runs))


def success(options: argparse.Namespace) -> None:
    """Held-out success of every setting; `async.success` is the lowest of those that run ahead and clip."""
    runs = {(seed, name): trained(name, seed, options.threads) for seed in options.seeds for name in SETTINGS}
    shares = {name: [runs[seed, name].after() for seed in options.seeds] for name in SETTINGS}
    all_runs = list(runs.values())
    for name, values in shares.items():
        keep(options, f"async.success.{name}", values, "share", all_runs)
    keep(options, "async.success", [min(shares["one_ahead"] + shares["two_ahead"])], "share", all_runs)
    for name in SETTINGS:
        steps = [runs[seed, name].steps() for seed in options.seeds]
        gaps = [max(line["shared/logprob_diff_max"] for line in of_run) for of_run in steps]
        keep(options, f"async.logprob_diff_max.{name}", gaps, "nats", all_runs)


def time(options: argparse.Namespace) -> None:
    """Seconds of the steps of a run that samples one ahead over those of one that does not, both apart."""
    changes = ("cluster={}",)
    ratios, runs = [], []
    for seed in options.seeds:
        spent = []
        for name in ("one_ahead", "synchronous"):
            runs.append(trained(name, seed, options.threads, changes))
            spent.append(sum(step["time/wait_s"] + step["time/learn_s"] for step in runs[-1].steps()))
        ratios.append(spent[0] / spent[1])
    keep(options, "async.time_ratio", ratios, "ratio", runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["success", "time"], default="success")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="append to results/async.jsonl")
    options = parser.parse_args()
    {"success": success, "time": time}[options.part](options)


if __name__ == "__main__":
    main()
