"""Records of trees as a run keeps them."""

from __future__ import annotations

from pathlib import Path

from bench.parity.trees import assign, credit_of, inner, leaf, node
from cadre.advantages.batch import TrainingBatch, select_samples
from cadre.learn.token_notes import TokenNote
from cadre.rollout.episodes import Failure, SampledTrees
from cadre.runs.kept_trees import StepRecord, StepRecorder, Vocabulary
from cadre.runs.tree_format import MediaStore
from cadre.settings import CreditConfig, TrainConfig
from cadre.types import Task, Tree


class Letters:
    """Spells token 3 as `d`."""

    def spell(self, token: int) -> str:
        return chr(ord("a") + token)


def tree(name: str, *pays: float) -> Tree:
    """The tool is paid alike; its second goes on, and the planner's answers are paid so."""
    planner = node(0, {"planner": len(pays)}, [leaf({"planner": i}, pay) for i, pay in enumerate(pays)])
    return Tree(Task(name, {}), node(0, {"tool": 2}, [leaf({"tool": 0}), inner({"tool": 1}, planner)]))


def record(*trees: Tree, chosen: CreditConfig | None = None, replaced: int = 0) -> StepRecord:
    groups = assign(list(trees), credit_of("step", "node", "mean", "std"))
    judged = [scored for group in groups for scored in group.samples]
    batch = TrainingBatch([], groups, judged, select_samples(groups, chosen or CreditConfig()))
    failed = Failure(Task("broken", {}), "raised", "ValueError: no goal", "Traceback", True)
    notes = [TokenNote((0, (1,), "planner", 1), (-0.5, -0.25), (0.1, 0.2))]
    return StepRecord(SampledTrees(list(trees), [failed], replaced), batch, notes)


def keeping(folder: Path, **goal: float) -> StepRecorder:
    return StepRecorder(
        folder, TrainConfig(**goal), CreditConfig(), Vocabulary({"shared": Letters()}), MediaStore(folder)
    )
