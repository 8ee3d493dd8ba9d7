"""The data sets by name: where the hub keeps each, how many rows a split has, and how a row is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cadre.data import parse
from cadre.data.records import Kind, Record


@dataclass(frozen=True)
class Spec:
    """One data set.

    hub, config   its name on the Hugging Face hub, and the configuration there, if it has several
    splits        our split: (the hub's split, the numbers of rows that published versions have; none if unknown)
    files         a pattern of its files in the repository, where their paths do not name the splits
    folders       names that a local folder of it goes by, beside its own
    parse         a row and its place in the file to a record
    belongs       for sets that are one file: whether a row is of a split
    """

    kind: Kind
    hub: str
    splits: Mapping[str, tuple[str, tuple[int, ...]]]
    parse: Callable[[Mapping[str, Any], int], Record | None]
    config: str = ""
    files: str = ""
    folders: tuple[str, ...] = ()
    belongs: Callable[[Mapping[str, Any], str], bool] = lambda row, split: True


MBPP_SPLITS = {"train": range(601, 975), "test": range(11, 511), "validation": range(511, 601)}


def mbpp_belongs(row: Mapping[str, Any], split: str) -> bool:
    """The usual splits, by number (arXiv 2108.07732, section 2.1); 1 to 10 are for few-shot prompts."""
    return row["task_id"] in MBPP_SPLITS[split]


SPECS: dict[str, Spec] = {
    "aime24": Spec("problem", "HuggingFaceH4/aime_2024", {"test": ("train", (30,))}, parse.problem),
    "aime25": Spec("problem", "math-ai/aime25", {"test": ("test", (30,))}, parse.problem),
    "olympiadbench": Spec(
        "problem", "Hothan/OlympiadBench", {"test": ("train", (674, 675))}, parse.olympiadbench, "OE_TO_maths_en_COMP"
    ),
    "math500": Spec("problem", "HuggingFaceH4/MATH-500", {"test": ("test", (500,))}, parse.problem),
    "gsm8k": Spec(
        "problem", "openai/gsm8k", {"train": ("train", (7473,)), "test": ("test", (1319,))}, parse.gsm8k, "main"
    ),
    "math-train": Spec(
        "problem",
        "DigitalLearningGmbH/MATH-lighteval",
        {"train": ("train", (7500,))},
        parse.math_train,
        "data",  # beside it stands every subject by itself
        folders=("math_train",),
    ),
    "deepmath": Spec(
        "problem",
        "zwhe99/DeepMath-103K",
        {"train": ("train", (103_022, 103_110))},
        parse.deepmath,
        folders=("deepmath5k",),
    ),
    "polaris": Spec("problem", "POLARIS-Project/Polaris-Dataset-53K", {"train": ("train", (53_291,))}, parse.problem),
    "deepscaler": Spec(
        "problem", "agentica-org/DeepScaleR-Preview-Dataset", {"train": ("train", (40_315,))}, parse.problem
    ),
    "humaneval": Spec("program", "openai/openai_humaneval", {"test": ("test", (164,))}, parse.humaneval),
    "coophumaneval": Spec("program", "OpenMLRL/CoopHumanEval", {"test": ("test", (82,))}, parse.humaneval),
    "mbpp": Spec(
        "program",
        "google-research-datasets/mbpp",
        {"train": ("train", (374,)), "test": ("test", (500,))},
        parse.mbpp,
        "full",
        belongs=mbpp_belongs,
    ),
    "apps": Spec("program", "codeparrot/apps", {"train": ("train", (5000,)), "test": ("test", (5000,))}, parse.apps),
    "code-contests": Spec(
        "program",
        "deepmind/code_contests",
        {"train": ("train", (13_328,)), "test": ("test", (165,))},
        parse.code_contests,
        folders=("code_contests",),
    ),
    "livecodebench": Spec(
        "program",
        "livecodebench/code_generation_lite",
        {"test": ("test", (400, 511, 612, 713, 880, 1055))},
        parse.livecodebench,
        files="test*.jsonl",
    ),
    "scitldr": Spec(
        "article",
        "allenai/scitldr",
        {"train": ("train", (1992,)), "test": ("test", (618,))},
        parse.scitldr,
        "Abstract",
    ),
    "tldr": Spec("article", "trl-lib/tldr", {"train": ("train", (116_722,)), "test": ("test", (6_553,))}, parse.tldr),
    "arxiv": Spec(
        "article",
        "OpenMLRL/arXiv_abstract",
        {"train": ("train", (140_313,)), "test": ("val", (5_383,))},
        parse.arxiv,
    ),
    "stories": Spec(
        "article",
        "euclaise/writingprompts",
        {"train": ("train", (272_600,)), "test": ("test", (15_138,))},
        parse.story,
    ),
}
