"""What a run folder holds as JSON, and the only way in which it is read: checked, and never through a link.

A run folder may be a stranger's, damaged, or half copied. Each record has a model here; one that does not fit is a
RunError that names the file, what is wrong and what to do, and no other part of the program meets it.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cadre.errors import RunError, one_line
from cadre.file_limits import DESCRIPTION, parse_json, size_of

Count = Annotated[int, Field(strict=True, ge=0, le=1 << 62)]
Step = Annotated[int, Field(strict=True, ge=0, le=1 << 40)]
Number = Annotated[float, Field(strict=True)]
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Text = Annotated[str, Field(strict=True)]
Record = TypeVar("Record", bound=BaseModel)


class Open(BaseModel):
    """A record that may say more than is known of it here, as a later Cadre's does."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


class Command(Open):
    """`command.json`."""

    recipe: Text
    overrides: list[Text]
    forked_at: Step | None = None


class Root(Open):
    """Where a run was begun, in `command.json`: a folder, and the run's place in it."""

    root: Text
    run: Text


class Environment(Open):
    """`environment.json`."""

    cadre: Text = ""
    python: Text = ""
    machine: Text = ""
    commits: dict[Text, Text] = {}
    packages: dict[Text, Text | None] = {}
    tasks: dict[Text, Text] = {}
    sampling_memory: dict[Text, Number] = {}


class StepMetrics(Open):
    """A line of `metrics.jsonl`: the step, and numbers by name."""

    __pydantic_extra__: dict[str, Number | None]
    step: Step


class Evaluation(Open):
    """A line of `evaluations.jsonl`."""

    step: Step
    success: Number
    reward: Number
    low: Number = 0.0
    high: Number = 1.0
    tasks: Count = 0
    tokens: Number = 0.0


class OfStep(Open):
    """A line of which only the step is looked at: `resumed.jsonl`."""

    step: Step


class LeftOut(Open):
    """A line of `left_out.jsonl`."""

    step: Step
    kind: Text
    reason: Text


class Words(Open):
    """A line of `vocabulary.jsonl`."""

    policy: Text
    tokens: dict[Annotated[str, Field(pattern=r"^\d+$")], Text]


class IndexLine(Open):
    """A line of `trees.index.jsonl`."""

    offset: Count
    length: Annotated[int, Field(strict=True, gt=0, le=1 << 40)]
    step: Step
    tree: Count
    task: Text
    decisions: Count
    samples: Count
    episodes: Count
    wins: Count
    reward: Number
    roles: list[Text]


class Said(Open):
    """What an annotation says of one sample."""

    node: Count
    role: Text
    index: Count


class AnnotationHead(Open):
    """A line of `annotations/PRODUCER.jsonl`, as far as it says where it belongs."""

    step: Step
    tree: Count
    samples: list[Any]


class Annotation(Open):
    """A line of `annotations/PRODUCER.jsonl`."""

    step: Step
    tree: Count
    samples: list[Said]


class KeptImage(Open):
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class KeptMessage(Open):
    role: Text
    content: Text
    images: list[KeptImage] = []


class KeptObservation(Open):
    role: Text
    messages: list[KeptMessage]


class KeptSample(Open):
    policy: Text
    text: Text
    token_ids: list[Count]
    logprobs: list[Number]
    finish: Text
    version: Count
    prompt_ids: list[Count] = []


class KeptReward(Open):
    team: Number
    local: dict[str, Number]
    parts: dict[str, Number]


class KeptBranch(Open):
    choice: dict[str, Count]
    reward: KeptReward
    over: bool
    success: bool
    carried: bool
    child: Count | None


class KeptNode(Open):
    turn: Count
    observations: dict[str, KeptObservation]
    prompts: dict[str, list[Count]]
    samples: dict[str, list[KeptSample]]
    branches: list[KeptBranch]


class KeptTask(Open):
    id: Text


class Tree(Open):
    """A line of `trees.jsonl`, in the present format."""

    step: Step
    tree: Count
    task: KeptTask
    nodes: list[KeptNode]


class TreeHead(Open):
    """A line of `trees.jsonl` in any format, as far as all formats agree."""

    step: Step


class Part(Open):
    kind: Text
    policies: list[Text]
    processes: Count
    waiting: Count
    replaced: Count


class Status(Open):
    """`status.json`."""

    written: Number
    step: Step
    steps: Count
    learning: bool
    sampling: list[Step]
    ready: list[Step]
    max_staleness: Count
    staleness: dict[str, Number]
    tokens_per_s: Number | None
    parts: list[Part]


class CheckpointState(BaseModel):
    """`state.json` of a checkpoint."""

    model_config = ConfigDict(extra="forbid")

    step: Step
    baselines: dict[str, Finite] = {}
    best_step: Step | None = None
    best: Finite = 0.0


class WarmStartSettings(BaseModel):
    """`warm_start/settings.json`."""

    model_config = ConfigDict(extra="forbid")

    steps: Annotated[int, Field(strict=True, ge=1)]
    examples: Annotated[int, Field(strict=True, ge=1)]
    learning_rate: Annotated[float, Field(strict=True, gt=0.0, lt=1e31)]
    seed: Annotated[int, Field(strict=True)]


class Begun(Open):
    """`begun.json` of a reward model that is not complete."""

    model: Text
    checksum: Text


