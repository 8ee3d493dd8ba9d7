"""The words of the models: `vocabulary.jsonl` says how each token that a kept tree holds is spelt.

Lines `{"policy": "planner", "tokens": {"12": "the", "91": "<0xE2>"}}`, each token once a policy, so that a run can be
read without its models. A token that is a part of a character is spelt by its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from cadre.experiment import jsonl
from cadre.experiment.records import Words
from cadre.experiment.trees.format import KeptTree, samples

FILE = "vocabulary.jsonl"


class Speller(Protocol):
    """Spells the tokens of one model."""

    def spell(self, token: int) -> str:
        """Its text; `<0xE2><0x82>` for bytes that are no whole character."""
        ...


class Vocabulary:
    """Writes how the tokens of kept trees are spelt. Owned by the run; `spellers` are by policy, and a policy without
    one, such as a remote one, is left out."""

    def __init__(self, spellers: Mapping[str, Speller]) -> None:
        self._spellers = spellers
        self._known: dict[str, set[int]] | None = None

    def learn(self, folder: Path, tree: KeptTree) -> None:
        """Write the tokens of a tree that the file does not have yet."""
        known = self._read(folder)
        for policy, tokens in tokens_of(tree).items():
            fresh = sorted(tokens - known.setdefault(policy, set()))
            if fresh and policy in self._spellers:
                spelt = {str(token): self._spellers[policy].spell(token) for token in fresh}
                jsonl.append(folder / FILE, {"policy": policy, "tokens": spelt})
                known[policy] |= tokens

    def _read(self, folder: Path) -> dict[str, set[int]]:
        if self._known is None:
            self._known = {policy: set(map(int, spelt)) for policy, spelt in read(folder).items()}
        return self._known


def tokens_of(tree: KeptTree) -> dict[str, set[int]]:
    """By policy: every token of its prompts and of its samples."""
    tokens: dict[str, set[int]] = {}
    for node, role, _, sample in samples(tree):
        prompt = sample.get("prompt_ids") or tree["nodes"][node]["prompts"].get(role, ())
        tokens.setdefault(sample["policy"], set()).update(sample["token_ids"], prompt)
    return tokens


def read(folder: Path) -> dict[str, dict[str, str]]:
    """By policy: the spelling of each token."""
    words: dict[str, dict[str, str]] = {}
    for line in jsonl.records(folder / FILE, Words):
        words.setdefault(line["policy"], {}).update(line["tokens"])
    return words
