"""How the two roles of a team improve together: `python bench/plot.py` makes results/coevolution.svg from curves.json.

A column a game: above the reward of each role, below success and the decisions of an episode. Lines are medians over
the seeds, bands go from the lowest to the highest. Needs matplotlib (the extra `plots`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from statistics import median
from typing import Any

from matplotlib import pyplot

from common import RESULTS

# The same bytes for the same figures.
pyplot.rcParams["svg.hashsalt"] = "cadre"
# Letters as text and not as outlines, which are most of the file.
pyplot.rcParams["svg.fonttype"] = "none"
ROLES = {"tool/reward": "tool", "planner/reward": "planner"}


def curves(lines: list[dict[str, Any]], game: str, what: str) -> list[list[float]]:
    """Steps from 1, and the lowest, median and highest value over the seeds at each."""
    found: dict[int, list[float]] = defaultdict(list)
    for line in lines:
        if line["game"] == game and line[what] is not None:
            found[line["step"] + 1].append(line[what])
    steps = sorted(found)
    return [[*steps], *([choose(found[step]) for step in steps] for choose in (min, median, max))]


def main() -> None:
    lines = json.loads((RESULTS / "curves.json").read_text())
    games = list(dict.fromkeys(line["game"] for line in lines))
    figure, axes = pyplot.subplots(2, len(games), figsize=(4 * len(games), 5), sharex="col", squeeze=False)
    for column, game in enumerate(games):
        above, below = axes[0][column], axes[1][column]
        turns = below.twinx()
        shown = [(above, what, role) for what, role in ROLES.items()]
        shown += [(below, "rollout/success", "success"), (turns, "rollout/decisions", "decisions")]
        for axis, what, label in shown:
            steps, low, middle, high = curves(lines, game, what)
            (line,) = axis.plot(steps, middle, label=label, color="tab:orange" if axis is turns else None)
            axis.fill_between(steps, low, high, alpha=0.2, color=line.get_color())
        above.set_title(game)
        above.legend(loc="lower right")
        below.set(xlabel="training step", ylabel="success in training", ylim=(0, 1.03))
        turns.set(ylabel="decisions per episode", ylim=(0, None))
    axes[0][0].set_ylabel("reward per sample")
    figure.tight_layout()
    figure.savefig(RESULTS / "coevolution.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