class ManifestEntry(Open):
    bytes: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Manifest(Open):
    """`manifest.json` of a sealed folder."""

    files: dict[str, ManifestEntry]


def open_plain(path: Path, root: Path | None = None, flags: int = os.O_RDONLY) -> BinaryIO:
    """Open a file of a run folder, whose folder is `root`; its own folder where none is named.

    Raises RunError where it, or a folder on the way from `root` to it, is a link, and where it is no plain file: what
    a link leads to was not written by the run. Raises FileNotFoundError where there is none.
    """
    for above in _between(root, path):
        refuse_link(above)
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _linked(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RunError(f"{path}: is no plain file; expected one, as a run writes it. Restore it from a copy.")
    if flags & os.O_RDWR:
        return os.fdopen(descriptor, "r+b")
    return os.fdopen(descriptor, "rb")


def _between(root: Path | None, path: Path) -> list[Path]:
    """The folders below `root` on the way to a path."""
    if root is None:
        return []
    names = path.relative_to(root).parts
    return [root.joinpath(*names[:depth]) for depth in range(1, len(names))]


def _linked(path: Path) -> RunError:
    return RunError(
        f"{path}: is a link, and links in a run folder are not followed, as they may lead anywhere; expected what the "
        "run wrote itself. Put a copy of what it leads to in its place."
    )


def refuse_link(path: Path) -> None:
    """Raises RunError where a file or folder of a run folder is a link."""
    if path.is_symlink():
        raise _linked(path)


def copy_plain(path: Path, into: Path) -> None:
    """Copy a file of a run folder. Raises RunError for a link."""
    with open_plain(path) as file, into.open("xb") as copy:
        shutil.copyfileobj(file, copy)


def exists(path: Path) -> bool:
    """Return whether anything of that name is in a run folder, a link that leads nowhere too."""
    return os.path.lexists(path)


def read_text(path: Path, root: Path | None = None) -> str:
    """Return the text of a file of a run folder. Raises RunError where it cannot be read as one."""
    try:
        with open_plain(path, root) as file:
            content = file.read(DESCRIPTION + 1)
        if len(content) > DESCRIPTION:
            raise damaged(path, f"it holds more than {size_of(DESCRIPTION)}")
        return content.decode()
    except UnicodeDecodeError as error:
        raise damaged(path, f"not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); expected what a run writes. Restore it.") from None


def read_record(path: Path, model: type[Record], root: Path | None = None) -> Record:
    """Return the JSON object in a file. Raises RunError that says what is wrong with it."""
    text = read_text(path, root)
    try:
        return parse(text, model)
    except ValueError as error:
        raise damaged(path, str(error)) from None


def parse(text: str | bytes, model: type[Record]) -> Record:
    """Return the record that a text holds. Raises ValueError whose message is one line."""
    return checked(loads(text), model)


def loads(text: str | bytes) -> Any:
    """Return the JSON value of a text. Raises ValueError whose message is one line."""
    if not text.strip():
        raise ValueError("it is empty")
    try:
        # Of bytes with zeros in them, as a power cut leaves, JSON would take another encoding.
        return parse_json(text if isinstance(text, str) else text.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None


def checked(value: Any, model: type[Record]) -> Record:
    """Return a JSON value as a record. Raises ValueError whose message is one line."""
    if not isinstance(value, Mapping):
        raise ValueError(f"got {type(value).__name__}, expected an object")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = one_line(".".join(map(str, first["loc"])))
        got = "" if first["type"] == "missing" else f", got {repr(first['input'])[:60]}"
        raise ValueError(f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}{got}") from None


def check(value: Any, model: type[BaseModel], path: Path) -> None:
    """Raises RunError where a JSON value of a file does not fit the model."""
    try:
        checked(value, model)
    except ValueError as error:
        raise damaged(path, str(error)) from None


def damaged(path: Path, why: str) -> RunError:
    """What is raised for a file that does not hold what a run writes."""
    return RunError(
        f"{path}: is damaged ({why}); expected what a run writes. Restore it from a copy, or remove it where the run "
        "can do without."
    )


def check_tree(value: Any) -> None:
    """Raises ValueError where a kept tree does not hold together: what its branches name has to be there, and each
    decision but the first has one branch above it, so that whoever walks it comes to an end."""
    tree = checked(value, Tree)
    if not tree.nodes:
        raise ValueError("nodes: empty")
    led_to = [False] * len(tree.nodes)
    for number, node in enumerate(tree.nodes):
        if not node.samples or node.samples.keys() - node.observations.keys():
            raise ValueError(f"nodes.{number}.samples: not of the roles of observations")
        for role, siblings in node.samples.items():
            if role not in node.prompts and not all(sample.prompt_ids for sample in siblings):
                raise ValueError(f"nodes.{number}.prompts: lacks {role!r}")
        for branch in node.branches:
            for role, index in branch.choice.items():
                if role not in node.samples or index >= len(node.samples[role]):
                    raise ValueError(f"nodes.{number}.branches: chooses {role!r} number {index}, which is not there")
            child = branch.child
            if child is not None:
                if not number < child < len(tree.nodes) or led_to[child]:
                    raise ValueError(f"nodes.{number}.branches: leads to {child}, no decision below it alone")
                led_to[child] = True
